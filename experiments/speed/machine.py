"""What a benchmark ran on, and the two rates that no program on this machine can exceed.

Nothing here names the host, a user or a folder: the description is written into files that are published.
"""

import os
import pathlib
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.sweep import manifest
from experiments.speed.timing import timed

INSTRUCTIONS = ("avx2", "avx512f", "amx_tile", "asimd", "sve")
"""The vector and matrix instruction sets that a matrix product may use."""
CACHES = pathlib.Path("/sys/devices/system/cpu/cpu0/cache")
CPUINFO = pathlib.Path("/proc/cpuinfo")


def describe() -> dict[str, Any]:
    """Processor, caches, memory, system, versions, backend and date; None where the machine does not say."""
    known, backend = manifest.of_machine(), manifest.of_jax()
    kept = ("processor", "architecture", "memory_bytes", "os", "python", "attnjax", "commit", "commit_dirty")
    return {
        **{key: known[key] for key in kept},
        **{name: known[f"version_{name}"] for name in ("jax", "jaxlib", "flax", "numpy")},
        "code_sha256": known["code_sha256"],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": known["threads"],
        "instructions": instructions(),
        "l2_bytes": cache_bytes(2),
        "l3_bytes": cache_bytes(3),
        "backend": backend["backend"],
        "device": backend["device_kind"],
        "devices": backend["device_count"],
        "xla_flags": without_paths(os.environ.get("XLA_FLAGS", "")),
        "date": manifest.now(),
    }


def instructions() -> list[str]:
    """Those of `INSTRUCTIONS` that the processor lists; empty where it lists none."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    listed = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return [name for name in INSTRUCTIONS if listed and name in listed[1].split()]


def cache_bytes(level: int) -> int | None:
    """Bytes of one data cache of this level, as the first core sees it; None where they cannot be read."""
    for folder in sorted(CACHES.glob("index*")):
        try:
            found, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        number = re.fullmatch(r"(\d+)([KMG]?)", size)
        if found == str(level) and kind != "Instruction" and number:
            return int(number[1]) * 1024 ** ("", "K", "M", "G").index(number[2])
    return None


def without_paths(flags: str) -> str:
    """Flags with "..." for every value that looks like a path."""
    return " ".join(re.sub(r"=.*[/\\].*", "=...", word) for word in flags.split() if word.startswith("--"))


def peak_flops(seconds: float = 1.0, size: int | None = None) -> float:
    """Best rate of a float32 matrix product [size, size] x [size, size], in FLOP/s: 2 size^3 / time.

    The size is 2048 on a CPU, 8192 elsewhere, where it is not given. Takes about as many seconds as it is given.
    """
    n = size or (2048 if jax.default_backend() == "cpu" else 8192)
    x, y = jax.random.normal(jax.random.key(0), (2, n, n), jnp.float32)
    return 2 * n**3 / _best(timed(jax.jit(jnp.dot), x, y), seconds)


def bandwidth(seconds: float = 1.0, size: int = 2**28) -> float:
    """Best rate at which an array of `size` bytes, larger than any cache, is read and written back: bytes/s of both."""
    negate = jax.jit(jnp.negative, donate_argnums=0)
    x = jnp.ones(size // 4, jnp.float32)

    def run() -> float:
        nonlocal x
        start = time.perf_counter()
        x = jax.block_until_ready(negate(x))
        return time.perf_counter() - start

    return 2 * x.nbytes / _best(run, seconds)


def _best(run: Callable[[], float], seconds: float) -> float:
    """The least time of at least three calls after one that does not count, until the seconds are spent."""
    run()
    taken = [run(), run(), run()]
    while sum(taken) < seconds:
        taken.append(run())
    return min(taken)
