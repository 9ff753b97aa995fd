"""A state that every token may change: the one bit of flip-flop languages, and products in a group that is not solvable.

    flip_flop      w 1 i 0 i 1 r -> 1      a read gives the bit written last; `length` counts instructions
    word_problem   g1 g2 ... gn            targets[i] = g1 g2 ... gi in A5 or S5; `length` counts elements

References: Liu et al. 2023, "Exposing Attention Glitches with Flip-Flop Language Modeling", arXiv:2306.00946; Merrill, Petty
and Sabharwal 2024, "The Illusion of State in State-Space Models", arXiv:2404.08819, and its code, jopetty/word-problem.
"""

import dataclasses
import functools
import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.tasks.base import Alphabet, Example, Task
from attnjax.tasks.checks import check_choice
from attnjax.tasks.draws import draw, padded, take
from attnjax.typing import Array, Int, Key

WRITE, READ, IGNORE, ZERO = range(4)
"""Tokens of flip-flop languages, in the order of the paper's alphabet {w, r, i, 0, 1}; token 4 is the bit 1."""
GROUPS = ("A5", "S5")
DEGREE = 5


@dataclasses.dataclass(frozen=True)
class FlipFlop(Task):
    """The next token of a flip-flop string of n instructions, each followed by a bit; the bits after reads count.

    The first instruction writes (w), the last one reads (r), the others are independent: i, whose bit is ignored, with
    probability `ignore`, and w and r with half of the rest each. Bits after w and i are uniform, a read repeats the bit of the
    last write. Papers count tokens: their T = 512 is length 256. Aligned: targets[i] follows inputs[i].

    Example:
      >>> made = FlipFlop().sample(jax.random.key(0), [2], 2)
      >>> made.inputs[0, 0].item() == WRITE, made.inputs[0, 2].item() == READ, made.weight[0].tolist()
      (True, True, [0, 0, 1])
    """

    ignore: float = 0.8

    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.ignore, bool) or not isinstance(self.ignore, int | float) or not 0 <= self.ignore < 1:
            raise ValueError(f"FlipFlop: ignore must be a probability of at least 0 and below 1, got {self.ignore!r}")

    def alphabet(self) -> Alphabet:
        return Alphabet(("w", "r", "i", "0", "1"), ("w", "r", "i", "0", "1"))

    def input_size(self, max_length: int) -> int:
        return 2 * max_length - 1

    @property
    def minimum_length(self) -> int:
        return 2

    @property
    def token_chance(self) -> float:
        return 0.5

    def answers(self, length: int) -> int:
        """Return 2, since one read is certain: a lower bound."""
        return 2

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return instructions, each followed by a bit; what follows a read counts."""
        for_instructions, for_bits = jax.random.split(key)
        u = jax.random.uniform(for_instructions, (max_length,), jnp.float32)
        place = jnp.arange(max_length, dtype=jnp.int32)
        drawn = jnp.where(u < self.ignore, IGNORE, jnp.where(u < (1 + self.ignore) / 2, WRITE, READ))
        instructions = jnp.where(place == 0, WRITE, jnp.where(place == length - 1, READ, drawn)).astype(jnp.int32)
        bits = draw(for_bits, max_length, 2)
        last_write = jax.lax.cummax(jnp.where(instructions == WRITE, place, 0))
        bits = jnp.where(instructions == READ, bits[last_write], bits)
        x = jnp.stack([instructions, ZERO + bits], axis=1).reshape(-1)
        made = padded(x[:-1], 2 * length - 1, x[1:], 2 * length - 1)
        return made._replace(weight=jnp.where(x[:-1] == READ, made.weight, 0))


@dataclasses.dataclass(frozen=True)
class WordProblem(Task):
    """The product of all permutations so far, of a string of independent uniform elements of a group.

    `group` is "A5", the 60 even permutations of five things, or "S5", all 120. Token i is the i-th of them in lexicographic
    order, so that 0 is the identity. In a product the left permutation acts after the right one: (g h)(x) = g(h(x)). Aligned:
    targets[i] = inputs[0] inputs[1] ... inputs[i], and every token counts.

    Example:
      >>> a5 = WordProblem()
      >>> made = a5.sample(jax.random.key(0), [3], 3)
      >>> one, two, _ = made.inputs[0].tolist()
      >>> made.targets[0, :2].tolist() == [one, a5.table[one, two]]
      True
    """

    group: str = "A5"

    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("WordProblem", "group", self.group, GROUPS)

    @functools.cached_property
    def elements(self) -> Int[np.ndarray, "G 5"]:
        """The permutations: row i maps x to elements[i, x]."""
        found = np.array(list(itertools.permutations(range(DEGREE))), np.int32)
        first, second = np.triu_indices(DEGREE, 1)
        inversions = (found[:, first] > found[:, second]).sum(-1)
        return found[inversions % 2 == 0] if self.group == "A5" else found

    @functools.cached_property
    def table(self) -> Int[np.ndarray, "G G"]:
        """The products: entry [g, h] is the number of g h."""
        digits = DEGREE ** np.arange(DEGREE - 1, -1, -1)  # read as numbers to base 5, rows ascend
        products = self.elements[:, self.elements]
        return np.searchsorted(self.elements @ digits, products @ digits).astype(np.int32)

    def alphabet(self) -> Alphabet:
        names = tuple("".join(map(str, row)) for row in self.elements.tolist())
        return Alphabet(names, names)

    def answers(self, length: int) -> int:
        return len(self.elements) ** length

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return elements of the group, and the product of all elements up to each."""
        x = draw(key, max_length, len(self.elements))
        table = jnp.asarray(self.table).reshape(-1)
        multiply = lambda g, h: take(table, g * len(self.elements) + h)
        return padded(x, length, jax.lax.associative_scan(multiply, x), length)
