"""Bytes of temporary memory of the gradient, exact, from the compiler; nothing is run, so it holds on any machine.

Dense tables grow with T^2, ours with T. tokamax is a peer where it is installed.
"""

import importlib
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.positions import NoPE, PositionEncoding, Sizes, encoding
from experiments.speed.inputs import both_ways
from experiments.speed.peers.attention import JAX_NN, attention
from experiments.speed.rows import Row, single
from experiments.speed.settings import Settings
from experiments.speed.suites.attention import OURS, attending, ours

B, N, H = 1, 4, 64
TOKAMAX = "tokamax xla_chunked"


def memory(settings: Settings) -> None:
    """Every encoding against the dense table, and none against tokamax; then ours against T."""
    T = 2048 if settings.smoke else 16384
    table = temporary(NoPE(), T, "dense")
    for name in attending():
        held = temporary(encoding(name), T, "chunked")
        settings.emit(_row(f"gradient, {name}", T, held, "dense", table, goal=None if settings.smoke else 100.0))
    for length in () if settings.smoke else (1024, 2048, 4096, 8192, 16384, 32768):
        held = temporary(NoPE(), length, "chunked")
        settings.emit(_row("gradient, nope against T", length, held, JAX_NN, temporary(NoPE(), length, JAX_NN)))
    if importlib.util.find_spec("tokamax") is None:
        settings.say("memory: tokamax is not installed, left out")
        return
    held, theirs = (temporary(NoPE(), T, name) for name in ("chunked", TOKAMAX))
    settings.emit(_row("gradient, nope", T, held, TOKAMAX, theirs, goal=None if settings.smoke else 8.0))


def temporary(chosen: PositionEncoding, T: int, name: str) -> int:
    """Bytes that the compiled gradient holds beside its arguments and results. `name`: an implementation or a peer."""
    arrays = [jax.ShapeDtypeStruct((B, T, N, H), jnp.float32)] * 4
    params = jax.eval_shape(lambda: chosen.init(jax.random.key(0), Sizes(N * H, N, N, H)))
    program = jax.jit(both_ways(_function(chosen, name))).lower(params, *arrays).compile()
    analysis = program.memory_analysis()
    if analysis is None:
        raise RuntimeError(f"the compiler of {jax.default_backend()!r} does not say how much memory a program takes")
    return int(analysis.temp_size_in_bytes)


def _function(chosen: PositionEncoding, name: str) -> Any:
    if name == TOKAMAX:
        tokamax = importlib.import_module("tokamax")
        return lambda params, q, k, v: tokamax.dot_product_attention(
            q, k, v, is_causal=True, implementation="xla_chunked"
        )
    if name == JAX_NN:
        return lambda params, q, k, v: attention(JAX_NN, chosen, params, q, k, v)
    return ours(chosen, name)


def _row(case: str, T: int, held: int, peer: str, theirs: int, goal: float | None = None) -> Row:
    sizes = {"T": T, "B": B, "N": N, "H": H, "dtype": "float32"}
    figures = (single(held), single(theirs), single(theirs / held))
    return Row("memory", case, OURS, peer, "B", *figures, sizes=sizes, goal=goal)
