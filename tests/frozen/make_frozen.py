"""Makes a folder of runs as the present code writes it, to be moved here: `python tests/frozen/make_frozen.py /tmp/format_N`.

A later version must read what an earlier one wrote. One run of the folder is done, the other was stopped at step 40 of 60.
"""

import pathlib
import sys

from attnjax.config import parse
from attnjax.sweep import Stop, Store, prepare, run_here
from attnjax.sweep.plan import plan
from attnjax.train import train

CONFIG = {
    "name": "frozen",
    "task": {"name": "bucket_sort", "length_min": 1, "length_max": 4},
    "model": {"layers": 1, "model": 8, "heads": 1, "hidden": 8, "encoding": {"name": "rope"}},
    "train": {"steps": 60, "batch": 2, "log_every": 20, "checkpoint_every": 20, "keep": 1},
    "evaluate": {
        "lengths": [2, 6],
        "validation_lengths": [4],
        "count": 4,
        "batch": 4,
        "bucket_sizes": [6],
        "every": 20,
    },
}


def main() -> None:
    """Train both runs. Checkpoints name the folder that they were written to, so make them where the name tells nothing."""
    root = pathlib.Path(sys.argv[1])
    store = prepare(root, "frozen", plan(parse(CONFIG), [{"seed": 0}, {"seed": 1}]))
    done, stopped = (entry.run for entry in store.runs)
    run_here(store.only([done]), train)
    _stop_at(store.only([stopped]), 40)


def _stop_at(store: Store, step: int) -> None:
    stop = Stop()
    run_here(store, train, stop=stop, progress=lambda event: event.step >= step and stop.set("SIGTERM"))


if __name__ == "__main__":
    main()
