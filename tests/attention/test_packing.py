"""Documents that are packed into a row: each has the numbers that it has alone, also where positions come from the tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import Cable, FoX, Mask, PaTH, RePo, RoPE, SelectiveRoPE, Sizes, Tiling, attend, compose, context_positions
from tests.attention.matrix import compiled, learned
from tests.cases import slow_except

N, K, H = 4, 2, 8
SIZES = Sizes(N * H, N, K, H)
FIRST, SECOND = 7, 6
SEGMENTS = np.repeat([3, 1], [FIRST, SECOND])
ENCODINGS = {
    "fox": FoX(),
    "cable": Cable(),
    "repo": RePo(theta=100.0),
    "selective_rope": SelectiveRoPE(rank=3),
    "path": PaTH(rank=3),
    "path-forget": PaTH(rank=3, convolution=4, forget=True),
    "rope+fox": compose(RoPE(), FoX()),
}


def draw(encoding):
    """Parameters, x, q, k and v in eighths, so that no product depends on the order of its summands."""
    random, eighths = np.random.default_rng(0), lambda x: np.round(8 * x) / 8
    normal = lambda *shape: eighths(random.normal(size=(1, FIRST + SECOND, *shape)).astype(np.float32))
    params = jax.tree.map(eighths, learned(encoding, SIZES, random))
    return params, (normal(N * H), normal(N, H), normal(K, H), normal(K, H))


def attention(encoding, way=None):
    """Positions and output of tokens, as a function of x, q, k and v; documents are told by `segments`."""

    def run(params, x, q, k, v, segments=None):
        pos = context_positions(encoding, params, x, np.arange(x.shape[1]), SIZES, segments=segments)
        mask = Mask(causal=True, q_segments=segments, k_segments=segments)
        options = {"encoding": encoding, "params": params, "mask": mask, "implementation": way}
        return pos, attend(q, k, v, q_pos=pos, k_pos=pos, **options)

    return run


@pytest.mark.parametrize("name", slow_except(ENCODINGS, "fox", "path"))
def test_the_second_document_is_as_if_alone(name):
    """Sums of gates bit by bit; the rest to rounding, because the products of more rows are summed in another order.

    No gradient flows to the first document: it was 0.04 through the convolution of PaTH.
    """
    encoding, (params, tokens) = ENCODINGS[name], draw(ENCODINGS[name])
    way = "dense" if name.startswith("path") else Tiling(4, 3)

    def second(tokens):
        pos, out = attention(encoding, way)(params, *tokens, SEGMENTS)
        return jnp.sin(out[:, FIRST:]).sum(), (pos, out[:, FIRST:])

    alone = lambda tokens: attention(encoding, "dense")(params, *(x[:, FIRST:] for x in tokens))
    run = lambda tokens: (jax.grad(second, has_aux=True)(tokens), alone(tokens))
    (gradients, (pos, out)), (alone_pos, expected) = compiled(run, tokens)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    mine, its = (pos[-1] if isinstance(pos, tuple) else pos for pos in (pos, alone_pos))
    exact = name in ("fox", "cable", "rope+fox")
    np.testing.assert_allclose(mine[:, :, FIRST:], its, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)
    for gradient in gradients:
        assert not gradient[:, :FIRST].any()
        assert gradient[:, FIRST:].any()
