"""What the worker can be asked for beside the command line: making the subjects, and loading a run as an analysis does."""

import hashlib
import json
import pathlib

from attnjax.sweep import prepare, run_here
from attnjax.sweep.stop import Stop


def load(arguments: list[str]) -> int:
    """Print the fingerprint of the parameters of a run, and the step if the analysis names it."""
    import jax
    import numpy as np

    from attnjax.evaluation.loaded_model import load

    try:
        subject = load(arguments[0])
    except (ValueError, OSError) as error:  # what its docstring allows, as a script would see it
        print(f"{type(error).__name__}: {error}")
        return 2
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(subject.params):
        total.update(np.ascontiguousarray(leaf).tobytes())
    print(json.dumps({"fingerprint": total.hexdigest(), "step": getattr(subject, "step", None)}))
    return 0


def make(arguments: list[str]) -> int:
    """CONFIG FOLDER OVER...: a sweep whose first run is done and whose others stopped at step 40."""
    from attnjax.cli.planning import planned
    from attnjax.train import train

    config, folder, *over = arguments
    plan = planned(config, over=over)
    store = prepare(pathlib.Path(folder), plan.config.name, plan.runs, config_file=config, protocol=plan.file.text)
    done, *others = (entry.run for entry in store.runs)
    run_here(store.only([done]), train)
    for run in others:
        stop = Stop()
        halt = lambda event, stop=stop: event.step >= 40 and stop.set("SIGTERM")
        run_here(store.only([run]), train, stop=stop, progress=halt)
    return 0


def model(arguments: list[str]) -> int:
    """FOLDER: a published architecture with weights of zeros, and a tokenizer of three words."""
    from tests.models.test_hostile import folder

    path = folder(pathlib.Path(arguments[0]))
    words = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": words}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return 0
