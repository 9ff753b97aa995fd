"""The suites of the benchmark, by name. A suite's module loads when it runs, because it needs JAX and perhaps a peer."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnjax.config.names import check_name

if TYPE_CHECKING:
    from experiments.speed.settings import Settings

SUITES: dict[str, tuple[str, str, str]] = {
    "attention": ("experiments.speed.suites.attention", "attention", "causal attention against T: jax.nn, flax"),
    "attention_torch": (
        "experiments.speed.suites.attention_torch",
        "attention_torch",
        "causal attention against T: SDPA and FlexAttention of PyTorch (--torch)",
    ),
    "bias": ("experiments.speed.suites.attention", "bias", "learned T5 and KERPLE bias: jax.nn with an array of it"),
    "encodings": ("experiments.speed.suites.attention", "encodings", "every encoding against NoPE"),
    "short": ("experiments.speed.suites.attention", "short", "T <= 512, every encoding: jax.nn, flax"),
    "memory": ("experiments.speed.suites.memory", "memory", "temporary bytes of the gradient: dense, tokamax"),
    "training": (
        "experiments.speed.suites.training",
        "training",
        "training steps a second: loops in the style of Ruoss, nanodo",
    ),
    "training_torch": (
        "experiments.speed.suites.training_torch",
        "training_torch",
        "training steps a second: x-transformers under torch.compile (--torch)",
    ),
    "population": ("experiments.speed.suites.population", "population", "32 runs as one population: one after another"),
    "evaluation": ("experiments.speed.suites.evaluation", "evaluation", "500 lengths: one compilation per length"),
    "decoding": ("experiments.speed.suites.decoding", "decoding", "tokens from a cache: flax linen"),
    "generation": (
        "experiments.speed.suites.generation",
        "generation",
        "a LLaMA goes on with a text: transformers (--torch)",
    ),
    "start": ("experiments.speed.suites.start", "start", "second start of a sweep: a cold one"),
}
"""name -> (module, function, one line of help: what is measured, and against whom)."""


def chosen(names: Iterable[str]) -> list[str]:
    """These suites, each once, in the order of the table; all of them where none is named.

    Raises ValueError, with the choices, for a name that is none of them.
    """
    wanted = list(names) or list(SUITES)
    for name in wanted:
        check_name("a suite", name, tuple(SUITES))
    return [name for name in SUITES if name in wanted]


def run(names: Iterable[str], settings: Settings) -> int:
    """Run suites one after another; returns how many failed. The error of one is told in a line, and the rest goes on.

    Raises ValueError, before anything runs, for a name that is not in the table.
    """
    failed = 0
    for name in chosen(names):
        module, function, _ = SUITES[name]
        settings.say(f"suite {name}")
        try:
            getattr(importlib.import_module(module), function)(settings)
        except Exception as error:
            failed += 1
            settings.say(f"suite {name} failed: {type(error).__name__}: {' '.join(str(error).split())[:500]}")
        _forget()
    return failed


def _forget() -> None:
    """Give back what a suite left: arrays, and the programs compiled for it."""
    import jax

    gc.collect()
    jax.clear_caches()
