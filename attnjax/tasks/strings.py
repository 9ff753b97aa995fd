"""Tasks whose input is a string of independent uniform tokens and whose answer is a function of that string."""

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.checks import check_count
from attnjax.tasks.draws import draw, padded
from attnjax.typing import Array, Int, Key


@dataclasses.dataclass(frozen=True)
class StringTask(Task):
    """The answer of a uniform string; subclasses say which, in `solve` and `answer_length`."""

    symbols: int = 2

    def __post_init__(self) -> None:
        check_count(type(self).__name__, minimum=2, symbols=self.symbols)

    @abc.abstractmethod
    def solve(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, " O"]:
        """The answer to the first `length` tokens of x; what stands behind the answer's length is hidden later."""

    def answer_length(self, length: Any) -> Any:
        """Tokens of the answer; also called with a traced length."""
        return length

    def alphabet(self) -> Alphabet:
        return Alphabet(numbered(self.symbols), numbered(self.symbols))

    def output_size(self, max_length: int) -> int:
        return self.answer_length(max_length)

    def answers(self, length: int) -> int:
        return self.symbols**length

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return a string of independent uniform tokens, and its answer."""
        x = draw(key, max_length, self.symbols)
        return padded(x, length, self.solve(x, length), self.answer_length(length))


@dataclasses.dataclass(frozen=True)
class ClassTask(StringTask):
    """A string task with one token as its answer."""

    def answer_length(self, length: Any) -> Any:
        return 1

    def answers(self, length: int) -> int:
        return self.output_vocab

    @abc.abstractmethod
    def label(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, ""]:
        """The class of the first `length` tokens of x."""

    def solve(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, " O"]:
        """Return the label as an answer of one token."""
        return jnp.reshape(self.label(x, length), (1,))
