"""Trained decoders read past their trained length: sizes of methods, what they leave as it is, and decoding with them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from attnjax.modules import Decoder, TransformerConfig, extended, extended_config, extended_encoding, generate
from attnjax.modules.extension import METHODS
from attnjax.registry import EXTENSIONS
from tests.cases import slow_except

ROPE = aj.RoPE(theta=500.0, layout="interleaved", fraction=0.5)
CONFIG = TransformerConfig(vocab=11, model=32, layers=2, heads=4, kv_heads=2, hidden=32, encoding=ROPE, embed_std=1.0)
TRAINED = 16


def model(**changes) -> Decoder:
    return Decoder(dataclasses.replace(CONFIG, **changes), rngs=nnx.Rngs(0))


def tokens(T: int, B: int = 2):
    return jnp.asarray(np.random.default_rng(0).integers(0, 11, (B, T)), jnp.int32)


@jax.jit
def logits(decoder, x, valid=None):
    return decoder(x, mask=aj.Mask(k_valid=valid))


def again(decoder, prompt, steps: int) -> np.ndarray:
    """The likeliest tokens after a prompt, each by running the whole model on all that is there by then."""
    x = np.pad(np.asarray(prompt), ((0, 0), (0, steps)))
    for end in range(prompt.shape[1], x.shape[1]):
        x[:, end] = logits(decoder, x, np.arange(x.shape[1]) < end)[:, end - 1].argmax(-1)
    return x[:, -steps:]


def test_every_method_has_a_name_in_the_registry():
    assert list(METHODS) == list(EXTENSIONS)


def test_sizes_are_those_of_the_authors():
    of = lambda method, **options: extended_encoding(method, aj.RoPE(), trained=4096, factor=4.0, **options)
    assert of("rerope") == aj.ReRoPE(window=512)
    assert of("dual_chunk") == aj.DualChunk(chunk=3072, local=512)
    # 15,360 tokens lie past the window of 1,024, and 3,072 distances below 4,096: five times as many. In groups of 5 the last
    # of 16,384 tokens would be at 3,276 + 1,024 - 204 = 4,096, which is one too far.
    assert of("self_extend") == aj.SelfExtend(window=1024, group=6)
    assert of("leaky_rerope") == aj.LeakyReRoPE(window=512, factor=5)
    assert of("lm_infinite") == aj.LMInfinite(first=10, window=4095)
    assert of("lm_infinite").farthest == 4096
    assert of("streaming_llm") == aj.StreamingLLM(first=4, window=4091)
    # The first key is at most 8 + window away, which must be below 4,096.
    assert of("streaming_llm", first=8) == aj.StreamingLLM(first=8, window=4087)
    assert of("resonance") == aj.RoPE(scaling=aj.Resonance(aj.YaRN(4.0, 4096)))
    assert of("yarn", beta_fast=16.0) == aj.RoPE(scaling=aj.YaRN(4.0, 4096, beta_fast=16.0))
    assert of("self_extend+log_n") == aj.compose(aj.LogN(length=4096), of("self_extend"))
    assert of("log_n") == aj.compose(aj.LogN(length=4096), aj.RoPE())
    assert of("p_rope") == aj.RoPE(keep=0.75)
    assert of("p_rope", keep=0.5) == aj.RoPE(keep=0.5)
    assert of("drope") == aj.NoPE()
    assert of("drope+log_n") == aj.compose(aj.LogN(length=4096), aj.NoPE())
    given = of("longrope", factors=[1.0, 2.5])
    assert given == aj.RoPE(scaling=aj.LongRoPE((1.0, 1.0), (1.0, 2.5), 4096, factor=4.0))


def test_no_distance_reaches_the_trained_length():
    for trained, factor in ((64, 4.0), (128, 8.0), (100, 7.0)):
        last = int(trained * factor) - 1
        grouped = extended_encoding("self_extend", aj.RoPE(), trained, factor)
        pos = jnp.array([0, last])
        assert int(grouped.queries(pos)[1].pos[1] - grouped.keys(pos)[1].pos[0]) < trained
        leaky = extended_encoding("leaky_rerope", aj.RoPE(), trained, factor)
        assert leaky.window + (last - leaky.window) / leaky.factor < trained


GIVEN = {
    "self_extend": [{"window": w} for w in (1, 5, 40, 64, 90, 127)] + [{"group": g} for g in (9, 10, 11, 12, 40, 2000)],
    "leaky_rerope": [{"window": w} for w in (1, 5, 16, 64, 100, 127)],
    "streaming_llm": [{"first": n} for n in (1, 4, 16, 126)] + [{"window": w} for w in (1, 64, 122, 123, 124, 126)],
}


@pytest.mark.parametrize("method", GIVEN)
def test_the_size_that_depends_on_a_given_one_follows(method):
    """No distance between 1,024 tokens reaches the trained length of 128, and other sizes are no larger than that needs."""
    pos = jnp.arange(1024)
    for given in GIVEN[method]:
        found = extended_encoding(method, aj.RoPE(), 128, 8.0, **given)
        assert {name: getattr(found, name) for name in given} == given
        if method == "self_extend":
            reached = lambda one: int(one.queries(pos)[1].pos[-1] - one.keys(pos)[1].pos[0])
        elif method == "leaky_rerope":
            reached = lambda one: one.window + (1023 - one.window) / one.factor
        else:
            reached = lambda one: int(one.queries(pos)[1].pos[-1])
        assert reached(found) < 128
        assert found.window < 128
        if method != "streaming_llm":  # the group and the factor are the smallest
            other = "group" if method == "self_extend" else "factor"
            if other not in given:
                assert reached(dataclasses.replace(found, **{other: getattr(found, other) - 1})) >= 128
            elif found.window < 32:
                assert reached(dataclasses.replace(found, window=found.window + 1)) >= 128


def test_sizes_that_no_other_can_make_up_for_leave_it_as_it_is():
    of = lambda method, **given: extended_encoding(method, aj.RoPE(), 128, 8.0, **given)
    for window in (128, 500):
        assert of("self_extend", window=window) == aj.SelfExtend(window=window, group=11)
        assert of("leaky_rerope", window=window) == aj.LeakyReRoPE(window=window, factor=9)
        assert of("streaming_llm", window=window) == aj.StreamingLLM(first=4, window=window)
        assert of("streaming_llm", first=window) == aj.StreamingLLM(first=window, window=123)
    assert of("self_extend", group=2) == aj.SelfExtend(window=32, group=2)
    assert of("self_extend", group=2, window=7) == aj.SelfExtend(window=7, group=2)
    with pytest.raises(ValueError, match="SelfExtend: group must be at least 1, got 0"):
        of("self_extend", group=0)
    with pytest.raises(ValueError, match="LeakyReRoPE: window must be an integer, got 1.5"):
        of("leaky_rerope", window=1.5)


@pytest.mark.parametrize("method", slow_except([*EXTENSIONS, "rerope+log_n"], "self_extend", "streaming_llm"))
def test_a_model_keeps_its_parameters_and_what_it_says_of_the_first_tokens(method):
    plain = model()
    found = extended(plain, method, trained=TRAINED, factor=4.0)
    params = [nnx.to_pure_dict(nnx.split(one, graph=False)[1]) for one in (plain, found)]
    jax.tree.map(np.testing.assert_array_equal, *params)
    assert plain.config == CONFIG
    x = tokens(2)
    before, after = logits(plain, x), logits(found, x)
    # The windows of all remapped positions are larger than two tokens; scalings change all distances but 0, or the logits.
    if method not in ("pi", "ntk", "yarn", "longrope", "resonance", "p_rope", "drope"):
        np.testing.assert_allclose(after, before, atol=1e-5)
    assert np.abs(logits(found, tokens(40)) - logits(plain, tokens(40))).max() > 1e-3


BESIDE = aj.compose(aj.Kerple(), aj.SSMax(), ROPE)
"""RoPE behind a bias and a scale that are learned."""
BY_LENGTH = {"dynamic_ntk": {"layers": 1}, "longrope": {"layers": 1}}
"""Where the length decides frequencies, upper layers keep what they made of tokens at those of an earlier length."""
GENERATED = [(method, {}) for method in (*EXTENSIONS, "rerope+log_n")]
GENERATED += [(method, {"scan_layers": True}) for method in ("self_extend", "longrope", "streaming_llm")]
GENERATED += [
    (method, {"encoding": BESIDE}) for method in ("yarn", "longrope", "drope", "self_extend", "streaming_llm")
]
QUICK = [("streaming_llm", {})]


@pytest.mark.parametrize(
    ("method", "changes"), [pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow) for one in GENERATED]
)
def test_generating_equals_running_the_model_again(method, changes):
    """With prompts of two lengths, and alone, where the cache is a ring that keeps the first tokens; past L in the middle."""
    long = extended(model(**changes, **BY_LENGTH.get(method, {})), method, trained=TRAINED, factor=4.0)
    prompt, steps = tokens(TRAINED - 2), 4
    expected = again(long, prompt, steps)
    np.testing.assert_array_equal(generate(long, prompt, steps), expected)
    padded = jnp.concatenate([jnp.zeros((2, 3), jnp.int32), prompt], 1)
    valid = np.broadcast_to(np.arange(padded.shape[1]) >= 3, padded.shape)
    np.testing.assert_array_equal(generate(long, padded, steps, valid=valid), expected)


UNCHANGED = {
    "rerope": {"window": 64},
    "self_extend": {"window": 64},
    "dual_chunk": {"chunk": 64, "local": 8},
    "streaming_llm": {},
    "longrope": {"attention_factor": 1.0},
    "pi": {"factor": 1.0},
}
"""Sizes that leave all distances below 59 as they are."""


ENCODINGS = [BESIDE, aj.compose(ROPE, aj.FoX()), aj.compose(aj.ALiBi(), ROPE)]
JOINED = [(one, method) for one in ENCODINGS for method in UNCHANGED if (one, method) != (ENCODINGS[1], "longrope")]


@pytest.mark.parametrize(
    ("encoding", "method"),
    [pytest.param(*one, marks=() if one == (BESIDE, "rerope") else pytest.mark.slow) for one in JOINED],
)
def test_beside_other_parts_a_method_that_changes_nothing_changes_nothing(encoding, method):
    """The other parts act as before, each with its own parameters."""
    draw = np.random.default_rng(2)
    learned = lambda x: jnp.asarray(x + 0.5 * draw.uniform(size=x.shape), x.dtype)
    plain = model(encoding=encoding)
    for block in plain.stack.blocks:
        block.attention.position = nnx.data(jax.tree.map(learned, block.attention.position))
    found = extended(plain, method, **{"trained": 64, "factor": 4.0, **UNCHANGED[method]})
    assert found.config != plain.config
    np.testing.assert_allclose(logits(found, tokens(12)), logits(plain, tokens(12)), atol=2e-5)


def test_the_other_parts_of_a_composition_stay():
    config = dataclasses.replace(CONFIG, encoding=aj.compose(aj.SSMax(), ROPE, aj.ALiBi()))
    of = lambda method: extended_config(config, method, trained=64, factor=4.0)
    stretched = dataclasses.replace(ROPE, scaling=aj.PositionInterpolation(4.0))
    assert of("pi").encoding == aj.compose(aj.SSMax(), stretched, aj.ALiBi())
    assert of("drope").encoding == aj.compose(aj.SSMax(), aj.NoPE(), aj.ALiBi())
    # Scores at remapped positions take the place of the logits, and so they come before what is added to these.
    assert of("rerope").encoding == aj.compose(aj.ReRoPE.of(ROPE, window=8), aj.SSMax(), aj.ALiBi())
    assert (of("streaming_llm").window, of("streaming_llm").window_first) == ((59, 0), 4)
    inner = dataclasses.replace(CONFIG, encoding=aj.compose(aj.T5Bias(), aj.compose(aj.NoPE(), ROPE)))
    logged = extended_config(inner, "log_n", trained=64, factor=4.0)
    assert logged.encoding == aj.compose(aj.T5Bias(), aj.NoPE(), aj.LogN(length=64), ROPE)


@pytest.mark.parametrize(
    ("encoding", "method", "message"),
    [
        (
            aj.compose(ROPE, aj.CoPE(max_position=4)),
            "rerope",
            "rerope turns queries and keys in the score, and CoPE.*trained with",
        ),
        (
            aj.compose(aj.TransformerXL(), ROPE),
            "self_extend",
            "self_extend turns queries and keys in the score, and Trans",
        ),
        (
            aj.compose(ROPE, aj.FoX()),
            "longrope",
            r"longrope depend on the length, which the positions that FoX.* do not tell",
        ),
        (aj.compose(ROPE, aj.RoPE()), "pi", "a method takes the place of one RoPE, and .* has 2 in one composition"),
        (aj.compose(aj.SSMax(), ROPE), "log_n", r"log_n multiplies logits by log n, which SSMax\(.*\) does already"),
        (
            aj.compose(aj.LogN(), ROPE),
            "rerope+log_n",
            r"rerope.log_n multiplies logits by log n, which LogN\(.*does already",
        ),
        (
            aj.XPos(),
            "pi",
            r"methods are for RoPE, and the model has XPos\(.*\): its scores also fade with the distance",
        ),
        (aj.compose(aj.SSMax(), aj.PoPE()), "pi", r"the model has PoPE\(.*\): it turns magnitudes of single channels"),
        (aj.AxialRoPE(axes=2), "ntk", r"the model has AxialRoPE\(.*\): its positions have several coordinates"),
        (aj.MixedRoPE(axes=2), "yarn", r"the model has MixedRoPE\(.*\): its positions have several coordinates"),
        (aj.MRoPE(sections=(1, 1, 2)), "yarn", r"the model has MRoPE\(.*\): its positions have several coordinates"),
        (aj.RePo(), "drope", r"the model has RePo\(.*\): what it turns by is computed from the tokens"),
        (
            aj.SelectiveRoPE(),
            "drope",
            r"the model has SelectiveRoPE\(.*\): what it turns by is computed from the tokens",
        ),
        (aj.PaTH(), "rerope", r"the model has PaTH\(.*\): its rotations are reflections of the tokens between"),
        (aj.ReRoPE(), "rerope", r"the model has ReRoPE\(.*\): it is such a method already"),
        ((aj.XPos(), ROPE), "rerope", r"the model has XPos\("),
        (aj.ALiBi(), "rerope", "the model has no RoPE whose positions could be changed, but ALiBi"),
    ],
)
def test_what_is_no_rope_or_stands_beside_what_reads_it_is_refused(encoding, method, message):
    with pytest.raises(ValueError, match=message):
        extended_config(dataclasses.replace(CONFIG, encoding=encoding), method, trained=64, factor=4.0)


def test_parts_that_read_queries_keep_them_where_frequencies_alone_change():
    encoding = aj.compose(ROPE, aj.CoPE(max_position=4))
    found = extended_config(dataclasses.replace(CONFIG, encoding=encoding), "p_rope", trained=64, factor=4.0).encoding
    assert found == aj.compose(dataclasses.replace(ROPE, keep=0.75), aj.CoPE(max_position=4))


def test_a_scaling_that_the_model_was_trained_with_stays():
    trained = aj.RoPE(theta=500_000.0, scaling=aj.Llama3(8.0, original_length=8192))
    of = lambda method, **options: extended_encoding(method, trained, 131_072, 2.0, **options)
    assert of("rerope").scaling == of("log_n").parts[1].scaling == of("p_rope").scaling == trained.scaling
    for method in ("pi", "ntk", "dynamic_ntk", "yarn", "longrope", "resonance"):
        told = (
            rf"{method} changes the frequencies of a RoPE without scaling, and .* was trained with Llama3\(.*are p_rope"
        )
        with pytest.raises(ValueError, match=told):
            of(method, head_dim=8)


def test_a_scaling_that_was_put_on_after_training_is_taken_off():
    later = aj.RoPE(scaling=aj.YaRN(4.0, original_length=4096))
    of = lambda method: extended_encoding(method, later, 4096, 2.0, scaled_after=True)
    assert of("pi") == aj.RoPE(scaling=aj.PositionInterpolation(2.0))
    assert of("rerope") == aj.ReRoPE(window=512)
    assert of("p_rope") == aj.RoPE(keep=0.75)
    config = dataclasses.replace(CONFIG, encoding=aj.compose(aj.SSMax(), later))
    found = extended_config(config, "dual_chunk", trained=4096, factor=2.0, scaled_after=True).encoding.parts[0]
    assert found == aj.DualChunk(chunk=3072, local=512)


def test_factors_of_longrope_are_those_of_yarn_unless_given():
    found = extended_config(CONFIG, "longrope", trained=64, factor=4.0).encoding.scaling
    yarn = aj.YaRN(4.0, 64).radians(2, 500.0)
    np.testing.assert_allclose(found.radians(2, 500.0, 65), yarn, rtol=1e-12)
    np.testing.assert_allclose(found.radians(2, 500.0, 64), [1.0, 500.0**-0.5], rtol=1e-12)
    assert found.gain == pytest.approx(np.sqrt(1 + np.log(4) / np.log(64)))


def test_layers_without_rope_stay_as_they_are():
    config = dataclasses.replace(CONFIG, encoding=(aj.NoPE(), ROPE), windows=(3, None))
    found = extended_config(config, "self_extend", trained=64, factor=2.0)
    assert found.encoding[0] == aj.NoPE()
    assert isinstance(found.encoding[1], aj.SelfExtend)
    assert found.windows == (3, None)


def test_no_layer_sees_further_than_it_was_trained_to():
    config = dataclasses.replace(CONFIG, encoding=(aj.NoPE(), ROPE), windows=(3, None))
    streaming = extended_config(config, "streaming_llm", trained=64, factor=2.0)
    assert (streaming.layer_windows, streaming.window_first) == ((3, (59, 0)), 4)
    assert streaming.encoding == (aj.NoPE(), aj.StreamingLLM.of(ROPE, first=4, window=59))
    narrow = extended_config(dataclasses.replace(CONFIG, window=7), "lm_infinite+log_n", trained=64, factor=2.0)
    assert (narrow.window, narrow.window_first) == (7, 10)
    assert narrow.encoding.parts[1] == aj.LMInfinite.of(ROPE, first=10, window=7)
    both = extended_config(dataclasses.replace(CONFIG, windows=(7, 63)), "lm_infinite", trained=64, factor=2.0)
    assert [one.window for one in both.encoding] == [7, 63]
    wide = extended_config(dataclasses.replace(CONFIG, window=(80, 0)), "lm_infinite", trained=64, factor=2.0)
    assert (wide.window, wide.encoding.window) == ((63, 0), 63)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("rerop", {}, r"unknown method 'rerop' \(did you mean 'rerope'\?\); choose from pi, ntk"),
        ("log_n+log_n", {}, "unknown method 'log_n.log_n'"),
        ("rerope", {"group": 4}, "extended: rerope has no such option: .*group"),
        ("rerope", {"window": 0}, "ReRoPE: window must be at least 1, got 0"),
        ("rerope", {"trained": 4}, "extended: trained must be at least 8, got 4"),
        ("rerope", {"factor": 0.5}, "extended: factor is the new length over the original one, at least 1"),
        ("p_rope", {"theta": 4.0}, "extended: p_rope has no such option: .*theta"),
        ("p_rope", {"keep": 0.0}, "RoPE: keep must be positive"),
        ("drope", {"scale": 0.4}, "extended: drope has no such option: .*scale"),
        ("longrope", {"factors": [1.0]}, r"factors of LongRoPE must be 2 positive numbers, one per pair, got \[1.0\]"),
        ("longrope", {"factors": 2.0}, "factors of LongRoPE must be 2 positive numbers, one per pair, got 2.0"),
        ("longrope", {"factors": [1.0, -1.0]}, "factors of LongRoPE must be 2 positive numbers"),
    ],
)
def test_refuses(method, options, message):
    with pytest.raises(ValueError, match=message):
        extended_config(CONFIG, method, **{"trained": 64, "factor": 4.0, **options})


def test_longrope_needs_factors_or_the_head_dimension():
    with pytest.raises(
        ValueError, match=r"longrope needs factors=\(...\), one per pair, or the head dimension, head_dim"
    ):
        extended_encoding("longrope", aj.RoPE(), 64, 4.0)
