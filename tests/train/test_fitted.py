"""Members that have fitted their task end before the others, at the same bits as a run that nobody stopped has at that step."""

import dataclasses
import json
import shutil
import statistics

import pytest

from attnjax.config import parse, run_id
from attnjax.folder import LinkError
from attnjax.sweep import Stop, prepare, run_here, scan
from attnjax.sweep.plan import Planned
from attnjax.train import checkpoint, loop, train
from attnjax.train.check import check
from attnjax.train.evaluate import Evaluator
from attnjax.train.fitted import FILE, Fitted
from attnjax.train.step import Trainer
from tests.train.conftest import SETTINGS, Recorder

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


def test_a_mean_of_exactly_the_share_that_ends_a_run_ends_it(tmp_path):
    """The mean of 0.99 at three lengths is 0.9899999999999999."""
    (run,) = population(0.99)[:1]
    row = {"metric": "exact_match", "split": "validation", "value": 0.99}
    assert statistics.fmean([0.99] * 3) < 0.99
    fitted = Fitted(run, [tmp_path])
    assert fitted.reached([[[row]], [[row]], [[row]]], [0]) == [0]
    assert fitted.reached([[[row]], [[row]], [[{**row, "value": 0.98}]]], [0]) == []


@pytest.fixture(scope="module", autouse=True)
def _one_compilation():
    """All calls of `train` here share their programs, which do not depend on `until`."""
    trainers, evaluators = {}, {}

    def shape(run):
        same = dataclasses.replace(run.train, learning_rate=1.0, until=0.0, keep=1, checkpoint_every=0)
        return repr(dataclasses.replace(run, seed=0, data_seed=0, train=same))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Trainer", lambda run, *rest: trainers.setdefault(shape(run), Trainer(run, *rest)))
        patch.setattr(loop, "Evaluator", lambda run, *rest: evaluators.setdefault(shape(run), Evaluator(run, *rest)))
        yield


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
        state = checkpoint.restore(kept[int(name)] / "checkpoints", like, last).state
        assert context.notes[name]["parameters_sha256"] == loop.fingerprint(state.params)
        assert checkpoint.steps(folders[int(name)] / "checkpoints") == [last]
        assert context.logs[name] == [row for row in reference.logs[name] if row["step"] <= last]
        until = [row for row in reference.found[name] if row["split"] == "validation" and row["step"] <= last]
        assert unique(row for row in context.found[name] if row["split"] == "validation") == unique(until)
        tests = [row for row in context.found[name] if row["split"] != "validation"]
        assert {(row["step"], row["length"]) for row in tests} == {(last, 3), (last, 6)}
        assert context.single[name][0] == last
        assert (folders[int(name)] / FILE).exists() == (name in expected)


@pytest.mark.slow
def test_stopped_and_resumed_before_and_after_members_end_is_bitwise_the_same(whole, tmp_path):
    """Each part takes a few strides: before the first end, between the two ends, after them."""
    context, parts = Recorder(stop_after=0), made(tmp_path)
    ended = []
    for strides in (2, 4, 6, 8, None):
        context.stop_after = None if strides is None else strides
        train(population(UNTIL), parts, context)
        ended.append(sum((part / FILE).exists() for part in parts))
    assert ended[0] == 0
    assert 1 in ended[:-1], "one part ends between the two"
    same(context, whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the file", "after the file"])
def test_a_death_at_the_moment_of_an_end_loses_nothing(whole, tmp_path, monkeypatch, moment):
    real, context, parts = Fitted.end, Recorder(), made(tmp_path)

    def dying(self, members, step, params):
        if moment == "after the file":
            real(self, members, step, params)
        raise KeyboardInterrupt

    for _ in range(2):  # at both ends
        with monkeypatch.context() as patch:
            patch.setattr(Fitted, "end", dying)
            with pytest.raises(KeyboardInterrupt):
                train(population(UNTIL), parts, context)
        if moment == "before the file":
            break  # it would die there for ever
    train(population(UNTIL), parts, context)
    same(context, whole[0])


@pytest.mark.slow
def test_no_end_is_written_into_a_folder_that_another_process_has_by_now(tmp_path):
    """Its `log_manifest` raises then, see `attnjax.sweep.run_context`."""
    context, parts = Recorder(), made(tmp_path)
    real = context.log_manifest

    def log_manifest(directory, **fields):
        if fields.get("stopped_at"):
            raise RuntimeError("taken over")
        real(directory, **fields)

    context.log_manifest = log_manifest
    with pytest.raises(RuntimeError, match="taken over"):
        train(population(UNTIL), parts, context)
    assert not any((part / FILE).exists() for part in parts)


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
@pytest.mark.parametrize("damage", ["{", '{"schema": 1, "step": 99}', '{"schema": 1, "step": "8"}', "checkpoint"])
def test_damage_to_an_end_costs_time_and_no_result(whole, expected, tmp_path, damage):
    context, parts = Recorder(), made(tmp_path)
    for original, part in zip(whole[1], parts, strict=True):
        shutil.copytree(original, part, dirs_exist_ok=True)
    context.logs, context.found = (
        {name: list(rows) for name, rows in old.items()} for old in (whole[0].logs, whole[0].found)
    )
    first = parts[int(min(expected, key=expected.get))]
    if damage == "checkpoint":
        next(first.glob("checkpoints/*/digest/metadata")).write_text("{}")
    else:
        (first / FILE).write_text(damage)
    with pytest.warns(UserWarning, match="damaged"):
        train(population(UNTIL), parts, context)
    same(context, whole[0])


@pytest.mark.parametrize(
    "content",
    [
        b'{"schema": 1, "step": 8',
        b'{"schema": 1, "step": 8}' + b" " * 1000,
        b'{"schema": 1, "step": 8, "a": "\xff"}',
        b"",
    ],
    ids=["cut", "too large", "no text", "empty"],
)
def test_a_damaged_end_is_a_warning_and_no_end(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    with pytest.warns(UserWarning, match=f"^{FILE} of run {tmp_path.name} is damaged, so the run goes on"):
        assert Fitted(population(UNTIL)[0], [tmp_path]).steps == {}


def test_a_link_in_place_of_an_end_is_refused(tmp_path):
    (tmp_path / "elsewhere").write_text('{"schema": 1, "step": 8}')
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LinkError):
        Fitted(population(UNTIL)[0], [tmp_path / "run"])


@pytest.mark.slow
def test_a_sweep_that_is_stopped_between_two_ends_has_one_population_to_its_end(whole, expected, tmp_path):
    """A run that has fitted its task is not done until its population is, which would be another one without it.

    A run that is added meanwhile trains alone, because it would throw the others back to the beginning.
    """
    slowest, *_ = members = population(UNTIL)
    members.append(dataclasses.replace(slowest, seed=4, data_seed=4))
    *planned, added = [Planned(run, {"seed": run.seed}) for run in members]
    store, stop = prepare(tmp_path / "runs", "tiny", planned), Stop()
    runs = [entry.run for entry in store.runs]
    first, second = sorted(expected, key=expected.get)

    def progress(event):
        if event.run == runs[0] and event.step > expected[first]:
            stop.set("enough")

    run_here(store, train, progress=progress, stop=stop)
    assert store.status(runs[int(first)])[:2] == ("preempted", expected[first])
    assert expected[first] < store.status(runs[int(second)]).step < expected[second]
    more = prepare(tmp_path / "runs", "tiny", [*planned, added], extend=True)
    assert str(run_here(more, train)) == "5 runs: 5 done"
    *members, alone = scan(store.root).runs
    assert (alone.config.seed, alone.manifest()["population_size"]) == (4, 1)
    for found in members:
        name, manifest = str(found.config.seed), found.manifest()
        assert found.status == ("done", expected.get(name, 32), "")
        assert (manifest["population_size"], manifest["determinism"]) == (4, "bitwise")
        assert manifest["stopped_at"] == expected.get(name)
        assert manifest["parameters_sha256"] == whole[0].notes[name]["parameters_sha256"]
        assert not found.problems


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"evaluate": {"validation_lengths": [1]}},
            "train.until=0.5 is looked at every evaluate.every steps, which is 0",
        ),
        (
            {"evaluate": {"every": 8, "validation_lengths": []}},
            "is a validation score, and evaluate.validation_lengths is empty",
        ),
        ({"evaluate": {"every": 8}}, "task.length_max=4, are fitted, and evaluate.validation_lengths has 40"),
    ],
)
def test_an_end_that_nobody_would_see_is_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse({"task": {"length_max": 4}, "train": {"until": 0.5}, **changes})


def test_a_text_has_no_exact_answers():
    run = parse(
        {
            "task": {"name": "text", "length_min": 8, "length_max": 8},
            "train": {"until": 0.5},
            "evaluate": {"every": 8, "lengths": [], "validation_lengths": [8]},
        }
    )
    with pytest.raises(
        ValueError, match="train.until=0.5 is an exact match, and task.name='text', which predicts the next"
    ):
        check(run)


def test_a_run_that_does_all_steps_keeps_its_id():
    assert run_id(population(0.0)[0]) == run_id(parse({**TINY, "train": {**TINY["train"], "learning_rate": 1e-4}}))
    assert run_id(population(0.0)[0]) != run_id(population(0.5)[0])
