"""From runs to records: what each method loses on Markov chains, by position, and with more symbols before the same ones.

    context    loss of the last `LAST` symbols of windows of T symbols that end at the same symbols, chain by chain
    position   mean loss over all chains in bins of positions of the longest window

Both stand beside the losses of counting single symbols and pairs (`attnjax.tasks.Markov.nats`) in the same windows.
"""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.records import jsonl
from attnjax.tasks import Markov
from attnjax.typing import Float, Int
from experiments import recorded
from experiments.context_extension import tuning
from experiments.context_extension.measuring import binned, scored, short
from experiments.context_extension.methods import NAMES, Extension
from experiments.context_extension.subjects import Subject

FACTOR = 8
"""The longest windows over the trained length."""
CHAINS, LAST, BIN = 256, 32, 32
"""Chains that are measured, symbols at the end of a window that count, and positions of a bin."""
SEARCHED, ROUNDS = 16, 2
"""Chains, and rounds over all pairs, by which factors of LongRoPE are searched."""
SEED, FOR_SEARCH = 2402_11004, 1
"""Of the chains, which no training draws, and what is added for those of the search."""
BATCH = 16_384
"""Most symbols of one call."""
Record = dict[str, Any]


def record(subjects: Sequence[Subject], path: pathlib.Path, say: Callable[[str], None] = print) -> None:
    """Append what the file does not hold yet; all subjects are of one config.

    Raises ValueError where the file holds records of another protocol.
    """
    trained = subjects[0].trained
    lengths = [trained << i for i in range(FACTOR.bit_length())]
    numbers = {"trained": trained, "factor": FACTOR, "lengths": lengths, "chains": CHAINS, "last": LAST, "bin": BIN}
    found = recorded.begin(
        path, {"kind": "protocol", **numbers, "methods": list(NAMES), "rounds": ROUNDS, "seed": SEED}
    )
    there = {(one.get("kind"), one.get("run"), one.get("method")): one for one in found}
    chains = drawn(lengths[-1], CHAINS, SEED)
    if ("counting", None, None) not in there:
        jsonl.append(path, counted(chains, lengths))
    for subject in subjects:
        extension = Extension(trained, float(FACTOR))
        if ("run", subject.name, None) not in there:
            factors = tuning.search(subject, extension, drawn(lengths[-1], SEARCHED, SEED + FOR_SEARCH), ROUNDS)
            there["run", subject.name, None] = about(subject, factors)
            jsonl.append(path, there["run", subject.name, None])
        extension = dataclasses.replace(extension, factors=tuple(there["run", subject.name, None]["factors"]))
        for method in NAMES:
            if ("method", subject.name, method) not in there:
                started = time.monotonic()
                losses = measured(subject, method, extension, chains, lengths)
                seconds = round(time.monotonic() - started, 1)
                jsonl.append(
                    path, {"kind": "method", "run": subject.name, "method": method, **losses, "seconds": seconds}
                )
                say(f"{subject.name} {method}: {seconds} s")


def drawn(length: int, count: int, seed: int) -> Int[np.ndarray, "B T+1"]:
    """Chains of `length` symbols, each with the one that follows."""
    task = Markov()

    draw = jax.vmap(lambda key: task.example(key, jnp.int32(length), length))
    examples = jax.jit(draw)(jax.random.split(jax.random.key(seed), count))
    inputs, targets = np.asarray(examples.inputs), np.asarray(examples.targets)
    return np.concatenate([inputs, targets[:, -1:]], axis=1).astype(np.int32)


def about(subject: Subject, factors: Sequence[float]) -> Record:
    """A run with the factors that were found for it."""
    rounded = [float(f"{one:.6g}") for one in factors]
    return {"kind": "run", "run": subject.name, "seed": subject.seed, "factors": rounded, "training": subject.seconds}


def counted(chains: Int[np.ndarray, "B T+1"], lengths: Sequence[int]) -> Record:
    """The losses of counting, of which pairs are the best prediction."""

    def losses(windows: Int[np.ndarray, "B T+1"]) -> dict[str, Float[np.ndarray, "B T"]]:
        return Markov().nats(windows[:, :-1], windows[:, 1:])

    return {
        "kind": "counting",
        **{name: kept(lambda rows, name=name: losses(rows)[name], chains, lengths) for name in ("unigram", "bigram")},
    }


def measured(
    subject: Subject, method: str, extension: Extension, chains: Int[np.ndarray, "B T+1"], lengths: Sequence[int]
) -> Record:
    """The losses of a model under a method."""

    def losses(windows: Int[np.ndarray, "B T+1"]) -> Float[np.ndarray, "B T"]:
        numbers = subject.numbers(method, extension, windows.shape[1] - 1)
        return scored(subject, subject.params, numbers, windows, BATCH).loss

    return kept(losses, chains, lengths)


def kept(
    losses: Callable[[Int[np.ndarray, "B T+1"]], Float[np.ndarray, "B T"]],
    chains: Int[np.ndarray, "B T+1"],
    lengths: Sequence[int],
) -> Record:
    """What is kept of the losses of windows that end where the chains end."""
    found = {length: losses(chains[:, -length - 1 :]) for length in lengths}
    edges = tuple(range(0, lengths[-1] + 1, BIN))
    return {
        "context": {str(length): short(values[:, -LAST:].mean(1)) for length, values in found.items()},
        "position": short(binned(found[lengths[-1]], edges).mean(0)),
    }
