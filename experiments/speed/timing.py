"""Seconds of several contenders, taken in turn, and the programs that are compiled meanwhile.

In each round every contender runs once, in an order that rotates from round to round, so that whatever else the machine
does strikes all of them alike. A contender that takes less than `SHORT` seconds runs twice, and the second counts: a program
gives its memory back after its result is there, which takes a tenth of a second for half a gigabyte, and each should wait for
itself and not for the one before.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.monitoring
from jax.experimental.compilation_cache import compilation_cache

SHORT = 10.0
COMPILED = "/jax/core/compile/backend_compile_duration"


def timed(function: Callable[..., Any], *args: Any) -> Callable[[], float]:
    """A contender: each call runs a function, waits for its result, and returns the seconds that this took."""

    def run() -> float:
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        return time.perf_counter() - start

    return run


def interleaved(
    contenders: Mapping[str, Callable[[], float]], *, rounds: int = 15, seconds: float = 30.0, warm: int = 1
) -> dict[str, list[float]]:
    """Seconds of each contender in each round: at least 3 rounds, at most `rounds`, no new one after `seconds`.

    `contenders`: by name, functions that do the work once and return the seconds that it took. `warm` calls of each come
    first and are thrown away: compilation, first touch of memory.
    """
    seen = {name: min(run() for _ in range(warm)) for name, run in contenders.items() if warm}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    order, start = list(contenders), time.perf_counter()
    for i in range(rounds):
        if i >= 3 and time.perf_counter() - start > seconds:
            break
        for name in order:
            once = contenders[name]()
            taken[name].append(contenders[name]() if seen.setdefault(name, once) < SHORT else once)
        order = [*order[1:], order[0]]
    return taken


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
