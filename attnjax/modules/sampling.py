"""Chooses the next token from logits: greedily, or at random from the tokens that top k, top p and min p leave."""

import dataclasses
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.modules.logit_filters import keep_min_p, keep_top_k, keep_top_p, scale
from attnjax.positions.checks import validate, validate_integer
from attnjax.typing import Array, ArrayLike, Bool, Float, Int, Key

NOT_A_TOKEN = -1
NO_STOPS = np.zeros(0, np.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """The rule that picks the next token, and the tokens that end an example.

    Logits are divided by the temperature, then filtered by top k, top p and min p, in this order (that of transformers). The
    numbers and the ids are data: other ones compile nothing anew, but another `top_k`, another number of ends, or a number
    in place of None does.

    Attributes:
      vocab: number V of tokens.
      top_k: restricts the draw to the k likeliest tokens; all unless given.
      temperature: tokens are drawn from softmax(logits / temperature); None picks the likeliest token.
      top_p, min_p: as in `keep_top_p` and `keep_min_p`; None leaves the step out.
      stops: the tokens that end an example.
    """

    vocab: int = dataclasses.field(metadata={"static": True})
    top_k: int | None = dataclasses.field(default=None, metadata={"static": True})
    temperature: Float[ArrayLike, ""] | None = None
    top_p: Float[ArrayLike, ""] | None = None
    min_p: Float[ArrayLike, ""] | None = None
    stops: Int[ArrayLike, " E"] = dataclasses.field(default_factory=lambda: NO_STOPS)

    def pick(self, key: Key[Array, "*B"], logits: Float[Array, "B V"]) -> Int[Array, " B"]:
        """Returns the next token of every example, -1 where its logits hold NaN.

        With one key for all, the draw of an example depends on its row; with a key for each, on that key alone.
        """
        chex.assert_shape(logits, (None, self.vocab))
        if self.temperature is None:
            token = jnp.argmax(logits, axis=-1)
        elif self.top_k is None:
            token = _draw(key, self.kept(logits))
        else:
            # Of tokens that tie with the k-th, those with the smaller ids.
            best, tokens = jax.lax.top_k(self.kept(logits), self.top_k)
            token = jnp.take_along_axis(tokens, _draw(key, best)[:, None], axis=-1)[:, 0]
        return jnp.where(jnp.isnan(logits).any(-1), NOT_A_TOKEN, token.astype(jnp.int32))

    def kept(self, logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
        """Returns logits / temperature, and -inf for tokens that are not to be drawn."""
        chex.assert_shape(logits, (None, self.vocab))
        logits = logits if self.temperature is None else scale(logits, self.temperature)
        logits = logits if self.top_k is None else keep_top_k(logits, self.top_k)
        logits = logits if self.top_p is None else keep_top_p(logits, self.top_p)
        return logits if self.min_p is None else keep_min_p(logits, self.min_p)

    def ends(self, token: Int[Array, " B"]) -> Bool[Array, " B"]:
        """Returns whether each token ends its example."""
        chex.assert_rank(token, 1)
        return (token[:, None] == jnp.asarray(self.stops)[None]).any(-1)


def sampling(
    vocab: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    stop: int | Sequence[int] | None = None,
) -> Sampling:
    """Returns the rule for numbers of a user; temperature 0 picks the likeliest token.

    Raises:
      ValueError: a negative temperature, `top_k`, `top_p` or `min_p` at temperature 0, or numbers out of range.

    Example:
      >>> sampling(11, temperature=0.7, top_p=0.9, stop=[0, 1]).stops.tolist()
      [0, 1]
    """
    if temperature != 0:
        validate("generate", temperature=temperature)
    stops = [] if stop is None else list(stop) if isinstance(stop, Sequence) else [stop]
    _check_tokens(vocab, top_k, stops)
    for name, value in (("top_p", top_p), ("min_p", min_p)):
        if value is not None:
            validate("generate", **{name: value})
            if value > 1:
                raise ValueError(f"generate: {name} must be at most 1, got {value}")
    for name, value in (("top_k", top_k), ("top_p", top_p), ("min_p", min_p)):
        if value is not None and temperature == 0:
            raise ValueError(f"generate: {name}={value} needs a temperature above 0, got temperature=0")
    number = lambda value: None if value is None else np.asarray(value, np.float64)
    return Sampling(
        vocab=vocab,
        top_k=top_k,
        temperature=None if temperature == 0 else number(temperature),
        top_p=number(top_p),
        min_p=number(min_p),
        stops=np.array(sorted(set(stops)), np.int32),
    )


def at_step(key: Key[Array, "*B"], step: Int[ArrayLike, ""]) -> Key[Array, "*B"]:
    """Returns the key of a step, `jax.random.fold_in(key, step)`, or that of each row.

    Example:
      >>> at_step(jax.random.split(jax.random.key(0), 3), 5).shape
      (3,)
    """
    return jax.random.fold_in(key, step) if key.ndim == 0 else jax.vmap(lambda one: jax.random.fold_in(one, step))(key)


def _draw(key: Key[Array, "*B"], logits: Float[Array, "B K"]) -> Int[Array, " B"]:
    return jax.random.categorical(key, logits) if key.ndim == 0 else jax.vmap(jax.random.categorical)(key, logits)


def _check_tokens(vocab: int, top_k: int | None, stops: Sequence[int]) -> None:
    numbers = [] if top_k is None else [("top_k", top_k, 1, vocab)]
    for name, value, lowest, highest in (*numbers, *(("stop", one, 0, vocab - 1) for one in stops)):
        validate_integer("generate", minimum=lowest, **{name: value})
        if value > highest:
            raise ValueError(f"generate: {name} must be at most {highest}, got {value}")
