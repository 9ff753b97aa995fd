"""Positional generalization: sequences in which a token is as hard to predict at any position, so that only positions are new.

    x[t] = (sum of `near` tokens before t + sum of `far` other tokens) mod m

    recurrent        the far tokens are those before the near ones
    cot              the far tokens are the first of the sequence ("chain of thought": the question stays where it is)
    semi_recurrent   the far tokens move on by one token for every two that are made

Reference: Wang et al. 2024, "Resonance RoPE", arXiv:2403.00071, and its code, sheryc/resonance_rope.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.checks import check_choice, check_count
from attnjax.tasks.draws import draw, padded
from attnjax.typing import Array, Int, Key

RULES = ("recurrent", "cot", "semi_recurrent")


@dataclasses.dataclass(frozen=True)
class PosGen(Task):
    """The next token of a sequence that its first near + far tokens determine by a rule.

    Those first tokens are independent and uniform (the authors' code goes through ascending combinations in order), and do not
    count. Aligned: targets[i] follows inputs[i].

    Example:
      >>> made = PosGen("cot", modulus=10, near=1, far=1).sample(jax.random.key(0), [4], 4)
      >>> a, b, c, d = made.inputs[0].tolist()
      >>> c == (a + b) % 10, d == (a + c) % 10, made.targets[0, 3].item() == (a + d) % 10
      (True, True, True)
    """

    rule: str = "recurrent"
    modulus: int = 113
    near: int = 3
    far: int = 1

    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("PosGen", "rule", self.rule, RULES)
        check_count("PosGen", minimum=2, maximum=2**15, modulus=self.modulus)
        check_count("PosGen", maximum=1024, near=self.near, far=self.far)

    def alphabet(self) -> Alphabet:
        return Alphabet(numbered(self.modulus), numbered(self.modulus))

    @property
    def minimum_length(self) -> int:
        return self.near + self.far

    def answers(self, length: int) -> int:
        """Return the number of different answers, or more than that."""
        return self.modulus ** min(length + 1 - self.minimum_length, self.minimum_length)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return a sequence that follows the rule from uniform first tokens."""
        x = self.extend(draw(key, self.minimum_length, self.modulus), max_length + 1)
        made = padded(x[:-1], length, x[1:], length)
        given = jnp.arange(max_length, dtype=jnp.int32) < self.minimum_length - 1
        return made._replace(weight=jnp.where(given, 0, made.weight))

    def extend(self, start: Int[Array, " D"], size: int) -> Int[Array, " size"]:
        """Return the sequence of `size` tokens that begins with the near + far tokens `start`.

        Example:
          >>> PosGen("semi_recurrent", modulus=10, near=1, far=2).extend(jnp.array([1, 2, 3]), 7).tolist()
          [1, 2, 3, 6, 9, 4, 9]
        """
        known = self.near + self.far

        def step(t: Int[Array, ""], x: Int[Array, " size"]) -> Int[Array, " size"]:
            begin = {"recurrent": t - known, "cot": 0, "semi_recurrent": (t - known) // 2}[self.rule]
            near = jax.lax.dynamic_slice(x, (t - self.near,), (self.near,))
            far = jax.lax.dynamic_slice(x, (begin,), (self.far,))
            return x.at[t].set((near.sum(dtype=jnp.int32) + far.sum(dtype=jnp.int32)) % self.modulus)

        padding = jnp.zeros(size - known, jnp.int32)
        first = jnp.int32(known)
        return jax.lax.fori_loop(first, jnp.int32(size), step, jnp.concatenate([start, padding]))
