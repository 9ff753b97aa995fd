"""Every encoding in a decoder: its logits in parts are those in one call, it learns, and it generates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.modules import Decoder, generate
from tests.modules.by_hand import TOKENS, build, call, config

LENGTH, PROMPT = 8, 3
WINDOW = {"window": (3, 0), "window_first": 1}
GATE = {"attention_gate": "head", "attention_sink": True}
FIELDS = {
    "learned": {"encoding": aj.Learned(LENGTH)},
    "t5": {"encoding": aj.T5Bias(8, 16), "scale": 1.0},
    "fire": {"encoding": aj.FIRE(8, 100.0)},
    "cope": {"encoding": aj.CoPE(4), "kv_heads": 2},
    "self_extend": {"encoding": aj.SelfExtend(window=3, group=2)},
    "rerope": {"encoding": aj.ReRoPE(window=3)},
    "leaky_rerope": {"encoding": aj.LeakyReRoPE(window=3, factor=2.0)},
    "dual_chunk": {"encoding": aj.DualChunk(chunk=4, local=1)},
    "lm_infinite": {"encoding": aj.LMInfinite(first=1, window=3)} | WINDOW,
    "streaming_llm": {"encoding": aj.StreamingLLM(first=1, window=3)} | WINDOW,
    "log_n": {"encoding": aj.LogN(length=2)},
    "mrope": {"encoding": aj.compose(aj.MRoPE(), aj.ALiBi())},
    "dynamic_ntk": {"encoding": aj.RoPE(scaling=aj.DynamicNTK(8.0, 4))},
    "kerple_power": {"encoding": aj.Kerple("power")},
    "path_forget": {"encoding": aj.PaTH(forget=True), "kv_heads": 2},
    "composed": {"encoding": aj.compose(aj.Learned(LENGTH), aj.T5Bias(8, 16), aj.CoPE(4))},
    "gated": {"encoding": aj.compose(aj.Learned(LENGTH), aj.RoPE(), aj.FoX()), "kv_heads": 2, **GATE},
    "window": {"encoding": aj.RoPE(), "window": 2, "kv_heads": 2},
    "window_cope": {"encoding": aj.CoPE(4), "window": (2, 0)},
    "parallel": {"encoding": aj.SSMax(), "parallel": True},
}
CASES = {name: FIELDS.get(name) or {"encoding": make()} for name, make in aj.ENCODINGS.items()} | FIELDS


def cases(*quick):
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in CASES]


def decoder(name):
    """Returns a decoder of one layer, whose logits are large enough to decide."""
    return build(Decoder, config(layers=1, tie_embeddings=False, **CASES[name]), scale=0.5)


@jax.jit
def everything(model):
    """Returns the gradient of a loss, the logits of one call, and those of a cache."""

    def loss(model):
        logits = model(TOKENS)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), TOKENS[:, 1:, None], axis=-1).mean(), logits

    gradient, logits = jax.grad(loss, has_aux=True)(model)
    caches, parts = model.cache(*TOKENS.shape), []
    for tokens in np.split(TOKENS, [5], axis=1):
        part, caches = model.decode(tokens, caches)
        parts.append(part)
    return gradient, logits, jnp.concatenate(parts, 1)


@pytest.mark.parametrize("name", cases("gated"))
def test_a_cache_gives_the_same_logits_and_all_that_is_learned_has_a_gradient(name):
    gradient, logits, decoded = everything(decoder(name))
    np.testing.assert_allclose(decoded, logits, atol=2e-5)
    block = gradient.stack.blocks[0].attention
    learned = jax.tree.leaves_with_path((gradient.stack.inputs, block.position, block.sink, block.w_g))
    assert bool(learned) == (aj.learns(CASES[name]["encoding"]) or "gated" in name)
    for path, leaf in learned:
        place = jax.tree_util.keystr(path)
        assert np.isfinite(leaf).all()
        # A constant per head shifts all logits of a row alike, which the softmax ignores.
        assert "out_bias" in place or np.abs(leaf).max() > 1e-6, place


@pytest.mark.parametrize("name", cases("dynamic_ntk"))
def test_generated_tokens_are_the_likeliest_of_the_whole_sequence(name):
    """In as many tokens as the cache has room for, so that encodings that depend on the length have the same one."""
    model = decoder(name)
    out = generate(model, TOKENS[:, :PROMPT], LENGTH - PROMPT)
    logits = call(model, np.concatenate([TOKENS[:, :PROMPT], out[:, :-1]], 1))
    np.testing.assert_array_equal(out, logits[:, PROMPT - 1 :].argmax(-1))
