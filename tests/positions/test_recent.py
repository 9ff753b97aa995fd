"""Encodings of 2025 and 2026 by their authors' code: attention, and the gradients of queries, keys, tokens and parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.cases import slow_except
from tests.positions.hooks import close, golden, run, self_attention, with_gradients

GATES = {"w": "gate_kernel", "b": "gate_bias"}
SAME = lambda *names: {name: name for name in names}
CASES = {
    # Encoding, and the arrays of its parameters. Weights of Inkling are [N * C, D].
    "bam": (aj.BAM(location=True), SAME("alpha", "beta", "mu")),
    "nape": (aj.NAPE(), {}),
    "grape": (aj.GRAPE(shared=False), SAME("log_frequencies")),
    "fope": (aj.FoPE(length=64, theta=100.0), SAME("cos", "sin")),
    "wall": (aj.WallAttention(), GATES),
    "inkling": (aj.Inkling(curves=3, reach=5), {"w": "kernel", "b": "bias", "curves": "curves"}),
    "tra": (aj.TRA(), {"w": "kernel", "b": "bias"}),
    "asentmax": (aj.ASEntmax(), SAME("beta", "gamma")),
}


def arrays_of(name):
    """Where the authors turn pairs the other way, the two channels of each are exchanged."""
    arrays = dict(golden(f"recent_{name}"))
    if name == "grape":
        exchanged = (key for key in arrays if key in ("q", "k", "grad_q", "grad_k"))
        arrays |= {key: np.roll(arrays[key], arrays[key].shape[3] // 2, axis=3) for key in exchanged}
    if name == "inkling":
        arrays |= {key: x.reshape(2, 3, *x.shape[1:]) for key, x in arrays.items() if key.endswith(("kernel", "bias"))}
    return {"x": np.zeros((*arrays["q"].shape[:2], 6))} | arrays


@pytest.mark.parametrize("name", slow_except(CASES, "fope", "wall", "tra", "asentmax"))
def test_attention_and_gradients_are_those_of_the_authors(name, x64):
    arrays, (encoding, names) = arrays_of(name), CASES[name]
    of = lambda prefix: {key: arrays[prefix + place] for key, place in names.items()}
    if name == "nape":
        arrays |= {"out": arrays["linear_out"]}
        other = self_attention(aj.NAPE(kind="exp"), None, *(jnp.asarray(arrays[key]) for key in "xqkv"))
        close(other, arrays["exp_out"])
    call = lambda params, x, q, k: self_attention(encoding, params, x, q, k, jnp.asarray(arrays["v"]))
    out, gradients = with_gradients(call, arrays["w"], of(""), *(arrays[key] for key in "xqk"))
    close(out, arrays["out"], 1e-11)
    if f"grad_{next(iter(names.values()), '')}" in arrays:
        jax.tree.map(lambda found, expected: close(found, expected, 1e-10), gradients[0], of("grad_"))
    for key, gradient in zip("xqk", gradients[1:], strict=True):
        if f"grad_{key}" in arrays:
            close(gradient, arrays[f"grad_{key}"], 1e-10)


def test_series_and_frequencies_start_as_those_of_the_authors():
    """GRAPE: those of RoPE, times the rate. FoPE: Xavier's deviation around 1 where a wave is that of its pair."""
    sizes, fope = aj.Sizes(64, 400, 400, 16), aj.FoPE(length=64, theta=100.0, gain=0.4)
    p = run(lambda key: (aj.GRAPE(theta=100.0).init(key, sizes), fope.init(key, sizes)), jax.random.key(0))
    close(p[0]["log_frequencies"], -16 * np.log(100.0) * np.arange(8) / 8, 1e-5)
    for series in p[1].values():
        assert series.shape == (400, 5, 4)
        close(series.mean(0), np.arange(5)[:, None] == 2 * np.arange(4)[None], 0.01)
        close(series.std(0), np.full((5, 4), 0.4 * (2 / (405 * 4)) ** 0.5), 2e-3)


def test_biases_and_their_slopes_stay_finite():
    """Of BAM at any distance, its top included, with powers past what float32 holds."""
    n, p = np.float32([-1e9, -1, 0, 1, 1e9]), dict.fromkeys(("alpha", "beta", "mu"), np.float32(9))
    both = jax.value_and_grad(lambda p, n: aj.BAM(location=True).bias(p, n).sum(), (0, 1))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run(both, p, n)))


def test_gates_of_walls_never_overflow(x64):
    """Sums of costs of thousands between the first and the last token; a product of exponentials would be 0 times infinity."""
    q, k = np.ones((1, 3, 1, 2)), np.ones((1, 3, 1, 2))
    pos = np.array([0.0, 2000, 2001])[None, None, :, None] * np.ones(2)
    params, mask = {"w": np.zeros((1, 2, 2)), "b": np.zeros((1, 2))}, aj.Mask(causal=True)
    options = {"encoding": aj.WallAttention(), "params": params, "scale": 1.0, "mask": mask}
    weights = aj.attention_weights(q, k, q_pos=pos, k_pos=pos, **options)
    products = np.exp([0, 2 * np.exp(-1), 2])
    close(weights[0, 0, 2], products / products.sum())
