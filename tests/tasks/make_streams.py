"""Freezes the first three examples of every task in streams.json: `python -m tests.tasks.make_streams`.

Run it only for a change of a task that is meant to change its data, and say so in CHANGELOG.md: results from before and
after are then not paired any more.
"""

import json
from pathlib import Path

from tests.tasks import cases

PATH = Path(__file__).with_name("streams.json")


def first(task):
    """Input, answer and number of counted targets of the first three examples of the common batch."""
    example = cases.batch(task)
    inputs = cases.rows(example.inputs[:3], example.input_length[:3])
    targets = cases.rows(example.targets[:3], example.target_length[:3])
    return [list(one) for one in zip(inputs, targets, example.weight[:3].sum(-1).tolist(), strict=True)]


def main() -> None:
    """Write the file, one example to a line."""
    blocks = []
    for case, (_, task) in cases.CASES.items():
        lines = ",\n".join(f"    {json.dumps(one)}" for one in first(task))
        blocks.append(f"  {json.dumps(case)}: [\n{lines}\n  ]")
    PATH.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
