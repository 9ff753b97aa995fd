"""CoPE, stick-breaking, DAPE and PaTH, whose scores need the whole table, against loops, the authors' arrays and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.cases import slow_except
from tests.positions.hooks import CAUSAL, close, drawn, golden, run, tile, with_gradients


def of_one_head(one: aj.Tile) -> aj.Tile:
    """A tile of one head as the table of one head."""
    return aj.Tile(*(x[None] for x in one[:5]), *one[5:])


# CoPE ----------------------------------------------------------------------------------------------------------------


def test_cope_reads_whole_positions_as_they_are_with_the_slope_to_their_right(x64):
    """Gates of 1 count 3, 2, 1, and those of 1/2 half of it; values 1, 3, 2 at positions 0, 1, 2, then the slope is 0."""
    values, cope = np.array([[1.0], [3.0], [2.0]]), aj.CoPE(max_position=3)
    one = of_one_head(tile([0, 0], [0, 0, 0], np.ones((2, 3), bool), head_dim=1))
    one = one._replace(q=np.ones((1, 2, 1)))

    def read(shift):
        """The embeddings that are added, for gates that a shift of all logits makes."""
        logits = jnp.array([[[50.0] * 3, [0.0] * 3]]) + shift
        return cope.score({"table": values}, one._replace(logits=logits)) - logits

    found, slopes = run(lambda: (read(0.0), jax.jacfwd(read)(0.0)))
    close(found[0], [[2, 2, 3], [2.5, 3, 2]], 1e-9)
    # Three, two and one half gates, each with a slope of 1/4, at 1.5, 1 and 0.5: slopes -1, -1 and 2.
    close(slopes[0], [[0, 0, 0], [-3 / 4, -2 / 4, 2 / 4]], 1e-9)


# Stick-breaking ------------------------------------------------------------------------------------------------------

STRICT = aj.StickBreaking(attend_current=False)


@pytest.mark.parametrize("case", slow_except(["current", "strict"], "current"))
def test_stick_breaking_is_that_of_the_authors(case, x64):
    """The rest of the stick goes to the own value; a channel of ones beside the values brings it."""
    arrays, encoding = golden("frontier_stick_breaking"), {"current": aj.StickBreaking(), "strict": STRICT}[case]

    def whole(q, k, v):
        wide = jnp.concatenate([v, jnp.ones((*v.shape[:-1], 1))], -1)
        out = aj.attend(q, k, wide, encoding=encoding, mask=CAUSAL, implementation="dense")
        return out[..., :-1] + (1 - out[..., -1:]) * v

    out, gradients = with_gradients(whole, arrays["w"], *(arrays[name] for name in "qkv"))
    close(out, arrays[f"{case}_out"] + arrays[f"{case}_rest"].swapaxes(1, 2)[..., None] * arrays["v"])
    for name, gradient in zip("qkv", gradients, strict=True):
        close(gradient, arrays[f"{case}_whole_grad_{name}"])


def test_the_own_token_is_found_by_its_index():
    """Not by its position: with as many keys as queries key i of query i, in decoding the last key that a query sees."""
    halves = of_one_head(tile([7, 7, 7, 7], [7, 7, 7, 7], np.tri(4, dtype=bool)))._replace(logits=np.zeros((1, 4, 4)))
    last = of_one_head(tile([7, 7], [7] * 4, np.tri(2, 4, 1, dtype=bool)))._replace(logits=np.zeros((1, 2, 4)))
    whole, decoded = run(lambda *tiles: [jnp.exp(STRICT.score({}, one))[0] for one in tiles], halves, last)
    expected = [[0, 0, 0, 0], [1 / 2, 0, 0, 0], [1 / 4, 1 / 2, 0, 0], [1 / 8, 1 / 4, 1 / 2, 0]]
    np.testing.assert_allclose(whole, expected, rtol=1e-6)
    np.testing.assert_allclose(decoded, expected[1:3], rtol=1e-6)


@pytest.mark.parametrize("size", [30.0, 1e4, 1e18])
def test_large_logits_leave_all_to_the_nearest_key_that_takes_it(size):
    """Every second key takes the rest of the stick and the others nothing; gradients are finite."""
    one = of_one_head(tile(np.arange(7), np.arange(7)))
    score = lambda logits: jnp.exp(aj.StickBreaking().score({}, one._replace(logits=logits)))
    logits = np.float32(size * np.broadcast_to((-1.0) ** np.arange(7), (1, 7, 7)))
    weights, gradient = run(lambda x: (score(x), jax.grad(lambda x: score(x).sum())(x)), logits)
    close(weights[0], np.eye(7)[np.arange(7) // 2 * 2], 1e-5)
    assert np.isfinite(gradient).all()


def test_a_far_key_keeps_its_share_beside_a_huge_logit():
    """The sum beyond a key is not the inclusive sum less its own entry, which float32 would round to 0.1 here."""
    one = of_one_head(tile([0], [0] * 3, np.ones((1, 3), bool)))._replace(logits=np.float32([[[1e6, -3, -2]]]))
    found = run(lambda one: jnp.exp(aj.StickBreaking().score({}, one)), one)
    np.testing.assert_allclose(found[0, 0, 0], 1 / ((1 + np.exp(-3)) * (1 + np.exp(-2))), rtol=1e-6)


# DAPE ----------------------------------------------------------------------------------------------------------------


def dape_of(case, prefix=""):
    """DAPE and its parameters, or their gradients, as the arrays have them."""
    arrays = golden("frontier_dape")
    own = {"hidden": "mlp2.0.weight", "hidden_bias": "mlp2.0.bias", "out": "mlp2.2.weight", "out_bias": "mlp2.2.bias"}
    p = {name: arrays[prefix + array].T for name, array in own.items()}
    if case == "alibi":
        return aj.DAPE(aj.ALiBi(), width=6), p
    r1, r2 = arrays["kerple_p"].ravel(), arrays["kerple_a"].ravel()
    raw = {"base_r1": np.log(np.expm1(r1)), "base_r2": np.log(np.expm1(r2))}
    if prefix:  # of the raw number, and not of the positive one: softplus'(raw) = 1 - e^(-softplus)
        slopes = {"base_r1": (-np.expm1(-r1), "kerple_p"), "base_r2": (-np.expm1(-r2), "kerple_a")}
        raw = {name: slope * arrays[prefix + array].ravel() for name, (slope, array) in slopes.items()}
    return aj.DAPE(aj.Kerple(), width=6), p | raw


@pytest.mark.parametrize("case", slow_except(["alibi", "kerple"], "kerple"))
def test_dape_is_that_of_the_authors(case, x64):
    """Their arrays hold logits, so that the hook is called on the table of each example."""
    (encoding, params), arrays = dape_of(case), golden("frontier_dape")
    seen, pos = np.tri(12, dtype=bool), np.arange(12)[None]

    def logits(params, q, k):
        p = aj.resolve(encoding, params, aj.Sizes(32, 4, 4, 8))

        def example(q, k):
            products = jnp.einsum("tnh,snh->nts", q, k) * 8**-0.5
            one = aj.Tile(
                products, q.swapaxes(0, 1), k.swapaxes(0, 1), jnp.asarray(pos), jnp.asarray(pos), seen, 8**-0.5
            )
            return jnp.where(seen, encoding.score(p, one), 0.0)

        return jax.vmap(example)(q, k)

    out, (found, *of_qk) = with_gradients(logits, arrays["w"], params, arrays["q"], arrays["k"])
    close(out, arrays[f"{case}_logits"])
    for name, expected in dape_of(case, f"{case}_grad_")[1].items():
        close(found[name], expected, 1e-11)
    for name, gradient in zip("qk", of_qk, strict=True):
        close(gradient, arrays.get(f"{case}_grad_{name}", gradient), 1e-11)


# PaTH ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", slow_except(["gated", "plain"], "gated"))
def test_path_is_that_of_the_authors(case, x64):
    """Their directions, betas and gates given as positions."""
    arrays, encoding = golden("frontier_path_attention"), aj.PaTH(convolution=1, forget=case == "gated")
    params = drawn(encoding, aj.Sizes(32, 4, 2, 8))  # attention asks for them, and `score` reads none
    options = {"encoding": encoding, "params": params, "mask": CAUSAL, "implementation": "dense"}

    def attend(q, k, direction, beta, gate):
        channels = [jnp.repeat(x, 2, axis=2) for x in (direction, beta[..., None])] + [jnp.cumsum(gate, 1)[..., None]]
        pos = jnp.concatenate(channels[: 2 + encoding.forget], -1).swapaxes(1, 2)
        return aj.attend(q, k, jnp.asarray(arrays["v"]), q_pos=pos, k_pos=pos, **options)

    names = ("q", "k", "direction", "beta", "log_gate")
    out, gradients = with_gradients(attend, arrays["w"], *(arrays[name] for name in names))
    close(out, arrays[f"{case}_out"])
    for name, gradient in zip(names, gradients, strict=True):
        if case == "gated":
            close(gradient, arrays[f"grad_{name}"])


T, H = 19, 4
SIZES = aj.Sizes(8, 2, 1, H)


def by_matrices(encoding, params, x, q, k, seen):
    """Every map written out as a matrix, and every product from scratch: logits [N, T, T], 0 where hidden."""
    sigmoid = lambda z: 1 / (1 + np.exp(-z))
    raw, maps = x @ params["down"] @ params["up"][0], []
    for t in range(T):
        taps = range(min(t + 1, encoding.convolution))
        w = sum(params["convolution"][0, -1 - back] * raw[t - back] for back in taps)
        w = w * sigmoid(w)
        w /= np.sqrt(w @ w + 1e-6)
        beta = 2 * sigmoid(x[t] @ params["beta"][0] + params["beta_bias"][0])
        maps.append(np.eye(H) - beta * np.outer(w, w))
    logits = np.zeros((2, T, T))
    for h, i, j in zip(*np.nonzero(np.broadcast_to(seen, (2, T, T)))):
        way = np.eye(H)
        for s in range(i, j, -1):
            way = way @ maps[s] if seen[i, s] else way
        logits[h, i, j] = q[i, h] @ way @ k[j, 0]
    if encoding.forget:
        c = np.cumsum(np.log(sigmoid(x @ params["gate"].T + params["gate_bias"])), 0).T
        logits += (c[:, :, None] - c[:, None, :]) * seen
    return logits / 2


@pytest.mark.parametrize(
    "encoding", [aj.PaTH(rank=3), aj.PaTH(rank=3, convolution=1, forget=True)], ids=["path", "gated"]
)
def test_path_against_products_of_matrices(encoding, x64):
    """More keys than are taken at once, two query heads for a key head, and a token that is hidden: NaN there has no effect."""
    draw, params = np.random.default_rng(5), drawn(encoding, SIZES, 0.6)
    x, q, k = (draw.normal(size=shape) for shape in ((T, 8), (T, 2, H), (T, 1, H)))
    seen = np.tri(T, dtype=bool) & (np.arange(T) != 4)

    def logits(params, x, q, k, junk):
        pos = aj.context_positions(encoding, params, x[None], np.arange(T), SIZES)[0]
        broken = jnp.where((np.arange(T) == 4)[:, None] & junk, jnp.nan, pos)
        heads = lambda y: jnp.repeat(y.swapaxes(0, 1), 2 // y.shape[1], axis=0)
        one = aj.Tile(jnp.zeros((2, T, T)), heads(q), heads(k), pos, broken, seen, 0.5)
        return jnp.where(seen, encoding.score(aj.resolve(encoding, params, SIZES), one), 0)

    one = jax.jit(logits)
    close(one(params, x, q, k, False), by_matrices(encoding, params, x, q, k, seen))
    np.testing.assert_array_equal(one(params, x, q, k, True), one(params, x, q, k, False))


@pytest.mark.parametrize("beta", [1.0, 1.999])
def test_long_ways_of_path_make_no_query_longer(beta):
    """Reflections (beta near 2) and projections (beta of 1, which have no inverse) along 300 tokens, in single precision."""
    w, index = np.random.default_rng(0).normal(size=(300, 4)), np.arange(300)
    channels = np.concatenate([w / np.linalg.norm(w, axis=1, keepdims=True), np.full((300, 1), beta)], 1)
    one = tile(index, index, scale=1.0)
    given = of_one_head(one)._replace(q_pos=channels[None], k_pos=channels[None])
    found = run(lambda one: aj.PaTH(convolution=1).score({}, one), given)[0]
    bound = np.linalg.norm(one.q, axis=1)[:, None] * np.linalg.norm(one.k, axis=1)
    assert np.all(np.abs(np.tril(found)) <= 1.0001 * bound)
