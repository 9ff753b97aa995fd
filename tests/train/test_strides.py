"""Training takes few calls of one program, whatever the intervals are; how steps are parted changes no bit."""

import dataclasses

import chex
import numpy as np
import pytest

from attnjax.train import checkpoint, loop, strides, train
from attnjax.train.loop import make_task
from attnjax.train.step import LONGEST, Trainer, members
from attnjax.train.strides import Strides


def with_train(run, **changes):
    return dataclasses.replace(run, train=dataclasses.replace(run.train, **changes))


@pytest.fixture
def calls(monkeypatch):
    """How many steps each call of the compiled program took; it may be traced once."""
    taken, real = [], Trainer.advance
    chex.clear_trace_counter()
    monkeypatch.setattr(Trainer, "_advance", chex.assert_max_traces(Trainer._advance, n=1))
    monkeypatch.setattr(Trainer, "advance", lambda *args: (taken.append(args[3]), real(*args))[1])
    return taken


@pytest.mark.slow
@pytest.mark.parametrize(("log_every", "checkpoint_every", "most"), [(0, 0, 20), (100, 0, 30), (100, 250, 34)])
def test_a_prime_number_of_steps_takes_few_calls_of_one_program(
    tiny, calls, folders, recorder, log_every, checkpoint_every, most
):
    run = with_train(tiny, steps=997, log_every=log_every, checkpoint_every=checkpoint_every)
    context = recorder()
    train([run], folders("prime", 1), context)
    assert sum(calls) == 997
    assert len(calls) <= most
    logged = [*range(100, 997, 100), 997] if log_every else [997]
    assert [record["step"] for record in context.logs["0"]] == logged


@pytest.mark.slow
def test_however_steps_are_parted_the_bits_are_the_same(population, folders, recorder, monkeypatch):
    found, parted = [], []
    real, draw = Trainer.advance, np.random.default_rng(0)
    for seconds in (0.0, 1e9, None):
        if seconds is None:  # the calls of a machine that is now fast and now slow
            monkeypatch.setattr(
                Strides, "took", lambda self, **_: setattr(self, "_affordable", int(draw.integers(1, 9)))
            )
        else:
            monkeypatch.setattr(strides, "SECONDS", seconds)
        taken, context = [], recorder()
        monkeypatch.setattr(Trainer, "advance", lambda *args, taken=taken: (taken.append(int(args[3])), real(*args))[1])
        runs = [with_train(run, log_every=20, checkpoint_every=0) for run in population]
        train(runs, folders(f"parted {seconds}"), context)
        found.append((context.notes, context.found, context.logs))
        parted.append(taken)
    assert parted[0] == [1] * 40
    assert parted[1] == [1, 19, 20]
    assert parted[2] not in parted[:2]
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_an_interruption_is_answered_within_seconds_where_nothing_is_due(tiny, folders, recorder, monkeypatch):
    """Steps of 0.05 s by the clock of the test, after a compilation of 30 s."""
    now, taken, real = [0.0], [], Trainer.advance

    def slow(trainer, state, population, count):
        now[0] += 0.05 * count + (0 if taken else 30)
        taken.append(count)
        return real(trainer, state, population, count)

    monkeypatch.setattr(Trainer, "advance", slow)
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    context, (folder,) = recorder(stop_after=5), folders("slow", 1)
    train([with_train(tiny, steps=5000, log_every=0, checkpoint_every=0)], [folder], context)
    assert taken[:2] == [1, 1]
    assert all(0.9 <= 0.05 * count <= 1.0 for count in taken[2:])
    assert checkpoint.steps(folder / "checkpoints") == [sum(taken)]


def test_calls_end_where_something_is_due(tiny):
    run = dataclasses.replace(tiny, evaluate=dataclasses.replace(tiny.evaluate, every=7))
    lengths = Strides(with_train(run, steps=26, log_every=4, checkpoint_every=10))
    step, ends = 0, []
    while step < 26:
        step += lengths.count(step)
        lengths.took(count=1, seconds=0.0)
        ends.append(step)
    assert ends == [1, 4, 7, 8, 10, 12, 14, 16, 20, 21, 24, 26]


def test_a_count_that_one_call_cannot_take_is_refused(tiny):
    trainer, population = Trainer(tiny, make_task(tiny)), members([tiny])
    for count in (0, LONGEST + 1):
        with pytest.raises(ValueError, match=f"count must be 1 .. 1000, got {count}"):
            trainer.advance(trainer.start(population), population, count)
