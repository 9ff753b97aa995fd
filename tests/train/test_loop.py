"""Training ends with the same bits however often it was stopped; what goes wrong is recorded, and stays out of the rest.

Members that have fitted their task end before the others, at the same bits as a run that nobody stopped has at that step.
"""

import dataclasses
import errno
import json
import shutil
import statistics
import threading

import pytest

from attnjax.config import parse
from attnjax.train import checkpoint, describe, loop, train
from attnjax.train.check import check
from attnjax.train.checkpoint import CHECKPOINTS
from attnjax.train.evaluate import Measured
from attnjax.train.loop import FITTED
from attnjax.train.step import LONGEST, Trainer
from tests.train.conftest import SETTINGS, Recorder

pytestmark = pytest.mark.usefixtures("one_compilation")
PATIENCE = 60.0
UNTIL = 0.3
EVALUATE = {**SETTINGS["evaluate"], "validation_lengths": [1, 2], "count": 32, "batch": 32, "every": 8}
TINY = {**SETTINGS, "task": {**SETTINGS["task"], "length_max": 4}, "evaluate": EVALUATE}


def population(**changes):
    """Four runs, of which two learn fast."""
    runs = []
    for seed, rate in enumerate((1e-4, 3e-3, 1e-2, 3e-2)):
        settings = {**TINY["train"], "learning_rate": rate, **changes}
        runs.append(parse({**TINY, "train": settings, "seed": seed, "data_seed": seed}))
    return runs


def fitting():
    """The same runs, which end when they are fitted. Steps of evaluations are not those of checkpoints."""
    return population(until=UNTIL, keep=1, checkpoint_every=12)


def with_train(run, **changes):
    return dataclasses.replace(run, train=dataclasses.replace(run.train, **changes))


def steps(folders):
    return [checkpoint.steps(folder / CHECKPOINTS) for folder in folders]


def made(root, count=4):
    folders = [root / str(i) for i in range(count)]
    for folder in folders:
        folder.mkdir(parents=True)
    return folders


def copy(originals, root):
    """A copy of the folders of a population."""
    for original in originals:
        shutil.copytree(original, root / original.name)
    return [root / original.name for original in originals]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The records of a population that was not interrupted, and its folders with every checkpoint."""
    context, folders = Recorder(), made(tmp_path_factory.mktemp("whole"))
    train(population(keep=100), folders, context)
    return context, folders


@pytest.fixture
def copied(whole, tmp_path):
    return copy(whole[1], tmp_path)


def unique(rows):
    """What a reader finds: a measurement that is recorded twice is one."""
    return sorted({json.dumps(row, sort_keys=True) for row in rows})


def assert_same(context, expected, measurements=lambda rows: rows):
    """That two contexts were told the same."""
    found, single = [], []
    for one in (context, expected):
        found.append({name: measurements(rows) for name, rows in one.found.items()})
        single.append({name: (step, sorted(scores)) for name, (step, scores) in one.single.items()})
    assert found[0] == found[1]
    assert single[0] == single[1]
    assert context.logs == expected.logs
    assert context.notes == expected.notes


def test_records_of_a_whole_run(whole):
    context, folders = whole
    assert [record["step"] for record in context.logs["0"]] == list(range(4, 41, 4))
    validated = [one["step"] for one in context.found["0"] if one["split"] == "validation"]
    assert sorted(set(validated)) == [8, 16, 24, 32, 40]
    tested = {(one["step"], one["length"], one["split"]) for one in context.found["0"] if one["split"] != "validation"}
    assert tested == {(40, 4, "train"), (40, 6, "test"), (40, 9, "test")}
    assert {one["metric"] for one in context.found["0"]} >= {"exact_match", "token_accuracy", "loss"}
    assert context.single["0"][0] == 40
    assert context.notes["0"]["parameters"] == describe(population()[0])["parameters"]
    assert context.notes["0"]["parameters_sha256"] != context.notes["1"]["parameters_sha256"]
    assert steps(folders) == [[8, 16, 24, 32, 40]] * 4


def test_stopped_and_resumed_is_bitwise_the_same(whole, tmp_path):
    parts, context = made(tmp_path), Recorder()
    for context.stop_after in (3, 4, 8, None):
        train(population(), parts, context)
    assert_same(context, whole[0])


@pytest.mark.parametrize("moment", ["died", "stopped"])
def test_an_interruption_of_an_evaluation_loses_no_result(whole, tmp_path, monkeypatch, moment):
    parts, context, real = made(tmp_path), Recorder(), loop._evaluate

    def interrupted(*arguments):
        if moment == "died":
            raise KeyboardInterrupt
        context.stop_after = 0  # as the evaluation begins, and before it has found anything
        return None

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_evaluate", interrupted)
        if moment == "died":
            with pytest.raises(KeyboardInterrupt):
                train(population(), parts, context)
        else:
            train(population(), parts, context)
    assert steps(parts) == [[8]] * 4
    context.stop_after = None
    train(population(), parts, context)
    assert loop._evaluate is real
    assert_same(context, whole[0])


def test_after_a_stop_in_the_last_evaluation_nothing_more_is_computed(whole, copied, monkeypatch):
    """The counts of n-gram models of a long text take minutes."""
    context, counted = Recorder(), []
    examples = context.examples
    context.examples = lambda *told: (examples(*told), setattr(context, "stop_after", 0))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "ngram_levels", lambda *_: counted.append(1))
        train(population(), copied, context)
    assert counted == []
    assert "parameters_sha256" not in context.notes["0"]
    context.stop_after, context.examples = None, examples
    train(population(), copied, context)
    assert context.notes == whole[0].notes


@pytest.mark.parametrize("lost", ["missing", "damaged", "all of one"])
def test_the_newest_step_that_all_have_is_resumed_from(whole, copied, lost):
    place = copied[1] / CHECKPOINTS
    if lost == "damaged":
        next((place / "40").rglob("d/*")).write_bytes(b"")
    else:
        shutil.rmtree(place / "40" if lost == "missing" else place)
    context = Recorder()
    if lost == "damaged":
        with pytest.warns(UserWarning, match="checkpoint of step 40 is damaged"):
            train(population(), copied, context)
    else:
        train(population(), copied, context)
    first = 4 if lost == "all of one" else 36
    assert [record["step"] for record in context.logs["0"]] == list(range(first, 41, 4))
    assert context.notes == whole[0].notes
    assert steps(copied) == [[32, 40]] * 4


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
    assert steps(parts) == [[8, 16], [8], [8], [8]]


def test_a_run_whose_loss_is_nan_fails_alone(tmp_path):
    context, parts, runs = Recorder(), made(tmp_path), population()
    runs[1] = with_train(runs[1], learning_rate=1e30)
    train(runs, parts, context)
    step, reason = context.failed["1"]
    assert reason.startswith(f"nan at step {step}")
    assert 1 <= step <= 8
    assert context.failed.keys() == {"1"}
    assert context.found["0"]
    assert not context.found["1"]
    assert steps(parts)[0] == [32, 40]
    assert max(steps(parts)[1], default=0) < step


def test_steps_go_on_while_a_slow_disk_saves_and_the_bits_are_the_same(whole, tmp_path, monkeypatch):
    """The disk finishes a save only when a later step has been done, except the last; never two saves at once."""
    context, parts, done, running = Recorder(), made(tmp_path), threading.Condition(), []
    real, reached = checkpoint.save, [0]

    def step(directory, step, **numbers):
        with done:
            reached.append(step)
            done.notify_all()

    def slow(directory, step, *state, **options):
        running.append(step)
        with done:
            assert done.wait_for(lambda: max(reached) > step or step == 40, PATIENCE), "training waits for the disk"
        assert len(set(running)) == 1, "two saves at once"
        real(directory, step, *state, **options)
        running.remove(step)

    context.step = step
    monkeypatch.setattr(checkpoint, "save", slow)
    train(population(), parts, context)
    assert_same(context, whole[0])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


@pytest.mark.parametrize("bad", [8, 40])
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
    assert steps(parts)[0] == ([] if bad == 8 else [24, 32])
    assert "parameters_sha256" not in context.notes["0"]


# Steps per call


@pytest.fixture
def calls(monkeypatch):
    """How many steps each call of the compiled program took."""
    taken, real = [], Trainer.advance
    monkeypatch.setattr(Trainer, "advance", lambda *given: (taken.append(int(given[3])), real(*given))[1])
    return taken


def test_calls_end_where_something_is_due(tiny):
    run = dataclasses.replace(tiny, evaluate=dataclasses.replace(tiny.evaluate, every=7))
    run, ends = with_train(run, steps=26, log_every=4, checkpoint_every=10), [0]
    while ends[-1] < 26:
        ends.append(ends[-1] + loop._steps_of_call(run, ends[-1], 100))
    assert ends[1:] == [4, 7, 8, 10, 12, 14, 16, 20, 21, 24, 26]
    assert loop._steps_of_call(with_train(tiny, steps=10**6, log_every=0, checkpoint_every=0), 0, 10**6) == LONGEST


@pytest.mark.slow
def test_however_steps_are_divided_the_bits_are_the_same(tmp_path, calls, monkeypatch):
    found, runs = [], population(log_every=40, checkpoint_every=0)
    for seconds, expected in ((0.0, [1] * 40), (1e9, [1, 7, 8, 8, 8, 8])):
        calls.clear()
        monkeypatch.setattr(loop, "SECONDS", seconds)
        context = Recorder()
        train(runs, made(tmp_path / str(seconds)), context)
        assert calls == expected
        found.append((context.notes, context.found, context.logs))
    assert found[0] == found[1]


# Members that have fitted their task


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
def ended(tmp_path_factory):
    """The records and folders of runs that end when they are fitted, not interrupted."""
    context, folders = Recorder(), made(tmp_path_factory.mktemp("ended"))
    train(fitting(), folders, context)
    return context, folders


@pytest.fixture(scope="module")
def expected(whole):
    """{member: the first step at which its mean validation score is high enough}."""
    found = {}
    for name, rows in whole[0].found.items():
        for step in range(8, 40, 8):
            mine = [
                row["value"]
                for row in rows
                if (row["step"], row["metric"], row["split"]) == (step, "exact_match", "validation")
            ]
            if statistics.fmean(mine) >= UNTIL:
                found.setdefault(name, step)
    assert len(set(found.values())) == 2, "two of them end, one after the other"
    return found


def test_a_member_ends_with_the_parameters_of_its_step_and_the_others_go_on_as_if_nothing_had_happened(
    whole, ended, expected
):
    (reference, kept), (context, folders) = whole, ended
    assert {name: notes["stopped_at"] for name, notes in context.notes.items()} == {**dict.fromkeys("0123"), **expected}
    like = Trainer(population()[0], loop.make_task(population()[0])).shapes()
    for name in "0123":
        last = expected.get(name, 40)
        state = checkpoint.restore(kept[int(name)] / CHECKPOINTS, like, last).state
        assert context.notes[name]["parameters_sha256"] == loop.fingerprint(state.params)
        assert checkpoint.steps(folders[int(name)] / CHECKPOINTS) == [last]
        assert context.logs[name] == [row for row in reference.logs[name] if row["step"] <= last]
        until = [row for row in reference.found[name] if row["split"] == "validation" and row["step"] <= last]
        assert unique(row for row in context.found[name] if row["split"] == "validation") == unique(until)
        tests = [row for row in context.found[name] if row["split"] != "validation"]
        assert {(row["step"], row["length"]) for row in tests} == {(last, 4), (last, 6), (last, 9)}
        assert context.single[name][0] == last
        assert (folders[int(name)] / FITTED).exists() == (name in expected)


@pytest.mark.slow
def test_stopped_and_resumed_before_and_after_members_end_is_bitwise_the_same(ended, tmp_path):
    """Each part takes a few strides: before the first end, between the two ends, after them."""
    context, parts = Recorder(stop_after=0), made(tmp_path)
    counts = []
    for strides in (2, 4, 6, 8, 10, 12, None):
        context.stop_after = None if strides is None else strides
        train(fitting(), parts, context)
        counts.append(sum((part / FITTED).exists() for part in parts))
    assert counts[0] == 0
    assert 1 in counts[:-1], "one part ends between the two"
    assert_same(context, ended[0], unique)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the file", "after the file"])
def test_a_death_at_the_moment_of_an_end_loses_nothing(ended, tmp_path, monkeypatch, moment):
    real, context, parts = loop._log_fitted, Recorder(), made(tmp_path)

    def dying(*arguments):
        if moment == "after the file":
            real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_log_fitted", dying)
        with pytest.raises(KeyboardInterrupt):
            train(fitting(), parts, context)
    train(fitting(), parts, context)
    assert_same(context, ended[0], unique)


@pytest.mark.slow
def test_training_ends_when_all_members_have(expected, tmp_path):
    last = max(expected.values())
    runs = [run for name, run in zip("0123", fitting(), strict=True) if name in expected]
    context, parts = Recorder(), made(tmp_path, len(runs))
    train(runs, parts, context)
    assert sorted(notes["stopped_at"] for notes in context.notes.values()) == sorted(expected.values())
    assert max(row["step"] for rows in context.logs.values() for row in rows) <= last
    assert all({row["length"] for row in rows} == {1, 2, 4, 6, 9} for rows in context.found.values())
    again = Recorder()
    train(runs, parts, again)  # died before its end was written: only the evaluation is left
    assert again.notes == context.notes
    assert again.logs == {name: [] for name in context.logs}


@pytest.mark.slow
@pytest.mark.parametrize("damage", ['{"schema": 1, "step": 99}', "checkpoint"])
def test_damage_to_an_end_costs_time_and_no_result(ended, expected, tmp_path, damage):
    context, parts = Recorder(), copy(ended[1], tmp_path)
    context.logs, context.found = (
        {name: list(rows) for name, rows in old.items()} for old in (ended[0].logs, ended[0].found)
    )
    first = parts[int(min(expected, key=expected.get))]
    if damage == "checkpoint":
        next(first.glob("checkpoints/*/SHA256SUMS")).write_text("{}")
    else:
        (first / FITTED).write_text(damage)
    with pytest.warns(UserWarning, match="damaged"):
        train(fitting(), parts, context)
    assert_same(context, ended[0], unique)


@pytest.mark.parametrize("content", [b'{"schema": 1, "step": 8', b'{"step": "8"}', b'{"a": "\xff"}', b"[" * 900, b""])
def test_a_damaged_end_is_a_warning_and_no_end(tmp_path, content):
    (tmp_path / FITTED).write_bytes(content)
    with pytest.warns(UserWarning, match=f"{FITTED} is damaged"):
        assert loop._fitted_step(fitting()[0], tmp_path) == 0


def test_a_link_in_place_of_an_end_is_refused(tmp_path):
    (tmp_path / "elsewhere").write_text('{"schema": 1, "step": 8}')
    (tmp_path / FITTED).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        loop._fitted_step(fitting()[0], tmp_path)


def test_a_text_has_no_exact_answers():
    text = {"name": "text", "length_min": 8, "length_max": 8}
    evaluate = {"every": 8, "lengths": [], "validation_lengths": [8]}
    with pytest.raises(ValueError, match=r"train.until=0.5 .*'text'"):
        check(parse({"task": text, "train": {"until": 0.5}, "evaluate": evaluate}))
