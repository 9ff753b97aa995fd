"""A tiny run, a trained population of it that all files read, and a caller of `train` that remembers what it is told."""

import collections
import dataclasses
import gc
import pathlib
from typing import NamedTuple

import pytest

from attnjax.config import EncodingConfig, parse
from attnjax.config.kinds import Options
from attnjax.config.mesh import ONE_DEVICE
from attnjax.train import loop, train

SETTINGS = {
    "name": "tiny",
    "task": {"name": "reverse_string", "length_min": 1, "length_max": 4},
    "model": {"layers": 1, "model": 16, "heads": 2, "hidden": 32, "encoding": {"name": "rope"}},
    "train": {"steps": 32, "batch": 8, "learning_rate": 3e-3, "warmup": 4, "log_every": 4, "checkpoint_every": 8},
    # 24 examples in batches of 16: those that fill the last one must not count.
    "evaluate": {"lengths": [2, 4, 9], "validation_lengths": [1, 2], "count": 24, "batch": 16}
    | {"bucket_sizes": [9], "every": 8},
}
RATES = {0: 1e-4, 1: 1e-2, 7: 3e-2}
"""The learning rate of each seed: the first learns little, the others much, one earlier than the other."""
BASES = {0: 10_000.0, 1: 500.0, 7: 50.0}
"""The base of RoPE of each seed: the runs have one program, which is given the numbers of their encodings."""

LEFT_BY_ORBAX = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
    pytest.mark.usefixtures("collected"),
]
"""Orbax leaves an event loop behind where a read fails, which Python mentions when it is collected."""


@pytest.fixture
def collected():
    yield
    gc.collect()


@pytest.fixture(scope="session", autouse=True)
def forget_programs():
    """Files of this folder share programs; those of the next one forget them."""


def population(**changes):
    """Three runs, with changes of `train`."""
    runs = []
    for seed, rate in RATES.items():
        train = {**SETTINGS["train"], "learning_rate": rate, **changes}
        run = parse({**SETTINGS, "train": train, "seed": seed, "data_seed": seed})
        runs.append(with_encoding(run, "rope", theta=BASES[seed]))
    return runs


def with_train(run, **changes):
    return dataclasses.replace(run, train=dataclasses.replace(run.train, **changes))


def with_encoding(run, name, **options):
    one = EncodingConfig(name, Options(options))
    return dataclasses.replace(run, model=dataclasses.replace(run.model, encoding=one))


@pytest.fixture(scope="session")
def tiny():
    return parse(SETTINGS)


class Recorder:
    """A `RunContext` that keeps everything, and asks for a stop after a number of calls of the compiled program."""

    def __init__(self, stop_after=None, mesh=ONE_DEVICE):
        self.stop_after, self.calls, self.mesh = stop_after, 0, mesh
        self.logs, self.found, self.notes, self.failed, self.single = {}, {}, {}, {}, {}

    def stopping(self):
        return "a test" if self.stop_after is not None and self.calls >= self.stop_after else ""

    def stop(self, reason):
        raise AssertionError(f"training was stopped: {reason}")

    def step(self, directory, step):
        self.calls += directory.name == "0"

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


def made(root, count=3):
    """Folders for a population."""
    folders = [root / str(i) for i in range(count)]
    for folder in folders:
        folder.mkdir(parents=True)
    return folders


@pytest.fixture(scope="session")
def shared_programs():
    """All calls of `train` share their programs, which depend on neither rates nor checkpoints. Yields counts of traces."""
    kept, traces = {}, collections.Counter()

    def shape(run):
        train = dataclasses.replace(run.train, learning_rate=1.0, until=0.0, keep=1, checkpoint_every=0, log_every=0)
        return dataclasses.replace(run, seed=0, data_seed=0, train=train)

    def remembered(kind):
        return lambda run, *rest, **own: kept.setdefault(repr((kind, shape(run), rest, own)), kind(run, *rest, **own))

    def counted(kind, name):
        real = getattr(kind, name)
        return lambda *given, **named: (traces.update([name]), real(*given, **named))[1]

    with pytest.MonkeyPatch.context() as patch:
        for kind, names in ((loop.Trainer, ("_start", "_advance")), (loop.Evaluator, ("_examples", "_population"))):
            for name in names:
                patch.setattr(kind, name, counted(kind, name))
            patch.setattr(loop, kind.__name__, remembered(kind))
        yield traces


class Trained(NamedTuple):
    """What a population has left, and how often each part of the programs was traced."""

    context: Recorder
    folders: list[pathlib.Path]
    traces: dict[str, int]


@pytest.fixture(scope="session")
def whole(shared_programs, tmp_path_factory):
    """The records of a population that was not interrupted, and its folders with every checkpoint."""
    context, folders = Recorder(), made(tmp_path_factory.mktemp("whole"))
    before = shared_programs.copy()
    train(population(keep=100), folders, context)
    return Trained(context, folders, dict(shared_programs - before))
