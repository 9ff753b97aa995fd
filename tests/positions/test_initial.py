"""Initial parameters: their shapes and distributions, as published. Those of Kerple and MixedRoPE stand in their own files."""

import jax
import numpy as np
import pytest

import attnjax as aj
from tests.positions.hooks import golden, run

N, K, D, H = 64, 32, 256, 16
SIZES = aj.Sizes(model=D, heads=N, kv_heads=K, head_dim=H)
CUT = 0.02 * 0.9866
"""The deviation of a normal number of deviation 0.02 that is cut off at three deviations."""
INITIAL = {
    # Name: (shape, distribution, its number).
    aj.T5Bias(): {"table": ((N, 32), "normal", D**-0.5)},
    aj.Learned(512): {"table": ((512, D), "normal", 0.02)},
    aj.CoPE(): {"table": ((16, H), "all", 0)},
    aj.PoPE(): {"delta": ((N, H), "all", 0)},
    aj.SSMax(): {"s": ((N,), "all", 0.43)},
    aj.SSMax(0.168, biased=True): {"s": ((N,), "all", 0.168), "b": ((N,), "all", 0)},
    aj.FIRE(): {
        **{name: ((N, *shape), "uniform", 32**-0.5) for name, shape in (("out", (32,)), ("out_bias", ()))},
        **dict.fromkeys(("hidden", "hidden_bias"), ((32,), "uniform", 1)),
        **{"c": ((), "all", 0.1), "threshold": ((), "all", 1)},
    },
    aj.TransformerXL(): {
        **dict.fromkeys("uv", ((N, H), "normal", 0.02)),
        **{"w_r": ((N, D, H), "normal", D**-0.5)},
    },
    aj.FoX(5.0): {"w": ((N, D), "normal", 0.02), "b": ((N,), "all", 5)},
    aj.Cable(): {"w": ((N, D), "normal", 0.02), "b": ((N,), "all", 0)},
    aj.RePo(): {name: ((rows, D // 8), "normal", CUT) for name, rows in (("gate", D), ("content", D), ("out", K))},
    aj.SelectiveRoPE(): {
        name: (shape, "normal", 0.02)
        for name, shape in (("down", (D, 32)), ("up", (K, 32, H // 2)), ("convolution", (K, 4, H // 2)))
    },
    aj.PaTH(forget=True): {
        **{"down": ((D, 32), "normal", D**-0.5), "up": ((K, 32, H), "normal", 32**-0.5)},
        **{"convolution": ((K, 3, H), "uniform", 3**-0.5)},
        **{"beta": ((K, D), "normal", D**-0.5), "beta_bias": ((K,), "all", 0)},
        **{"gate": ((N, D), "normal", D**-0.5), "gate_bias": ((N,), "all", 0)},
    },
    aj.DAPE(None, width=400): {
        **{"hidden": ((N, 400), "uniform", N**-0.5), "hidden_bias": ((400,), "uniform", N**-0.5)},
        **{"out": ((400, N), "uniform", 1 / 20), "out_bias": ((N,), "uniform", 1 / 20)},
    },
}


@pytest.mark.parametrize("encoding", INITIAL, ids=lambda encoding: type(encoding).__name__)
def test_initial_parameters_are_drawn_as_published(encoding):
    p = run(lambda key: encoding.init(key, SIZES), jax.random.key(0))
    assert p.keys() == INITIAL[encoding].keys()
    for name, (shape, kind, number) in INITIAL[encoding].items():
        assert p[name].shape == shape
        if kind == "all":
            np.testing.assert_array_equal(p[name], np.float32(number))
            continue
        deviation = number if kind == "normal" else number / 3**0.5
        assert abs(p[name].mean()) < 5 * deviation / p[name].size ** 0.5
        np.testing.assert_allclose(p[name].std(), deviation, rtol=0.05 + 1 / p[name].size ** 0.5)
        largest = np.abs(p[name]).max()
        assert largest > 2.5 * deviation if kind == "normal" else 0.85 * number < largest <= number
        assert number != CUT or largest <= 0.06
    assert len({leaf.tobytes() for leaf in p.values() if leaf.any()}) == sum(bool(leaf.any()) for leaf in p.values())


def test_a_network_over_a_base_has_inputs_for_its_biases_and_the_parameters_of_the_base():
    p = jax.eval_shape(lambda: aj.DAPE(width=3).init(jax.random.key(0), SIZES))
    assert p["hidden"].shape == (2 * N, 3)
    assert p["base_r1"].shape == p["base_r2"].shape == (N,)
    assert aj.DAPE().per_head == ("base_r1", "base_r2")


def test_numbers_of_other_implementations():
    """The scale of SSMax."""
    assert float(golden("frontier_scalable_softmax")["initial_s"]) == aj.SSMax().initial
