"""Freezes the first three examples of tasks in streams.json: `python -m tests.tasks.make_streams [CASE ...]`.

Without names, what is not frozen yet is added, and the rest stays as it is: this is the way for a new task. Name a case only
for a change of a task that is meant to change its data, and say so in CHANGELOG.md: results from before and after are then
not paired any more.
"""

import json
import sys
from pathlib import Path

from tests.tasks import cases

PATH = Path(__file__).with_name("streams.json")


def first(task):
    """Input, answer and number of counted targets of the first three examples of the common batch."""
    example = cases.draw(task, cases.lengths(task))
    inputs = cases.rows(example.inputs[:3], example.input_length[:3])
    targets = cases.rows(example.targets[:3], example.target_length[:3])
    return [list(one) for one in zip(inputs, targets, example.weight[:3].sum(-1).tolist(), strict=True)]


def main(again) -> None:
    """Write the file, one example to a line, with the cases `again` made anew."""
    if unknown := set(again) - set(cases.STREAMS):
        sys.exit(f"there is no case {', '.join(sorted(unknown))}; there are: {', '.join(cases.STREAMS)}")
    there = json.loads(PATH.read_text(encoding="utf-8"))
    blocks = []
    for case, task in cases.STREAMS.items():
        examples = there[case] if case in there and case not in again else first(task)
        lines = ",\n".join(f"    {json.dumps(one)}" for one in examples)
        blocks.append(f"  {json.dumps(case)}: [\n{lines}\n  ]")
    PATH.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
