"""Parts of a config.json that say an encoding: learned positions, and RoPE with its context scalings in one of two styles:

    "rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, ...}      transformers 4
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, ...}   transformers 5

The rules are those of `modeling_rope_utils` in Hugging Face transformers 5. An unknown scaling is an error.
"""

from typing import Any, NamedTuple

from attnjax.models.config_json import COUNT, FLAG, NUMBERS, POSITIVE, Fields, Key, Reader, choice
from attnjax.positions import DynamicNTK, Learned, Llama3, LongRoPE, PositionInterpolation, RoPE, YaRN
from attnjax.positions.scaling import Scaling

ORIGINAL = "original_max_position_embeddings"
LONGEST = "max_position_embeddings"
TABLE = COUNT._replace(make=Learned)
"""The kind of a key that is the length of a learned table."""


def inner(*names: str) -> tuple[str, ...]:
    """Returns names of a key in the table of RoPE, in both styles."""
    return tuple(f"{table}.{name}" for table in ("rope_scaling", "rope_parameters") for name in names)


def scaled(field: str, kind: Any, default: Any = ..., name: str = "") -> Key:
    """Returns a key in the table of RoPE that is a field of a scaling, by the same name unless given."""
    return Key(field, inner(name or field), kind, default)


FACTOR = scaled("factor", POSITIVE)
LENGTH = Key("original_length", (*inner(ORIGINAL), ORIGINAL), COUNT, lambda fields: fields["trained"] or ...)
GAIN = scaled("attention_factor", POSITIVE, None)
BETAS = (scaled("beta_fast", POSITIVE, 32.0), scaled("beta_slow", POSITIVE, 1.0))
SCALINGS: dict[str, tuple[Any, tuple[Key, ...]]] = {
    "default": (None, ()),
    "linear": (PositionInterpolation, (FACTOR,)),
    "dynamic": (DynamicNTK, (FACTOR, LENGTH)),
    "yarn": (YaRN, (FACTOR, LENGTH, *BETAS, GAIN, scaled("truncate", FLAG, True))),
    "llama3": (Llama3, (FACTOR, LENGTH, scaled("low_freq_factor", POSITIVE), scaled("high_freq_factor", POSITIVE))),
    "longrope": (
        LongRoPE,
        (
            LENGTH,
            scaled("short_factors", NUMBERS, name="short_factor"),
            scaled("long_factors", NUMBERS, name="long_factor"),
            GAIN,
            scaled("factor", POSITIVE, None),
        ),
    ),
}
"""Kinds of scaling by their name in config.json: the class, and a key for each of its fields."""


class Rope(NamedTuple):
    """The encoding of a family with RoPE.

    Attributes:
      theta: default of the base.
      fraction: default of the fraction of channels that is rotated.
      names: the family's own keys of the base and of the fraction, beside those of others.
    """

    theta: float = 10_000.0
    fraction: float = 1.0
    names: tuple[str, str] = ("rope_theta", "partial_rotary_factor")

    def read(self, reader: Reader, fields: Fields) -> Fields:
        """Returns the RoPE. Raises ValueError for an unknown kind of scaling, and for a value out of range."""
        base, share = (
            reader.get(POSITIVE, *dict.fromkeys((name, usual, *inner(usual))), default=default)
            for name, usual, default in zip(self.names, ("rope_theta", "partial_rotary_factor"), self[:2], strict=True)
        )
        kind = reader.get(choice(*SCALINGS), *inner("rope_type", "type"), default="default")
        trained = reader.get(COUNT, LONGEST, default=None)
        return {"encoding": RoPE(theta=base, fraction=share, scaling=_scaling(reader, kind, trained))}


def _scaling(reader: Reader, kind: str, trained: int | None) -> Scaling | None:
    make, keys = SCALINGS[kind]
    reader.used.update(LENGTH.names)
    if make is None:
        return None
    found: Fields = {"trained": trained}
    for one in keys:
        found |= one.read(reader, found)
    del found["trained"]
    if kind == "dynamic" and found["original_length"] != trained:
        raise ValueError(
            f"{reader.owner}: {ORIGINAL} must be max_position_embeddings={trained}, got {found['original_length']}"
        )
    if kind == "longrope" and found["factor"] is None and trained is not None and trained > found["original_length"]:
        found["factor"] = trained / found["original_length"]
    return make(**found)
