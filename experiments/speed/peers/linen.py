"""The peer of our decoder: the same mathematics in Flax Linen, as a code base that uses that library would write it.

    x = table[tokens];   x = x + attention(norm(x));   x = x + W_out gelu(W_in norm(x));   logits = norm(x) table^T

Pre-norm, LayerNorm, biases, exact GELU, tied embeddings: `attnjax.modules.Decoder` with its default settings and NoPE or
RoPE. Attention is `nn.MultiHeadDotProductAttention`; `from_ours` gives it our weights, so that outputs can be compared.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from attnjax.typing import Array, Float, Int, PyTree

THETA = 10_000.0


class Block(nn.Module):
    """One layer, [B, T, D] -> [B, T, D]. With `decode`, T = 1 and the past is in the collection "cache"."""

    heads: int
    hidden: int
    rotary: bool
    decode: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], mask: Array | None) -> Float[Array, "B T D"]:
        attend = rotary_attention if self.rotary else nn.dot_product_attention
        options: dict[str, Any] = {"num_heads": self.heads, "decode": self.decode, "attention_fn": attend}
        y = nn.LayerNorm(name="attention_norm")(x)
        attended = nn.MultiHeadDotProductAttention(**options, name="attention")(y, mask=mask)
        assert attended is not None, "weights were not asked for"
        x = x + attended
        y = nn.LayerNorm(name="feed_forward_norm")(x)
        y = nn.gelu(nn.Dense(self.hidden, name="w_in")(y), approximate=False)
        return x + nn.Dense(x.shape[-1], name="w_out")(y)


class Transformer(nn.Module):
    """Tokens [B, T] to logits [B, T, V], causal."""

    vocab: int
    model: int
    layers: int
    heads: int
    hidden: int
    rotary: bool = True
    decode: bool = False

    @nn.compact
    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        table = nn.Embed(self.vocab, self.model, name="embedding")
        x, mask = table(tokens), None if self.decode else nn.make_causal_mask(tokens)
        for i in range(self.layers):
            x = Block(self.heads, self.hidden, self.rotary, self.decode, name=f"block_{i}")(x, mask)
        return table.attend(nn.LayerNorm(name="norm")(x))


def rotary_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N H"],
    mask: Array | None = None,
) -> Float[Array, "B T N H"]:
    """Flax's attention after turning queries and keys, T = S, by their index. Flax passes on what is named here alone."""
    return nn.dot_product_attention(rotate(query), rotate(key), value, mask=mask)


def rotate(x: Float[Array, "B T N H"]) -> Float[Array, "B T N H"]:
    """RoPE in the layout that pairs channel i with channel i + H/2. Su et al. 2021 (arXiv:2104.09864), eq. 34."""
    T, half = x.shape[1], x.shape[-1] // 2
    frequency = THETA ** (-jnp.arange(half, dtype=x.dtype) / half)
    angle = jnp.arange(T, dtype=x.dtype)[:, None] * frequency[None]
    cos, sin = (f(angle)[None, :, None] for f in (jnp.cos, jnp.sin))
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def from_ours(params: PyTree) -> PyTree:
    """Our decoder's parameters, as `Transformer` names them."""
    affine = lambda kernel, bias: {"kernel": kernel, "bias": bias}
    found: dict[str, Any] = {"embedding": {"embedding": params["embedding"]["table"]}, "norm": params["stack"]["norm"]}
    for i, block in params["stack"]["blocks"].items():
        attention, feed_forward = block["attention"], block["feed_forward"]
        names = {"query": "q", "key": "k", "value": "v", "out": "o"}
        found[f"block_{i}"] = {
            "attention": {
                theirs: affine(attention[f"w_{ours}"], attention[f"b_{ours}"]) for theirs, ours in names.items()
            },
            "attention_norm": block["attention_norm"],
            "feed_forward_norm": block["feed_forward_norm"],
            **{name: affine(feed_forward[name], feed_forward[f"b_{name[2:]}"]) for name in ("w_in", "w_out")},
        }
    return {"params": found}


def token_by_token(model: nn.Module, params: PyTree, prompt: Int[Array, "B 1"], steps: int) -> Callable[[], Array]:
    """Greedy decoding with Flax Linen's cache, a jitted call for each token: a loop in Python, the cache donated.

    The function returned makes `steps` tokens [B, steps] from an empty cache of as many slots.
    """
    step = jax.jit(functools.partial(_next_token, model), donate_argnums=1)
    empty = empty_cache(model, prompt.shape[0], steps)

    def run() -> Array:
        cache, token, out = empty(), prompt, []
        for _ in range(steps):
            cache, token = step(params, cache, token)
            out.append(token)
        return jnp.concatenate(out, axis=1)

    return run


def in_one_loop(model: nn.Module, params: PyTree, prompt: Int[Array, "B 1"], steps: int) -> Callable[[], Array]:
    """The same in one compiled loop, after `temperature_sampler.py` of Flax's example lm1b."""
    empty = empty_cache(model, prompt.shape[0], steps)

    @jax.jit
    def run(params: PyTree, prompt: Int[Array, "B 1"]) -> Array:
        def advance(state, _):
            state = _next_token(model, params, *state)
            return state, state[1]

        _, tokens = jax.lax.scan(advance, (empty(), prompt), length=steps)
        return tokens[..., 0].T

    return lambda: run(params, prompt)


def _next_token(model: nn.Module, params: PyTree, cache: PyTree, token: Int[Array, "B 1"]) -> tuple[PyTree, Array]:
    logits, changed = model.apply({**params, "cache": cache}, token, mutable=["cache"])
    return changed["cache"], logits.argmax(-1).astype(jnp.int32)


def empty_cache(model: nn.Module, batch: int, slots: int) -> Callable[[], PyTree]:
    """Zeros of the shapes that `model.init` gives its cache for `slots` tokens."""
    tokens = jax.ShapeDtypeStruct((batch, slots), jnp.int32)
    shapes = jax.eval_shape(lambda tokens: model.init(jax.random.key(0), tokens), tokens)["cache"]
    return lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
