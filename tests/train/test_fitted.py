"""Members that have fitted their task end before the others, at the same bits as a run that nobody stopped has at that step."""

import json
import shutil
import statistics

import pytest

from attnjax.config import parse
from attnjax.train import checkpoint, loop, train
from attnjax.train.check import check
from attnjax.train.checkpoint import CHECKPOINTS
from attnjax.train.evaluate import Measured
from attnjax.train.loop import FITTED
from attnjax.train.step import Trainer
from tests.train.conftest import SETTINGS, Recorder

pytestmark = pytest.mark.usefixtures("one_compilation")
UNTIL = 0.3
TINY = {
    **SETTINGS,
    "task": {"name": "reverse_string", "length_min": 1, "length_max": 4},
    "train": {**SETTINGS["train"], "steps": 32, "keep": 1, "checkpoint_every": 12},
    "evaluate": {
        "lengths": [3, 6],
        "validation_lengths": [1, 2],
        "count": 32,
        "batch": 32,
        "bucket_sizes": [8],
        "every": 8,
    },
}
"""Steps of evaluations are not those of checkpoints, and of these the newest alone is kept."""


def population(until: float, **changes):
    """Four runs, of which two learn fast."""
    runs = []
    for seed, rate in enumerate((1e-4, 3e-3, 1e-2, 3e-2)):
        settings = {**TINY["train"], "learning_rate": rate, "until": until, **changes}
        runs.append(parse({**TINY, "train": settings, "seed": seed, "data_seed": seed}))
    return runs


def test_a_mean_of_exactly_the_share_that_ends_a_run_ends_it():
    """The mean of 0.99 at three lengths is 0.9899999999999999."""
    (run,) = population(0.99)[:1]
    row = {"metric": "exact_match", "split": "validation", "value": 0.99}
    of = lambda *rows: [[Measured([one], {}, {})] for one in rows]
    assert statistics.fmean([0.99] * 3) < 0.99
    assert loop._has_fitted(run, of(row, row, row), 0)
    assert not loop._has_fitted(run, of(row, row, {**row, "value": 0.98}), 0)
    assert not loop._has_fitted(population(0.0)[0], of(row), 0)


def made(root, count=4):
    folders = [root / str(i) for i in range(count)]
    for folder in folders:
        folder.mkdir(parents=True)
    return folders


@pytest.fixture(scope="module")
def all_steps(tmp_path_factory):
    """The same runs without `until`, with every checkpoint."""
    context, folders = Recorder(), made(tmp_path_factory.mktemp("all_steps"))
    train(population(0.0, keep=100, checkpoint_every=8), folders, context)
    return context, folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The runs that end when they are fitted, not interrupted."""
    context, folders = Recorder(), made(tmp_path_factory.mktemp("whole"))
    train(population(UNTIL), folders, context)
    return context, folders


@pytest.fixture(scope="module")
def expected(all_steps):
    """{member: the first step at which its mean validation score is high enough}."""
    context, _ = all_steps
    found = {}
    for name, rows in context.found.items():
        for step in range(8, 32, 8):
            mine = [
                row["value"]
                for row in rows
                if (row["step"], row["metric"], row["split"]) == (step, "exact_match", "validation")
            ]
            if statistics.fmean(mine) >= UNTIL:
                found.setdefault(name, step)
    assert len(set(found.values())) == 2, "two of them end, one after the other"
    return found


def unique(rows):
    """What a reader finds: a measurement that is recorded twice is one."""
    return sorted({json.dumps(row, sort_keys=True) for row in rows})


def same(context, other):
    """Whether two contexts were told the same."""
    found = [{name: unique(rows) for name, rows in one.found.items()} for one in (context, other)]
    single = [
        {name: (step, sorted(scores)) for name, (step, scores, _) in one.single.items()} for one in (context, other)
    ]
    assert found[0] == found[1]
    assert context.logs == other.logs
    assert context.notes == other.notes
    assert single[0] == single[1]


def test_a_member_ends_with_the_parameters_of_its_step_and_the_others_go_on_as_if_nothing_had_happened(
    all_steps, whole, expected
):
    (reference, kept), (context, folders) = all_steps, whole
    assert {name: notes["stopped_at"] for name, notes in context.notes.items()} == {**dict.fromkeys("0123"), **expected}
    like = Trainer(population(0.0)[0], loop.make_task(population(0.0)[0])).shapes()
    for name in "0123":
        last = expected.get(name, 32)
        state = checkpoint.restore(kept[int(name)] / CHECKPOINTS, like, last).state
        assert context.notes[name]["parameters_sha256"] == loop.fingerprint(state.params)
        assert checkpoint.steps(folders[int(name)] / CHECKPOINTS) == [last]
        assert context.logs[name] == [row for row in reference.logs[name] if row["step"] <= last]
        until = [row for row in reference.found[name] if row["split"] == "validation" and row["step"] <= last]
        assert unique(row for row in context.found[name] if row["split"] == "validation") == unique(until)
        tests = [row for row in context.found[name] if row["split"] != "validation"]
        assert {(row["step"], row["length"]) for row in tests} == {(last, 3), (last, 6)}
        assert context.single[name][0] == last
        assert (folders[int(name)] / FITTED).exists() == (name in expected)


@pytest.mark.slow
def test_stopped_and_resumed_before_and_after_members_end_is_bitwise_the_same(whole, tmp_path):
    """Each part takes a few strides: before the first end, between the two ends, after them."""
    context, parts = Recorder(stop_after=0), made(tmp_path)
    ended = []
    for strides in (2, 4, 6, 8, 10, 12, None):
        context.stop_after = None if strides is None else strides
        train(population(UNTIL), parts, context)
        ended.append(sum((part / FITTED).exists() for part in parts))
    assert ended[0] == 0
    assert 1 in ended[:-1], "one part ends between the two"
    same(context, whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the file", "after the file"])
def test_a_death_at_the_moment_of_an_end_loses_nothing(whole, tmp_path, monkeypatch, moment):
    real, context, parts = loop._log_fitted, Recorder(), made(tmp_path)

    def dying(*arguments):
        if moment == "after the file":
            real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_log_fitted", dying)
        with pytest.raises(KeyboardInterrupt):
            train(population(UNTIL), parts, context)
    train(population(UNTIL), parts, context)
    same(context, whole[0])


@pytest.mark.slow
def test_training_ends_when_all_members_have(whole, expected, tmp_path):
    last = max(expected.values())
    runs = [run for name, run in zip("0123", population(UNTIL), strict=True) if name in expected]
    context, parts = Recorder(), made(tmp_path, len(runs))
    train(runs, parts, context)
    assert sorted(notes["stopped_at"] for notes in context.notes.values()) == sorted(expected.values())
    assert max(row["step"] for rows in context.logs.values() for row in rows) <= last
    assert all({row["length"] for row in rows} == {1, 2, 3, 6} for rows in context.found.values())
    again = Recorder()
    train(runs, parts, again)  # died before its end was written: only the evaluation is left
    assert again.notes == context.notes
    assert again.logs == {name: [] for name in context.logs}


@pytest.mark.slow
@pytest.mark.parametrize("damage", ['{"schema": 1, "step": 99}', "checkpoint"])
def test_damage_to_an_end_costs_time_and_no_result(whole, expected, tmp_path, damage):
    context, parts = Recorder(), made(tmp_path)
    for original, part in zip(whole[1], parts, strict=True):
        shutil.copytree(original, part, dirs_exist_ok=True)
    context.logs, context.found = (
        {name: list(rows) for name, rows in old.items()} for old in (whole[0].logs, whole[0].found)
    )
    first = parts[int(min(expected, key=expected.get))]
    if damage == "checkpoint":
        next(first.glob("checkpoints/*/SHA256SUMS")).write_text("{}")
    else:
        (first / FITTED).write_text(damage)
    with pytest.warns(UserWarning, match="damaged"):
        train(population(UNTIL), parts, context)
    same(context, whole[0])


@pytest.mark.parametrize("content", [b'{"schema": 1, "step": 8', b'{"step": "8"}', b'{"a": "\xff"}', b"[" * 900, b""])
def test_a_damaged_end_is_a_warning_and_no_end(tmp_path, content):
    (tmp_path / FITTED).write_bytes(content)
    with pytest.warns(UserWarning, match=f"{FITTED} is damaged"):
        assert loop._fitted_step(population(UNTIL)[0], tmp_path) == 0


def test_a_link_in_place_of_an_end_is_refused(tmp_path):
    (tmp_path / "elsewhere").write_text('{"schema": 1, "step": 8}')
    (tmp_path / FITTED).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        loop._fitted_step(population(UNTIL)[0], tmp_path)


def test_a_text_has_no_exact_answers():
    text = {"name": "text", "length_min": 8, "length_max": 8}
    evaluate = {"every": 8, "lengths": [], "validation_lengths": [8]}
    with pytest.raises(ValueError, match=r"train.until=0.5 .*'text'"):
        check(parse({"task": text, "train": {"until": 0.5}, "evaluate": evaluate}))
