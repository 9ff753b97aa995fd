"""The suites of the benchmark: what each measures, against whom, and at which lengths.

This table needs no JAX; a suite's module loads when it runs. Tests compare it with the rows that the suites make.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnjax.config.names import check_name

if TYPE_CHECKING:
    from experiments.speed.harness import Settings


class Suite(NamedTuple):
    """What is measured, the peers as rows name them, and the lengths T, in full and for `--smoke`.

    `module` holds the function, which has the suite's name. `needs` is a package of the environment that --torch names. A suite
    that is `fixed` measures at all its lengths, of which none can be chosen.
    """

    module: str
    text: str
    peers: tuple[str, ...]
    lengths: Sequence[int]
    smoke: Sequence[int]
    needs: str = ""
    fixed: bool = False

    def __str__(self) -> str:
        lengths = self.lengths
        several = ", ".join(f"{T:,}" for T in lengths)
        at = f"{lengths[0]} to {lengths[-1]}" if isinstance(lengths, range) else several
        return f"{self.text}: {'; '.join(self.peers)}; T = {at}" + (" (--torch)" if self.needs else "")


JAX_NN, FLAX, TOKAMAX = "jax.nn xla", "flax linen", "tokamax xla_chunked"
SDPA = ("PyTorch SDPA", "PyTorch SDPA, float mask", "PyTorch FlexAttention, compiled")
STEP_BY_STEP, ONE_LOOP = f"{FLAX}, a call per token, no encoding", f"{FLAX}, one compiled loop, no encoding"
COMPILED, EAGER = "x-transformers, torch.compile", "x-transformers (eager)"
GPU = (JAX_NN, "jax.nn cudnn", "tokamax", SDPA[0], SDPA[2], "jax.nn cudnn, no bias")
GPU_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
SUITES: dict[str, Suite] = {
    "attention": Suite("attention", "causal attention against T", (JAX_NN, FLAX), (1024, 2048, 4096), (128,)),
    "attention_torch": Suite(
        "attention_torch", "causal attention against T", SDPA, (1024, 2048, 4096), (128,), "torch"
    ),
    "bias": Suite("attention", "learned T5 and KERPLE bias, an array of it", (JAX_NN,), (1024, 2048), (128,)),
    "encodings": Suite("attention", "every encoding", ("nope",), (256, 2048), (128,)),
    "short": Suite("attention", "every encoding at training lengths", (JAX_NN, FLAX), (64, 128, 256, 512), (64,)),
    "memory": Suite(
        "memory",
        "temporary bytes of the gradient",
        ("dense", JAX_NN, TOKAMAX),
        (1024, 2048, 4096, 8192, 16384, 32768),
        (2048,),
    ),
    "training": Suite(
        "training", "training steps", ("Ruoss-style loop", "nanodo-style loop"), (42, 64), (4, 6), fixed=True
    ),
    "training_torch": Suite("training_torch", "training steps", (COMPILED, EAGER), (64,), (64,), "x-transformers"),
    "population": Suite("population", "32 runs as one population", ("one run after another",), (33,), (7,), fixed=True),
    "evaluation": Suite(
        "evaluation", "every length", ("a compilation per length",), range(1, 501), range(1, 7), fixed=True
    ),
    "decoding": Suite(
        "decoding", "tokens from a cache, every encoding", (STEP_BY_STEP, ONE_LOOP), (2048,), (8,), fixed=True
    ),
    "generation": Suite(
        "generation", "a LLaMA goes on with a text", ("transformers, generate",), (2048,), (13,), "transformers", True
    ),
    "gpu": Suite("gpu", "bfloat16 attention on a GPU, with and without biases", GPU, GPU_LENGTHS, (128,)),
    "start": Suite("start", "second start of a sweep", ("first start",), (42,), (42,), fixed=True),
}


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
    import jax

    failed = 0
    for name in chosen(names):
        settings.say(f"suite {name}")
        try:
            getattr(importlib.import_module(f"{__name__}.{SUITES[name].module}"), name)(settings)
        except Exception as error:
            failed += 1
            settings.say(f"suite {name} failed: {type(error).__name__}: {' '.join(str(error).split())[:500]}")
        gc.collect()  # what a suite left: arrays, and the programs compiled for it
        jax.clear_caches()
    return failed
