"""The tasks that tests run over, and one compiled program of each: 1,000 examples of mixed lengths up to 16."""

import functools

import jax
import numpy as np

from attnjax.tasks import TASKS, Example, Task, Text, task

SIZE, COUNT, LONG = 16, 1_000, 500
FIRST = (9, 4, 16)
"""The lengths of the first three examples, which are frozen in streams.json."""

VARIANTS = (
    *(("copy", {"variant": variant}) for variant in ("rsc", "rsc2x", "rdc", "cmc2x")),
    *(("reverse", {"variant": variant, "symbols": 7}) for variant in ("mc2x", "mcrv")),
    ("addition", {"order": "reversed"}),
    ("addition", {"order": "reversed_answer", "operands": "equal"}),
    ("parity", {"ones": "iid"}),
    ("induction", {"repeats": True, "symbols": 3}),
    ("odds_first", {"symbols": 4}),
    ("interleaved_majority", {"period": 4}),
    ("mqar", {"vocab": 64, "pairs": 2, "filler": "zero"}),
    ("word_problem", {"group": "S5"}),
    ("posgen", {"rule": "cot", "modulus": 7, "near": 1}),
    ("posgen", {"rule": "semi_recurrent", "far": 2}),
)

NOT_FROM_INPUT = ("markov", "text", "mqar")
"""Tasks whose targets do not follow from the input alone. They have tests of their own."""

CASES: dict[str, Task] = {name: task(name) for name in TASKS if name not in NOT_FROM_INPUT}
CASES |= {f"{name}-{'-'.join(map(str, options.values()))}": task(name, **options) for name, options in VARIANTS}
"""Every task whose answer follows from its input, with its defaults; then the options that change an answer."""

SLOW = {
    *("copy-rsc", "reverse-mc2x-7", "addition-reversed", "odds_first-4", "interleaved_majority-4"),
    *("word_problem-S5", "posgen-cot-7-1"),
}
"""Variants of which the quick tests check another one, or the same arithmetic against the authors' sequences."""

STREAMS = CASES | {"markov": task("markov")}
"""The tasks whose first examples are frozen in streams.json."""


def name_of(case: str) -> str:
    """The name of the task of a case."""
    return case.partition("-")[0]


def lengths(task: Task) -> np.ndarray:
    """The first three lengths, then 1, 2, ..., 16, over and over, or the least that the task has."""
    return np.maximum(np.append(FIRST, np.arange(COUNT - 3) % SIZE + 1), task.minimum_length).astype(np.int32)


def compiled(function):
    """`jax.jit` in half the time: compiling is most of these tests, and whole numbers come out the same at any level."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def sampler(task: Task, max_length: int = SIZE):
    """A compiled sampler of key and lengths."""
    return compiled(lambda key, lengths: task.sample(key, lengths, max_length))


def draw(task: Task, lengths: np.ndarray, seed: int = 0, max_length: int = SIZE) -> Example:
    """Examples of these lengths as NumPy arrays; calls with as many of one size share a compiled program."""
    size = max(max_length, task.minimum_length)
    return jax.tree.map(np.asarray, sampler(task, size)(jax.random.key(seed), lengths))


def rows(tokens: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    """The tokens of each example without its padding, as Python ints."""
    return [row[:n] for row, n in zip(tokens.tolist(), lengths.tolist(), strict=True)]


def corpus(folder, files: int = 60) -> Text:
    """A folder of text whose bytes tell where they are."""
    for i in range(files):
        (folder / f"part{i:03}.txt").write_text(" ".join(f"{i}:{j}" for j in range(200)), encoding="utf-8")
    return Text(str(folder))
