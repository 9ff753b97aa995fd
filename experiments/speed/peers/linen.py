"""The peer of our decoder: the same mathematics in Flax Linen, as a code base that uses that library would write it.

    x = table[tokens];   x = x + attention(norm(x));   x = x + W_out gelu(W_in norm(x));   logits = norm(x) table^T

Pre-norm, LayerNorm, biases, exact GELU, tied embeddings: `attnjax.modules.Decoder` with its default settings and NoPE or
RoPE. Attention is `nn.MultiHeadDotProductAttention`; `from_ours` gives it our weights, so that outputs can be compared.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from attnjax.config import ModelConfig
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


def peer_of(config: ModelConfig, vocab: int, *, decode: bool = False) -> Transformer:
    """The peer of a run's model. Raises ValueError for settings that it does not have."""
    encoding = getattr(config.encoding, "name", None)
    plain = ModelConfig(
        layers=config.layers, model=config.model, heads=config.heads, hidden=config.hidden, encoding=config.encoding
    )
    if config != plain or encoding not in ("nope", "rope") or (decode and encoding != "nope"):
        raise ValueError(
            "the peer in Flax Linen has layers, model, heads, hidden and the encodings nope and (not while decoding) rope; "
            f"all else must be as by default, got {config}"
        )
    sizes = {name: getattr(config, name) for name in ("model", "layers", "heads", "hidden")}
    return Transformer(vocab, **sizes, rotary=encoding == "rope", decode=decode)


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
