"""Compilations: starting without any program, counting those that are made, and the seconds of a first call."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.monitoring
from jax.experimental.compilation_cache import compilation_cache

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def cold(*, quick: bool = False) -> Iterator[None]:
    """A block that begins without compiled programs, and takes none from a cache on the disk.

    `quick`: compile with few optimisations, where times do not count.
    """
    settings = {"jax_enable_compilation_cache": False}
    settings |= {"jax_disable_most_optimizations": True} if quick else {}
    before = {name: jax.config.values[name] for name in settings}
    try:
        _set(settings)
        jax.clear_caches()
        yield
    finally:
        _set(before)


def _set(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # JAX looks once whether there is a cache, and then remembers


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """The names of all programs that are compiled in the block, as they come: "jit(step)"."""
    names: list[str] = []

    def listen(event: str, duration_secs: float, **details: Any) -> None:
        if event == COMPILED:
            names.append(str(details.get("fun_name", "")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def seconds(function: Callable[[], Any]) -> float:
    """Wall time of one call, its result included."""
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start
