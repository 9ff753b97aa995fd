"""Every encoding in a decoder: it learns, and generation through caches equals calling the model again and again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.attention import Mask
from attnjax.modules import Decoder, generate
from attnjax.positions import (
    FIRE,
    ALiBi,
    CoPE,
    DynamicNTK,
    Kerple,
    Learned,
    NoPE,
    PoPE,
    RoPE,
    Sandwich,
    Sinusoidal,
    T5Bias,
    TransformerXL,
    XPos,
    compose,
    learns,
)
from tests.cases import slow_except

PROMPT, STEPS, KEY = 3, 5, jax.random.key(7)
PROMPTS = np.random.default_rng(2).integers(0, 11, (16, PROMPT))
LENGTH = PROMPT + STEPS

CASES = {
    "nope": {"encoding": NoPE()},
    "sinusoidal": {"encoding": Sinusoidal()},
    "learned": {"encoding": Learned(LENGTH)},
    "rope": {"encoding": RoPE(), "kv_heads": 2},
    "dynamic_ntk": {"encoding": RoPE(scaling=DynamicNTK(8.0, 4))},
    "xpos": {"encoding": XPos()},
    "alibi": {"encoding": ALiBi()},
    "t5": {"encoding": T5Bias(8, 16), "scale": 1.0},
    "kerple": {"encoding": Kerple("log")},
    "fire": {"encoding": FIRE(8, 100.0)},
    "transformer_xl": {"encoding": TransformerXL()},
    "cope": {"encoding": CoPE(4)},
    "sandwich": {"encoding": Sandwich()},
    "pope": {"encoding": PoPE()},
    "composed": {"encoding": compose(Learned(LENGTH), T5Bias(8, 16), CoPE(4))},
    "window": {"encoding": RoPE(), "window": 2},
    "window_cope": {"encoding": CoPE(4), "window": (2, 0)},
}


LEARNING = [name for name, fields in CASES.items() if learns(fields["encoding"]) and name != "window_cope"]


@pytest.fixture
def make(config, build):
    """A decoder of one layer, so that encodings that depend on the length are exact too."""
    return lambda case: build(Decoder, config(layers=1, tie_embeddings=False, **CASES[case]), scale=0.5)


@pytest.mark.quick("dynamic_ntk", "fire", "window_cope")
@pytest.mark.parametrize("case", slow_except(CASES, "rope", "dynamic_ntk", "fire", "composed", "window_cope"))
def test_generation_equals_calling_the_model_again_and_again(make, case):
    """Sampled, so that the tokens vary, with logits large enough to decide."""
    decoder = make(case)

    @jax.jit
    def logits_after(length, tokens):
        visible = np.arange(LENGTH) < length
        return decoder(tokens, mask=Mask(k_valid=visible))[:, length - 1]

    expected = np.pad(PROMPTS, ((0, 0), (0, STEPS)))
    for step in range(STEPS):
        logits = logits_after(PROMPT + step, expected)
        expected[:, PROMPT + step] = jax.random.categorical(jax.random.fold_in(KEY, step), logits / 0.5)
    out = generate(decoder, PROMPTS, STEPS, temperature=0.5, key=KEY)
    np.testing.assert_array_equal(out, expected[:, PROMPT:])


@pytest.mark.parametrize("case", slow_except(LEARNING, "composed"))
def test_what_an_encoding_learns_gets_a_gradient(make, case, tokens):
    decoder = make(case)

    def loss(model):
        logits = model(tokens[:, : LENGTH - 1])
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:LENGTH, None], axis=-1).mean()

    gradient = jax.jit(jax.grad(loss))(decoder)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    learned = (gradient.stack.inputs, gradient.stack.blocks[0].attention.position)
    leaves = jax.tree.leaves_with_path(learned)
    assert leaves
    for path, leaf in leaves:
        # A constant per head shifts all logits of a row alike, which the softmax ignores.
        if "out_bias" not in jax.tree_util.keystr(path):
            assert np.abs(leaf).max() > 1e-6, jax.tree_util.keystr(path)
