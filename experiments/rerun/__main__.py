"""Does a committed cell come out again under another rounding? Its runs are trained again and compared with its range.

    python -m experiments.rerun --task copy --encoding alibi    trains 20 reruns into runs/rerun/copy_alibi, and compares
    python -m experiments.rerun --compare runs/rope_vs_sinusoidal  all runs of this sweep, trained by you, beside the committed
    python -m experiments.rerun --render runs/rerun/copy_alibi  the page from the records alone

A rerun has the seeds and the data of the committed runs and a learning rate that differs in its last bits
(experiments/rerun/planning.py). Called again, the command goes on where it was stopped. In another environment it also is
another version of jax: `.venv-other/bin/python -m experiments.rerun ... --out runs/rerun_other`.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from attnjax.cli import main as attnjax
from attnjax.config import cell_id, run_id
from attnjax.config.names import safe_name
from attnjax.records import jsonl
from attnjax.report.records import read as read_sweep
from attnjax.sweep import prepare
from experiments import recorded
from experiments.rerun import elsewhere, page, planning, results


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, compare and render, or render only; returns the exit status: 2 for a mistake of the user, with a line about it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.rerun", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = pathlib.Path
    committed = folder("experiments/rope_vs_sinusoidal/records")
    parser.add_argument("--records", type=folder, default=committed, help=f"committed runs ({committed})")
    parser.add_argument("--task", default="copy", help="the task of the cell (copy)")
    parser.add_argument("--encoding", default="alibi", help="the encoding of the cell (alibi)")
    parser.add_argument("--reruns", type=int, default=20, help="how often the cell is trained again (20)")
    parser.add_argument("--out", type=folder, default=folder("runs/rerun"), help="where a folder of the cell is made")
    parser.add_argument(
        "--compare", type=folder, help="train nothing; compare all runs of this sweep with the committed"
    )
    parser.add_argument("--render", type=folder, help="train nothing; write the page of the records in this folder")
    chosen = parser.parse_args(arguments)
    place = chosen.render
    try:
        if chosen.compare is not None:
            place = chosen.out / safe_name(chosen.compare.name, "the sweep")
            elsewhere.write(chosen.records, chosen.compare, place)
        elif place is None:
            place = chosen.out / safe_name(f"{chosen.task}_{chosen.encoding}", "the cell")
            if status := rerun(chosen, place):
                return status
        made = (elsewhere if elsewhere.holds(place / recorded.RECORDS) else page).render(place)
    except (ValueError, OSError) as error:
        print(f"rerun: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, made)))
    return 0


def rerun(chosen: argparse.Namespace, target: pathlib.Path) -> int:
    """Train what is missing in target/runs and write target/records.jsonl; returns the exit status of training."""
    units = planning.nudges(chosen.reruns)
    configs = planning.cell(chosen.records, chosen.task, chosen.encoding)
    before = results.measured(read_sweep(chosen.records), [run_id(config) for config in configs])
    if not before:
        raise ValueError(
            f"the runs of {chosen.task} under {chosen.encoding} have measured nothing that could be compared"
        )
    planned = planning.reruns(configs, chosen.reruns)
    protocol = {
        "kind": "protocol",
        "records": chosen.records.as_posix(),
        "task": chosen.task,
        "encoding": chosen.encoding,
    }
    protocol |= {"cell": cell_id(configs[0]), "reruns": chosen.reruns, "most": max(units)}
    first = recorded.begin(target / recorded.RECORDS, protocol)
    store = prepare(target / "runs", "rerun", planned, protocol=__doc__ or "")
    if status := attnjax(["work", str(store.root)]):
        return status
    again = results.measured(read_sweep(store.root), key=before[0]["metric"])
    made = (first or recorded.begin(target / recorded.RECORDS, protocol))[:2]
    rows = results.tables(sorted(before, key=results.seeds_of), again, units)
    jsonl.replace(target / recorded.RECORDS, [*made, *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
