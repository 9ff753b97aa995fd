"""What the page is told of a run: its own weights and scores, and no file that the run's manifest does not vouch for."""

import base64
import hashlib
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.cli import main
from attnjax.config import parse
from attnjax.evaluation import LoadedModel, head_scores
from attnjax.evaluation.counts import stands_out
from attnjax.evaluation.loaded_model import load
from attnjax.explore.contents import ERROR
from attnjax.explore.run import explore, head_grids, unvouched
from attnjax.explore.texts import MOST_TOKENS, fitting, read_tokens, texts, token_names, vocabularies
from attnjax.tasks import specials
from attnjax.train.loop import make_task
from attnjax.train.model import build
from tests.evaluation.stored import started, stored
from tests.trees import tree

SMALL = {
    "name": "small",
    "task": {"name": "text", "length_min": 8, "length_max": 8},
    "model": {"layers": 2, "model": 16, "heads": 2, "hidden": 16, "encoding": "rope"},
    "train": {"steps": 20_000, "batch": 2},
    "evaluate": {"lengths": [8, 24], "validation_lengths": [8], "count": 4, "batch": 4, "bucket_sizes": [24]},
}
SECRET = b"the password of somebody is swordfish; " * 200
TEST_PART = hashlib.sha256(SECRET[len(SECRET) * 95 // 100 :]).hexdigest()
VOUCHED = {"data_sha256": {"test": TEST_PART}}


def on_text(path, **changes):
    """The small config, whose text is a file, with other fields."""
    return parse({**SMALL, "task": {**SMALL["task"], "options": {"path": str(path)}}, **changes})


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """Parameters of the small model, which all runs of the tests share."""
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(SECRET)
    return started(on_text(path))


@pytest.fixture
def run(tmp_path, state):
    """Somebody's folder of a run that was stopped at step 12, whose config names a file of ours as its text."""
    (tmp_path / "secret.txt").write_bytes(SECRET)
    return stored(tmp_path, on_text(tmp_path / "secret.txt"), state, 10, 12)


def vouched(folder, **manifest):
    (folder / "result" / "manifest.json").write_text(json.dumps({"schema": 1, **manifest}))
    return folder


def unpacked(run, number=0):
    """[L, N, T, T] from the text of a run, entry by entry."""
    shown = run.texts[number]
    size = len(shown.tokens)
    whole = np.frombuffer(base64.b64decode(shown.weights), "<u2").reshape(run.layers, run.heads, -1)
    weights = np.zeros((run.layers, run.heads, size, size))
    seen = [(i, j) for i in range(size) for j in range(i + 1)]
    for place, (i, j) in enumerate(seen):
        weights[:, :, i, j] = whole[:, :, place] / 65535
    return weights


@pytest.mark.slow
def test_weights_are_those_of_the_model_on_the_bytes_of_the_text(run):
    made = explore(vouched(run, **VOUCHED), [b"if x:\n\tgo \xff", b"def"])
    assert made.texts[0].tokens == ("i", "f", "␣", "x", ":", "⏎", "⇥", "g", "o", "␣", "xff")
    assert [one.title for one in made.texts] == ["if x: go \ufffd", "def"]
    expected = load(run).weights(jnp.asarray([list(b"if x:\n\tgo \xff")], jnp.int32))[:, 0]
    np.testing.assert_allclose(unpacked(made), expected, rtol=0, atol=ERROR * 1.001)
    assert made.name == f"rope · small · {run.name}"
    assert [one.name for one in made.grids][-3:] == ["entropy", "distance", "sink"]
    assert json.loads(made.config)["model"]["heads"] == 2
    own = explore(run)
    assert [len(one.tokens) for one in own.texts] == [24] * 3, "held-out windows of the longest length"
    assert len({one.tokens for one in own.texts}) == 3


@pytest.mark.slow
def test_positions_are_those_of_the_tests_of_a_run(tmp_path, state):
    """Randomized at the test too: the same text, other positions, other weights."""
    (tmp_path / "text").write_bytes(SECRET)
    weights = []
    for policy in ({}, {"at_test": "arange"}, {"at_test": "same"}):
        positions = {"policy": "randomized", "maximum": 64, **policy} if policy else {}
        folder = stored(tmp_path, on_text(tmp_path / "text", positions=positions), state)
        weights.append(unpacked(explore(folder, [b"a bcd efg"])))
    plain, untold, told = weights
    np.testing.assert_allclose(untold, plain, atol=2 * ERROR)
    assert np.abs(told - plain).max() > 1e-3


def test_shown_windows_are_of_the_test_split(tmp_path):
    """Of a file the last twentieth, whose bytes the manifest vouches for."""
    (tmp_path / "abc.txt").write_bytes(b"a" * 9000 + b"b" * 500 + b"c" * 500)
    config = on_text(tmp_path / "abc.txt")
    shown = texts(config, make_task(config))
    assert len(shown) == 3
    assert {token for one in shown for token in one.tokens.tolist()} == {ord("c")}


@pytest.mark.parametrize(("most", "expected"), [(9, [2, 4]), (8, [2]), (4, [1])])
def test_lengths_that_fit(most, expected):
    """n of four symbols that all differ, the separator, and n again: 2 n + 1 tokens for n of at most 4."""
    task = {"name": "unique_copy", "options": {"symbols": 4}, "length_min": 2, "length_max": 2}
    config = parse({**SMALL, "task": task, "evaluate": {"lengths": [2, 4, 5], "validation_lengths": []}})
    assert fitting(config, make_task(config), most) == expected
    with pytest.raises(ValueError, match="'unique_copy' .*2 tokens"):
        fitting(config, make_task(config), 2)


def test_tokens_of_an_answer_have_its_names():
    """Where a walk on a cycle ends is a place; the tokens of the input with the same ids are steps."""
    config = parse({**SMALL, "task": {**SMALL["task"], "name": "cycle_navigation"}})
    task = make_task(config)
    tokens = [2, 0, 1, specials(task).separator, 4, specials(task).stop]
    words = "+1 -1 0 <separator> 4 <stop>"
    assert sorted(vocabularies(config, task)[0][:3]) == ["+1", "-1", "0"]
    assert token_names(config, task, tokens)[3:] == ("<separator>", "4", "<stop>")
    assert token_names(config, task, read_tokens(config, task, words.encode())) == tuple(words.split())
    with pytest.raises(ValueError, match="'.1', .*'cycle_navigation'"):
        read_tokens(config, task, b"0 <separator> +1")


def test_what_cannot_be_shown(run, tmp_path):
    for text, count in ((b"a" * (MOST_TOKENS + 1), 129), (b"", 0)):
        with pytest.raises(ValueError, match=f"1 to 128 tokens .*got {count}"):
            explore(run, [text])
    empty = stored(tmp_path, on_text(tmp_path / "secret.txt", seed=5))
    with pytest.raises(ValueError, match="no checkpoint"):
        explore(empty, [b"a"])
    with pytest.raises(ValueError, match=r"head .*0..1 .*got 2"):
        explore(run, [b"a"], head=2)


@pytest.mark.slow
def test_every_score_is_that_of_head_scores():
    config = parse({"model": SMALL["model"], "task": {"name": "reverse_string", "length_max": 6}})
    model = build(config, make_task(config))
    subject = LoadedModel(model.module(model.init(jax.random.key(0))), "untrained", config, make_task(config))
    grids, scored = head_grids(subject)
    found = head_scores(subject)
    expected = {name: one.score for name, one in found.patterns.items() if one.rows}
    expected |= {name: getattr(found, name) for name in ("entropy", "distance", "sink")}
    assert [one.name for one in grids] == list(expected)
    for one in grids:
        np.testing.assert_allclose(one.values, expected[one.name], rtol=0, atol=5.1e-7)
        assert one.share == (one.name not in ("entropy", "distance"))
        if one.name in found.patterns:
            assert one.marked == tuple(map(tuple, stands_out(one.name, found.patterns[one.name]).tolist()))
    assert f"64 held-out sequences of {found.tokens.shape[1]} tokens" in scored


# What may be shown ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_step_and_digest_are_those_of_the_weights_and_a_damaged_checkpoint_is_told(run):
    about = dict(explore(vouched(run, **VOUCHED)).about)
    assert about["training"] == "length 8, 12 of 20,000 steps"
    assert about["parameters"].startswith("of step 12, sha256 ")
    files = [path for path in (run / "result" / "checkpoints" / "12").rglob("*") if path.is_file()]
    max(files, key=lambda path: path.stat().st_size).write_bytes(b"")
    before, folders = tree(run), [run, *(path for path in run.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        with pytest.warns(UserWarning, match="12"):
            about = dict(explore(run).about)
    finally:
        for path in folders:
            path.chmod(0o755)
    assert about["training"] == "length 8, 10 of 20,000 steps"
    assert about["parameters"].startswith("of step 10, sha256 ")
    assert "damaged" in about["step 12"]
    assert tree(run) == before, "looking changes nothing"


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({}, "no digest"),
        ({"data_sha256": {"test": 5}}, "no digest"),
        ({"data_sha256": {"train": TEST_PART}}, "no digest"),
        ({"data_sha256": {"test": "0" * 64}}, "is another here"),
        ({**VOUCHED, "data_path": "elsewhere"}, "no digest"),
        (VOUCHED, "^$"),
    ],
)
def test_the_manifest_must_have_the_digest_of_the_test_split(tmp_path, manifest, message):
    (tmp_path / "secret.txt").write_bytes(SECRET)
    config = on_text(tmp_path / "secret.txt")
    assert re.search(message, unvouched(config, make_task(config), manifest))


def test_a_file_that_the_manifest_does_not_vouch_for_is_not_shown(run, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["explore", str(vouched(run, data_sha256={"test": "0" * 64})), "--out", str(page)]) == 2
    error = capsys.readouterr().err
    assert "is another here" in error
    assert "--text" in error
    assert "swordfish" not in error
    assert not page.exists()


@pytest.mark.slow
def test_beside_a_text_that_is_given_nothing_is_shown_of_one_that_is_not_vouched_for(run, tmp_path):
    page = tmp_path / "page.html"
    assert main(["explore", str(run), "--out", str(page), "--text", "for i in"]) == 0
    text = page.read_text(encoding="utf-8")
    assert "swordfish" not in text
    assert '"grids":[]' in text
