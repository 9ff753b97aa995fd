"""Positions of models: where those of a cache go on, what padding takes, and that a list is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import embed
from attnjax.attention import Mask
from attnjax.modules import Decoder, MultiHeadAttention
from attnjax.positions import FoX, RoPE, Sinusoidal, StreamingLLM


def test_a_cache_goes_on_at_the_number_of_its_tokens(config, build, call, tokens):
    """Padding counts, and the positions of the tokens before do not."""
    model = build(Decoder, config(layers=1, encoding=Sinusoidal()))
    valid = np.broadcast_to(np.arange(7) >= 2, (2, 7))
    _, caches = model.decode(tokens[:, :7], model.cache(2, 8), pos=np.arange(7) + 100, valid=valid)
    default, seventh, next_one = (
        call(model.decode, tokens[:, 7:], caches, pos=pos)[0] for pos in (None, np.array([7]), np.array([107]))
    )
    np.testing.assert_allclose(default, seventh, atol=1e-6)
    assert np.abs(default - next_one).max() > 1e-3


def test_streaming_llm_with_padding_needs_positions_that_it_takes_no_part_in(config, build, call, tokens):
    encoding = StreamingLLM(first=2, window=3)
    model = build(Decoder, config(layers=1, encoding=encoding, window=(3, 0), window_first=2))
    padded = np.concatenate([np.full((2, 3), 5), tokens], 1)
    valid = np.broadcast_to(np.arange(11) >= 3, padded.shape)
    pos = jnp.maximum(jnp.cumsum(valid, -1) - 1, 0)
    alone, mask = call(model, tokens), Mask(k_valid=valid)
    np.testing.assert_allclose(call(model, padded, pos=pos, mask=mask)[:, 3:], alone, atol=1e-5)
    assert np.abs(call(model, padded, mask=mask)[:, 3:] - alone).max() > 1e-3


def test_lists_are_refused(config, build, tokens):
    model = build(Decoder, config(layers=1, encoding=RoPE()))
    with pytest.raises(ValueError, match=r"tokens must be integers \[B, T\], got list"):
        model([[1, 2, 3]])
    with pytest.raises(ValueError, match=r"positions must be an array \[T\], \[B, T\] or \[L, B, T\], got list"):
        model(tokens, pos=list(range(8)))
    with pytest.raises(ValueError, match=r"positions must be an array .* got list"):
        model.decode(tokens, model.cache(2, 8), pos=list(range(8)))
    with pytest.raises(ValueError, match=r"embed needs .* got x \(1, 2, 4\) and pos list"):
        embed(Sinusoidal(), None, jnp.zeros((1, 2, 4)), [0, 1])
    attention = build(MultiHeadAttention, 16, 2, encoding=FoX())
    with pytest.raises(ValueError, match=r"context_positions needs .* got x \(2, 3, 16\) and pos list"):
        attention(jnp.ones((2, 3, 16)), mask=Mask(causal=True), q_pos=[0, 1, 2])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "bool"])
@pytest.mark.parametrize("encoding", [Sinusoidal(), RoPE()], ids=str)
def test_positions_of_16_bits_are_refused(encoding, dtype):
    """257 and 258 are one number in bfloat16."""
    with pytest.raises(ValueError, match=rf"pos must be integers or float32 \(16-bit floats .* got {dtype}"):
        embed(encoding, None, jnp.zeros((1, 2, 4)), jnp.array([257, 258], dtype))
