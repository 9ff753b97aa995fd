"""Reads and writes RoPE and its context scalings in a config.json, which has one of two styles:

    "rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, ...}      transformers 4; written here
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, ...}   transformers 5

The rules are those of `modeling_rope_utils` in Hugging Face transformers 5. An unknown scaling is an error.
"""

import dataclasses
import math
from typing import Any

from attnjax.models.base import Json
from attnjax.models.config_json import COUNT, FLAG, NUMBERS, POSITIVE, TABLE, Reader, choice
from attnjax.positions import (
    DualChunk,
    DynamicNTK,
    Llama3,
    LongRoPE,
    PositionEncoding,
    PositionInterpolation,
    RoPE,
    YaRN,
)
from attnjax.positions.scaling import Scaling

ORIGINAL = "original_max_position_embeddings"
LONGEST = "max_position_embeddings"
TRAINED = 2048
"""`max_position_embeddings` of a config.json that is made from a spec, which does not say the trained length.

No logits depend on it, but reading past the trained length does. `save` puts the number of the config.json that was read in
its place.
"""
KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


def read_rope(
    read: Reader,
    trained: int | None,
    *,
    theta: str = "rope_theta",
    share: str = "partial_rotary_factor",
    otherwise: float = 10_000.0,
    part: float = 1.0,
) -> RoPE:
    """Returns the RoPE of a config.

    Args:
      read: the config.
      trained: its `max_position_embeddings`, None where it has none.
      theta, share: the family's own keys of the base, and of the fraction of channels that is rotated, beside those of others.
      otherwise, part: the defaults of these two.

    Raises:
      ValueError: an unknown kind of scaling, or a value out of range.
    """
    table: Json = read.get(TABLE, "rope_parameters", "rope_scaling", default={})
    inner = Reader(f"{read.owner}: rope_scaling", table)
    kind = inner.get(choice(**{kind: kind for kind in KINDS}), "rope_type", "type", default="default")
    base = _agreed(read, theta, inner, "rope_theta", otherwise)
    fraction = _agreed(read, share, inner, "partial_rotary_factor", part)
    outer = read.get(COUNT, ORIGINAL, default=None)
    scaling = _scaling(kind, inner, trained, outer)
    inner.finish()
    return RoPE(theta=base, fraction=fraction, scaling=scaling)


def rope_json(encoding: PositionEncoding, trained: int) -> dict[str, Any]:
    """Returns the keys `rope_theta` and, for a scaled RoPE, `rope_scaling`. Raises ValueError for other encodings."""
    if not isinstance(encoding, RoPE | DualChunk):
        raise ValueError(f"a config.json of this family has no place for {encoding}")
    return {"rope_theta": encoding.theta, **_scaling_json(encoding.scaling, trained)}


def trained_length(encoding: PositionEncoding) -> int:
    """Returns the `max_position_embeddings` to write: the length that the scaling needs, else `TRAINED`."""
    scaling = getattr(encoding, "scaling", None)
    return scaling.original_length if isinstance(scaling, DynamicNTK) else TRAINED


def _agreed(read: Reader, name: str, inner: Reader, inner_name: str, default: float) -> float:
    """Returns a number given beside the table of the scaling or inside it. Raises ValueError if both differ."""
    outside = read.get(POSITIVE, *dict.fromkeys((name, inner_name)), default=None)
    inside = inner.get(POSITIVE, inner_name, default=None)
    if outside is not None and inside is not None and outside != inside:
        raise ValueError(f"{read.owner}: {name} is {outside}, but {inside} in rope_parameters")
    return next((value for value in (outside, inside) if value is not None), default)


def _scaling(kind: str, inner: Reader, trained: int | None, outer: int | None) -> Scaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        inner.skip(ORIGINAL)
        return PositionInterpolation(inner.get(POSITIVE, "factor"))
    known = (length for length in (outer, trained) if length is not None)
    original = inner.get(COUNT, ORIGINAL, default=next(known, ...))
    if kind == "longrope":
        return _longrope(inner, trained, original)
    factor = inner.get(POSITIVE, "factor")
    if kind == "dynamic":
        if original != trained:
            raise ValueError(f"{inner.owner}: {ORIGINAL} must be max_position_embeddings={trained}, got {original}")
        return DynamicNTK(factor, original)
    if kind == "llama3":
        return Llama3(factor, original, inner.get(POSITIVE, "low_freq_factor"), inner.get(POSITIVE, "high_freq_factor"))
    truncate = inner.get(FLAG, "truncate", default=True)
    fast, slow = inner.get(POSITIVE, "beta_fast", default=32.0), inner.get(POSITIVE, "beta_slow", default=1.0)
    return YaRN(factor, original, fast, slow, _attention_factor(inner, factor), truncate)


def _attention_factor(inner: Reader, factor: float) -> float | None:
    """Returns the attention factor of YaRN, which some releases give as a ratio of `mscale` and `mscale_all_dim`."""
    given = inner.get(POSITIVE, "attention_factor", default=None)
    above, below = inner.get(POSITIVE, "mscale", default=None), inner.get(POSITIVE, "mscale_all_dim", default=None)
    if given is not None or above is None or below is None:
        return given
    return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)


def _longrope(inner: Reader, trained: int | None, original: int) -> LongRoPE:
    factor = inner.get(POSITIVE, "factor", default=... if trained is None else trained / original)
    given = inner.get(POSITIVE, "attention_factor", default=None)
    short, long = (tuple(map(float, inner.get(NUMBERS, f"{name}_factor"))) for name in ("short", "long"))
    return LongRoPE(short, long, original, given, max(factor, 1.0))


def _scaling_json(scaling: Scaling | None, trained: int) -> dict[str, Any]:
    if scaling is None:
        return {}
    if isinstance(scaling, PositionInterpolation):
        table = {"rope_type": "linear", "factor": scaling.factor}
    elif isinstance(scaling, DynamicNTK):
        table = {"rope_type": "dynamic", "factor": scaling.factor}
    elif isinstance(scaling, LongRoPE):
        factor = 1.0 if scaling.factor is None else scaling.factor
        lists = {"short_factor": list(scaling.short_factors), "long_factor": list(scaling.long_factors)}
        table = {"rope_type": "longrope", "factor": factor, **lists, ORIGINAL: scaling.original_length}
        table |= {} if scaling.attention_factor is None else {"attention_factor": scaling.attention_factor}
    elif isinstance(scaling, YaRN | Llama3):
        table = {name: value for name, value in dataclasses.asdict(scaling).items() if value is not None}
        table[ORIGINAL] = table.pop("original_length")
        table = {"rope_type": "yarn" if isinstance(scaling, YaRN) else "llama3", **table}
    else:
        raise ValueError(f"a config.json has no place for {scaling}")
    return {"rope_scaling": table}
