"""Checks that a run can be trained and evaluated, and describes its size, before anything is compiled.

Every mistake is a ValueError.

First come the checks that compare config and task: precision, forms, lengths that a task or a split has, positions beyond
the end of a learned table. Then one training step and the evaluation are traced with `jax.eval_shape`, which computes
nothing, so that whatever would fail while tracing fails here. Equal layers are traced once, so this takes a fraction of a
second.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config import RunConfig
from attnjax.tasks import Text
from attnjax.tasks.base import Task
from attnjax.train.data import sequences
from attnjax.train.evaluate import Evaluator, evaluation_lengths, padded_size
from attnjax.train.loop import make_task
from attnjax.train.position_sampling import OF_DIGITS
from attnjax.train.step import Trainer, abstract_member

NOTHING = "none: evaluate.lengths and evaluate.validation_lengths are empty, so that the run has no results"


def check(run: RunConfig) -> None:
    """Check that the run can be trained and evaluated on this machine.

    Args:
      run: a parsed config.

    Raises:
      ValueError: with the reason, in one sentence that names the field.

    Example:
      >>> from attnjax.config import parse
      >>> check(parse({"task": {"name": "copy"}, "model": {"layers": 1, "model": 8, "heads": 2, "hidden": 8}}))
      >>> check(parse({"task": {"name": "sort", "length_max": 151, "options": {"symbols": 150}}}))
      Traceback (most recent call last):
      ValueError: task 'sort' has lengths 1 .. 150 with its options; task.length_min .. task.length_max has 1 .. 151
    """
    check_precision(run)
    with as_value_errors():
        task = make_task(run)
        check_form(run, task)
        check_until(run, task)
        check_lengths(run, task)
        trainer = Trainer(_one_layer_per_kind(run), task)
        check_positions(run, trainer)
        trace(trainer)


def check_precision(run: RunConfig) -> None:
    """Raise ValueError where the run asks for float64 and JAX would silently use float32."""
    double = jnp.asarray(np.zeros(())).dtype == np.float64
    for name in ("dtype", "param_dtype"):
        if getattr(run.model, name) == "float64" and not double:
            raise ValueError(f"model.{name}='float64' needs double precision: set JAX_ENABLE_X64=1 in the environment")


def check_form(run: RunConfig, task: Task) -> None:
    """Raise ValueError for a bidirectional model of a next-token task: it would see the token that it predicts."""
    if task.aligned and run.task.form != "decoder":
        raise ValueError(
            f"task.name={run.task.name!r} predicts the next token, so task.form must be 'decoder', got {run.task.form!r}"
        )


def check_until(run: RunConfig, task: Task) -> None:
    """Raise ValueError where fitted runs are to stop and the task has no exact answers."""
    if run.train.until and task.aligned:
        raise ValueError(
            f"train.until={run.train.until:g} is an exact match, and task.name={run.task.name!r}, which predicts the next "
            "token, has no exact answers; leave it 0"
        )


def check_lengths(run: RunConfig, task: Task) -> None:
    """Raise ValueError for lengths that the task does not have, or for which the text of a split is too short."""
    _check_range(run, task, "task.length_min .. task.length_max", (run.task.length_min, run.task.length_max))
    for split, lengths in evaluation_lengths(run).items():
        field = "evaluate.lengths" if split == "test" else "evaluate.validation_lengths"
        _check_range(run, task.for_split(split), field, lengths)


def _check_range(run: RunConfig, task: Task, field: str, lengths: tuple[int, ...]) -> None:
    shortest, longest = task.minimum_length, task.maximum_length
    if min(lengths) < shortest or (longest is not None and max(lengths) > longest):
        source = f"the {task.split} split of task 'text'" if isinstance(task, Text) else f"task {run.task.name!r}"
        had = f"{shortest} or more" if longest is None else f"{shortest} .. {longest}"
        raise ValueError(f"{source} has lengths {had} with its options; {field} has {min(lengths)} .. {max(lengths)}")


def check_positions(run: RunConfig, trainer: Trainer) -> None:
    """Raise ValueError for sequences that reach past the last position of an encoding, as the end of a learned table.

    Positions are those of the tokens of the form (a length has more tokens than its number says), and under abacus and
    coupled those of the digits of numbers.
    """
    policy = run.positions
    asked = [("task.length_max", run.task.length_max, False)]
    asked += [("evaluate.lengths", longest_tested(run), True)] if evaluation_lengths(run) else []
    for field, length, test in asked:
        count, drawn = tokens(run, trainer.task, length), policy.policy != "arange"
        fixed = test and policy.at_test == "arange"
        reach = policy.maximum if drawn and not fixed else count
        if policy.policy in OF_DIGITS:
            # Numbers have as many digits as a whole answer, and count from 1 or from a start below the maximum.
            reach = trainer.task.output_size(length) + (1 if fixed else policy.maximum or 1)
        for encoding in dict.fromkeys(trainer.model.config.encodings):
            try:
                encoding.check(pos=np.asarray([0, (reach or count) - 1], np.int32))
            except ValueError as error:
                where = f"{field} of {length} makes sequences of {count} tokens, at positions 0..{(reach or count) - 1}"
                raise ValueError(f"{where}; {error}") from None


def tokens(run: RunConfig, task: Task, length: int) -> int:
    """Return the number of tokens that a model reads for this length: of a pair, of its longer side."""
    lengths = jax.ShapeDtypeStruct((1,), jnp.int32)
    made = jax.eval_shape(
        lambda lengths, *arrays: sequences(run, task.given(*arrays), jax.random.key(0), lengths, length),
        lengths,
        *task.arrays,
    )
    return max(leaf.shape[-1] for leaf in jax.tree.leaves(made) if leaf.ndim > 1)


def longest_tested(run: RunConfig) -> int:
    """Return the longest length that is evaluated."""
    return max(max(lengths) for lengths in evaluation_lengths(run).values())


def trace(trainer: Trainer) -> None:
    """Trace the initialisation, one training step and the evaluation of the longest length, without computing.

    Of a text each split is evaluated at its own longest length, because splits are of different sizes.
    """
    run, task = trainer.run, trainer.task
    state = trainer.shapes()
    jax.eval_shape(trainer.step, state, abstract_member(run), *task.arrays)
    evaluator = Evaluator(run, task, trainer.model)
    longest = {split: max(lengths) for split, lengths in evaluation_lengths(run).items()}
    for split in longest if task.arrays else sorted(longest, key=longest.__getitem__)[-1:]:
        jax.eval_shape(functools.partial(evaluator.trace, length=longest[split], split=split), state.params)


def _one_layer_per_kind(run: RunConfig) -> RunConfig:
    """Return the run with one layer for each distinct encoding and window."""
    model = run.model
    encodings = model.encodings * (model.layers // len(model.encodings))
    encodings, windows = zip(*dict.fromkeys(zip(encodings, model.layer_windows, strict=True)), strict=True)
    fields = {"layers": len(windows), "encoding": encodings, "window": None, "windows": windows}
    return dataclasses.replace(run, model=dataclasses.replace(model, **fields))


@contextlib.contextmanager
def as_value_errors() -> Iterator[None]:
    """Turn every exception of the block into a ValueError with its first line."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        first = (str(error).strip() or "no reason given").splitlines()[0]
        raise ValueError(f"the run cannot be compiled: {first}") from error


def describe(run: RunConfig) -> dict[str, Any]:
    """Return the sizes of a run, counted from shapes without computing anything.

    Returns:
      "parameters", "parameter_bytes", "state_bytes" (parameters, optimizer and step), "vocabulary", "longest_trained" and
      "longest_tested" (lengths of the task), and "evaluation_programs" (padded sizes, each compiled once).

    Raises:
      ValueError: where config and task do not fit together.

    Example:
      >>> from attnjax.config import parse
      >>> found = describe(parse({"task": {"name": "copy"}, "evaluate": {"lengths": [8, 64]}}))
      >>> found["longest_tested"], found["state_bytes"] > 3 * found["parameter_bytes"]
      (64, True)
    """
    check_precision(run)  # also finds that JAX has no platform, which is no mistake of the config
    with as_value_errors():
        trainer = Trainer(run, make_task(run))
        state = trainer.shapes()
    size = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    lengths = {length for split in evaluation_lengths(run).values() for length in split}
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "parameter_bytes": size(state.params),
        "state_bytes": size(state),
        "vocabulary": trainer.model.config.vocab,
        "longest_trained": run.task.length_max,
        "longest_tested": longest_tested(run) if lengths else NOTHING,
        "evaluation_programs": len({padded_size(run, length) for length in lengths}),
    }
