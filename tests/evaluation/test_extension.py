"""Trained decoders read past their trained length: sizes of methods, the layers they leave, decoding."""

import dataclasses

import jax
import numpy as np
import pytest

import attnjax as aj
from attnjax.evaluation.extension import extended, extended_config
from attnjax.evaluation.methods import extended_encoding
from attnjax.evaluation.text_model import trained_length
from attnjax.modules import TransformerConfig, generate
from attnjax.registry import EXTENSIONS
from tests.cases import slow_except
from tests.evaluation.planted_heads import drawn

ROPE = aj.RoPE(theta=500.0, layout="interleaved", fraction=0.5)
CONFIG = TransformerConfig(vocab=11, model=32, layers=2, heads=4, kv_heads=2, hidden=32, encoding=ROPE, embed_std=1.0)
TRAINED = 16
BY_LENGTH = {"dynamic_ntk": {"layers": 1}, "longrope": {"layers": 1}}
"""Where the length decides frequencies, upper layers keep the results of earlier tokens at those of an earlier length."""


def model(**changes):
    return drawn(dataclasses.replace(CONFIG, **changes))


def tokens(T):
    return np.random.default_rng(0).integers(0, 11, (2, T)).astype(np.int32)


@jax.jit
def logits(decoder, x, valid=None):
    return decoder(x, mask=aj.Mask(k_valid=valid))


def again(decoder, prompt, steps):
    """Returns the likeliest tokens after a prompt, each by running the whole model on all tokens before it."""
    x = np.pad(np.asarray(prompt), ((0, 0), (0, steps)))
    for end in range(prompt.shape[1], x.shape[1]):
        x[:, end] = logits(decoder, x, np.arange(x.shape[1]) < end)[:, end - 1].argmax(-1)
    return x[:, -steps:]


def test_sizes_are_those_of_the_authors():
    of = lambda method, **options: extended_encoding(
        method, aj.RoPE(), trained=4096, factor=4.0, head_dim=64, **options
    )
    assert of("rerope") == aj.ReRoPE(window=512)
    assert of("dual_chunk") == aj.DualChunk(chunk=3072, local=512)
    # 15,360 tokens are past the window of 1,024, and 3,072 distances below 4,096: five times as many. In groups of 5 the last
    # of 16,384 tokens would be at 3,276 + 1,024 - 204 = 4,096, which is one too far.
    assert of("self_extend") == aj.SelfExtend(window=1024, group=6)
    assert of("leaky_rerope") == aj.LeakyReRoPE(window=512, factor=5)
    assert of("lm_infinite") == aj.LMInfinite(first=10, window=4095)
    assert of("streaming_llm") == aj.StreamingLLM(first=4, window=4091)
    # The first key is at most 8 + window away, which must be below 4,096.
    assert of("streaming_llm", first=8) == aj.StreamingLLM(first=8, window=4087)
    assert of("resonance") == aj.RoPE(scaling=aj.Resonance(aj.YaRN(4.0, 4096)))
    assert of("yarn", beta_fast=16.0) == aj.RoPE(scaling=aj.YaRN(4.0, 4096, beta_fast=16.0))
    assert of("self_extend+log_n") == aj.compose(aj.LogN(length=4096), of("self_extend"))
    assert of("log_n") == aj.compose(aj.LogN(length=4096), aj.RoPE())
    assert of("p_rope") == aj.RoPE(keep=0.75)
    assert of("drope+log_n") == aj.compose(aj.LogN(length=4096), aj.NoPE())
    given = of("longrope", factors=[1.0, 2.5])
    assert given == aj.RoPE(scaling=aj.LongRoPE((1.0, 1.0), (1.0, 2.5), 4096, factor=4.0))


@pytest.mark.parametrize(
    ("method", "given"),
    [("self_extend", {"window": w}) for w in (1, 64, 127)]
    + [("leaky_rerope", {"window": w}) for w in (1, 64, 127)]
    + [("streaming_llm", {"first": n}) for n in (1, 16, 126)],
)
def test_no_distance_reaches_the_trained_length_and_dependent_sizes_follow(method, given):
    """Between 1,024 tokens read by a model of 128; group and factor are the smallest with which this holds."""
    farthest = {
        "self_extend": lambda one: 1023 // one.group + one.window - one.window // one.group,
        "leaky_rerope": lambda one: one.window + (1023 - one.window) / one.factor,
        "streaming_llm": lambda one: one.first + one.window,
    }[method]
    found = extended_encoding(method, aj.RoPE(), 128, 8.0, head_dim=64, **given)
    assert {name: getattr(found, name) for name in given} == given
    assert farthest(found) < 128
    other = {"self_extend": "group", "leaky_rerope": "factor"}.get(method)
    if other is not None and other not in given:
        assert farthest(dataclasses.replace(found, **{other: getattr(found, other) - 1})) >= 128


@pytest.mark.parametrize("method", slow_except((*EXTENSIONS, "rerope+log_n"), "self_extend"))
def test_parameters_and_the_logits_of_near_tokens_stay(method):
    plain = model()
    found = extended(plain, method, trained=TRAINED, factor=4.0)
    jax.tree.map(np.testing.assert_array_equal, *(jax.tree.leaves(one) for one in (plain, found)))
    here, before = logits(found, tokens(40)), logits(plain, tokens(40))
    # The windows of all remapped positions are larger than two tokens; scalings change all distances but 0, or the logits.
    if method not in ("pi", "ntk", "dynamic_ntk", "yarn", "longrope", "resonance", "p_rope", "drope"):
        np.testing.assert_allclose(here[:, :2], before[:, :2], atol=1e-5)
    assert np.abs(here - before).max() > 1e-3


GENERATED = [("self_extend", {"layers": 1})]
GENERATED += [(method, {"scan_layers": True}) for method in ("self_extend", "longrope", "streaming_llm")]
GENERATED += [(method, {"encoding": (aj.NoPE(), ROPE)}) for method in ("yarn", "drope")]


@pytest.mark.parametrize(("method", "changes"), slow_except(GENERATED, GENERATED[0]))
def test_generating_equals_running_the_model_again(method, changes):
    """From within the trained length to past it, with padding."""
    long = extended(model(**changes, **BY_LENGTH.get(method, {})), method, trained=TRAINED, factor=4.0)
    prompt, steps, padding = tokens(TRAINED - 2), 4, 0 if method in BY_LENGTH else 3
    padded = np.pad(prompt, ((0, 0), (padding, 0)))
    valid = np.broadcast_to(np.arange(padded.shape[1]) >= padding, padded.shape)
    np.testing.assert_array_equal(generate(long, padded, steps, valid=valid), again(long, prompt, steps))


def config(**fields):
    return dataclasses.replace(CONFIG, **fields)


@pytest.mark.parametrize(
    ("encoding", "method", "message"),
    [
        (aj.compose(aj.SSMax(), ROPE), "log_n", "RoPE alone.*SSMax"),
        (aj.XPos(), "pi", "XPos"),
        (aj.SelectiveRoPE(), "drope", "SelectiveRoPE"),
        ((aj.XPos(), ROPE), "rerope", "XPos"),
        (aj.ALiBi(), "rerope", "no RoPE, .*ALiBi"),
    ],
)
def test_encodings_without_one_rope_of_their_own_are_refused(encoding, method, message):
    with pytest.raises(ValueError, match=f"extended: .*{message}"):
        extended_config(config(encoding=encoding), method, trained=64, factor=4.0)


def test_a_scaling_of_the_training_stays_and_a_later_one_is_taken_off():
    trained = aj.RoPE(theta=500_000.0, scaling=aj.Llama3(8.0, original_length=8192))
    of = lambda method: extended_encoding(method, trained, 131_072, 2.0, head_dim=8)
    assert of("rerope").scaling == of("log_n").parts[1].scaling == of("p_rope").scaling == trained.scaling
    for method in ("pi", "ntk", "dynamic_ntk", "yarn", "longrope", "resonance"):
        with pytest.raises(ValueError, match=rf"{method} .*Llama3\(.*p_rope"):
            of(method)
    later = aj.RoPE(scaling=aj.YaRN(4.0, original_length=4096))
    of = lambda method: extended_encoding(method, later, 4096, 2.0, head_dim=8, scaled_after=True)
    assert of("pi") == aj.RoPE(scaling=aj.PositionInterpolation(2.0))
    assert of("rerope") == aj.ReRoPE(window=512)
    assert of("p_rope") == aj.RoPE(keep=0.75)


def test_factors_of_longrope_are_those_of_yarn_unless_given():
    found = extended_config(CONFIG, "longrope", trained=64, factor=4.0).encoding.scaling
    np.testing.assert_allclose(found.radians(2, 500.0, 65), aj.YaRN(4.0, 64).radians(2, 500.0), rtol=1e-12)
    np.testing.assert_allclose(found.radians(2, 500.0, 64), [1.0, 500.0**-0.5], rtol=1e-12)
    assert found.gain == pytest.approx(np.sqrt(1 + np.log(4) / np.log(64)))


def test_no_layer_sees_further_than_it_was_trained_to():
    of = lambda method, **fields: extended_config(config(**fields), method, trained=64, factor=2.0)
    mixed = {"encoding": (aj.NoPE(), ROPE), "windows": (3, None)}
    remapped = of("self_extend", **mixed)
    assert (remapped.encoding[0], type(remapped.encoding[1]), remapped.windows) == (aj.NoPE(), aj.SelfExtend, (3, None))
    streaming = of("streaming_llm", **mixed)
    assert (streaming.layer_windows, streaming.window_first) == ((3, (59, 0)), 4)
    assert streaming.encoding == (aj.NoPE(), aj.StreamingLLM.of(ROPE, first=4, window=59))
    narrow = of("lm_infinite+log_n", window=7)
    assert (narrow.window, narrow.window_first) == (7, 10)
    assert narrow.encoding.parts[1] == aj.LMInfinite.of(ROPE, first=10, window=7)
    assert [one.window for one in of("lm_infinite", windows=(7, 63)).encoding] == [7, 63]
    wide = of("lm_infinite", window=(80, 0))
    assert (wide.window, wide.encoding.window) == ((63, 0), 63)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("rerop", {}, r"'rerop' .*'rerope'\?"),
        ("rerope", {"group": 4}, "rerope .*group"),
        ("leaky_rerope", {"window": 1.5}, "window .*got 1.5"),
        ("rerope", {"trained": 4}, "trained .*8, got 4"),
        ("self_extend", {"window": 64}, "window .*63, got 64"),
        ("streaming_llm", {"first": 63}, "StreamingLLM.*window"),
    ],
)
def test_mistakes_are_refused(method, options, message):
    with pytest.raises(ValueError, match=message):
        extended_config(CONFIG, method, **{"trained": 64, "factor": 4.0, **options})


# Trained lengths --------------------------------------------------------------------------------------------------------

LONGEST, ORIGINAL = "max_position_embeddings", "original_max_position_embeddings"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 8192}
PHI = {"type": "longrope", "short_factor": [1.05] * 48, "long_factor": [1.08] * 48}
YARN = {"rope_type": "yarn", "factor": 4.0}
CONFIGS = {
    "Llama-2-7b": ({LONGEST: 4096, "rope_scaling": None}, 4096, False),
    "Llama-3.1-8B": ({LONGEST: 131072, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, 131072, False),
    "Phi-3-mini-128k": ({LONGEST: 131072, ORIGINAL: 4096, "rope_scaling": PHI}, 131072, False),
    "Qwen3-8B with YaRN": ({LONGEST: 40960, "rope_scaling": {**YARN, ORIGINAL: 32768}}, 32768, True),
    "YaRN, its original length outside": ({LONGEST: 131072, ORIGINAL: 32768, "rope_scaling": YARN}, 32768, True),
    "Llama-2-7b, dynamic": ({LONGEST: 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, 4096, True),
    "deepseek-coder-6.7b": ({LONGEST: 16384, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384, False),
    "gpt2": ({"n_positions": 1024, "n_ctx": 1024}, 1024, False),
    "bloom-560m": ({"seq_length": 2048}, 2048, False),
}
"""What config.json of a model says of lengths, the length it was trained at, and whether a scaling was put on afterwards."""


@pytest.mark.parametrize("name", CONFIGS)
def test_the_kind_of_scaling_says_which_length_was_trained_at(name):
    json, length, after = CONFIGS[name]
    found = trained_length(json)
    assert (found.length, found.scaled_after) == (length, after)
    assert trained_length({"model_type": "t5"}) is None
