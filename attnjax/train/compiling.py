"""How much effort the compiler spends. On a CPU it takes most of a small run's time, and its last passes save nothing.

Measured on two cores (2 layers, D = 64, 2,048 tokens a step, 3 runs together): level 1 compiles in 8 to 10 s, the default
(level 3) in 11 to 15 s, at the same time per step; level 0 needs 3.5 times as long per step.
"""

import jax


def compile_fast(platform: str) -> dict[str, int] | None:
    """Return the compiler options of a program that runs once: none of its instructions is worth optimising."""
    return _level(0, platform)


def compile_default(platform: str) -> dict[str, int] | None:
    """Return the compiler options of a program that runs many times."""
    return _level(1, platform)


def _level(level: int, platform: str) -> dict[str, int] | None:
    """Return the options of this optimisation level on a CPU.

    On accelerators the level means something else, and where a user has chosen less optimisation that choice stands.
    """
    if platform != "cpu" or jax.config.values["jax_disable_most_optimizations"]:
        return None
    return {"xla_backend_optimization_level": level}
