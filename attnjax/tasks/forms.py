"""Sequences for a model from the examples of a task: one function per kind of model.

    encoder_form           x1 .. xn _ _ .. _             one empty slot per answer token, all read at once
    decoder_form           x1 .. xn = y1 .. ym           each token predicts the next: `=` says y1, ym says `stop`
    encoder_decoder_form   x1 .. xn | begin y1 .. ym     source and target apart
    next_token_form        x1 .. xn                      for aligned tasks: text and induction

Everything has a static size, is padded on the right, and is positioned from the first real token on. Sizes of the
models: `encoder_form` reads input_vocab + 1 tokens and answers output_vocab; the decoders read and answer
`specials(task).size`; `next_token_form` reads input_vocab and answers output_vocab.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp

from attnjax.tasks.base import Example, Task
from attnjax.tasks.draws import take
from attnjax.typing import Array, Bool, Int

Made = TypeVar("Made", "Sequences", "SequencePair")


class Sequences(NamedTuple):
    """What a model reads, and its target at each index.

    `mask` says which targets enter loss and accuracy, `valid` which tokens are real. The answer is read at the indices
    answer .. answer + answer_length - 1; where other tokens stand between those that count (mqar, flip_flop), only `mask` says.
    """

    tokens: Int[Array, "*B T"]
    targets: Int[Array, "*B T"]
    mask: Bool[Array, "*B T"]
    valid: Bool[Array, "*B T"]
    positions: Int[Array, "*B T"]
    answer: Int[Array, "*B"]
    answer_length: Int[Array, "*B"]


class SequencePair(NamedTuple):
    """What an encoder reads, and what its decoder reads, with the targets."""

    source: Int[Array, "*B S"]
    source_valid: Bool[Array, "*B S"]
    source_positions: Int[Array, "*B S"]
    target: Sequences


def target_of(made: Sequences | SequencePair) -> Sequences:
    """Return the sequences that hold the targets: of a pair, those of the decoder."""
    return made.target if isinstance(made, SequencePair) else made


class Specials(NamedTuple):
    """Token ids of the decoder forms; they follow those of the task. `size` is the vocabulary of the model."""

    separator: int
    stop: int
    begin: int
    padding: int

    @property
    def size(self) -> int:
        """Number of tokens, the special ones included."""
        return self.padding + 1


def specials(task: Task) -> Specials:
    """Return the special tokens of a task. They follow the larger of its two vocabularies, which share their numbering.

    Example:
      >>> from attnjax.tasks import task
      >>> specials(task("copy", symbols=4))
      Specials(separator=4, stop=5, begin=6, padding=7)
    """
    first = max(task.input_vocab, task.output_vocab)
    return Specials(first, first + 1, first + 2, first + 3)


def encoder_form(task: Task, example: Example, *, tail: bool = False) -> Sequences:
    """Return the input, then target_length empty slots (token input_vocab) whose outputs are the answer.

    Args:
      task: the task of the example.
      example: one example or a batch.
      tail: whether the zeros behind a terminator count, as in Ruoss et al. 2023 (arXiv:2305.16843).

    Raises:
      ValueError: for an aligned task, which has no separate answer.

    Example:
      >>> from attnjax.tasks import task
      >>> reverse = task("reverse_string")
      >>> made = encoder_form(reverse, reverse.sample(jax.random.key(0), [3], 3))
      >>> made.tokens[0, 3:].tolist(), made.mask[0].tolist()
      ([2, 2, 2], [False, False, False, True, True, True])
    """
    _check(task, aligned=False)

    def one(example: Example) -> Sequences:
        """Return the sequence of one example."""
        t = _places(example.inputs.shape[0] + example.targets.shape[0])
        n, m = example.input_length, example.target_length
        slots = (t >= n) & (t < n + m)
        counted = slots if tail else slots & (take(example.weight, t - n) > 0)
        return Sequences(
            jnp.where(t < n, take(example.inputs, t), task.input_vocab),
            jnp.where(slots, take(example.targets, t - n), 0),
            counted,
            t < n + m,
            t,
            n,
            jnp.sum(counted, dtype=jnp.int32),
        )

    return _batched(one, example)


def decoder_form(task: Task, example: Example, *, begin: bool = False, tail: bool = False) -> Sequences:
    """Return the input, a separator and the answer; the target of each token is the next one, that of the last is `stop`.

    The separator, at index `answer`, predicts the first token of the answer.

    Args:
      task: the task of the example.
      example: one example or a batch.
      begin: whether a token `begin` comes first.
      tail: whether the zeros behind a terminator are part of the answer.

    Raises:
      ValueError: for an aligned task, whose targets are the next tokens already.

    Example:
      >>> from attnjax.tasks import task
      >>> copy = task("copy", symbols=4)
      >>> made = decoder_form(copy, copy.sample(jax.random.key(0), [2], 2))
      >>> made.tokens[0, 2].item() == specials(copy).separator, made.mask[0].tolist()
      (True, [False, False, True, True, True])
    """
    _check(task, aligned=False)
    ids = specials(task)

    def one(example: Example) -> Sequences:
        front = jnp.full((1 if begin else 0,), ids.begin, jnp.int32)
        prompt = jnp.concatenate([front, example.inputs])
        n = front.shape[0] + example.input_length
        return _teacher_forced(prompt, n, example, ids, ids.separator, tail=tail)

    return _batched(one, example)


def encoder_decoder_form(task: Task, example: Example, *, tail: bool = False) -> SequencePair:
    """Return the input for an encoder, and `begin` and the answer for a decoder, whose last target is `stop`.

    Options and errors are those of `decoder_form`.

    Example:
      >>> from attnjax.tasks import task
      >>> copy = task("copy", symbols=4)
      >>> made = encoder_decoder_form(copy, copy.sample(jax.random.key(0), [2], 2))
      >>> bool((made.source == made.target.targets[:, :2]).all()), made.target.targets[0, 2].item()
      (True, 5)
    """
    _check(task, aligned=False)
    ids = specials(task)

    def one(example: Example) -> SequencePair:
        t = _places(example.inputs.shape[0])
        real = t < example.input_length
        prompt = jnp.zeros((0,), jnp.int32)
        target = _teacher_forced(prompt, jnp.int32(0), example, ids, ids.begin, tail=tail)
        return SequencePair(jnp.where(real, example.inputs, ids.padding), real, t, target)

    return _batched(one, example)


def next_token_form(task: Task, example: Example) -> Sequences:
    """Return an aligned example as it is. Raises ValueError for a task that is not aligned.

    Example:
      >>> from attnjax.tasks import task
      >>> induction = task("induction", symbols=8)
      >>> made = next_token_form(induction, induction.sample(jax.random.key(0), [3], 3))
      >>> bool((made.targets[:, :-1] == made.tokens[:, 1:]).all()), made.mask[0].tolist()
      (True, [False, False, False, True, True])
    """
    _check(task, aligned=True)

    def one(example: Example) -> Sequences:
        t = _places(example.inputs.shape[0])
        counted = example.weight > 0
        answer = jnp.argmax(counted).astype(jnp.int32)
        length = jnp.sum(counted, dtype=jnp.int32)
        return Sequences(example.inputs, example.targets, counted, t < example.input_length, t, answer, length)

    return _batched(one, example)


def _teacher_forced(
    prompt: Int[Array, " P"], n: Int[Array, ""], example: Example, ids: Specials, link: int, *, tail: bool
) -> Sequences:
    """Return n prompt tokens, `link` and the answer: each token predicts the next, and predictions count from `link` on.

    An empty example (of a length out of range) has nothing that counts and nothing valid.
    """
    real = example.target_length > 0
    m = example.target_length if tail else jnp.sum(example.weight, dtype=jnp.int32)
    t = _places(prompt.shape[0] + 2 + example.targets.shape[0])
    whole = jnp.where(
        t < n, take(jnp.pad(prompt, (0, 1)), t), jnp.where(t == n, link, take(example.targets, t - n - 1))
    )
    whole = jnp.where(t <= n + m, whole, jnp.where(t == n + m + 1, ids.stop, ids.padding))
    tokens = jnp.where(t <= n + m, whole, ids.padding)[:-1]
    targets, t = jnp.where(t <= n + m + 1, whole, ids.padding)[1:], t[:-1]
    mask = real & (t >= n) & (t <= n + m)
    return Sequences(tokens, targets, mask, real & (t <= n + m), t, n, jnp.where(real, m + 1, 0))


def _places(size: int) -> Int[Array, " size"]:
    return jnp.arange(size, dtype=jnp.int32)


def _batched(one: Callable[[Example], Made], example: Example) -> Made:
    """Return one(example), vmapped over the examples of a batch."""
    rows = example.input_length.shape
    chex.assert_rank(example.input_length, {0, 1})
    chex.assert_shape(example.target_length, rows)
    chex.assert_shape(example.inputs, (*rows, None))
    chex.assert_shape((example.targets, example.weight), (*rows, example.targets.shape[-1]))
    return one(example) if example.input_length.ndim == 0 else jax.vmap(one)(example)


def _check(task: Task, *, aligned: bool) -> None:
    if task.aligned and not aligned:
        raise ValueError(f"{type(task).__name__} predicts the next token of its input: use next_token_form")
    if aligned and not task.aligned:
        raise ValueError(
            f"{type(task).__name__} answers a whole input: use encoder_form, decoder_form or encoder_decoder_form"
        )
