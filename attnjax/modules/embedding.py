"""Token ids to embeddings, and features to logits: the two ends of a model."""

import math

import chex
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.modules.config import TransformerConfig
from attnjax.modules.parameters import add, kernel, zeros
from attnjax.positions.checks import concrete, described, is_array
from attnjax.positions.projection import project
from attnjax.typing import Array, ArrayLike, Float, Int

Tokens = Int[ArrayLike, "B T"]
OF_EMBEDDING = ("vocab", "embed_scale", "embed_std", "token_types", "dtype", "param_dtype")
"""Fields of a config that describe its embedding."""


class TokenEmbedding(nnx.Module):
    """Maps token ids [B, T] to embeddings [B, T, D], and features [B, T, D] to logits [B, T, V].

    The learned parameters are `table` [V, D], initially normal with variance 1/D, or `config.embed_std`^2; `types`, a
    row per token type, if `config.token_types`; `w_out` [D, V] unless `config.tie_embeddings`; `b_out` [V] if
    `config.output_bias`. With `config.embed_scale` embeddings are multiplied by sqrt(D), and the tied output matrix is
    not (Vaswani et al. 2017, section 3.4).

    Args:
      config: sizes and options.
      rngs: the stream `params` draws the initial values.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        V, D, dtype, std = config.vocab, config.model, config.param_dtype, config.embed_std
        self.config = config

        def rows(count: int) -> nnx.Param:
            table = kernel((D, count), 1, dtype=dtype, rngs=rngs)[...].T
            return nnx.Param(table if std is None else table * jnp.asarray(std * math.sqrt(D), table.dtype))

        self.table = rows(V)
        self.types = rows(config.token_types) if config.token_types else None
        self.w_out = kernel((D, V), 1, dtype=dtype, rngs=rngs) if not config.tie_embeddings else None
        self.b_out = zeros((V,), dtype=dtype) if config.output_bias else None

    def __call__(self, tokens: Tokens, types: Tokens | None = None) -> Float[Array, "B T D"]:
        """Returns the embeddings of the tokens plus those of their types, 0 unless given, in `config.dtype`.

        While tracing, the embedding of a token or type out of range is NaN, since its value is not known.

        Raises:
          ValueError: a token outside 0 .. V-1 or a type out of range, or types given to a model that has none.
        """
        check_tokens("tokens", tokens, self.config.vocab)
        x = _lookup(self.table, tokens, self.config.dtype)
        x = x * jnp.asarray(math.sqrt(self.config.model), x.dtype) if self.config.embed_scale else x
        if self.types is None:
            if types is not None:
                raise ValueError("token types were given to a model without; set token_types in its config")
            return x
        types = np.zeros(tokens.shape, np.int32) if types is None else types
        check_tokens("token types", types, self.config.token_types)
        if types.shape != tokens.shape:
            raise ValueError(f"token types must have the shape of the tokens, {tokens.shape}, got {types.shape}")
        return x + _lookup(self.types, types, self.config.dtype)

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Returns the logits of features x, in float32 (float64 where x is): x W_out * logits_scale + b_out.

        Operands of 16 bits stay so, and so do those of the gradient, see `attnjax.positions.projection`.
        """
        chex.assert_shape(x, (None, None, self.config.model))
        w = self.table[...].T if self.w_out is None else self.w_out[...]
        factor = self.config.logits_scale
        logits = project(x.reshape(-1, x.shape[-1]), w, precision=None).reshape(*x.shape[:-1], -1)
        return add(logits if factor == 1 else logits * jnp.asarray(factor, logits.dtype), self.b_out)


def _lookup(table: nnx.Param, tokens: Tokens, dtype: str) -> Float[Array, "B T D"]:
    """Returns the rows of the tokens, and NaN where a token has none."""
    tokens = jnp.asarray(tokens)
    inside = (tokens >= 0) & (tokens < table.shape[0])
    x = table[...][jnp.where(inside, tokens, 0)].astype(dtype)
    return jnp.where(inside[..., None], x, jnp.asarray(jnp.nan, x.dtype))


def check_tokens(name: str, tokens: ArrayLike, vocab: int) -> None:
    """Raises ValueError unless tokens are integers [B, T], and in 0 .. V-1 where their values are known."""
    if not is_array(tokens) or tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(f"{name} must be integers [B, T], got {described(tokens)}")
    known = concrete(tokens)
    if known is not None and known.size and not 0 <= known.min() <= known.max() < vocab:
        raise ValueError(f"{name} must be in 0..{vocab - 1}, got values in {known.min()}..{known.max()}")
