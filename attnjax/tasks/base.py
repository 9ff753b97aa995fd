"""The interface of all tasks: a frozen dataclass of hyper-parameters that samples padded examples of any length.

    sample(key, lengths[B], max_length) -> Example     pure: the same key and lengths give the same content, always

`max_length` only sets the padding. A task implements `example` for ONE example and `sample` vmaps it over the batch, so
lengths may be traced, may differ inside a batch, and a new length never compiles again. The content of row b depends on
the key, on b and on its length alone: neither on `max_length`, nor on the other rows, nor on how many there are.

Tokens of inputs and targets share one numbering. Random numbers are prefixes of one-dimensional streams of threefry keys
(with `jax_threefry_partitionable`, the default), whose first n numbers do not depend on how many are drawn.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.tasks.checks import check_count, check_key, check_lengths
from attnjax.typing import Array, ArrayLike, Int, Key

LONGEST = 2**31 - 1
"""Lengths are of int32."""


class Example(NamedTuple):
    """Padded int32 arrays. Everything behind a length is 0.

    `weight` is 1 where the target counts for the accuracy: some answers end in a terminator and unread zeros.
    """

    inputs: Int[Array, "*B I"]
    input_length: Int[Array, "*B"]
    targets: Int[Array, "*B O"]
    target_length: Int[Array, "*B"]
    weight: Int[Array, "*B O"]


class Alphabet(NamedTuple):
    """The names of the tokens: token i of the inputs is `inputs[i]`, token i of the targets is `outputs[i]`.

    Example:
      >>> Alphabet(("0", "1"), ("even", "odd")).outputs[1]
      'odd'
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Chance(NamedTuple):
    """The accuracy of guessing: `token` per counted token, as papers print it, and `exact` for the whole answer.

    Example:
      >>> Chance(token=0.5, exact=0.25).exact
      0.25
    """

    token: float
    exact: float


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """Base class of all tasks. What `length` counts is said in the docstring of a task; usually the tokens of the input.

    Example:
      >>> from attnjax.tasks import task
      >>> copy = task("copy", symbols=4)
      >>> made = copy.sample(jax.random.key(0), [2, 3], max_length=4)
      >>> made.input_length.tolist(), bool((made.inputs == made.targets).all())
      ([2, 3], True)
      >>> copy.chance(3).exact == 1 / 4**3
      True
    """

    aligned: ClassVar[bool] = False
    """Whether targets[i] belongs to inputs[i], as the next token or a label, rather than to an answer to it all."""

    @abc.abstractmethod
    def alphabet(self) -> Alphabet:
        """Return the names of all tokens."""

    @abc.abstractmethod
    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return one example of a length in minimum_length .. max_length, padded to max_length."""

    def answers(self, length: int) -> int:
        """Return the size of the answer space (a lower bound where a docstring says so): exact chance is its inverse."""
        return len(self.alphabet().outputs)

    def input_size(self, max_length: int) -> int:
        """Return the number of tokens of the longest input up to this length."""
        return max_length

    def output_size(self, max_length: int) -> int:
        """Return the number of tokens of the longest answer up to this length; of an aligned task that of the longest input."""
        return self.input_size(max_length) if self.aligned else 1

    @property
    def minimum_length(self) -> int:
        """Return the shortest length for which the task is defined."""
        return 1

    @property
    def maximum_length(self) -> int | None:
        """Return the longest length for which the task is defined; None: any."""
        return None

    @property
    def arrays(self) -> tuple[ArrayLike, ...]:
        """Return the corpus that examples are cut from, () for a task without one; compiled programs take it as arguments."""
        return ()

    @property
    def documents(self) -> ArrayLike | None:
        """Return the number of the document that each token of the corpus is from; None for a task without one.

        Examples cut from one document are alike, which intervals over examples allow for.
        """
        return None

    def given(self, *arrays: ArrayLike) -> Self:
        """Return the same task over `arrays` in place of its own, so that no compiled program holds a constant corpus."""
        return self

    def for_split(self, split: str) -> Self:
        """Return the task on its "train", "validation" or "test" split. Without a corpus, splits differ by their keys."""
        return self

    @property
    def token_chance(self) -> float:
        """Return the probability that a uniform guess of one counted token is right."""
        return 1.0 / len(self.alphabet().outputs)

    @property
    def input_vocab(self) -> int:
        """Return the number of different input tokens."""
        return len(self.alphabet().inputs)

    @property
    def output_vocab(self) -> int:
        """Return the number of different target tokens."""
        return len(self.alphabet().outputs)

    def chance(self, length: int) -> Chance:
        """Return the chance per token, and of a whole answer guessed uniformly in the answer space of this length."""
        return Chance(self.token_chance, 1 / self.answers(length))

    def sample(self, key: Key[Array, ""], lengths: Int[Array, " B"] | Sequence[int], max_length: int) -> Example:
        """Return a batch with one example per length; jittable with `max_length` static.

        Args:
          key: one typed threefry key.
          lengths: integers [B] in minimum_length .. max_length. A traced length outside gives an empty example: lengths and
            weights of 0.
          max_length: the length to pad to; `input_size(max_length)` and `output_size(max_length)` are the padded sizes.

        Raises:
          ValueError: for a known length outside that range, and for a key that is not one typed threefry key.
        """
        lengths = self._check(key, lengths, max_length)

        def one(key: Key[Array, ""], length: Int[Array, ""]) -> Example:
            possible = (length >= self.minimum_length) & (length <= max_length)
            made = self.example(key, jnp.clip(length, self.minimum_length, max_length), max_length)
            _assert_example(made, self.input_size(max_length), self.output_size(max_length))
            return jax.tree.map(lambda leaf: jnp.where(possible, leaf, 0), made)

        return jax.vmap(one)(jax.random.split(key, lengths.shape[0]), lengths)

    def _check(
        self, key: Key[Array, ""], lengths: Int[Array, " B"] | Sequence[int], max_length: int
    ) -> Int[Array, " B"]:
        name = type(self).__name__
        check_key(name, key)
        longest = LONGEST if self.maximum_length is None else self.maximum_length
        check_count(name, self.minimum_length, longest, max_length=max_length)
        known = lengths if isinstance(lengths, jax.Array) else np.asarray(lengths)
        if known.ndim != 1 or not known.size or not jnp.issubdtype(known.dtype, jnp.integer):
            raise ValueError(
                f"{name}: lengths must be integers [B], at least one, got {known.dtype}{list(known.shape)}"
            )
        check_lengths(name, known, self.minimum_length, max_length)
        return jnp.asarray(known).astype(jnp.int32)


def numbered(count: int) -> tuple[str, ...]:
    """Return the names of tokens that are called by their number."""
    return tuple(str(i) for i in range(count))


def _assert_example(made: Example, inputs: int, outputs: int) -> None:
    """Assert the shapes and types of one example: int32 [inputs], [outputs] and scalars."""
    chex.assert_shape(made.inputs, (inputs,))
    chex.assert_shape((made.targets, made.weight), (outputs,))
    chex.assert_rank((made.input_length, made.target_length), 0)
    chex.assert_type(list(made), jnp.int32)
