"""Documents that are packed into a row: each has the numbers that it has alone, also where positions come from the tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import Cable, FoX, Mask, PaTH, RePo, RoPE, SelectiveRoPE, Sizes, Tiling, attend, compose, context_positions
from tests.attention.matrix import compiled, learned, stacked
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


@pytest.mark.parametrize("name", slow_except(ENCODINGS, "fox", "selective_rope", "path"))
def test_the_second_document_is_as_if_alone(name):
    """Sums of gates bit by bit; the rest to rounding, because the products of more rows are summed in another order."""
    encoding, (params, tokens) = ENCODINGS[name], draw(ENCODINGS[name])
    ways = ("dense",) if name.startswith("path") else ("dense", Tiling(4, 3))

    def both(tokens):
        alone = attention(encoding, "dense")(params, *(x[:, FIRST:] for x in tokens))
        return [attention(encoding, way)(params, *tokens, SEGMENTS) for way in ways], alone

    last = lambda pos: pos[-1] if isinstance(pos, tuple) else pos
    packed, (alone, expected) = compiled(both, tokens)
    for pos, out in packed:
        if name in ("fox", "cable", "rope+fox"):
            np.testing.assert_array_equal(last(pos)[:, :, FIRST:], last(alone))
        np.testing.assert_allclose(last(pos)[:, :, FIRST:], last(alone), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(out[:, FIRST:], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["fox", "selective_rope", "path"])
def test_a_token_of_the_first_document_is_nothing_to_the_second(name):
    """Not a bit of its output changes, and no gradient flows: it was 0.04 through the convolution of PaTH."""
    encoding, (params, tokens) = ENCODINGS[name], draw(ENCODINGS[name])

    def second(tokens):
        out = attention(encoding, "dense")(params, *tokens, SEGMENTS)[1][:, FIRST:]
        return jnp.sin(out).sum(), out

    changed = [x.copy() for x in tokens]
    for x in changed:
        x[:, FIRST - 1] += 3
    run = lambda tokens: jax.lax.map(jax.grad(second, has_aux=True), tokens)
    gradients, out = compiled(run, stacked([tuple(tokens), tuple(changed)]))
    np.testing.assert_array_equal(out[1], out[0])
    for gradient in gradients:
        assert not gradient[:, :, :FIRST].any()
        assert gradient[:, :, FIRST:].any()
