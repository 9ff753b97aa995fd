"""Positional encodings: pure functions of explicit positions, one file each. `base.py` is the interface."""

from typing import Any

import jax
import jax.numpy as jnp

from attnjax import registry
from attnjax.positions.alibi import ALiBi
from attnjax.positions.axial_rope import AxialRoPE, MixedRoPE
from attnjax.positions.base import (
    EncodingParams,
    NoPE,
    PositionEncoding,
    SequentialScore,
    Sizes,
    Tile,
    Trait,
    learns,
    resolve,
    validate_encoding,
)
from attnjax.positions.cable import Cable
from attnjax.positions.checks import expect, validate_tokens
from attnjax.positions.compose import Compose, compose
from attnjax.positions.contextual import context_positions
from attnjax.positions.cope import CoPE
from attnjax.positions.dape import DAPE
from attnjax.positions.dual_chunk import DualChunk
from attnjax.positions.factor_search import factors_of, search_factors
from attnjax.positions.fire import FIRE
from attnjax.positions.fox import FoX
from attnjax.positions.kerple import Kerple
from attnjax.positions.learned import Learned
from attnjax.positions.llama4_temperature import Llama4Temperature
from attnjax.positions.log_n import LogN
from attnjax.positions.mrope import MRoPE
from attnjax.positions.path import PaTH
from attnjax.positions.pope import PoPE
from attnjax.positions.population import program, stacked_constants
from attnjax.positions.remapped import Remapped
from attnjax.positions.repo import RePo
from attnjax.positions.rerope import LeakyReRoPE, ReRoPE
from attnjax.positions.resonance import Resonance
from attnjax.positions.rope import RoPE
from attnjax.positions.sandwich import Sandwich
from attnjax.positions.scaling import Llama3, NTKAware, PositionInterpolation, YaRN
from attnjax.positions.scaling_dynamic import DynamicNTK, LongRoPE
from attnjax.positions.selective_rope import SelectiveRoPE
from attnjax.positions.self_extend import SelfExtend
from attnjax.positions.sinusoidal import Sinusoidal
from attnjax.positions.ssmax import SSMax
from attnjax.positions.stick_breaking import StickBreaking
from attnjax.positions.streaming import LMInfinite, StreamingLLM
from attnjax.positions.t5 import T5Bias
from attnjax.positions.transformer_xl import TransformerXL
from attnjax.positions.xpos import XPos
from attnjax.typing import Array, ArrayLike, Float

__all__ = [
    "DAPE",
    "ENCODINGS",
    "FIRE",
    "ALiBi",
    "AxialRoPE",
    "Cable",
    "CoPE",
    "Compose",
    "DualChunk",
    "DynamicNTK",
    "EncodingParams",
    "FoX",
    "Kerple",
    "LMInfinite",
    "LeakyReRoPE",
    "Learned",
    "Llama3",
    "Llama4Temperature",
    "LogN",
    "LongRoPE",
    "MRoPE",
    "MixedRoPE",
    "NTKAware",
    "NoPE",
    "PaTH",
    "PoPE",
    "PositionEncoding",
    "PositionInterpolation",
    "RePo",
    "ReRoPE",
    "Remapped",
    "Resonance",
    "RoPE",
    "SSMax",
    "Sandwich",
    "SelectiveRoPE",
    "SelfExtend",
    "SequentialScore",
    "Sinusoidal",
    "Sizes",
    "StickBreaking",
    "StreamingLLM",
    "T5Bias",
    "Tile",
    "Trait",
    "TransformerXL",
    "XPos",
    "YaRN",
    "compose",
    "context_positions",
    "embed",
    "encoding",
    "factors_of",
    "learns",
    "program",
    "resolve",
    "search_factors",
    "stacked_constants",
]

ENCODINGS: dict[str, type[PositionEncoding]] = {
    name: registry.load_class(row.path) for name, row in registry.ENCODINGS.items()
}


def encoding(name: str, **options: Any) -> PositionEncoding:
    """The encoding of this name with these options. Raises ValueError for an unknown name or option, with the choices.

    Example:
        >>> encoding("kerple", kind="power")
        Kerple(kind='power')
    """
    return registry.make("encoding", ENCODINGS, name, options)


def embed(
    encoding: PositionEncoding, params: EncodingParams | None, x: Float[Array, "B T D"], pos: ArrayLike
) -> Float[Array, "B T D"]:
    """Embeddings with their positions put in, for positions [T] or [B, T]. The model calls it once, on its input.

    Of a composition only the parts with an `embed` hook act. Raises ValueError where the shapes do not fit, for 16-bit floats,
    in which positions collide, and where parameters are missing.

    Example:
        >>> embed(Sinusoidal(), None, jnp.zeros((1, 1, 4)), jnp.array([0])).tolist()
        [[[0.0, 1.0, 0.0, 1.0]]]
    """
    validate_encoding("embed: encoding", encoding)
    validate_tokens("embed", x, pos)
    real = jnp.issubdtype(pos.dtype, jnp.floating) and pos.dtype not in (jnp.bfloat16, jnp.float16)
    if not (real or jnp.issubdtype(pos.dtype, jnp.integer)):
        raise ValueError(f"embed: pos must be integers or float32 (16-bit floats collide past 256), got {pos.dtype}")
    if Trait.EMBED not in encoding.traits:
        return x
    # Narrower integers do not hold the length of a table, nor the magnitude of their smallest value.
    pos = pos if real else pos.astype(jnp.int32)
    if isinstance(encoding, Compose):
        for part, own in encoding.each(params or EncodingParams()):
            x = embed(part, own, x, pos)
        return x
    if learns(encoding) and not jax.tree.leaves(params):
        raise ValueError(f"{encoding} learns parameters: pass params=encoding.init(key, sizes), got params={params}")
    encoding.check(pos=pos)
    T, D = x.shape[1:]
    shared = resolve(encoding, params, Sizes(model=D, heads=1, kv_heads=1, head_dim=D)).shared
    embedded = lambda x, pos: encoding.embed(EncodingParams(shared=shared), x, pos)
    one = lambda x, pos: expect(encoding, "embed", embedded(x, pos), (T, D))
    return jax.vmap(one, in_axes=(0, None if pos.ndim == 1 else 0))(x, pos)
