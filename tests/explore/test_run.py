"""What the page is told of a run: the model's own weights, and clear words for what cannot be."""

import base64
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.config import canonical_json, parse, run_id
from attnjax.evaluation.loaded_model import load
from attnjax.explore.contents import ERROR
from attnjax.explore.run import explore
from attnjax.explore.texts import MOST_TOKENS, read_tokens, texts, token_names, vocabularies
from attnjax.tasks import specials
from attnjax.train import checkpoint
from attnjax.train.loop import data_sha256, make_task
from attnjax.train.step import Trainer, members

SMALL = {
    "name": "small",
    "task": {"name": "text", "length_min": 8, "length_max": 8},
    "model": {"layers": 2, "model": 16, "heads": 2, "hidden": 16, "encoding": "alibi"},
    "train": {"steps": 3, "batch": 2},
    "evaluate": {"lengths": [8, 24], "validation_lengths": [8], "count": 128, "batch": 32, "bucket_sizes": [24]},
}
TEXT = bytes(range(256)) * 40


def settings(**changes):
    """The small config with other values at dotted keys."""
    made = json.loads(json.dumps(SMALL))
    for name, value in changes.items():
        part, _, key = name.partition("__")
        if key:
            made[part][key] = value
        else:
            made[part] = value
    return made


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """The folder of a run with a checkpoint of its first parameters."""
    root = tmp_path_factory.mktemp("runs")
    (root / "text.bin").write_bytes(TEXT)

    def made(save=True, **changes):
        fields = settings(**changes)
        if fields["task"]["name"] == "text":
            fields["task"]["options"] = {"path": str(root / "text.bin")}
        config = parse(fields)
        folder = root / run_id(config)
        (folder / "result").mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(canonical_json(config))
        if config.task.name == "text":
            digests = data_sha256(config, make_task(config))
            (folder / "result" / "manifest.json").write_text(json.dumps({"schema": 1, "data_sha256": digests}))
        if save:
            trainer = Trainer(config, make_task(config))
            state = jax.tree.map(lambda leaf: leaf[0], jax.device_get(trainer.start(members([config]))))
            checkpoint.save(folder / "result" / "checkpoints", 3, state)
        return folder

    return made


@pytest.fixture(scope="module")
def decoder(make):
    return make()


def unpacked(run, number=0):
    """[L, N, T, T] from the text of a run, entry by entry."""
    shown = run.texts[number]
    size = len(shown.tokens)
    whole = np.frombuffer(base64.b64decode(shown.weights), "<u2").reshape(run.layers, run.heads, -1)
    weights = np.zeros((run.layers, run.heads, size, size))
    places = [(i, j) for i in range(size) for j in range(i + 1 if run.causal else size)]
    for place, (i, j) in enumerate(places):
        weights[:, :, i, j] = whole[:, :, place] / 65535
    return weights


@pytest.mark.slow
def test_weights_are_those_of_the_model_on_the_bytes_of_the_text(decoder):
    run = explore(decoder, [b"if x:\n\tgo \xff", b"def"])
    assert run.texts[0].tokens == ("i", "f", "␣", "x", ":", "⏎", "⇥", "g", "o", "␣", "xff")
    assert [one.title for one in run.texts] == ["if x: go \ufffd", "def"]
    tokens = jnp.asarray([list(b"if x:\n\tgo \xff")], jnp.int32)
    expected = load(decoder).weights(tokens)[:, 0]
    np.testing.assert_allclose(unpacked(run), expected, rtol=0, atol=ERROR * 1.001)
    assert (run.layers, run.heads, run.causal, run.look, run.spaced) == (2, 2, True, "e-alibi", False)
    assert run.name == f"alibi · small · {decoder.name}"
    assert dict(run.about)["training"] == "length 8, 3 of 3 steps"
    assert [one.name for one in run.grids][-3:] == ["entropy", "distance", "sink"]
    assert run.scored.endswith("held-out sequences of 8 tokens.")
    assert json.loads(run.config)["model"]["heads"] == 2


@pytest.mark.slow
def test_without_a_text_held_out_windows_of_the_longest_length_are_shown(decoder):
    run = explore(decoder)
    assert [len(one.tokens) for one in run.texts] == [24] * 3
    assert len({one.tokens for one in run.texts}) == 3


@pytest.mark.slow
def test_positions_are_those_of_the_tests_of_a_run(make):
    """Randomized at the test too: the same text, other positions, other weights."""
    plain = make(model__encoding="rope")
    parts = {"policy": "randomized", "maximum": 64}
    weights = []
    for at_test in ("arange", "same"):
        folder = make(model__encoding="rope", positions={**parts, "at_test": at_test}, save=False)
        assert folder != plain
        state = checkpoint.restore(
            plain / "result" / "checkpoints", Trainer(load(plain).run, make_task(load(plain).run)).shapes()
        )
        checkpoint.save(folder / "result" / "checkpoints", 3, jax.tree.map(jnp.asarray, state[1]))
        weights.append(unpacked(explore(folder, [b"a bcd efg"])))
    np.testing.assert_allclose(weights[0], unpacked(explore(plain, [b"a bcd efg"])), atol=2 * ERROR)
    assert np.abs(weights[1] - weights[0]).max() > 1e-3


def test_shown_windows_are_of_the_test_split(tmp_path):
    """Of a file the last twentieth, whose bytes the manifest vouches for."""
    (tmp_path / "abc.txt").write_bytes(b"a" * 9000 + b"b" * 500 + b"c" * 500)
    run = parse({**settings(), "task": {"name": "text", "options": {"path": str(tmp_path / "abc.txt")}}})
    shown = texts(run, make_task(run))
    assert len(shown) == 3
    assert {token for one in shown for token in one.tokens.tolist()} == {ord("c")}


def test_tokens_of_an_answer_have_its_names():
    """Where a walk on a cycle ends is a place; the tokens of the input with the same ids are steps."""
    run = parse({**settings(task__name="cycle_navigation"), "name": "names"})
    task = make_task(run)
    tokens = [2, 0, 1, specials(task).separator, 4, specials(task).stop]
    words = "+1 -1 0 <separator> 4 <stop>"
    assert sorted(vocabularies(run, task)[0][:3]) == ["+1", "-1", "0"]
    assert token_names(run, task, tokens)[3:] == ("<separator>", "4", "<stop>")
    assert token_names(run, task, read_tokens(run, task, words.encode())) == tuple(words.split())
    with pytest.raises(ValueError, match="the text has the token '.1', which task 'cycle_navigation' does not have"):
        read_tokens(run, task, b"0 <separator> +1")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([b"a" * (MOST_TOKENS + 1)], "a text must have 1 to 128 tokens to be shown as a map, got 129"),
        ([b""], "a text must have 1 to 128 tokens to be shown as a map, got 0"),
    ],
)
def test_a_text_that_no_map_can_show(decoder, texts, message):
    with pytest.raises(ValueError, match=message):
        explore(decoder, texts)


def test_a_run_without_checkpoints(make):
    folder = make(save=False, train__steps=77)
    with pytest.raises(ValueError, match="holds no checkpoint that can be read: train the run first"):
        explore(folder)
