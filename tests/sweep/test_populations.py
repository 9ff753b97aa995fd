"""Which runs train together: none is thrown back by another, and one whose workers died in a row is alone at last."""

import functools
import json
import shutil

import fake_training
import pytest

from attnjax.records import status
from attnjax.sweep import ExecutionConfig, run_here, run_workers, scan, seeds
from attnjax.sweep.lease import machine_id
from attnjax.sweep.run_context import update_manifest
from attnjax.sweep.stop import Stop

END = 10


def saved(directory):
    folder = directory / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir()) if folder.exists() else []


def train(configs, directories, context, most=100):
    """Goes on from the newest checkpoint that all have, and deletes those after it, as `attnjax.train` does.

    More than `most` runs are too large for memory, which shows at the first step.
    """
    step = max(set.intersection(*(set(saved(directory)) for directory in directories)), default=0)
    for directory in directories:
        for later in saved(directory):
            if later > step:
                shutil.rmtree(directory / "checkpoints" / str(later))
        context.truncate_after(directory, step)
    if len(configs) > most:
        raise MemoryError("99 GiB")
    while step < END and not context.stopping():
        step += 1
        for directory in directories:
            context.metrics(directory, {"step": step})
            (directory / "checkpoints" / str(step)).mkdir(parents=True)
            context.step(directory, step)


def start(store, *, train=train, steps=100, **fields):
    """A start that is stopped after so many steps of single runs. Returns the seeds of the populations that were trained."""
    populations, stop, seen = [], Stop(), []

    def told(configs, directories, context):
        populations.append([config.seed for config in configs])
        train(configs, directories, context)

    def progress(event):
        seen.append(event.step > 0)
        if sum(seen) >= steps:
            stop.set("the slot ends")

    run_here(store, told, ExecutionConfig(**fields), progress=progress, stop=stop)
    return populations


def logged(store):
    return [[one["step"] for one in run.metrics().tables] for run in scan(store.root).runs]


def test_a_run_that_has_not_begun_throws_no_other_back(make):
    assert start(make(seeds(1)), steps=6) == [[0]]
    store = make(seeds(3), extend=True)
    assert start(store) == [[0], [1, 2]]
    assert [run.manifest()["resumed_from"] for run in scan(store.root).runs] == [6, 0, 0]
    assert logged(store) == [[*range(1, END + 1)]] * 3
    assert {run.status.state for run in scan(store.root).runs} == {"done"}


def test_a_population_that_fits_no_memory_gets_on_under_a_time_limit(make):
    """Each start trains the runs one by one, because the population raises, for six steps in all."""
    store, ends = make(seeds(3)), []
    while {run.status.state for run in scan(store.root).runs} != {"done"}:
        start(store, train=functools.partial(train, most=1), steps=6)
        ends.append(sum(len(steps) for steps in logged(store)))
        assert len(ends) < 10, ends
    assert ends == sorted(set(ends)), "each start adds steps"
    assert logged(store) == [[*range(1, END + 1)]] * 3


def begun(store, number, steps, population, state="preempted"):
    """A run as it stands after it was trained with others to the last of these checkpoints."""
    directory = store.directory(store.runs[number].run)
    for step in steps:
        (directory / "checkpoints" / str(step)).mkdir(parents=True)
    update_manifest(directory, {"population": [store.runs[one].run for one in population], "state": state})
    for one in ("running", state, *(["pending"] if state == "failed" else [])):
        status.write(directory, status.Status(one, max(steps, default=0)))


TOGETHER = {
    "nothing has begun": ([], [[0, 1, 2, 3]]),
    "all have the same newest checkpoint": ([(n, [4, 6], [n]) for n in range(4)], [[0, 1, 2, 3]]),
    "two have the same newest checkpoint": ([(0, [4, 6], [0]), (2, [6], [2])], [[0, 2], [1, 3]]),
    "one is behind": ([(0, [4, 6], [0]), (1, [4], [1])], [[0], [1], [2, 3]]),
    "a process died amid a save": ([(n, [4, 6][: 2 - n % 2], range(4), "running") for n in range(4)], [[0, 1, 2, 3]]),
    "a process died amid the first save": ([(0, [4], [0, 1], "running"), (1, [], [0, 1], "running")], [[0, 1], [2, 3]]),
    "one has fitted its task": ([(n, [6, 8] if n else [4], [0, 1, 2]) for n in range(3)], [[0, 1, 2], [3]]),
    "one failed and is tried again": (
        [(n, [8] if n else [4], range(4), "failed" if n == 0 else "preempted") for n in range(4)],
        [[0], [1, 2, 3]],
    ),
    "a population was parted": ([(0, [6], [0]), (1, [], [0, 1, 2]), (2, [], [0, 1, 2])], [[0], [1, 2, 3]]),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_runs_train_together_where_none_is_thrown_back(make, name):
    before, expected = TOGETHER[name]
    store = make(seeds(4))
    for run in before:
        begun(store, *run)
    assert start(store, train=lambda *_: None) == expected


def test_runs_that_another_process_has_trained_meanwhile_are_looked_at_again(make):
    store = make(seeds(3))
    begun(store, 0, [4], [0])

    def slowly(configs, directories, context):
        if configs[0].seed == 0:
            begun(store, 1, [6], [1])

    assert start(store, train=slowly) == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("attempt", "step", "saved", "expected"),
    [(3, 0, 0, [[0, 1]]), (4, 0, 0, [[0], [1]]), (4, 2, 0, [[0], [1]]), (4, 2, 2, [[0, 1]])],
    ids=["not the last", "the last", "after steps that are lost", "after a checkpoint"],
)
def test_on_its_last_attempt_a_run_is_alone(make, attempt, step, saved, expected):
    store = make(seeds(2))
    for entry in store.runs:
        directory = store.directory(entry.run)
        dead = {"schema": 1, "machine": machine_id(), "pid": 1, "started": "never", "attempt": attempt, "step": 0}
        (directory / "lease-000001").write_text(json.dumps(dead) + "\nbeat 000000000007\n")
        status.write(directory, status.Status("running", step))
        (directory / "checkpoints" / str(saved or "new")).mkdir(parents=True)
    assert start(store, train=lambda *_: None, attempts=5) == expected


def test_a_population_whose_worker_is_killed_fails_those_runs_alone_that_kill_it_alone(make):
    """As the kernel kills a process where memory ends: nothing is raised."""
    store = make(seeds(3))
    summary = run_workers(store, "fake_training:too_large", 1, ExecutionConfig(attempts=2), threads=1)
    assert [summary.states[entry.run] for entry in store.runs] == ["done", "failed", "done"]
    assert (
        "worker died 2 times in a row without a new checkpoint, the last time at step 0"
        in store.status(store.runs[1].run).reason
    )
    assert [len(run.manifest()["population"]) for run in scan(store.root).runs] == [1, 1, 1]


@pytest.mark.parametrize("end", ["a stop", "an interruption"])
def test_after_a_stop_no_run_says_that_it_is_running(make, end):
    """The population raises; the stop comes while the first run is trained alone, and finds the others not begun."""
    store, stop = make(seeds(3)), Stop()

    def stopped(configs, directories, context):
        for directory in directories:
            context.step(directory, 2)
        if len(configs) > 1:
            raise MemoryError("99 GiB")
        context.step(directories[0], 5)
        if end == "an interruption":
            raise KeyboardInterrupt
        stop.set("SIGTERM")

    if end == "an interruption":
        with pytest.raises(KeyboardInterrupt):
            run_here(store, stopped, stop=stop)
    else:
        assert str(run_here(store, stopped, stop=stop)) == "3 runs: 3 preempted"
    reason = {"a stop": "SIGTERM", "an interruption": "KeyboardInterrupt"}[end]
    assert [store.status(entry.run) for entry in store.runs] == [("preempted", step, reason) for step in (5, 2, 2)]
    assert [run.manifest()["state"] for run in scan(store.root).runs] == ["preempted"] * 3
    assert not scan(store.root).problems
    assert len(run_here(store, fake_training.train).of("done")) == 3
