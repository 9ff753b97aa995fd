"""What does a policy of positions do under each encoding, and does it do nothing where it cannot? Paired differences.

attnjax sweep policy_placebo --workers 2                                    trains 252 runs into runs/policy_placebo
python -m experiments.policy_placebo --runs runs/policy_placebo             gathers their scores, and writes the page
python -m experiments.policy_placebo --render experiments/policy_placebo    the page from the records alone
"""

import pathlib
import sys
from collections.abc import Sequence

from experiments import command, recorded
from experiments.policy_placebo import page
from experiments.policy_placebo.results import gather


def main(arguments: Sequence[str] | None = None) -> int:
    """Gather and render, or render only; returns the exit status."""
    parser = command.parser("policy_placebo", __doc__, "runs/policy_placebo_page")
    runs = pathlib.Path("runs/policy_placebo")
    parser.add_argument("--runs", type=pathlib.Path, default=runs, help="a sweep that has ended")
    return command.run(
        parser, lambda chosen: gather(chosen.runs, chosen.out / recorded.RECORDS), page.render, arguments
    )


if __name__ == "__main__":
    sys.exit(main())
