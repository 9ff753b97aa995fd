"""Copying and reversing, in the variants of Kazemnejad et al. 2023.

    copy      rsc     a a a -> a a a           one token, repeated `length` times
              rsc2x   a a a -> a a a a a a     the answer twice as long
              rdc     a b, a a a -> b b b      replace a by b: the input opens with both
              cmc     s -> s                   s of independent uniform tokens
              cmc2x   s -> s NEXT s
    reverse   mc      s -> r                   r is s from its last to its first token
              mc2x    s -> r NEXT r
              mcrv    s -> r NEXT s

`length` is the number of tokens to be copied. The constant words of the published prompts, as in `Copy: ...`, are
left out; a decoder's separator token stands for them. Reference: arXiv:2305.19466, and its repository
McGill-NLP/length-generalization, where lengths are 2-20 in training and 21-40 in testing, and s is drawn from 100 tokens. Of
rsc, rsc2x and rdc its data has every token, or ordered pair, once at each of the 19 lengths: floor(115,000 / 19) = 6,052
tokens, and the pairs of 78.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.checks import check_choice, check_count
from attnjax.tasks.digits import joined, turned
from attnjax.tasks.draws import draw, padded
from attnjax.typing import Array, Int, Key

COPIES = ("rsc", "rsc2x", "rdc", "cmc", "cmc2x")
REVERSALS = ("mc", "mc2x", "mcrv")


@dataclasses.dataclass(frozen=True)
class _Repeat(Task):
    """What copy and reverse share: tokens 0 .. symbols - 1, and NEXT between two parts of an answer."""

    variant: str
    symbols: int = 100

    def _check_options(self, choices: tuple[str, ...]) -> None:
        check_choice(type(self).__name__, "variant", self.variant, choices)
        check_count(type(self).__name__, minimum=2, symbols=self.symbols)

    @property
    def twice(self) -> bool:
        """Whether the answer has two parts with NEXT between them."""
        return self.variant in ("cmc2x", "mc2x", "mcrv")

    @property
    def token_chance(self) -> float:
        return 1.0 / self.symbols

    def alphabet(self) -> Alphabet:
        tokens = numbered(self.symbols)
        return Alphabet(tokens, (*tokens, "NEXT") if self.twice else tokens)

    def output_size(self, max_length: int) -> int:
        return 2 * max_length + 1 if self.twice else max_length

    def answers(self, length: int) -> int:
        return self.symbols**length

    def two_parts(
        self, first: Int[Array, " n"], second: Int[Array, " n"], length: Int[Array, ""]
    ) -> tuple[Int[Array, " m"], Int[Array, ""]]:
        """Return `first NEXT second` and its length."""
        chex.assert_equal_shape((first, second))
        chex.assert_rank((first, length), (1, 0))
        separator = jnp.full((1,), self.symbols, jnp.int32)
        return joined((first, length), (separator, 1), (second, length), size=2 * first.shape[0] + 1)


@dataclasses.dataclass(frozen=True)
class Copy(_Repeat):
    """Copying: `variant` is rsc, rsc2x, rdc, cmc or cmc2x.

    Example:
      >>> Copy("rdc", symbols=4).answers(5), Copy("cmc", symbols=4).answers(5)
      (4, 1024)
    """

    variant: str = "cmc"

    def __post_init__(self) -> None:
        self._check_options(COPIES)

    def input_size(self, max_length: int) -> int:
        return max_length + 2 if self.variant == "rdc" else max_length

    def output_size(self, max_length: int) -> int:
        return 2 * max_length if self.variant == "rsc2x" else super().output_size(max_length)

    def answers(self, length: int) -> int:
        return super().answers(length) if self.variant in ("cmc", "cmc2x") else self.symbols

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return a string, and its copy in the form that `variant` says."""
        x = draw(key, max_length, self.symbols)
        if self.variant == "cmc":
            return padded(x, length, x, length)
        if self.variant == "cmc2x":
            return padded(x, length, *self.two_parts(x, x, length))
        repeats = 2 if self.variant == "rsc2x" else 1
        for_source, for_step = jax.random.split(key)
        source = draw(for_source, 1, self.symbols)
        if self.variant == "rdc":
            # A step of 1 .. symbols - 1 round the alphabet reaches every other token equally often.
            other = (source + 1 + draw(for_step, 1, self.symbols - 1)) % self.symbols
            tokens = jnp.concatenate([source, other, jnp.tile(source, max_length)])
            return padded(tokens, length + 2, jnp.tile(other, max_length), length)
        return padded(jnp.tile(source, max_length), length, jnp.tile(source, repeats * max_length), repeats * length)


@dataclasses.dataclass(frozen=True)
class Reverse(_Repeat):
    """Reversing: `variant` is mc, mc2x or mcrv.

    Example:
      >>> Reverse("mcrv", symbols=4).output_size(5)
      11
    """

    variant: str = "mc"

    def __post_init__(self) -> None:
        self._check_options(REVERSALS)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return a string, and its reversal in the form that `variant` says."""
        x = draw(key, max_length, self.symbols)
        r = turned(x, length)
        if self.variant == "mc":
            return padded(x, length, r, length)
        return padded(x, length, *self.two_parts(r, r if self.variant == "mc2x" else x, length))
