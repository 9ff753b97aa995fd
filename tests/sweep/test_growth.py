"""What operations on a folder of runs cost as it grows, in file operations and looks at names, not in time."""

import fake_training
import pytest
from operations import counted

from attnjax.cli import main
from attnjax.records import runs as records
from attnjax.records.files import write
from attnjax.sweep import ExecutionConfig, load, prepare, run_here, scan, seeds, store, vary
from attnjax.sweep.execute import is_open, states
from attnjax.sweep.plan import Planned, plan

ALONE = ExecutionConfig(population=1)
SIZES = (1, 6, 12, 18)
"""The first is not compared: it pays for imports."""


def cost(operation):
    with counted() as calls:
        operation()
    return sum(calls.values())


def grows_evenly(costs):
    """Each further run costs the same, but for what depends on the moment; if growth is quadratic, the last cost 1.7 times."""
    _, first, second, third = costs
    return 0 < third - second <= 1.05 * (second - first)


def ended(make, tmp_path, size):
    """A sweep of so many short runs that are done."""
    made = make(seeds(size), root=tmp_path / str(size), train={"steps": 1}, task={"options": {"work": 1}})
    run_here(made, fake_training.train, ALONE)
    return made


@pytest.mark.slow
def test_each_further_run_costs_the_same(make, tmp_path, capsys):
    again = lambda made: [Planned(made.config(entry.run), entry.overrides) for entry in made.runs]
    measured = {
        "train": lambda made: run_here(made, fake_training.train, ALONE),
        "nothing left": lambda made: run_here(made, fake_training.never, ALONE),
        "states": states,
        "scan": lambda made: scan(made.root),
        "list": lambda made: main(["list", "runs", str(made.root)]),
        "prepare": lambda made: prepare(made.root, "small", again(made)),
    }
    costs = {name: [] for name in measured}
    for size in SIZES:
        made = make(seeds(size), root=tmp_path / str(size), train={"steps": 1}, task={"options": {"work": 1}})
        for name, operation in measured.items():
            costs[name].append(cost(lambda operation=operation, made=made: operation(made)))
    assert {name: found for name, found in costs.items() if not grows_evenly(found)} == {}


def test_of_runs_that_have_ended_a_worker_reads_the_status_once_and_the_rest_when_it_ends(make, tmp_path, monkeypatch):
    made = ended(make, tmp_path, 3)
    read = []
    real = records.files.read_text
    monkeypatch.setattr(
        records.files, "read_text", lambda path, *limit: (read.append(path.name), real(path, *limit))[1]
    )
    assert not is_open(made)
    assert read == ["status.json"] * 3


def test_whether_a_run_is_left_is_known_at_the_first(make):
    made = make(seeds(20))
    assert cost(lambda: is_open(made)) < cost(lambda: states(made)) / 10


class Name(str):
    """The name of a run, which counts how often names are looked up by their hash."""

    looked = 0

    def __hash__(self):
        type(self).looked += 1
        return super().__hash__()

    __eq__ = str.__eq__


def test_a_part_of_a_sweep_is_chosen_in_one_look_at_its_names():
    entries = tuple(store.Entry(Name(f"{i:016x}"), "", "", {}) for i in range(300))
    whole = store.Store(None, "small", entries)
    Name.looked = 0
    assert whole.only([entry.run for entry in entries[:200]]).runs == entries[:200]
    assert Name.looked <= 3 * 300


def test_the_entries_of_a_folder_are_told_apart_in_one_look_at_their_names(tmp_path, monkeypatch):
    for i in range(300):
        (tmp_path / f"{i:016x}").mkdir()
    (tmp_path / "notes.txt").touch()
    real = records.enter

    class Counting:
        def __init__(self, path):
            self.folder = real(path)
            self.kind = self.folder.kind

        def names(self):
            return [Name(name) for name in self.folder.names()]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.folder.close()

    monkeypatch.setattr(records, "enter", Counting)
    Name.looked = 0
    found = records.entries(tmp_path)
    assert (len(found.runs), found.links, found.foreign) == (300, [], ["notes.txt"])
    assert Name.looked <= 8 * 300


def test_a_plan_may_be_larger_than_a_config(make, tmp_path, monkeypatch):
    """That of 100,000 runs is; it was written and could then not be read."""
    monkeypatch.setattr("attnjax.records.files.SIZE", 1000)
    made = make(seeds(20))
    assert (made.root / "sweep.json").stat().st_size > 1000
    assert load(made.root).runs == made.runs


@pytest.mark.parametrize("dry", [False, True])
def test_a_plan_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch, dry):
    monkeypatch.setattr(store, "SIZE_OF_PLAN", 2**10)
    runs = plan({"name": "small"}, vary("seed", range(30)))
    with pytest.raises(ValueError, match=r"the plan of these 30 runs would be larger than 0 MiB, more than is read"):
        prepare(tmp_path / "runs", "small", runs, dry=dry)
    assert not (tmp_path / "runs" / "sweep.json").exists()


def test_a_plan_larger_than_any_sweep_is_refused(make, monkeypatch):
    made = make(seeds(1))
    monkeypatch.setattr(records, "SIZE_OF_PLAN", 2**10)
    write(made.root / "sweep.json", " " * 2**11)
    with pytest.raises(ValueError, match=r"sweep.json is larger than 1024 bytes"):
        load(made.root)
