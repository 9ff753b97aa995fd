"""Derivatives of the dense implementation against finite differences: forward, backward, and of second order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attnjax.attention import Mask, attend_with_lse
from attnjax.positions import EncodingParams, NoPE, PositionEncoding, Sizes, T5Bias

B, T, N, K, H = 2, 5, 2, 1, 4
SEEN = np.tril(np.ones((T, T), bool))
SEEN[3] = False
"""Causal, and query 3 sees nothing."""


def arrays() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=(B, T, heads, H))) for heads in (N, K, K))


def learned(encoding: PositionEncoding) -> EncodingParams:
    params = encoding.init(jax.random.key(0), Sizes(N * H, N, K, H))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64) + 0.1, params)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", [NoPE(), T5Bias()], ids=str)
def test_first_and_second_derivatives_in_both_modes(encoding):
    with jax.enable_x64(True):
        params = learned(encoding)

        @jax.jit
        def f(q, k, v, params, scale):
            mask = Mask(allowed=SEEN)
            out, lse = attend_with_lse(
                q, k, v, encoding=encoding, params=params, mask=mask, scale=scale, implementation="dense"
            )
            return out, jnp.where(jnp.isinf(lse), 0.0, lse)

        check_grads(f, (*arrays(), params, jnp.float64(0.7)), order=2, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5)


def test_a_row_that_sees_nothing_sends_no_gradient_back():
    q, k, v = (x.astype(jnp.float32) for x in arrays())
    # Values that only query 3 could see, if it saw anything, are too large to be multiplied by 0.
    v = v.at[:, 4].set(1e38)
    mask = Mask(allowed=SEEN & (np.arange(T) < 4))
    f = lambda q, k, v: attend_with_lse(q, k, v, mask=mask, implementation="dense")[0]
    dq, dk, dv = jax.vjp(f, q, k, v)[1](jnp.full((B, T, N, H), 1e3, jnp.float32))
    assert all(np.isfinite(x).all() for x in (dq, dk, dv))
    assert not dq[:, 3].any()
    assert not dk[:, 4].any()
    assert not dv[:, 4].any()
