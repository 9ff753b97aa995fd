"""The tasks that tests run over, and one common batch of each, made once: 10,000 examples of mixed lengths up to 40."""

import functools

import jax
import numpy as np

from attnjax.tasks import TASKS, Majority, Task, Text, task
from tests.cases import OPTIMISED

SIZE, COUNT, LONG = 40, 10_000, 500
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

RANDOM = ("markov", "text", "mqar")
"""Tasks whose targets do not follow from the input alone. They have tests of their own."""

CASES: dict[str, tuple[str, Task]] = {name: (name, task(name)) for name in TASKS if name not in RANDOM}
CASES |= {f"{name}-{'-'.join(map(str, options.values()))}": (name, task(name, **options)) for name, options in VARIANTS}
"""Every task whose answer follows from its input, with its defaults; then the options that change an answer."""


def longest(task: Task) -> int:
    return min(LONG, task.maximum_length or LONG)


def lengths(task: Task, count: int = COUNT) -> np.ndarray:
    """The first three lengths, then 1, 2, ..., 40, over and over, cut to what the task has."""
    return np.maximum(np.append(FIRST, np.arange(count - 3) % SIZE + 1), task.minimum_length).astype(np.int32)


def compiled(function):
    """`jax.jit` in half the time: compiling is most of these tests, and whole numbers come out the same at any level."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def sampler(task: Task, max_length: int):
    """A compiled sampler of key and lengths."""
    sample = lambda key, lengths: task.sample(key, lengths, max_length)
    # Majority draws again and again: it alone runs longer than it compiles.
    return jax.jit(sample, compiler_options=OPTIMISED) if isinstance(task, Majority) else compiled(sample)


@functools.cache
def batch(task: Task):
    """The common batch, as NumPy arrays."""
    return draw(task, lengths(task))


def draw(task: Task, lengths: np.ndarray, seed: int = 0):
    """10,000 examples of these lengths; all calls share one compiled program."""
    return jax.tree.map(np.asarray, sampler(task, SIZE)(jax.random.key(seed), lengths))


def constant(task: Task, length: int, seed: int = 1):
    """10,000 examples of one length."""
    return draw(task, np.full(COUNT, length, np.int32), seed)


def rows(tokens: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    """The tokens of each example without its padding, as Python ints."""
    return [row[:n] for row, n in zip(tokens.tolist(), lengths.tolist(), strict=True)]


def corpus(folder, files: int = 60) -> Text:
    """A folder of text whose bytes tell where they are."""
    for i in range(files):
        (folder / f"part{i:03}.txt").write_text(" ".join(f"{i}:{j}" for j in range(200)), encoding="utf-8")
    return Text(str(folder))
