"""What must hold without any oracle: shifts of positions, no way back in time, limits in which one encoding is another, and
bounds that can be proved without any training.
"""

import functools

import jax
import jax.numpy as jnp
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
TOKENWISE = [name for name in ENCODINGS if (name not in AXES and "+" not in name) or name in PER_HEAD]


@pytest.mark.parametrize("name", slow_except([*TOKENWISE, *EMBEDDINGS], "t5", "fox", "learned"))
def test_no_gradient_reaches_an_earlier_output_from_a_later_token(name):
    """Through queries, keys, values, embeddings and positions that are computed from content; it reaches all others."""
    encoding, row, random = (ENCODINGS | EMBEDDINGS)[name], 7, np.random.default_rng(3)
    params, weight = learned(encoding, SIZES, random), random.normal(size=(B, N, H)).astype(np.float32)

    def loss(x):
        x = aj.embed(encoding, params, x, np.arange(T))
        own = {} if name in EMBEDDINGS else {"encoding": encoding, "params": params}
        pos = aj.context_positions(encoding, params, x, np.arange(T), SIZES)
        x = x.reshape(B, T, N, H)
        return (aj.attend(x, x, x, mask=CAUSAL, q_pos=pos, k_pos=pos, **own)[:, row] * weight).sum()

    found = np.abs(compiled(jax.grad(loss), random.normal(size=(B, T, N * H)).astype(np.float32))).max((0, 2))
    assert np.all(found[: row + 1] > 0)
    assert np.all(found[row + 1 :] == 0)


# Positions far out, whose angles are tested with the encodings


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_xpos_up_to_its_reach(dtype):
    encoding = aj.XPos()
    pos = np.unique(np.linspace(-encoding.reach, encoding.reach, 4001).astype(np.int32))
    p = encoding.constants(aj.Sizes(model=16, heads=1, kv_heads=1, head_dim=16))
    out = jax.jit(lambda pos: encoding.map_q(p, jnp.ones((len(pos), 16)), pos))(pos.astype(dtype))
    stretch = ((np.arange(8) / 8 + 0.4) / 1.4) ** (pos[:, None] / 512)
    angle = pos.astype(np.float64)[:, None] * 10_000.0 ** (-np.arange(8) / 8)
    expected = np.concatenate([np.cos(angle) - np.sin(angle), np.sin(angle) + np.cos(angle)], -1)
    np.testing.assert_allclose(out / np.tile(stretch, 2), expected, rtol=0, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("heads", [8, 12])
def test_alibi_falls_strictly_with_the_distance(heads, dtype):
    """The log-sum-exp over a single key is its score."""
    T = 65_536
    q, k = np.zeros((1, T, heads, 2), jnp.dtype(dtype)), np.zeros((1, 1, heads, 2), jnp.dtype(dtype))
    mask = aj.Mask(causal=True, q_index=np.ones(T, int), k_index=np.zeros(1, int))
    options = {"q_pos": np.arange(T), "k_pos": np.zeros(1, int), "mask": mask, "implementation": "dense"}
    scores = aj.attend_with_lse(q, k, k, encoding=aj.ALiBi(), **options)[1][0]
    assert np.all(np.diff(scores, axis=0) < 0)


# Limits in which one encoding is another


def constant(encoding, **value):
    """Parameters of 0, save those named."""
    shapes = jax.eval_shape(lambda: encoding.init(jax.random.key(0), SIZES))
    return {name: np.full(x.shape, value.get(name, 0.0), np.float32) for name, x in shapes.items()}


INTERLEAVED = functools.partial(aj.RoPE, layout="interleaved")
ROPE, NOTHING, XL, COPE, POWER = aj.RoPE(), aj.NoPE(), aj.TransformerXL(), aj.CoPE(), aj.Kerple("power")
LIMITS = {
    "transformer_xl-without-terms": (XL, constant(XL), NOTHING),
    "cope-at-init": (COPE, constant(COPE), NOTHING),
    "t5-of-one-number": (aj.T5Bias(), constant(aj.T5Bias(), table=3.0), NOTHING),
    "kerple-of-weight-0": (aj.Kerple(), constant(aj.Kerple(), r1=-200.0), NOTHING),
    "fire-constant": (aj.FIRE(), constant(aj.FIRE(), out_bias=2.0), NOTHING),
    "kerple-power-1-is-alibi": (POWER, constant(POWER, r1=np.log(np.e - 1)), aj.ALiBi((1.0,) * N)),
    "xpos-without-decay": (aj.XPos(scale_base=1e30), None, ROPE),
    "interpolation-by-1": (aj.RoPE(scaling=aj.PositionInterpolation(1.0)), None, ROPE),
    "ntk-by-1": (aj.RoPE(scaling=aj.NTKAware(1.0)), None, ROPE),
    "yarn-by-1": (aj.RoPE(scaling=aj.YaRN(1.0, original_length=16)), None, ROPE),
    "llama3-by-1": (aj.RoPE(scaling=aj.Llama3(1.0, original_length=16)), None, ROPE),
    "dynamic-ntk-in-its-length": (aj.RoPE(scaling=aj.DynamicNTK(4.0, original_length=T)), None, ROPE),
    "one-pair-that-turns": (INTERLEAVED(fraction=0.5, keep=0.5), None, INTERLEAVED(fraction=0.25)),
    "alibi-seen-from-the-future": (aj.ALiBi(), None, aj.ALiBi(symmetric=True)),
}


@pytest.mark.parametrize("limit", slow_except(LIMITS, "kerple-power-1-is-alibi"))
def test_limits_in_which_one_encoding_is_another(limit):
    encoding, params, other = LIMITS[limit]
    run = lambda *x: [aj.attend(*x, mask=CAUSAL, encoding=e, params=p) for e, p in ((encoding, params), (other, None))]
    np.testing.assert_allclose(*compiled(run, *draw(NOTHING, "mha")[:3]), rtol=0, atol=1e-6)


# Bounds, computed in float64 from the scores alone

SLACK = 1 + 1e-5
"""Room for the rounding of float32 in bounds that are reached."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nope", "rope", "t5"])
def test_one_token_changes_the_output_by_one_over_n(name):
    """Hahn 2020 (arXiv:1906.06755), lemma 5."""
    encoding, lengths, examples, random = ENCODINGS[name], 4 ** np.arange(3, 7), 64, np.random.default_rng(0)
    params = learned(encoding, SIZES, random)

    @jax.jit
    def change(q, k, v, new_k, new_v, pos):
        n = pos.shape[0]
        options = {"encoding": encoding, "params": params, "q_pos": pos[-1:], "k_pos": pos, "implementation": "dense"}
        difference = aj.attend(q, k.at[:, n // 2].set(new_k), v.at[:, n // 2].set(new_v), **options)
        return jnp.linalg.norm(difference - aj.attend(q, k, v, **options), axis=-1).mean()

    normal = lambda n: random.normal(size=(examples, n, N, H)).astype(np.float32)
    new_k, new_v = normal(1)[:, 0], normal(1)[:, 0]
    changes = [change(normal(1), normal(n), normal(n), new_k, new_v, np.arange(n)) for n in lengths]
    assert abs(np.polyfit(np.log(lengths), np.log(changes), 1)[0] + 1) < 0.1


@pytest.mark.slow
def test_alibi_mass_beyond_a_distance_is_bounded():
    """Chi et al. 2023 (arXiv:2212.10356), section 4: ALiBi is a soft window."""
    n, heads, random = 256, 8, np.random.default_rng(0)
    q, k = (random.normal(size=(1, n, heads, H)).astype(np.float32) for _ in "qk")
    weights = np.asarray(aj.attention_weights(q, k, encoding=aj.ALiBi(), mask=CAUSAL), np.float64)[0]
    slope = 2.0 ** -np.arange(1, heads + 1)
    scores = np.einsum("tnh,snh->nts", q[0].astype(np.float64), k[0]) / np.sqrt(H)
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    # Against the key at distance 0 alone, whose bias is 0.
    excess = scores.max(-1) - np.diagonal(scores, axis1=-2, axis2=-1)
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    for d in (0, 1, 4, 16, 64, 128):
        mass = np.where(distance > d, weights, 0).sum(-1)
        tail = np.exp(-slope * (d + 1)) / (1 - np.exp(-slope))
        assert np.all(mass <= np.exp(excess) * tail[:, None] * SLACK)
