"""Looking things up in the context: associative recall, and the repetition that induction heads continue.

    associative_recall   k1 v1 k2 v2 ... kn vn, ki -> vi        `length` is the number of pairs n
    induction            s1 ... sn s1 ... sn, token by token     `length` is the number of tokens n of s

References: Ba et al. 2016, arXiv:1610.06258 (recall); Olsson et al. 2022, arXiv:2209.11895 (induction
heads).
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.checks import check_count
from attnjax.tasks.draws import distinct, draw, padded, pick, take
from attnjax.typing import Array, Int, Key


@dataclasses.dataclass(frozen=True)
class AssociativeRecall(Task):
    """The value that followed the queried key.

    The keys of an input are different tokens of 0 .. keys - 1, its values independent uniform tokens of
    keys .. keys + values - 1, the queried pair is uniform. No length beyond `keys` exists.

    Example:
      >>> AssociativeRecall(keys=8, values=4).chance(3)
      Chance(token=0.25, exact=0.25)
    """

    keys: int = 512
    values: int = 32

    def __post_init__(self) -> None:
        check_count("AssociativeRecall", keys=self.keys, values=self.values)

    def alphabet(self) -> Alphabet:
        tokens = (*(f"k{i}" for i in range(self.keys)), *(f"v{i}" for i in range(self.values)))
        return Alphabet(tokens, tokens)

    def input_size(self, max_length: int) -> int:
        return 2 * max_length + 1

    @property
    def maximum_length(self) -> int:
        return self.keys

    @property
    def token_chance(self) -> float:
        return 1.0 / self.values

    def answers(self, length: int) -> int:
        del length
        return self.values

    def space(self, length: int) -> int:
        return math.perm(self.keys, length) * self.values**length * length

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        for_keys, for_values, for_query = jax.random.split(key, 3)
        keys = distinct(for_keys, self.keys)[:max_length]
        values = self.keys + draw(for_values, max_length, self.values)
        query = pick(for_query, 0, length - 1)
        pairs = jnp.pad(jnp.stack([keys, values], axis=1).reshape(-1), (0, 1))
        place = jnp.arange(2 * max_length + 1, dtype=jnp.int32)
        tokens = jnp.where(place == 2 * length, keys[query], pairs)
        return padded(tokens, 2 * length + 1, values[query].reshape(1), 1)


@dataclasses.dataclass(frozen=True)
class Induction(Task):
    """The next token of a random string written twice, s s; it counts from the second token of the second copy on.

    The tokens of s are different where `repeats` is False, so that the token after an earlier occurrence is always
    right; no length beyond `symbols` then exists. Otherwise they are independent and uniform. Aligned: targets[i]
    follows inputs[i].

    Example:
      >>> Induction(symbols=8).aligned, Induction(symbols=8).space(2)
      (True, 56)
    """

    symbols: int = 512
    repeats: bool = False

    def __post_init__(self) -> None:
        check_count("Induction", minimum=2, symbols=self.symbols)

    def alphabet(self) -> Alphabet:
        return Alphabet(numbered(self.symbols), numbered(self.symbols))

    def input_size(self, max_length: int) -> int:
        return 2 * max_length - 1

    def output_size(self, max_length: int) -> int:
        return 2 * max_length - 1

    @property
    def minimum_length(self) -> int:
        return 2

    @property
    def maximum_length(self) -> int | None:
        return None if self.repeats else self.symbols

    @property
    def aligned(self) -> bool:
        return True

    def answers(self, length: int) -> int:
        return self.symbols ** (length - 1) if self.repeats else math.perm(self.symbols, length - 1)

    def space(self, length: int) -> int:
        return self.symbols**length if self.repeats else math.perm(self.symbols, length)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        s = draw(key, max_length, self.symbols) if self.repeats else distinct(key, self.symbols)[:max_length]
        place = jnp.arange(2 * max_length, dtype=jnp.int32)
        twice = take(s, place % length)
        made = padded(twice[:-1], 2 * length - 1, twice[1:], 2 * length - 1)
        return made._replace(weight=jnp.where(place[:-1] < length, 0, made.weight))
