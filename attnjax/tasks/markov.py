"""A language whose statistics differ from one sequence to the next, so that context pays at every length.

    P ~ Dirichlet(1) for each row      x1 ~ pi, the stationary distribution of P      x_{t+1} ~ P[x_t]

Every sequence has a chain of its own. What follows a symbol can only be learned from what followed it before in the same
sequence, and the estimate gets better for as long as the sequence goes on. With counts n_ij of the pairs so far, the best
prediction that knows no stationary distribution is (n_ij + 1) / (sum_j n_ij + k).

Reference: Edelman et al. 2024, "The Evolution of Statistical Induction Heads: In-Context Learning Markov Chains",
arXiv:2402.11004.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.checks import check_count
from attnjax.tasks.draws import padded, take
from attnjax.typing import Array, Float, Int, Key

SQUARINGS = 8
"""P^(2^8) has equal rows, the stationary distribution, up to rounding, unless the chain is nearly periodic.

Of 100,000 chains of 2 symbols 137 have |pi P - pi| above 1e-5 (the worst 0.8), of as many of 3 symbols one (5e-4), of
4 and of 8 symbols none (2.3e-7 and 7.2e-8, which is rounding).
"""


@dataclasses.dataclass(frozen=True)
class Markov(Task):
    """The next symbol of a Markov chain that is drawn anew for every sequence. Aligned: targets[i] follows inputs[i].

    Sequences of one key end with the same symbols whatever their length: a longer one has more context. They are drawn from
    the last symbol to the first, by the chain that runs backwards, P[j, i] pi[j] / pi[i].

    Example:
      >>> Markov(symbols=3).answers(4)
      81
    """

    symbols: int = 8

    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("Markov", minimum=2, maximum=1024, symbols=self.symbols)

    def alphabet(self) -> Alphabet:
        return Alphabet(numbered(self.symbols), numbered(self.symbols))

    def answers(self, length: int) -> int:
        return self.symbols**length

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return a sequence of a new chain; each target is the symbol that follows."""
        for_chain, for_symbols = jax.random.split(key)
        chain, stationary = self.chain(for_chain)
        backwards = jnp.cumsum(chain.T * stationary[None, :] / stationary[:, None], axis=-1)
        uniform = jax.random.uniform(for_symbols, (max_length + 1,), jnp.float32)

        def previous(symbol: Int[Array, ""], u: Float[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
            return (drawn := self._draw(backwards[symbol], u)), drawn

        last = self._draw(jnp.cumsum(stationary), uniform[0])
        _, before = jax.lax.scan(previous, last, uniform[1:])
        from_the_end = jnp.concatenate([last[None], before])
        x = take(from_the_end, length - jnp.arange(max_length + 1, dtype=jnp.int32))
        return padded(x[:-1], length, x[1:], length)

    def chain(self, key: Key[Array, ""]) -> tuple[Float[Array, "k k"], Float[Array, " k"]]:
        """Return a chain, whose rows are uniform over all distributions, and its stationary distribution."""
        weight = -jnp.log1p(-jax.random.uniform(key, (self.symbols, self.symbols), jnp.float32))
        chain = power = weight / weight.sum(-1, keepdims=True)
        for _ in range(SQUARINGS):
            # On a GPU or TPU the default rounds factors to fewer bits, and data must not depend on the platform.
            power = jnp.matmul(power, power, precision=jax.lax.Precision.HIGHEST)
            power = power / power.sum(-1, keepdims=True)
        return chain, power[0]

    def _draw(self, cumulative: Float[Array, " k"], u: Float[Array, ""]) -> Int[Array, ""]:
        """Return the symbol whose share of 0 .. 1 holds u."""
        index = (u * cumulative[-1] >= cumulative).sum(dtype=jnp.int32)
        return jnp.minimum(index, self.symbols - 1)

    def nats(
        self, inputs: Int[np.ndarray, "W T"], targets: Int[np.ndarray, "W T"]
    ) -> dict[str, Float[np.ndarray, "W T"]]:
        """Return what targets cost who counts the symbols, or the pairs, of the window so far, with one more of each.

        Example:
          >>> Markov(symbols=3).nats(np.array([[0, 0, 0]]), np.array([[0, 0, 1]]))["bigram"].round(3).tolist()
          [[1.099, 0.693, 1.609]]
        """
        k, (count, length) = self.symbols, inputs.shape
        rows, ones, pairs = np.arange(count), np.ones((count, k)), np.ones((count, k, k))
        found = {name: np.zeros((count, length)) for name in ("unigram", "bigram")}
        for t in range(length):
            now, after = inputs[:, t], targets[:, t]
            ones[rows, now] += 1
            found["unigram"][:, t] = -np.log(ones[rows, after] / ones.sum(-1))
            found["bigram"][:, t] = -np.log(pairs[rows, now, after] / pairs[rows, now].sum(-1))
            pairs[rows, now, after] += 1
        return found
