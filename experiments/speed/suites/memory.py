"""Bytes of temporary memory of the gradient, exact, from the compiler; nothing is run, so it holds on any machine.

Dense tables grow with T^2, ours with T. tokamax is a peer where it is installed.
"""

import functools
import importlib
import importlib.util
from typing import Any

import jax

from attnjax.positions import NoPE, PositionEncoding, encoding
from experiments.speed.harness import Settings
from experiments.speed.peers.jax_nn import attention
from experiments.speed.suites import JAX_NN, TOKAMAX
from experiments.speed.suites.attention import OURS, arguments, attending, fields_of, ours, program


def memory(settings: Settings) -> None:
    """Every encoding against the dense table, and none against tokamax; then ours against T."""
    lengths = settings.lengths("memory")
    T = lengths[0] if settings.smoke else 16384
    if T in lengths:
        _encodings(settings, T)
    for length in () if settings.smoke else lengths:
        held = temporary(NoPE(), length, "chunked")
        _row(settings, "gradient, nope against T", length, held, JAX_NN, temporary(NoPE(), length, JAX_NN))
    if T in lengths:
        _tokamax(settings, T)


def _encodings(settings: Settings, T: int) -> None:
    table = temporary(NoPE(), T, "dense")
    for name in attending():
        held = temporary(encoding(name), T, "chunked")
        _row(settings, f"gradient, {name}", T, held, "dense", table, goal=None if settings.smoke else 100.0)


def _tokamax(settings: Settings, T: int) -> None:
    if importlib.util.find_spec("tokamax") is None:
        settings.say("memory: tokamax is not installed, left out")
        return
    held, theirs = (temporary(NoPE(), T, name) for name in ("chunked", TOKAMAX))
    _row(settings, "gradient, nope", T, held, TOKAMAX, theirs, goal=None if settings.smoke else 8.0)


def temporary(chosen: PositionEncoding, T: int, name: str) -> int:
    """Bytes that the compiled gradient holds beside its arguments and results. `name`: an implementation or a peer."""
    analysis = program(_function(chosen, name), _shapes(chosen, T), backward=True).memory_analysis()
    if analysis is None:
        raise RuntimeError(f"the compiler of {jax.default_backend()!r} does not say how much memory a program takes")
    return int(analysis.temp_size_in_bytes)


def _shapes(chosen: PositionEncoding, T: int) -> tuple[Any, ...]:
    return jax.eval_shape(lambda: arguments(chosen, T, B=1, N=4))


def _function(chosen: PositionEncoding, name: str) -> Any:
    if name == TOKAMAX:
        options = {"is_causal": True, "implementation": "xla_chunked"}
        return lambda params, q, k, v: importlib.import_module("tokamax").dot_product_attention(q, k, v, **options)
    return functools.partial(attention, JAX_NN, chosen) if name == JAX_NN else ours(chosen, name)


def _row(settings: Settings, case: str, T: int, held: int, peer: str, theirs: int, goal: float | None = None) -> None:
    fields = fields_of("memory", case, _shapes(NoPE(), T))
    settings.row([held], [theirs], unit="B", ours=OURS, peer=peer, goal=goal, **fields)
