"""The suites of the benchmark, by name. A suite's module loads when it runs, because it needs JAX and perhaps a peer."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnjax.config.names import check_name

if TYPE_CHECKING:
    from attnjax.bench.settings import Settings

SUITES: dict[str, tuple[str, str, str]] = {
    "attention": ("attnjax.bench.attention", "attention", "causal attention against T: jax.nn, flax"),
    "attention_torch": (
        "attnjax.bench.torch_attention",
        "attention_torch",
        "causal attention against T: SDPA and FlexAttention of PyTorch (--torch)",
    ),
    "bias": ("attnjax.bench.attention", "bias", "learned T5 and KERPLE bias: jax.nn with an array of it"),
    "encodings": ("attnjax.bench.attention", "encodings", "every encoding against NoPE"),
    "short": ("attnjax.bench.attention", "short", "T <= 512, every encoding: jax.nn, flax"),
    "memory": ("attnjax.bench.memory", "memory", "temporary bytes of the gradient: dense, tokamax"),
    "training": ("attnjax.bench.training", "training", "training steps a second: loops in the style of Ruoss, nanodo"),
    "training_torch": (
        "attnjax.bench.torch_training",
        "training_torch",
        "training steps a second: x-transformers under torch.compile (--torch)",
    ),
    "population": ("attnjax.bench.population", "population", "32 runs as one population: one after another"),
    "evaluation": ("attnjax.bench.evaluation", "evaluation", "500 lengths: one compilation per length"),
    "decoding": ("attnjax.bench.decoding", "decoding", "tokens from a cache: flax linen"),
    "generation": (
        "attnjax.bench.generation",
        "generation",
        "a LLaMA goes on with a text: transformers (--torch)",
    ),
    "start": ("attnjax.bench.start", "start", "second start of a sweep: a cold one"),
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
