"""Whether a run can train and be tested, asked before anything is compiled: all that is wrong is a ValueError with a sentence.

First what only this place knows: precision, forms, lengths that a task or a split has, tokens that a table has rows for. Then
one step and the evaluation are traced by their shapes, without a number computed, so that whatever would fail while
compiling fails here. Layers that are alike are traced once: the answer takes a fraction of a second.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config import RunConfig
from attnjax.positions import PositionEncoding
from attnjax.tasks import Text
from attnjax.tasks.base import Task
from attnjax.tasks.forms import SequencePair
from attnjax.train.data import sequences
from attnjax.train.evaluate import Evaluator, bucket, tested
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, one_member


def check(run: RunConfig) -> None:
    """Return if the run can train and be tested on this machine. Raises ValueError, with the reason, if not."""
    check_precision(run)
    with in_a_sentence():
        task = make_task(run)
        check_form(run, task)
        check_lengths(run, task)
        trainer = Trainer(_slim(run), task)
        check_positions(run, trainer)
        trace(trainer)


def check_precision(run: RunConfig) -> None:
    """Refuse float64 where JAX would silently make it float32."""
    double = jnp.asarray(np.zeros(())).dtype == np.float64
    for name in ("dtype", "param_dtype"):
        if getattr(run.model, name) == "float64" and not double:
            raise ValueError(f"model.{name}='float64' needs double precision: set JAX_ENABLE_X64=1 in the environment")


def check_form(run: RunConfig, task: Task) -> None:
    """Refuse models that would see the answer: the next token is known to whoever reads in both directions."""
    if task.aligned and run.task.form != "decoder":
        raise ValueError(
            f"task.name={run.task.name!r} predicts the next token, so task.form must be 'decoder', got {run.task.form!r}"
        )


def check_lengths(run: RunConfig, task: Task) -> None:
    """Refuse lengths that the task does not have, or that the text of a split is too short for."""
    _check_range(run, task, "task.length_min .. task.length_max", (run.task.length_min, run.task.length_max))
    for split, lengths in tested(run).items():
        field = "evaluate.lengths" if split == "test" else "evaluate.validation_lengths"
        _check_range(run, task.for_split(split), field, lengths)


def _check_range(run: RunConfig, task: Task, field: str, lengths: tuple[int, ...]) -> None:
    shortest, longest = task.minimum_length, task.maximum_length
    if min(lengths) < shortest or (longest is not None and max(lengths) > longest):
        source = f"the {task.split} split of task 'text'" if isinstance(task, Text) else f"task {run.task.name!r}"
        had = f"{shortest} or more" if longest is None else f"{shortest} .. {longest}"
        raise ValueError(f"{source} has lengths {had} with its options; {field} has {min(lengths)} .. {max(lengths)}")


def check_positions(run: RunConfig, trainer: Trainer) -> None:
    """Refuse sequences that reach past the last position an encoding can tell: the end of a learned table, say.

    What counts are the tokens of the form, which a length has more of. Places in numbers (abacus) are not checked.
    """
    policy = run.positions
    asked = [("task.length_max", run.task.length_max, False)]
    asked += [("evaluate.lengths", longest_tested(run), True)] if tested(run) else []
    encodings = [encoding for encoding in dict.fromkeys(trainer.model.config.encodings) if bounded(encoding)]
    for field, length, test in asked if encodings and policy.policy != "abacus" else []:
        count, drawn = tokens(run, trainer.task, length), policy.policy != "arange"
        reach = policy.maximum if drawn and not (test and policy.at_test == "arange") else count
        for encoding in encodings:
            try:
                encoding.check_positions(np.asarray([0, (reach or count) - 1], np.int32))
            except ValueError as error:
                where = f"{field} of {length} makes sequences of {count} tokens, at positions 0..{(reach or count) - 1}"
                raise ValueError(f"{where}; {error}") from None


def bounded(encoding: PositionEncoding) -> bool:
    """Whether the encoding has a last position, or might: counting the tokens of a form takes tracing it."""
    return type(encoding).check_positions is not PositionEncoding.check_positions


def tokens(run: RunConfig, task: Task, length: int) -> int:
    """The tokens that a model reads for this length: the longer of the two sides where there are two."""
    lengths = jax.ShapeDtypeStruct((1,), jnp.int32)
    made = jax.eval_shape(
        lambda lengths, *arrays: sequences(run, task.given(*arrays), jax.random.key(0), lengths, length),
        lengths,
        *task.arrays,
    )
    sides = (made.source, made.target.tokens) if isinstance(made, SequencePair) else (made.tokens,)
    return max(side.shape[1] for side in sides)


def longest_tested(run: RunConfig) -> int:
    """The longest length of any test."""
    return max(max(lengths) for lengths in tested(run).values())


def trace(trainer: Trainer) -> None:
    """Trace the start, one step and the evaluation of the longest length, by shapes alone."""
    run, task = trainer.run, trainer.task
    state = trainer.shapes()
    jax.eval_shape(trainer.step, state, one_member(run), *task.arrays)
    if tested(run):
        evaluator, size = Evaluator(run, task, trainer.model), bucket(run, longest_tested(run))
        jax.eval_shape(lambda params: evaluator.trace(params, size), state.params)


def _slim(run: RunConfig) -> RunConfig:
    """The run with each distinct layer once."""
    model, distinct = run.model, tuple(dict.fromkeys(run.model.encodings))
    return dataclasses.replace(run, model=dataclasses.replace(model, layers=len(distinct), encoding=distinct))


@contextlib.contextmanager
def in_a_sentence() -> Iterator[None]:
    """Errors of any kind as ValueErrors, with their first line."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        first = (str(error).strip() or "no reason given").splitlines()[0]
        raise ValueError(f"the run cannot be compiled: {first}") from error
