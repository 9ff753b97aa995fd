"""Training ends with the same bits however often it was stopped; what goes wrong is recorded, and stays out of the rest.

Members that have fitted their task end before the others, at the same bits as a run that nobody stopped has at that step.
"""

import errno
import json
import shutil
import statistics
import threading

import numpy as np
import pytest

from attnjax.train import checkpoint, describe, loop, train
from attnjax.train.checkpoint import CHECKPOINTS
from attnjax.train.evaluate import Measured
from attnjax.train.loop import FITTED
from attnjax.train.step import Trainer
from tests.train.conftest import Recorder, Trained, made, population, with_train

pytestmark = pytest.mark.usefixtures("whole")
PATIENCE = 60.0
UNTIL = 0.2


def steps(folders):
    return [checkpoint.steps(folder / CHECKPOINTS) for folder in folders]


def copy(originals, root):
    """A copy of the folders of a population."""
    return [shutil.copytree(original, root / original.name) for original in originals]


@pytest.fixture
def copied(whole, tmp_path):
    return copy(whole.folders, tmp_path)


def unique(rows):
    """What a reader finds: a measurement that is recorded twice is one."""
    return sorted({json.dumps(row, sort_keys=True) for row in rows})


def assert_same(context, expected):
    """That two contexts were told the same."""
    for one, other in ((context.found, expected.found), (context.logs, expected.logs)):
        assert {name: unique(rows) for name, rows in one.items()} == {
            name: unique(rows) for name, rows in other.items()
        }
    for name, (step, scores) in expected.single.items():
        assert (context.single[name][0], context.single[name][1].keys()) == (step, scores.keys())
        assert all(np.array_equal(context.single[name][1][key], scores[key]) for key in scores)
    assert context.notes == expected.notes


def test_records_of_a_whole_run(whole):
    context = whole.context
    assert [record["step"] for record in context.logs["0"]] == list(range(4, 33, 4))
    validated = [one["step"] for one in context.found["0"] if one["split"] == "validation"]
    assert sorted(set(validated)) == [8, 16, 24, 32]
    tested = {(one["step"], one["length"], one["split"]) for one in context.found["0"] if one["split"] != "validation"}
    assert tested == {(32, 2, "train"), (32, 4, "train"), (32, 9, "test")}
    assert {one["metric"] for one in context.found["0"]} >= {"exact_match", "token_accuracy", "loss"}
    assert context.single["0"][0] == 32
    assert context.notes["0"]["parameters"] == describe(population()[0])["parameters"]
    assert len({notes["parameters_sha256"] for notes in context.notes.values()}) == 3
    assert steps(whole.folders) == [[8, 16, 24, 32]] * 3


def test_programs_of_a_run_and_its_evaluations_are_traced_once(whole):
    assert whole.traces == {"_start": 1, "_advance": 1, "_examples": 1, "_population": 1}


# Interruptions


def test_interrupted_again_and_again_it_ends_with_the_bits_of_an_undisturbed_run(whole, tmp_path, monkeypatch):
    """Stopped between steps, killed and stopped as an evaluation begins, stopped in the last one; every call is one step."""
    context, parts, real, counted = Recorder(), made(tmp_path), loop._evaluate, []

    def killed(*arguments):
        raise KeyboardInterrupt

    def stopped(*arguments):
        context.stop_after = 0
        return real(*arguments)

    def stopped_after(evaluator, population, state, splits, *rest):
        found = real(evaluator, population, state, splits, *rest)
        context.stop_after = 0 if "test" in splits else None
        return found

    monkeypatch.setattr(loop, "SECONDS", 0.0)
    monkeypatch.setattr(loop, "ngram_levels", lambda *_: counted.append(1))
    context.stop_after = 3
    train(population(), parts, context)
    assert steps(parts) == [[3]] * 3
    for evaluate, last in ((killed, 8), (stopped, 8), (stopped_after, 32)):
        context.stop_after = None
        monkeypatch.setattr(loop, "_evaluate", evaluate)
        if evaluate is killed:
            with pytest.raises(KeyboardInterrupt):
                train(population(), parts, context)
        else:
            train(population(), parts, context)
        assert {one[-1] for one in steps(parts)} == {last}
        assert counted == [], "n-gram models of a long text take minutes: not after a stop"
        assert "parameters_sha256" not in context.notes["0"]
    context.stop_after = None
    monkeypatch.setattr(loop, "_evaluate", real)
    train(population(), parts, context)
    assert counted == [1]
    assert_same(context, whole.context)


@pytest.mark.parametrize("lost", ["damaged", "all of one"])
def test_the_newest_step_that_all_have_is_resumed_from(whole, copied, lost):
    place, context = copied[1] / CHECKPOINTS, Recorder()
    if lost == "damaged":
        next((place / "32").rglob("d/*")).write_bytes(b"")
        with pytest.warns(UserWarning, match="checkpoint of step 32 is damaged"):
            train(population(), copied, context)
    else:
        shutil.rmtree(place)
        train(population(), copied, context)
    first = 4 if lost == "all of one" else 28
    assert [record["step"] for record in context.logs["0"]] == list(range(first, 33, 4))
    assert context.notes == whole.context.notes
    assert steps(copied) == [[24, 32]] * 3


def test_where_one_step_is_kept_members_always_have_one_in_common(tmp_path, monkeypatch):
    """A death between the saves of two members, as an error of the second."""
    real, parts = checkpoint.save, made(tmp_path)

    def killed(directory, step, *state, **options):
        if step == 16 and directory.parent == parts[1]:
            raise OSError("killed")
        real(directory, step, *state, **options)

    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(OSError, match="killed"):
        train(population(keep=1), parts, Recorder())
    assert steps(parts) == [[8, 16], [8], [8]]


# What fails


def test_runs_whose_loss_or_gradient_is_not_finite_fail_alone(whole, tmp_path, monkeypatch):
    """The loss of member 1 is NaN; the gradient of member 2 overflows at step 6, while its loss stays finite."""
    context, parts, runs, real = Recorder(), made(tmp_path), population(), Trainer.advance

    def advance(self, state, members, count):
        first, (state, metrics) = int(state.step[0]), real(self, state, members, count)
        norm = np.array(metrics.gradient_norm)
        norm[2, np.arange(first + 1, first + count + 1) == 6] = np.inf
        return state, metrics._replace(gradient_norm=norm)

    monkeypatch.setattr(Trainer, "advance", advance)
    runs[1] = with_train(runs[1], learning_rate=1e30)
    train(runs, parts, context)
    step, reason = context.failed["1"]
    assert reason.startswith(f"nan at step {step}")
    assert 1 <= step <= 8
    assert context.failed["2"] == (6, "nan at step 6: the norm of the gradient was inf")
    assert context.failed.keys() == {"1", "2"}
    assert not context.found["1"]
    assert not context.found["2"]
    assert steps(parts) == [[24, 32], [], []]
    assert context.found["0"] == whole.context.found["0"]
    assert context.notes["0"] == whole.context.notes["0"]


def test_steps_go_on_while_a_slow_disk_saves_and_the_bits_are_the_same(whole, tmp_path, monkeypatch):
    """The disk finishes a save only when a later step has been done, except the last; never two saves at once."""
    context, parts, done, running = Recorder(), made(tmp_path), threading.Condition(), []
    real, reached = checkpoint.save, [0]

    def step(directory, step):
        with done:
            reached.append(step)
            done.notify_all()

    def slow(directory, step, *state, **options):
        running.append(step)
        with done:
            assert done.wait_for(lambda: max(reached) > step or step == 32, PATIENCE), "training waits for the disk"
        assert len(set(running)) == 1, "two saves at once"
        real(directory, step, *state, **options)
        running.remove(step)

    context.step = step
    monkeypatch.setattr(checkpoint, "save", slow)
    train(population(), parts, context)
    assert_same(context, whole.context)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


@pytest.mark.parametrize("bad", [8, 32])
def test_a_save_that_fails_ends_the_run_by_the_next_one(tmp_path, monkeypatch, bad):
    real = checkpoint._write

    def write(path, arrays):
        if arrays.step == bad:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, arrays)

    monkeypatch.setattr(checkpoint, "_write", write)
    context, parts = Recorder(), made(tmp_path)
    with pytest.raises(OSError, match=f"checkpoint of step {bad} .*No space left"):
        train(population(), parts, context)
    assert max(record["step"] for record in context.logs["0"]) <= bad + 8
    assert steps(parts)[0] == ([] if bad == 8 else [16, 24])
    assert "parameters_sha256" not in context.notes["0"]


# Members that have fitted their task


def fitting():
    """The same runs, which end when they are fitted. Steps of evaluations are not those of checkpoints."""
    return population(until=UNTIL, keep=1, checkpoint_every=12)


def test_a_mean_of_exactly_the_share_that_ends_a_run_ends_it():
    """The mean of 0.99 at three lengths is 0.9899999999999999."""
    run = population(until=0.99)[0]
    row = {"metric": "exact_match", "split": "validation", "value": 0.99}
    of = lambda *rows: [[Measured([one], {})] for one in rows]
    assert statistics.fmean([0.99] * 3) < 0.99
    assert loop._has_fitted(run, of(row, row, row), 0)
    assert not loop._has_fitted(run, of(row, row, {**row, "value": 0.98}), 0)
    assert not loop._has_fitted(population()[0], of(row), 0)


@pytest.fixture(scope="module")
def ended(whole, tmp_path_factory):
    """The records and folders of runs that end when they are fitted, not interrupted."""
    context, folders = Recorder(), made(tmp_path_factory.mktemp("ended"))
    train(fitting(), folders, context)
    return Trained(context, folders, {})


@pytest.fixture(scope="module")
def expected(whole):
    """{member: the first step at which its mean validation score is high enough}."""
    found = {}
    for name, rows in whole.context.found.items():
        scores = [row for row in rows if (row["metric"], row["split"]) == ("exact_match", "validation")]
        for step in (8, 16, 24):
            if statistics.fmean(row["value"] for row in scores if row["step"] == step) >= UNTIL:
                found.setdefault(name, step)
    assert len(found) == len(set(found.values())) == 2, "two of them end, one after the other"
    return found


def test_a_member_ends_at_the_bits_of_its_step_and_the_others_go_on_as_if_nothing_had_happened(whole, ended, expected):
    reference, context = whole.context, ended.context
    stopped_at = {name: notes["stopped_at"] for name, notes in context.notes.items()}
    assert stopped_at == {**dict.fromkeys("012"), **expected}
    like = Trainer(population()[0], loop.make_task(population()[0])).shapes()
    for name in "012":
        last, folder = expected.get(name, 32), ended.folders[int(name)]
        state = checkpoint.restore(whole.folders[int(name)] / CHECKPOINTS, like, last).state
        assert context.notes[name]["parameters_sha256"] == loop.fingerprint(state.params)
        assert checkpoint.steps(folder / CHECKPOINTS) == [last]
        assert context.logs[name] == [row for row in reference.logs[name] if row["step"] <= last]
        until = [row for row in reference.found[name] if row["split"] == "validation" and row["step"] <= last]
        assert unique(row for row in context.found[name] if row["split"] == "validation") == unique(until)
        tests = [row for row in context.found[name] if row["split"] != "validation"]
        assert {(row["step"], row["length"]) for row in tests} == {(last, 2), (last, 4), (last, 9)}
        assert context.single[name][0] == last
        assert (folder / FITTED).exists() == (name in expected)


@pytest.mark.slow
def test_interrupted_before_between_and_after_ends_it_ends_with_the_same_bits(ended, tmp_path, monkeypatch):
    context, parts, real = Recorder(), made(tmp_path), loop._log_fitted
    for moment in ("before the file", "after the file"):

        def dying(*arguments, moment=moment):
            if moment == "after the file":
                real(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(loop, "_log_fitted", dying)
        with pytest.raises(KeyboardInterrupt):
            train(fitting(), parts, context)
    monkeypatch.setattr(loop, "_log_fitted", real)
    for more in (1, 2, 2, None):
        context.stop_after = None if more is None else context.calls + more
        train(fitting(), parts, context)
    assert_same(context, ended.context)


@pytest.mark.slow
def test_training_ends_when_all_members_have(expected, tmp_path):
    last = max(expected.values())
    runs = [run for name, run in zip("012", fitting(), strict=True) if name in expected]
    context, parts = Recorder(), made(tmp_path, len(runs))
    train(runs, parts, context)
    assert sorted(notes["stopped_at"] for notes in context.notes.values()) == sorted(expected.values())
    assert max(row["step"] for rows in context.logs.values() for row in rows) <= last
    again = Recorder()
    train(runs, parts, again)  # died before its end was written: only the evaluation is left
    assert again.notes == context.notes
    assert again.logs == {name: [] for name in context.logs}


@pytest.mark.parametrize(
    "damage",
    ["checkpoint", *(pytest.param(one, marks=pytest.mark.slow) for one in ("[" * 900, '{"step": 99}', "\xff"))],
)
def test_damage_to_an_end_costs_time_and_no_result(ended, expected, tmp_path, damage):
    context, parts = Recorder(), copy(ended.folders, tmp_path)
    for mine, old in ((context.logs, ended.context.logs), (context.found, ended.context.found)):
        mine.update({name: list(rows) for name, rows in old.items()})
    first = parts[int(min(expected, key=expected.get))]
    if damage == "checkpoint":
        next(first.glob("checkpoints/*/SHA256SUMS")).write_text("{}")
    else:
        (first / FITTED).write_bytes(damage.encode("latin-1"))
    with pytest.warns(UserWarning, match="damaged"):
        train(fitting(), parts, context)
    assert_same(context, ended.context)


def test_a_link_in_place_of_an_end_is_refused(ended, expected, tmp_path):
    parts = copy(ended.folders, tmp_path)
    path = parts[int(min(expected, key=expected.get))] / FITTED
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        train(fitting(), parts, Recorder())
