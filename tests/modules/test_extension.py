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
    assert of("streaming_llm", first=8) == aj.StreamingLLM(first=8, window=4091)
    assert of("resonance") == aj.RoPE(scaling=aj.Resonance(aj.YaRN(4.0, 4096)))
    assert of("yarn", beta_fast=16.0) == aj.RoPE(scaling=aj.YaRN(4.0, 4096, beta_fast=16.0))
    assert of("self_extend+log_n") == aj.compose(aj.LogN(length=4096), of("self_extend"))
    assert of("log_n") == aj.compose(aj.LogN(length=4096), aj.RoPE())


def test_no_distance_reaches_the_trained_length():
    for trained, factor in ((64, 4.0), (128, 8.0), (100, 7.0)):
        last = int(trained * factor) - 1
        grouped = extended_encoding("self_extend", aj.RoPE(), trained, factor)
        pos = jnp.array([0, last])
        assert int(grouped.queries(pos)[1].pos[1] - grouped.keys(pos)[1].pos[0]) < trained
        leaky = extended_encoding("leaky_rerope", aj.RoPE(), trained, factor)
        assert leaky.window + (last - leaky.window) / leaky.factor < trained


@pytest.mark.parametrize("method", slow_except([*EXTENSIONS, "rerope+log_n"], "self_extend", "streaming_llm"))
def test_a_model_keeps_its_parameters_and_what_it_says_of_the_first_tokens(method):
    plain = model()
    found = extended(plain, method, trained=TRAINED, factor=4.0)
    params = [nnx.to_pure_dict(nnx.split(one, graph=False)[1]) for one in (plain, found)]
    jax.tree.map(np.testing.assert_array_equal, *params)
    assert plain.config == CONFIG
    x = tokens(2)
    before, after = plain(x), found(x)
    # The windows of all remapped positions are larger than two tokens; scalings change every distance but 0.
    if method not in ("pi", "ntk", "yarn", "resonance"):
        np.testing.assert_allclose(after, before, atol=1e-5)
    assert np.abs(found(tokens(40)) - plain(tokens(40))).max() > 1e-3


@pytest.mark.parametrize("scan", slow_except([False, True], False))
@pytest.mark.parametrize("method", slow_except(["self_extend", "rerope+log_n", "streaming_llm"], "streaming_llm"))
def test_generating_equals_running_the_model_again(method, scan):
    """With prompts of two lengths, and alone, where the cache is a ring that keeps the first tokens."""
    long = extended(model(scan_layers=scan), method, trained=TRAINED, factor=4.0)
    prompt, steps = tokens(24), 4
    expected = prompt
    for _ in range(steps):
        expected = jnp.concatenate([expected, long(expected)[:, -1:].argmax(-1).astype(jnp.int32)], 1)
    np.testing.assert_array_equal(generate(long, prompt, steps), expected[:, -steps:])
    padded = jnp.concatenate([jnp.zeros((2, 3), jnp.int32), prompt], 1)
    valid = np.broadcast_to(np.arange(27) >= 3, (2, 27))
    np.testing.assert_array_equal(generate(long, padded, steps, valid=valid), expected[:, -steps:])


def test_layers_without_rope_stay_as_they_are():
    config = dataclasses.replace(CONFIG, encoding=(aj.NoPE(), ROPE), windows=(3, None))
    found = extended_config(config, "self_extend", trained=64, factor=2.0)
    assert found.encoding[0] == aj.NoPE()
    assert isinstance(found.encoding[1], aj.SelfExtend)
    assert found.windows == (3, None)
    streaming = extended_config(config, "streaming_llm", trained=64, factor=2.0)
    assert (streaming.windows, streaming.layer_windows, streaming.window_first) == (None, ((59, 0), (59, 0)), 4)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("rerop", {}, r"unknown method 'rerop' \(did you mean 'rerope'\?\); choose from pi, ntk"),
        ("log_n+log_n", {}, "unknown method 'log_n.log_n'"),
        ("rerope", {"group": 4}, "extended: rerope has no such option: .*group"),
        ("rerope", {"window": 0}, "ReRoPE: window must be at least 1, got 0"),
        ("rerope", {"trained": 4}, "extended: trained must be at least 8, got 4"),
        ("rerope", {"factor": 0.5}, "extended: factor is the new length over the original one, at least 1"),
    ],
)
def test_refuses(method, options, message):
    with pytest.raises(ValueError, match=message):
        extended_config(CONFIG, method, **{"trained": 64, "factor": 4.0, **options})


def test_refuses_a_model_without_rope_and_one_that_is_extended_already():
    for encoding in (aj.ALiBi(), aj.ReRoPE()):
        with pytest.raises(ValueError, match="the model has no RoPE whose positions could be changed"):
            extended_config(dataclasses.replace(CONFIG, encoding=encoding), "rerope", trained=64, factor=4.0)
