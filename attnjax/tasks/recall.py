"""Looking things up in the context: associative recall, the repetition that induction heads continue, and many queries.

    associative_recall   k1 v1 k2 v2 ... kn vn, ki -> vi        `length` is the number of pairs n
    induction            s1 ... sn s1 ... sn, token by token     `length` is the number of tokens n of s
    mqar                 k1 v1 ... kn vn, then slots of two tokens: ki x  x x  kj x ...     `length` is the number of tokens

In mqar, multi-query associative recall, key i returns in the slot of gap g_i, and its target is its value. Gaps are drawn
without replacement, gap g = 0, 1, ... with a probability in proportion to (g + 1)^(a - 1), as repeated bigrams of real text
are. Everything else is filler, and only repeated keys count.

References: Ba et al. 2016, arXiv:1610.06258 (recall); Olsson et al. 2022, arXiv:2209.11895 (induction heads); Arora et al.
2023, "Zoology: Measuring and Improving Recall in Efficient Language Models", arXiv:2312.04927, and its code, `multiquery_ar`.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.checks import check_choice, check_count
from attnjax.tasks.draws import distinct, draw, padded, pick, take
from attnjax.typing import Array, Float, Int, Key

FILLERS = ("random", "zero")


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
        return self.values

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return pairs of key and value with one key behind them, and its value."""
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
      >>> Induction(symbols=8).aligned, Induction(symbols=8).answers(3)
      (True, 56)
    """

    symbols: int = 512
    repeats: bool = False

    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("Induction", minimum=2, symbols=self.symbols)

    def alphabet(self) -> Alphabet:
        return Alphabet(numbered(self.symbols), numbered(self.symbols))

    def input_size(self, max_length: int) -> int:
        return 2 * max_length - 1

    @property
    def minimum_length(self) -> int:
        return 2

    @property
    def maximum_length(self) -> int | None:
        return None if self.repeats else self.symbols

    def answers(self, length: int) -> int:
        return self.symbols ** (length - 1) if self.repeats else math.perm(self.symbols, length - 1)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return a string twice; each target is the token that follows."""
        s = draw(key, max_length, self.symbols) if self.repeats else distinct(key, self.symbols)[:max_length]
        place = jnp.arange(2 * max_length, dtype=jnp.int32)
        twice = take(s, place % length)
        made = padded(twice[:-1], 2 * length - 1, twice[1:], 2 * length - 1)
        return made._replace(weight=jnp.where(place[:-1] < length, 0, made.weight))


@dataclasses.dataclass(frozen=True)
class MQAR(Task):
    """The value of every key that returns. `length` is the number of tokens T, and `pairs` that of keys, with 4 pairs <= T.

    Token 0 is filler, keys are tokens of 1 .. vocab // 2 - 1 and values the rest; keys of an example differ, and so do its
    values. Each key returns once. Filler is "random" tokens of the whole vocabulary, as in the paper, or "zero". Aligned:
    targets[i] is the value of the key inputs[i].

    Example:
      >>> mqar = MQAR(vocab=12, pairs=2, filler="zero")
      >>> made = mqar.sample(jax.random.key(0), [16], 16)
      >>> made.weight.sum().item(), bool((made.targets[made.weight == 1] >= 6).all())
      (2, True)
    """

    vocab: int = 8192
    pairs: int = 8
    power: float = 0.01
    filler: str = "random"

    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("MQAR", minimum=4, vocab=self.vocab)
        check_count("MQAR", pairs=self.pairs)
        check_choice("MQAR", "filler", self.filler, FILLERS)
        if self.pairs > self.vocab // 2 - 1:
            raise ValueError(
                f"MQAR: {self.pairs} pairs need {self.pairs} different keys, and vocab={self.vocab} has {self.vocab // 2 - 1}"
            )
        if isinstance(self.power, bool) or not isinstance(self.power, int | float) or not 0 < self.power <= 1:
            raise ValueError(f"MQAR: power must be above 0 and at most 1, where gaps are uniform; got {self.power!r}")

    def alphabet(self) -> Alphabet:
        return Alphabet(numbered(self.vocab), numbered(self.vocab))

    @property
    def minimum_length(self) -> int:
        return 4 * self.pairs

    @property
    def token_chance(self) -> float:
        return 1.0 / (self.vocab - self.vocab // 2)

    def answers(self, length: int) -> int:
        return math.perm(self.vocab - self.vocab // 2, self.pairs)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return pairs of key and value, then each key once more among fillers, with its value as target."""
        for_keys, for_values, for_gaps, for_filler = jax.random.split(key, 4)
        half, n = self.vocab // 2, self.pairs
        keys = 1 + distinct(for_keys, half - 1)[:n]
        values = half + distinct(for_values, self.vocab - half)[:n]
        # The n earliest of exponential clocks with these rates are a weighted sample without replacement.
        clocks = jax.random.exponential(for_gaps, ((max_length - 2 * n) // 2,), jnp.float32) / self.rates(max_length)
        slots = jnp.arange(clocks.shape[0], dtype=jnp.int32)
        clocks = jnp.where(slots < (length - 2 * n) // 2, clocks, jnp.inf)
        gaps = jnp.argsort(clocks)[:n].astype(jnp.int32)
        random = self.filler == "random"
        noise = draw(for_filler, max_length, self.vocab) if random else jnp.zeros(max_length, jnp.int32)
        inputs, targets = arrange(keys, values, gaps, noise)
        made = padded(inputs, length, targets, length)
        return made._replace(weight=(made.targets > 0).astype(jnp.int32))

    def rates(self, length: int) -> Float[Array, " slots"]:
        """Return (g + 1)^(a - 1) for each gap g of a sequence of this length: probabilities, but for a factor.

        Example:
          >>> (MQAR(pairs=1, power=0.5).rates(8) ** -2).round().tolist()
          [1.0, 2.0, 3.0]
        """
        slots = (length - 2 * self.pairs) // 2
        return jnp.arange(1, slots + 1, dtype=jnp.float32) ** (self.power - 1)


def arrange(
    keys: Int[Array, " n"], values: Int[Array, " n"], gaps: Int[Array, " n"], noise: Int[Array, " T"]
) -> tuple[Int[Array, " T"], Int[Array, " T"]]:
    """Return inputs and targets [T]: the pairs, and each key again 2 n + 2 gap tokens after the start; `noise` elsewhere.

    Targets are values at repeated keys and 0 elsewhere.

    Example:
      >>> inputs, targets = arrange(*map(jnp.array, ([2, 4], [8, 7], [2, 0], [0] * 10)))
      >>> inputs.tolist(), targets.tolist()
      ([2, 8, 4, 7, 4, 0, 0, 0, 2, 0], [0, 0, 0, 0, 7, 0, 0, 0, 8, 0])
    """
    pairs = jnp.stack([keys, values], axis=1).reshape(-1)
    queries = pairs.shape[0] + 2 * gaps
    inputs = noise.at[: pairs.shape[0]].set(pairs).at[queries].set(keys)
    return inputs, jnp.zeros_like(noise).at[queries].set(values)
