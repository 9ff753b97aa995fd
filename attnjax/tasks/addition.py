"""Decimal addition of numbers of any length: n + m -> their sum, without leading zeros.

`length` is the number of digits of the longer operand. `operands="free"` draws uniformly one of the 2 length - 1
pairs of lengths whose longer one is `length`, without those in which an operand has fewer than `shortest` digits;
`"equal"` gives both that length. An operand is uniform among the numbers of exactly so many digits.

`order` says how digits are written: "plain" highest first; "reversed" lowest first in operands and sum;
"reversed_answer" lowest first in the sum alone. The numbers of an example do not depend on the order.

Tokens 0-9 are digits, `Addition.digits`, for position encodings that number the digits inside a number (abacus); 10
is +. References: Kazemnejad et al. 2023, arXiv:2305.19466 (plain); Lee et al. 2023, arXiv:2307.03381 (reversed
answer); McLeish et al. 2024, arXiv:2405.17399 (reversed, abacus).
"""

import dataclasses
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.checks import check_choice, check_count
from attnjax.tasks.digits import digit_count, joined, numeral, settle, turned
from attnjax.tasks.draws import padded, pick
from attnjax.typing import Array, Int, Key

BASE = 10


@dataclasses.dataclass(frozen=True)
class Addition(Task):
    """n + m in decimal: 95 + 7 -> 102.

    Example:
      >>> Addition(operands="equal").answers(1), Addition().output_size(3)
      (19, 4)
    """

    order: str = "plain"
    operands: str = "free"
    shortest: int = 1

    digits: ClassVar[tuple[int, ...]] = tuple(range(BASE))

    def __post_init__(self) -> None:
        check_choice("Addition", "order", self.order, ("plain", "reversed", "reversed_answer"))
        check_choice("Addition", "operands", self.operands, ("free", "equal"))
        check_count("Addition", shortest=self.shortest)

    @property
    def minimum_length(self) -> int:
        return self.shortest

    def alphabet(self) -> Alphabet:
        return Alphabet((*numbered(BASE), "+"), numbered(BASE))

    def input_size(self, max_length: int) -> int:
        return 2 * max_length + 1

    def output_size(self, max_length: int) -> int:
        return max_length + 1

    def answers(self, length: int) -> int:
        least = lambda digits: 0 if digits == 1 else 10 ** (digits - 1)
        shorter = length if self.operands == "equal" else self.shortest
        return 2 * (10**length - 1) + 1 - least(length) - least(shorter)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return two numbers with a plus between them, and their sum."""
        for_pair, for_numbers = jax.random.split(key)
        if self.operands == "equal":
            return self.add(for_numbers, length, length, max_length)
        lengths = length - self.shortest + 1
        pair = pick(for_pair, 0, 2 * lengths - 2)
        shorter = pair % lengths + self.shortest
        # Pairs 0 .. lengths - 1 shorten the second operand or keep both; the others shorten the first.
        first = jnp.where(pair < lengths, length, shorter)
        second = jnp.where(pair < lengths, shorter, length)
        return self.add(for_numbers, first, second, max_length)

    def add(self, key: Key[Array, ""], first: Int[Array, ""], second: Int[Array, ""], max_length: int) -> Example:
        """Return one example whose operands have `first` and `second` digits."""
        chex.assert_rank((key, first, second), 0)
        for_n, for_m = jax.random.split(key)
        n, m = numeral(for_n, first, max_length, BASE), numeral(for_m, second, max_length, BASE)
        total = settle(jnp.pad(n + m, (0, 1)), BASE)
        count = digit_count(total)
        if self.order != "reversed":
            n, m = turned(n, first), turned(m, second)
        plus = jnp.full((1,), BASE, jnp.int32)
        tokens, used = joined((n, first), (plus, 1), (m, second), size=2 * max_length + 1)
        return padded(tokens, used, turned(total, count) if self.order == "plain" else total, count)
