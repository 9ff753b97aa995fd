"""Which errors the user, the disk or the platform caused, and the sentence for each.

All other errors are bugs of this package and keep their traceback.
"""

import os
import sys

from attnjax.sweep.outcome import OUT_OF_MEMORY

MEMORY = "there is not enough memory"
OF_PLOT = ("matplotlib", "pandas", "jinja2")
"""Packages of the extra `attnjax[plot]`, which may be absent."""


def sentence(error: Exception) -> str | None:
    """The line to print about an error; None for a bug, whose traceback should be printed."""
    if isinstance(error, ValueError | OSError):
        return str(error) or type(error).__name__
    if isinstance(error, MemoryError):
        return f"{MEMORY}: {_first_line(error)}" if str(error) else MEMORY
    if isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)):
        return f"{MEMORY}: {_first_line(error)}"
    if isinstance(error, ModuleNotFoundError) and error.name in OF_PLOT:
        return f"this command needs {error.name}, which is not installed: pip install 'attnjax[plot]'"
    # Where no backend has a device, JAX raises a bare AssertionError.
    return _of_the_platform() if isinstance(error, RuntimeError | AssertionError) else None


def _of_the_platform() -> str | None:
    """Why JAX has no platform to compute on; None where it has one, or was never asked."""
    jax, names = sys.modules.get("jax"), os.environ.get("JAX_PLATFORMS")
    try:
        if jax is not None:
            jax.devices()
        return None
    except (RuntimeError, AssertionError) as error:
        reason = _first_line(error).partition(" (set JAX_PLATFORMS")[0] or "no such device was found"
        if names:
            return f"JAX cannot use the platform {names!r} that JAX_PLATFORMS names: {reason}"
        return f"JAX finds no platform to compute on: {reason}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:500]
