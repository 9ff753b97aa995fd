"""The one interface: a task is a frozen record of hyper-parameters that draws padded examples of any length.

    sample(key, lengths[B], max_length) -> Example     pure: the same key and lengths give the same content, always

`max_length` only sets the padding. A task writes `example` for ONE example and `sample` maps it over the batch, so
lengths may be traced, may differ inside a batch, and a new length never compiles again. The content of row b depends
on the key, on b and on its length alone: neither on `max_length`, nor on the other rows, nor on how many there are.

Tokens of inputs and targets share one numbering. Draws are prefixes of one-dimensional streams of threefry keys (with
`jax_threefry_partitionable`, the default), whose first n numbers do not depend on how many are drawn.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.tasks.checks import check_key, check_lengths
from attnjax.typing import Array, ArrayLike, Int, Key


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
    """The names of the tokens: token i of the inputs is `inputs[i]`, token i of the targets is `outputs[i]`."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Chance(NamedTuple):
    """What guessing scores: `token` per counted token, as papers print it, and `exact` for the whole answer."""

    token: float
    exact: float


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """Base class of all tasks. `length` is the task's own measure, told by its docstring; usually of the input."""

    @abc.abstractmethod
    def alphabet(self) -> Alphabet:
        """The names of all tokens."""

    @abc.abstractmethod
    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """One example of a length in minimum_length .. max_length."""

    @abc.abstractmethod
    def space(self, length: int) -> int:
        """How many different inputs this length has (at most, where a docstring says so)."""

    def answers(self, length: int) -> int:
        """How many answers a uniform guess is among (fewer than can occur only where a docstring says so)."""
        del length
        return len(self.alphabet().outputs)

    def input_size(self, max_length: int) -> int:
        """Most tokens of an input up to this length."""
        return max_length

    def output_size(self, max_length: int) -> int:
        """Most tokens of an answer up to this length."""
        del max_length
        return 1

    @property
    def minimum_length(self) -> int:
        """The shortest length for which the task is defined."""
        return 1

    @property
    def maximum_length(self) -> int | None:
        """The longest length for which the task is defined; None: any."""
        return None

    @property
    def aligned(self) -> bool:
        """Whether targets[i] is the token that follows inputs[i], rather than part of an answer to a whole input."""
        return False

    @property
    def arrays(self) -> tuple[ArrayLike, ...]:
        """What examples are cut from, () for a task that draws them; a compiled program takes it as arguments."""
        return ()

    def given(self, *arrays: ArrayLike) -> Self:
        """The same task over `arrays`, which replace its own: so that no program carries them inside."""
        del arrays
        return self

    def for_split(self, split: str) -> Self:
        """The same task on its examples for "train", "validation" or "test". Keys split those of a task that draws them."""
        del split
        return self

    @property
    def token_chance(self) -> float:
        """The chance that a uniform guess of one counted token is right."""
        return 1.0 / len(self.alphabet().outputs)

    @property
    def input_vocab(self) -> int:
        """Number of different input tokens."""
        return len(self.alphabet().inputs)

    @property
    def output_vocab(self) -> int:
        """Number of different target tokens."""
        return len(self.alphabet().outputs)

    def chance(self, length: int) -> Chance:
        """Chance per token, and of a whole answer guessed uniformly among those that this length can have."""
        return Chance(self.token_chance, 1 / self.answers(length))

    def sample(self, key: Key[Array, ""], lengths: Int[Array, " B"] | Sequence[int], max_length: int) -> Example:
        """A batch with one example per length; jittable with `max_length` static.

        A traced length outside minimum_length .. max_length gives an empty example: lengths and weights of 0.
        Raises ValueError where that is known while tracing, and for keys that are not typed threefry keys.
        """
        lengths = self._check(key, lengths, max_length)

        def one(key: Key[Array, ""], length: Int[Array, ""]) -> Example:
            possible = (length >= self.minimum_length) & (length <= max_length)
            made = self.example(key, jnp.clip(length, self.minimum_length, max_length), max_length)
            return jax.tree.map(lambda leaf: jnp.where(possible, leaf, 0), made)

        return jax.vmap(one)(jax.random.split(key, lengths.shape[0]), lengths)

    def _check(
        self, key: Key[Array, ""], lengths: Int[Array, " B"] | Sequence[int], max_length: int
    ) -> Int[Array, " B"]:
        name = type(self).__name__
        check_key(name, key)
        longest = self.maximum_length
        if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < self.minimum_length:
            raise ValueError(f"{name}: max_length must be an int of at least {self.minimum_length}, got {max_length!r}")
        if longest is not None and max_length > longest:
            raise ValueError(f"{name}: max_length must be at most {longest} with these options, got {max_length}")
        known = lengths if isinstance(lengths, jax.Array) else np.asarray(lengths)
        if known.ndim != 1 or not known.size or not jnp.issubdtype(known.dtype, jnp.integer):
            raise ValueError(
                f"{name}: lengths must be integers [B], at least one, got {known.dtype}{list(known.shape)}"
            )
        check_lengths(name, known, self.minimum_length, max_length)
        return jnp.asarray(known).astype(jnp.int32)


def numbered(count: int) -> tuple[str, ...]:
    """Tokens that are called by their number."""
    return tuple(str(i) for i in range(count))
