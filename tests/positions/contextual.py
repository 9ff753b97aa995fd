"""What tests of encodings that read the tokens share: the golden arrays, and one call from tokens to the output."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnjax as aj
from tests.cases import FAST

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
B, T, H, D = 2, 12, 8, 16
CAUSAL = aj.Mask(causal=True)


def golden(name: str) -> dict[str, np.ndarray]:
    """The arrays of `frontier_{name}.npz`, all as float64."""
    with np.load(GOLDEN / f"frontier_{name}.npz", allow_pickle=False) as arrays:
        return {key: np.asarray(arrays[key], np.float64) for key in arrays}


def self_attention(encoding: aj.PositionEncoding, params: Any, x: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
    """`attend` at the positions of the tokens x; the mask is causal unless given."""
    sizes = aj.Sizes(model=x.shape[2], heads=q.shape[2], kv_heads=k.shape[2], head_dim=q.shape[3])
    pos = aj.context_positions(encoding, params, x, np.arange(x.shape[1]), sizes)
    options = {"mask": CAUSAL} | options
    return aj.attend(q, k, v, encoding=encoding, params=params, q_pos=pos, k_pos=pos, **options)


def with_gradients(encoding: aj.PositionEncoding, params: Any, arrays: dict, **options: Any) -> tuple[Any, dict]:
    """The output, and the gradients of sum(out * w) with respect to params, x, q and k."""

    def loss(leaves: dict) -> tuple[Any, Any]:
        out = self_attention(encoding, leaves["params"], leaves["x"], leaves["q"], leaves["k"], v, **options)
        return (out * arrays["w"]).sum(), out

    v = jnp.asarray(arrays["v"])
    leaves = {"params": params} | {name: arrays[name] for name in ("x", "q", "k")}
    run = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=FAST)
    (_, out), gradients = run(jax.tree.map(jnp.asarray, leaves))
    return out, gradients


def assert_same(got: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Equal shapes, and every entry near."""
    assert np.shape(got) == np.shape(expected)
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
