"""Positional encodings: pure functions of explicit positions, one file each. `base.py` is the interface."""

import difflib
import inspect
from typing import Any

import jax

from attnjax.positions.alibi import ALiBi
from attnjax.positions.base import EncodingParams, NoPE, PositionEncoding, Sizes, Tile
from attnjax.positions.compose import Compose, compose
from attnjax.positions.cope import CoPE
from attnjax.positions.fire import FIRE
from attnjax.positions.given import Given
from attnjax.positions.kerple import Kerple
from attnjax.positions.learned import Learned
from attnjax.positions.pope import PoPE
from attnjax.positions.rope import RoPE
from attnjax.positions.sandwich import Sandwich
from attnjax.positions.scaling import Llama3, NTKAware, PositionInterpolation, YaRN
from attnjax.positions.scaling_dynamic import DynamicNTK, LongRoPE
from attnjax.positions.sinusoidal import Sinusoidal
from attnjax.positions.t5 import T5Bias
from attnjax.positions.transformer_xl import TransformerXL
from attnjax.positions.xpos import XPos
from attnjax.typing import Array, ArrayLike, Float

__all__ = [
    "ENCODINGS",
    "FIRE",
    "ALiBi",
    "CoPE",
    "Compose",
    "DynamicNTK",
    "EncodingParams",
    "Given",
    "Kerple",
    "Learned",
    "Llama3",
    "LongRoPE",
    "NTKAware",
    "NoPE",
    "PoPE",
    "PositionEncoding",
    "PositionInterpolation",
    "RoPE",
    "Sandwich",
    "Sinusoidal",
    "Sizes",
    "T5Bias",
    "Tile",
    "TransformerXL",
    "XPos",
    "YaRN",
    "compose",
    "embed",
    "encoding",
]

ENCODINGS: dict[str, type[PositionEncoding]] = {
    "nope": NoPE,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rope": RoPE,
    "xpos": XPos,
    "alibi": ALiBi,
    "t5": T5Bias,
    "kerple": Kerple,
    "fire": FIRE,
    "transformer_xl": TransformerXL,
    "cope": CoPE,
    "sandwich": Sandwich,
    "pope": PoPE,
}


def encoding(name: str, **options: Any) -> PositionEncoding:
    """The encoding of this name with these options, for example `encoding("rope", theta=500_000.0)`.

    Raises ValueError for an unknown name or option, with the choices.
    """
    if name not in ENCODINGS:
        raise ValueError(f"unknown encoding {name!r}{_nearest(name, ENCODINGS)}; choose from {', '.join(ENCODINGS)}")
    known = inspect.signature(ENCODINGS[name]).parameters
    for option in options:
        if option not in known:
            choices = ", ".join(known) or "none"
            raise ValueError(f"encoding {name!r} has no option {option!r}{_nearest(option, known)}; it has: {choices}")
    missing = [key for key, p in known.items() if p.default is p.empty and key not in options]
    if missing:
        raise ValueError(f"encoding {name!r} needs the option {missing[0]!r}")
    return ENCODINGS[name](**options)


def _nearest(word: str, choices: Any) -> str:
    close = difflib.get_close_matches(str(word), list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def embed(
    encoding: PositionEncoding, params: EncodingParams | None, x: Float[Array, "B T D"], pos: ArrayLike
) -> Float[Array, "B T D"]:
    """The encoding's `embed` over a batch; positions [T] or [B, T]. The model calls it once, on its input.

    Raises ValueError where the shapes do not fit or parameters are missing.
    """
    if x.ndim != 3 or pos.shape not in (x.shape[1:2], x.shape[:2]):
        raise ValueError(f"embed needs x [B, T, D] and pos [T] or [B, T], got x {x.shape} and pos {pos.shape}")
    if not encoding.has("embed"):
        return x
    if params is None and encoding.learns:
        raise ValueError(f"{encoding} learns parameters: pass params=encoding.init(key, sizes), got params=None")
    encoding.check_positions(pos)
    shared = () if params is None else params.shared
    one = lambda x, pos: encoding.embed(shared, x, pos)
    return jax.vmap(one, in_axes=(0, None if pos.ndim == 1 else 0))(x, pos)
