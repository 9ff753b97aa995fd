"""One call scores all heads: heads written by hand are found by it, and its numbers are those of the single functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.analysis import LoadedModel, head_scores
from attnjax.analysis.counting import count_heads
from attnjax.analysis.overview import held_out
from attnjax.analysis.scores import score_heads
from attnjax.analysis.weights import causal, entropy, mean_distance, sink_mass
from attnjax.config import parse
from attnjax.modules import Encoder
from attnjax.train.loop import make_task
from attnjax.train.model import build
from experiments.head_specialization.corpus import cut, read_source
from tests.analysis import planted_heads as planted

SMALL = {"layers": 2, "model": 16, "heads": 2, "hidden": 16}
CODE = "def add(first, second):\n    return (first + second)\n"


def untrained(**settings) -> LoadedModel:
    run = parse({"model": SMALL, **settings})
    task = make_task(run)
    model = build(run, task)
    return LoadedModel(model.module(model.init(jax.random.key(0))), "untrained", run, task)


def test_heads_written_by_hand_are_found():
    found = head_scores(planted.previous_by_bias(), planted.tokens(20))
    assert found.best("previous_token") == (0, 0)
    assert head_scores(planted.induction(), planted.tokens(20)).best("induction") == (1, 0)
    lines = str(found).splitlines()
    assert lines[0].split()[:3] == ["head", "previous_token", "first_token"]
    assert lines[0].split()[-3:] == ["entropy", "distance", "sink"]
    assert [line.split()[:2] for line in lines[1:3]] == [["0.0", "1.000*"], ["0.1", "0.099"]]
    assert [line.split()[0] for line in lines[3:]] == ["baseline", "chance"]
    assert lines[3].split()[1] == "1.000"


@pytest.mark.slow
def test_its_numbers_are_those_of_the_single_functions():
    subject, tokens = planted.drawn(planted.config(layers=2)), planted.tokens(20)
    found = head_scores(subject, tokens)
    scored = score_heads(count_heads(subject, tokens, np.arange(20), {}, separators=()))
    assert set(found.patterns) == set(scored)
    for name, one in scored.items():
        jax.tree.map(np.testing.assert_array_equal, found.patterns[name], one)
    weights, mean = subject.weights(jnp.asarray(tokens)), lambda one: np.nanmean(one, axis=(1, 3))
    np.testing.assert_allclose(found.entropy, mean(entropy(weights)), rtol=1e-5)
    np.testing.assert_allclose(found.distance, mean(mean_distance(weights)), rtol=1e-5)
    np.testing.assert_allclose(found.sink, mean(sink_mass(weights, causal(planted.LENGTH))), rtol=1e-5)


def test_an_encoder_has_a_score_for_the_next_token():
    assert "next_token" in head_scores(planted.previous_by_bias(Encoder), planted.tokens(4)).patterns


@pytest.mark.slow
def test_a_run_is_shown_held_out_examples_of_its_task():
    subject = untrained(task={"name": "reverse_string", "length_max": 6})
    found = head_scores(subject)
    separator, stop = 2, 13  # two symbols come first; input, separator and answer
    assert found.tokens.shape == (64, stop)
    assert (found.tokens[:, 6] == separator).all()
    np.testing.assert_array_equal(found.tokens[:, 7:], found.tokens[:, 5::-1])
    assert found.patterns["separator"].rows == 64 * 6
    assert found.entropy.shape == (2, 2)


@pytest.mark.slow
def test_targets_of_a_parser_are_patterns_too():
    sources = [
        read_source(f"f{number}.py", (CODE + f"x{number} = add({number}, [1])\n").encode()) for number in range(6)
    ]
    windows = cut(sources, 64)
    linked = {"bracket": windows.bracket, "name": windows.name}
    subject = planted.drawn(planted.config(layers=2, vocab=256))
    found = head_scores(subject, windows.tokens, document=windows.document, linked=linked)
    scored = score_heads(count_heads(subject, windows.tokens, windows.document, linked))
    assert found.patterns["bracket"].rows == windows.bracket.any(-1).sum() > 0
    for name in linked:
        jax.tree.map(np.testing.assert_array_equal, found.patterns[name], scored[name])


@pytest.mark.slow
def test_windows_of_one_file_are_one_document(tmp_path):
    """Every file is one byte again and again, so that a window tells its file."""
    for i in range(60):
        (tmp_path / f"{i}.txt").write_bytes(bytes([40 + i]) * 300)
    subject = untrained(task={"name": "text", "options": {"path": str(tmp_path)}, "length_max": 32})
    rows, document = held_out(subject)
    test = {byte for byte in make_task(subject.run).for_split("test").data.tolist() if byte}
    assert set(rows.ravel().tolist()) <= test | {0}, "bytes that were not trained on"
    files = {byte: set(document[(rows == byte).all(1)].tolist()) for byte in test}
    assert sum(map(len, files.values())) == len(set().union(*files.values())) == len(files) > 1
    found = head_scores(subject).patterns["same_token"]
    assert found.documents == len(set(document.tolist()))


@pytest.mark.slow
def test_what_has_no_separator_has_no_score_of_it(tmp_path):
    """The slots of an encoder have the id that follows those of the input, as a decoder's separator has."""
    encoder = untrained(task={"name": "reverse_string", "length_max": 6, "form": "encoder"})
    assert not head_scores(encoder).patterns["separator"].rows
    other = planted.drawn(planted.config(layers=1, vocab=64))
    assert not head_scores(other, planted.tokens(4)).patterns["separator"].rows
    tokens = np.tile(np.arange(8), (4, 4))
    found = head_scores(planted.previous_by_bias(), tokens, separators=(3,)).patterns["separator"]
    assert found.rows == 4 * (32 - 4)


@pytest.mark.slow
def test_text_is_shown_in_windows(tmp_path):
    (tmp_path / "one.txt").write_text("words and more words " * 400)
    subject = untrained(task={"name": "text", "options": {"path": str(tmp_path / "one.txt")}, "length_max": 32})
    found = head_scores(subject)
    assert found.tokens.shape == (64, 32)
    assert found.patterns["separator"].rows > 0


def test_mistakes_are_sentences():
    with pytest.raises(ValueError, match="^previous by bias was not trained here, so that tokens have to be given"):
        head_scores(planted.previous_by_bias())
    with pytest.raises(ValueError, match="nowhere/rope/0 is no folder"):
        head_scores("nowhere/rope/0")
    with pytest.raises(
        ValueError, match="^document and linked are about the rows of tokens, so that tokens have to be"
    ):
        head_scores(planted.previous_by_bias(), document=np.arange(3))
    with pytest.raises(ValueError, match="document must have one entry for each of the 4 windows"):
        head_scores(planted.previous_by_bias(), planted.tokens(4), document=np.arange(3))
    with pytest.raises(ValueError, match="tokens must be integers"):
        head_scores(planted.previous_by_bias(), np.zeros(3))
    found = head_scores(planted.previous_by_bias(), planted.tokens(4) * 0 + np.arange(32) % 8)
    with pytest.raises(ValueError, match="^pattern must be one of previous_token, .*, got 'previous'$"):
        found.best("previous")
    with pytest.raises(ValueError, match="no token has a target of the pattern 'separator'"):
        found.best("separator")
