"""A tiny run, and a caller of the training function that remembers what it is told."""

import dataclasses
import gc

import pytest

from attnjax.config import parse
from attnjax.config.mesh import ONE_DEVICE
from attnjax.train import loop

SETTINGS = {
    "name": "tiny",
    "task": {"name": "reverse_string", "length_min": 1, "length_max": 6},
    "model": {"layers": 1, "model": 16, "heads": 2, "hidden": 32, "encoding": {"name": "rope"}},
    "train": {"steps": 40, "batch": 8, "learning_rate": 3e-3, "warmup": 4, "log_every": 4, "checkpoint_every": 8},
    "evaluate": {"lengths": [4, 6, 9], "validation_lengths": [5], "count": 24, "batch": 16, "bucket_sizes": [12]},
}


LEFT_BY_ORBAX = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
    pytest.mark.usefixtures("collected"),
]
"""Orbax leaves an event loop behind where a read fails, which Python mentions when it is collected."""


@pytest.fixture
def collected():
    yield
    gc.collect()


@pytest.fixture(scope="session")
def tiny():
    return parse(SETTINGS)


@pytest.fixture(scope="session")
def population(tiny):
    """Two runs that differ in seeds and learning rate."""
    faster = dataclasses.replace(tiny.train, learning_rate=1e-2)
    return [tiny, dataclasses.replace(tiny, seed=1, data_seed=1, train=faster)]


@pytest.fixture(scope="module")
def one_compilation():
    """All calls of `train` in a file share their programs, which depend on neither rates nor checkpoints."""
    trainers, evaluators = {}, {}

    def shape(run):
        same = dataclasses.replace(run.train, learning_rate=1.0, until=0.0, keep=1, checkpoint_every=0, log_every=0)
        return repr(dataclasses.replace(run, seed=0, data_seed=0, train=same))

    trainer, evaluator = loop.Trainer, loop.Evaluator
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            loop, "Trainer", lambda run, *rest, **own: trainers.setdefault(shape(run), trainer(run, *rest, **own))
        )
        patch.setattr(loop, "Evaluator", lambda run, *rest: evaluators.setdefault(shape(run), evaluator(run, *rest)))
        yield


class Recorder:
    """A `RunContext` that keeps everything, and asks for a stop after a number of strides."""

    def __init__(self, stop_after=None, mesh=ONE_DEVICE):
        self.stop_after, self.strides, self.mesh = stop_after, 0, mesh
        self.logs, self.found, self.notes, self.failed, self.single = {}, {}, {}, {}, {}

    def stopping(self):
        return "a test" if self.stop_after is not None and self.strides >= self.stop_after else ""

    def stop(self, reason):
        raise AssertionError(f"training was stopped: {reason}")

    def step(self, directory, step, **numbers):
        self.strides += directory.name == "0"

    def metrics(self, directory, record):
        kept = {name: value for name, value in record.items() if name != "seconds"}
        self.logs.setdefault(directory.name, []).append(kept)

    def results(self, directory, *found):
        self.found.setdefault(directory.name, []).extend(found)

    def examples(self, directory, step, scores):
        self.single[directory.name] = (step, scores)

    def truncate_after(self, directory, step):
        for kept in (self.logs, self.found):
            kept[directory.name] = [one for one in kept.get(directory.name, []) if one["step"] <= step]

    def log_manifest(self, directory, **fields):
        self.notes.setdefault(directory.name, {}).update(fields)

    def fail(self, directory, step, reason):
        self.failed[directory.name] = (step, reason)


@pytest.fixture
def recorder():
    return Recorder


@pytest.fixture
def folders(tmp_path):
    def make(name, count=2):
        made = [tmp_path / name / str(i) for i in range(count)]
        for folder in made:
            folder.mkdir(parents=True)
        return made

    return make
