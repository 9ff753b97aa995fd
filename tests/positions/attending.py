"""What tests of encodings do with `attend`: golden arrays, decoding token by token, every gradient, and memory."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax import EncodingParams, KVCache, Mask, PositionEncoding, Sizes, Tiling, attend
from tests.cases import slow_except

GOLDEN = Path(__file__).parents[1] / "golden"
TILES = Tiling(queries=4, keys=3)


@functools.cache
def golden(name: str) -> dict[str, np.ndarray]:
    """The arrays of a file that other people's code made; floats as float64."""
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return {key: x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x for key, x in file.items()}


def drawn(B: int, T: int, N: int, K: int, H: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal numbers q [B,T,N,H], k, v [B,T,K,H] in float64."""
    draw = np.random.default_rng(seed)
    return tuple(draw.normal(size=(B, T, heads, H)) for heads in (N, K, K))


def moved(encoding: PositionEncoding, N: int, K: int, H: int, seed: int = 1) -> EncodingParams:
    """Learned parameters away from their initial values, in float64."""
    draw = np.random.default_rng(seed)
    params = encoding.init(jax.random.key(0), Sizes(model=N * H, heads=N, kv_heads=K, head_dim=H))
    return jax.tree.map(lambda x: np.asarray(x, np.float64) + 0.3 * draw.normal(size=x.shape), params)


def outcome(run: Callable[..., jax.Array], *arguments: Any) -> dict[str, Any]:
    """Output of `run`, and the gradients of a random sum of it with respect to all arguments."""

    def loss(*arguments):
        out = run(*arguments)
        return (np.random.default_rng(9).normal(size=out.shape) * out).sum(), out

    gradient = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(len(arguments))), has_aux=True))
    (_, out), gradients = gradient(*jax.tree.map(jnp.asarray, arguments))
    return {"out": out, "gradients": gradients}


def assert_close(got: Any, expected: Any, atol: float) -> None:
    """Every leaf, with its path in the message."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))


DECODING = slow_except(
    ("tokens, jitted", "chunks, eager", "chunks in a ring, jitted"), "tokens, jitted", "chunks in a ring, jitted"
)


def check_decoding(encoding, params, q, k, v, pos, way: str, *, atol: float) -> None:
    """A cache that grows by tokens or chunks, compiled or not, in a ring or not, gives what the full forward gives."""
    q, k, v = (jnp.asarray(x) for x in (q, k, v))
    (B, T, K, H), left = k.shape, 4 if "ring" in way else None
    sizes = (1,) * T if "tokens" in way else (T - 8, 1, 4, 3)
    mask = Mask(causal=True, window=None if left is None else (left, 0))
    capacity = T if left is None else left + max(sizes)
    options = {"heads": q.shape[2], "encoding": encoding, "window": mask.window}
    cache = KVCache.create(B, capacity, K, H, q.dtype, **options)

    def step(cache, q, k, v, pos):
        cache = cache.append(k, v, pos, params=params)
        return cache, attend(q, cache=cache, encoding=encoding, params=params, mask=mask)

    step = jax.jit(step) if "jitted" in way else step
    outs, first = [], 0
    for size in sizes:
        here = slice(first, first + size)
        at = jnp.asarray(pos[:, here])
        cache, out = step(cache, q[:, here], k[:, here], v[:, here], at)
        outs.append(out)
        first += size
    assert first == T
    options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos, "mask": mask}
    expected = attend(q, k, v, implementation="dense", **options)
    np.testing.assert_allclose(jnp.concatenate(outs, axis=1), expected, rtol=0, atol=atol)


def quadratic(program: Any, T: int) -> list[tuple[int, ...]]:
    """Shapes in a program, its inner programs included, with two axes as long as the sequence."""
    shapes = {variable.aval.shape for variable in _variables(program) if hasattr(variable.aval, "shape")}
    return [shape for shape in shapes if sum(size >= T - 1 for size in shape) > 1]


def gradient_program(encoding: PositionEncoding, T: int, N: int = 2, H: int = 16, implementation: Any = None) -> Any:
    """The program of the gradients of causal attention with respect to parameters, q, k and v."""
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), Sizes(N * H, N, N, H)))
    x = jax.ShapeDtypeStruct((1, T, N, H), jnp.float32)
    tiles = Tiling(16, 16) if implementation is None else implementation
    options = {"encoding": encoding, "mask": Mask(causal=True), "implementation": tiles}
    loss = lambda params, q, k, v: (attend(q, k, v, params=params, **options) ** 2).sum()
    return jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2, 3)))(params, x, x, x)


def _variables(program: Any) -> Iterator[Any]:
    program = getattr(program, "jaxpr", program)
    for equation in program.eqns:
        yield from (*equation.invars, *equation.outvars)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from _variables(inner)
