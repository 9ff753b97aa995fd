"""What does a policy of positions do under each encoding, and does it do nothing where it cannot? Paired differences.

attnjax sweep policy_placebo --workers 2                                    trains 252 runs into runs/policy_placebo
python -m experiments.policy_placebo --runs runs/policy_placebo             gathers their scores, and writes the page
python -m experiments.policy_placebo --render experiments/policy_placebo    the page from the records alone
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from experiments import recorded
from experiments.policy_placebo import page
from experiments.policy_placebo.results import gather


def main(arguments: Sequence[str] | None = None) -> int:
    """Gather and render, or render only; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.policy_placebo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder = pathlib.Path
    parser.add_argument("--runs", type=folder, default=folder("runs/policy_placebo"), help="a sweep that has ended")
    parser.add_argument("--out", type=folder, default=folder("runs/policy_placebo_page"), help="for records and page")
    parser.add_argument("--render", type=folder, help="gather nothing; write the page of the records in this folder")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.render is None:
            gather(chosen.runs, chosen.out / recorded.RECORDS)
        made = page.render(chosen.render or chosen.out)
    except ValueError as error:
        print(f"policy_placebo: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, made)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
