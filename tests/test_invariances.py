"""What must hold without any oracle: shifts of positions, no way back in time, and biases that fall with the distance."""

import jax
import numpy as np
import pytest

import attnjax as aj
from tests.attention.matrix import AXES, ENCODINGS, PER_HEAD, B, H, N, compiled, draw, learned
from tests.cases import slow_except

SIZES, CAUSAL = aj.Sizes(model=N * H, heads=N, kv_heads=N, head_dim=H), aj.Mask(causal=True)
T = 13
ABSOLUTE = ("fire", "ssmax", "llama4_temperature", "log_n")
RELATIVE = (
    *("nope", "rope", "rope-fraction", "rope-dynamic", "rope-yarn", "xpos", "pope", "alibi", "alibi-symmetric", "t5"),
    *("t5-bidirectional", "kerple", "kerple-power", "transformer_xl", "cope", "sandwich", "dape", "rope+stick"),
)


@pytest.mark.parametrize("name", slow_except(ABSOLUTE + RELATIVE, "rope", "fire"))
def test_a_shift_of_all_positions_is_seen_by_absolute_encodings_alone(name):
    (q, k, _, params, scale), pos = draw(ENCODINGS[name], "mha"), np.random.default_rng(2).integers(0, 800, T)
    shifts = np.array([0, 1, 1000, 4096, 17_000, *(() if name == "xpos" else (65_536,))], np.int32)

    def weights(shift):
        at = pos.astype(np.int32) + shift
        options = {"encoding": ENCODINGS[name], "params": params, "mask": CAUSAL, "scale": scale}
        return aj.attention_weights(q, k, q_pos=at, k_pos=at, **options)

    first, *others = compiled(lambda shifts: jax.lax.map(weights, shifts), shifts)
    if name in ABSOLUTE:
        assert np.abs(others[-1] - first).max() > 1e-4
    else:
        np.testing.assert_allclose(others, np.broadcast_to(first, (len(others), *first.shape)), rtol=0, atol=1e-4)


EMBEDDINGS = {"sinusoidal": aj.Sinusoidal(), "learned": aj.Learned(length=T)}
SPARSE = ("tra", "asentmax")
"""Those under which a visible key may have no weight at all."""
TOKENWISE = [name for name in ENCODINGS if (name not in AXES and "+" not in name) or name in PER_HEAD]


@pytest.mark.parametrize("name", slow_except([*TOKENWISE, *EMBEDDINGS], "t5", "fox", "learned"))
def test_no_gradient_reaches_an_earlier_output_from_a_later_token(name):
    """Through queries, keys, values, embeddings and positions that are computed from content; it reaches all with weight."""
    encoding, row, random = (ENCODINGS | EMBEDDINGS)[name], 7, np.random.default_rng(3)
    params, weight = learned(encoding, SIZES, random), random.normal(size=(B, N, H)).astype(np.float32)

    def loss(x):
        x = aj.embed(encoding, params, x, np.arange(T))
        own = {} if name in EMBEDDINGS else {"encoding": encoding, "params": params}
        pos = aj.context_positions(encoding, params, x, np.arange(T), SIZES)
        x = x.reshape(B, T, N, H)
        return (aj.attend(x, x, x, mask=CAUSAL, q_pos=pos, k_pos=pos, **own)[:, row] * weight).sum()

    found = np.abs(compiled(jax.grad(loss), random.normal(size=(B, T, N * H)).astype(np.float32))).max((0, 2))
    reached = found[: row + 1] > 0
    assert reached.all() or (name in SPARSE and reached[row] and reached.sum() > row // 2)
    assert np.all(found[row + 1 :] == 0)
