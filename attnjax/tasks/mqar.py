"""Multi-query associative recall: pairs of keys and values, then the keys again, spread over the rest of the sequence.

    k1 v1 ... kn vn   then slots of two tokens:   ki x   x x   kj x ...        the target of a repeated key is its value

Key i returns in the slot of gap g_i. Gaps are drawn without replacement, gap g = 0, 1, ... with a probability in proportion
to (g + 1)^(a - 1), as repeated bigrams of real text are. Everything else is filler, and only repeated keys count.

Reference: Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models", arXiv:2312.04927, and
its code, `multiquery_ar`.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.checks import check_choice, check_count
from attnjax.tasks.draws import distinct, draw, padded
from attnjax.typing import Array, Float, Int, Key

FILLERS = ("random", "zero")


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

    def output_size(self, max_length: int) -> int:
        return max_length

    @property
    def minimum_length(self) -> int:
        return 4 * self.pairs

    @property
    def aligned(self) -> bool:
        return True

    @property
    def token_chance(self) -> float:
        return 1.0 / (self.vocab - self.vocab // 2)

    def answers(self, length: int) -> int:
        del length
        return math.perm(self.vocab - self.vocab // 2, self.pairs)

    def space(self, length: int) -> int:
        """Number of pairs, gaps and fillers; a few of them make the same input where fillers are random."""
        keys, free = math.perm(self.vocab // 2 - 1, self.pairs), length - 3 * self.pairs
        gaps = math.perm((length - 2 * self.pairs) // 2, self.pairs)
        return keys * self.answers(length) * gaps * (self.vocab**free if self.filler == "random" else 1)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
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
