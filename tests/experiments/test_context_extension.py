"""Context extension: methods are the encodings they are named after, and what is measured is what the texts say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from attnjax.modules import Decoder, TransformerConfig
from attnjax.positions import ALiBi, EncodingParams, NoPE, RoPE
from attnjax.positions.factor_search import by_parts, check_factors
from experiments.context_extension import measuring, methods, planting, texts, tuning
from experiments.context_extension.measuring import Protocol
from experiments.context_extension.methods import FREQUENCIES, POSITIONS, Extension
from experiments.context_extension.subjects import Scores, Subject

pytestmark = pytest.mark.slow

L, FACTOR, HEAD = 8, 4, 8
BASE = RoPE(theta=100.0)
EXTENSION = Extension(L, FACTOR, factors=(1.0, 1.5, 2.5, 4.0))
CONFIG = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=16, encoding=(NoPE(), BASE))


def subject_of(config=CONFIG):
    build = lambda config: Decoder(config, rngs=nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.split(build(config), graph=False)[1])
    # Scores that matter: at random they are so small that no encoding would be seen.
    params = jax.tree.map(lambda x: 3 * x if x.ndim > 1 else x, params)
    return Subject("planted", config, build, params, L, seed=0)


@pytest.fixture(scope="module")
def subject():
    return subject_of()


def radians(method, length):
    found = methods.numbers(method, BASE, HEAD, EXTENSION, length)
    return np.asarray(found.shared["frequencies"].radians), float(found.shared["gain"])


def test_frequencies_by_hand():
    """d = 8 and theta = 100: f_k = 100^(-k/4). With s = 4 NTK has the base 100 * 4^(8/6)."""
    plain = 100.0 ** (-np.arange(4) / 4)
    growth = 4.0 ** (-np.arange(4) / 3)
    long = FACTOR * L
    for method, wanted in {
        "none": plain,
        "pi": plain / 4,
        "ntk": plain * growth,
        "dynamic_ntk": plain * growth,
        "p_rope": plain * [1, 1, 1, 0],
        "drope": 0 * plain,
        "longrope": plain / [1, 1.5, 2.5, 4],
    }.items():
        np.testing.assert_allclose(radians(method, long)[0], wanted, rtol=1e-6, err_msg=method)
    for method in ("dynamic_ntk", "longrope"):
        np.testing.assert_allclose(radians(method, L)[0], plain, rtol=1e-6)
    assert radians("yarn", long)[1] == pytest.approx(0.1 * np.log(4) + 1)
    assert radians("longrope", long)[1] == pytest.approx(np.sqrt(1 + np.log(4) / np.log(8)))
    scaled = methods.numbers("drope", BASE, HEAD, Extension(L, FACTOR, logit_scale=0.4), long)
    assert float(scaled.shared["gain"]) ** 2 == pytest.approx(1 + 0.4 * np.log(4))


def test_positions_are_remapped_as_by_the_library(subject):
    """And within the trained length the model is what it was, where no window is as short as that."""
    tokens = np.random.default_rng(4).integers(0, 11, (2, FACTOR * L + 1)).astype(np.int32)
    for method in POSITIONS:
        found = subject.scores(subject.params, subject.numbers(method, EXTENSION, FACTOR * L), tokens)
        encoding = methods.encoding(method, BASE, EXTENSION)
        parts = getattr(encoding, "parts", (encoding,))
        beside = [part for part in parts if hasattr(part, "first")]
        seen = {"window": (beside[0].window, 0), "window_first": beside[0].first} if beside else {}
        config = dataclasses.replace(subject.config, encoding=(NoPE(), encoding), **seen)
        logits = subject.with_config(subject.params, config)(tokens[:, :-1])
        expected = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        np.testing.assert_allclose(found.loss, expected, rtol=2e-5, atol=2e-5, err_msg=method)


@pytest.mark.parametrize(("length", "names"), [(L, ("dynamic_ntk", "longrope")), (FACTOR * L, FREQUENCIES)])
def test_numbers_as_data_are_the_encoding_itself(subject, length, names):
    """Against the model built with the encoding, whose length-dependent rules see the length themselves."""
    tokens = np.random.default_rng(0).integers(0, 11, (2, length + 1)).astype(np.int32)
    different = set()
    for method in names:
        encodings = (NoPE(), methods.encoding(method, BASE, EXTENSION))
        logits = jax.jit(lambda p, x, e=encodings: subject.with_encodings(p, e)(x))(subject.params, tokens[:, :-1])
        wanted = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        found = subject.scores(subject.params, subject.numbers(method, EXTENSION, length), tokens)
        np.testing.assert_allclose(found.loss, wanted, atol=2e-5, err_msg=method)
        np.testing.assert_array_equal(found.right > 0, np.argmax(logits, -1) == tokens[:, 1:])
        different.add(np.round(np.asarray(found.loss), 3).tobytes())
    # With a = 1 and a sequence s times as long, dynamic NTK is NTK.
    assert len(different) == (len(names) if length == L else len(names) - 1)


def test_what_has_no_rope_is_refused():
    with pytest.raises(ValueError, match="planted has no RoPE, whose frequencies could be changed: it has ALiBi"):
        subject_of(TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=16, encoding=ALiBi()))
    with pytest.raises(ValueError, match="a method must be one of none, pi, .*, got 'pie'"):
        methods.encoding("pie", BASE, EXTENSION)
    with pytest.raises(ValueError, match="must be 4 positive numbers, one per pair, got"):
        check_factors([1.0, 2.0], BASE.pairs(HEAD)[0])


def test_planted_lines_come_in_pairs_and_leave_the_text_alone():
    text = b"".join(b"line %d of a text\n" % i for i in range(400))
    length = 2 * planting.ROOM
    planted = planting.plant(text, length, seed=3)
    assert planted == planting.plant(text, length, seed=3) != planting.plant(text, length, seed=4)
    values = lambda line: [byte for byte in line if byte >= 128]
    lines = planted.splitlines(keepends=True)
    assert b"".join(line for line in lines if not values(line)) == text
    stated = [line for line in lines if values(line) and len(line) == 5]
    asked = [line for line in lines if values(line) and len(line) == 9]
    assert 3 * len(stated) == len(asked) == 3 * int(len(text) / (3 / 8 * length))
    assert sum(bool(values(line)) for line in lines) == 4 * len(stated)
    gaps = []
    for line in stated:
        kinds = {(byte - 128) // 8: byte for byte in values(line)}
        assert len(kinds) == 4
        mine = [one for one in asked if set(values(one)) == set(values(line))]
        pairs = {(planting.QUESTIONS[kind], byte) for kind, byte in kinds.items()}
        assert [set(zip(one[:8:2], one[1:8:2], strict=True)) for one in mine] == [pairs] * 3
        between = planted[planted.index(line) + 5 : planted.index(mine[0])]
        gaps.append(len(b"".join(one for one in between.splitlines(keepends=True) if not values(one))))
    # So many bytes of text, and the way to two ends of lines.
    assert max(gaps) <= planting.ROOM + 2 * 20
    assert max(gaps) > planting.ROOM - 10
    assert min(gaps) < 30


def corpus_of(data, begin=()):
    draw = lambda generator: texts.Needle(
        [101, 102, 103], [101, 102], [int(generator.integers(104, 120)), 103], [True, False]
    )
    return texts.Corpus("byte", lambda length: data, data, data, draw, begin, (10,), True, 0.01, {"text": "made up"})


def test_a_haystack_holds_its_needle():
    data = np.where(np.arange(4000) % 7 == 0, 10, np.arange(4000) % 5).astype(np.int32)
    corpus = corpus_of(data, begin=(99,))
    ends = {}
    for length in (16, 64):
        for depth in (0.0, 0.5, 1.0):
            rows, counted = texts.haystack(corpus, length, depth, 6, longest=64)
            assert rows.shape == (6, length + 1)
            assert counted.shape == (6, length)
            assert counted.sum() == 6
            for row, mark in zip(rows, counted, strict=True):
                assert row[0] == 99
                assert row[-4:-2].tolist() == [101, 102]
                assert row[1:][mark > 0].tolist() == row[-2:-1].tolist()
                at = int(np.flatnonzero(row == 101)[0])
                assert row[at : at + 3].tolist() == [101, 102, 103]
                assert row[at - 1] == 10 or at == 1
                assert abs((at - 1) / (length - 7) - depth) <= 7 / (length - 7)
            if depth == 0:
                ends[length] = rows[:, -10:].tolist()
    assert ends[16] == ends[64]
    with pytest.raises(ValueError, match="a context of 8 tokens cannot hold a needle of 8"):
        texts.haystack(corpus, 8, 0.0, 1, longest=64)


def test_ngrams_lose_on_the_documents_what_their_counts_say():
    """Of "abac" over and over a quarter is b, and half of what follows a; after two bytes the next one is all but certain."""
    text = np.tile(np.frombuffer(b"abac", np.uint8), 4000)
    data = np.tile(np.frombuffer(b"abac", np.uint8), 17)[:65].astype(np.int32)
    protocol = Protocol(8, 4, documents=2, needles=2, batch=32)
    found = measuring.measure_ngrams(text, corpus_of(data), protocol)
    assert list(found) == ["unigram", "bigram", "trigram"]
    # Every second byte is a. -ln 1/2 and -ln 1/4 in turn, and with one byte before: 0 after b and c, -ln 1/2 after a.
    for length in ("8", "16", "32"):
        for kind in ("windows", "sliding"):
            assert found["unigram"][kind][length] == pytest.approx([1.5 * np.log(2)] * 2, abs=1e-3)
            assert found["bigram"][kind][length] == pytest.approx([0.5 * np.log(2)] * 2, abs=1e-3)
        assert found["trigram"]["sliding"][length] == pytest.approx([0, 0], abs=1e-3)
    # The first target of a window has one byte before it: of 8 windows of 8, those that begin with a lose ln 2 there.
    assert found["trigram"]["windows"]["8"] == pytest.approx([np.log(2) / 8] * 2, abs=1e-3)
    position = np.array(found["trigram"]["position"])
    np.testing.assert_allclose(position[:, 0], np.log(2) / 4, atol=1e-3)
    np.testing.assert_allclose(position[:, 1:], 0, atol=1e-3)


WRONG = 108


class Echo:
    """In place of a model: the loss of a token is its number, plus 1000 for each token before it."""

    def numbers(self, method, extension, length):
        return ()

    def scores(self, params, numbers, tokens):
        before = np.arange(tokens.shape[1] - 1)
        return Scores(tokens[:, 1:] + 1000.0 * before, (tokens[:, 1:] != WRONG) * 1.0)


def test_what_is_measured_by_hand():
    protocol = Protocol(8, 4, documents=2, needles=3, depths=(0.0, 1.0), batch=32)
    assert protocol.lengths == (8, 16, 32)
    assert protocol.edges == (0, 4, 8, 12, 16, 20, 24, 28, 32)
    assert protocol.stride == 2
    data = np.arange(65, dtype=np.int32) % 90
    found = measuring.measure(Echo(), None, "none", EXTENSION, corpus_of(data), protocol)
    # Documents are tokens 0 .. 32 and 32 .. 64; of windows of 8 the mean position is 3.5, their targets 1 .. 32.
    assert found["windows"]["8"] == [3500 + 16.5, 3500 + 48.5]
    assert found["windows"]["32"] == [15500 + 16, 15500 + 48]  # of five digits
    assert found["sliding"]["8"] == [6500 + 31.5, 6500 + 63.5]
    assert found["sliding"]["32"] == [30532, 30564]
    assert np.shape(found["position"]) == (2, 8)
    assert found["position"][1][1] == pytest.approx(5500 + 38.5, rel=1e-4)
    # The first token of an answer counts, after 14 others; one is never the likeliest.
    loss = np.array(found["needle"]["16"])
    assert loss.shape == (2, 3)
    assert np.all((loss >= 14_104) & (loss < 14_120))
    assert found["found"]["16"] == (loss != 14_000 + WRONG).astype(int).tolist()
    assert np.sum(loss == 14_000 + WRONG) > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factor": 6}, "a power of 2 and at least 2, got 6"),
        ({"documents": 1}, "2 or more documents and needles are needed, got 1 and 16"),
        ({"trained": 4}, "the trained length must be even and 8 or more, got 4"),
    ],
)
def test_a_protocol_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        Protocol(**{"trained": 8, **change})


class Valley:
    """In place of a model: the loss is the distance of the factors from those that are hidden here."""

    base, head, params = BASE, HEAD, None
    best = np.array([1.0, 1.0, 2.25, 3.375])

    def numbers(self, method, extension, length):
        return (methods.numbers(method, BASE, HEAD, extension, length),)

    def scores(self, params, numbers, tokens):
        factors = 100.0 ** (-np.arange(4) / 4) / numbers[0].shared["frequencies"].radians
        return Scores(jnp.full((1, 1), np.abs(np.log(factors / self.best)).sum(), jnp.float32), None)


def test_the_search_goes_downhill():
    tokens = np.zeros((1, FACTOR * L + 1), np.int32)
    start = by_parts(BASE, HEAD, FACTOR, L)
    assert tuning.search(Valley(), EXTENSION, tokens, 0) == start
    far = lambda factors: np.abs(np.log(np.asarray(factors) / Valley.best)).sum()
    found = tuning.search(Valley(), EXTENSION, tokens, 6)
    assert far(found) < 0.5 * min(map(far, tuning.starts(Valley(), EXTENSION)))
    assert list(found) == sorted(found)
    assert 1 <= min(found) <= max(found) <= FACTOR * tuning.STEP


@pytest.mark.slow
def test_one_step_of_tuning_is_adam(subject):
    """Against optax's own Adam, whose first step is the sign of the gradient times the rate."""
    numbers = subject.numbers("pi", EXTENSION, 2 * L)
    batch = np.random.default_rng(1).integers(0, 11, (1, 4, 2 * L + 1)).astype(np.int32)
    found = tuning.Tuner(subject, 1, 0.01)(subject.params, numbers, batch)

    def loss(params):
        model = subject.with_encodings(params, (NoPE(), methods.encoding("pi", BASE, EXTENSION)))
        return optax.softmax_cross_entropy_with_integer_labels(model(batch[0, :, :-1]), batch[0, :, 1:]).mean()

    value, gradient = jax.value_and_grad(loss)(subject.params)
    assert found.losses == pytest.approx([float(value)], rel=1e-5)
    adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01, 0.9, 0.98))
    with jax.numpy_dtype_promotion("standard"):
        update, _ = adam.update(gradient, adam.init(subject.params))
    for path, leaf in jax.tree.leaves_with_path(optax.apply_updates(subject.params, update)):
        mine = dict(jax.tree.leaves_with_path(found.params))[path]
        big = np.abs(dict(jax.tree.leaves_with_path(gradient))[path]) > 1e-5
        np.testing.assert_allclose(np.asarray(mine)[big], np.asarray(leaf)[big], atol=1e-4)
    assert isinstance(numbers[0], EncodingParams)


def test_batches_are_windows_of_the_text():
    data = np.arange(200, dtype=np.int32)
    found = texts.batches(data, 12, 3, 4)
    assert found.shape == (4, 3, 13)
    assert np.all(np.diff(found, axis=-1) == 1)
    assert len(set(found[..., 0].ravel().tolist())) > 6
    np.testing.assert_array_equal(found, texts.batches(data, 12, 3, 4))
    opened = texts.opened(found, (7, 8))
    assert opened[..., :2].reshape(-1, 2).tolist() == [[7, 8]] * 12
    np.testing.assert_array_equal(opened[..., 2:], found[..., 2:])
    assert texts.windows(data, 12, 3)[:, 0].tolist() == [0, 93, 187]
