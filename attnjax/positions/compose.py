"""Several encodings in one call: each acts in turn, in the order given.

    embed, map_q, map_k     one after the other
    bias, score             each part sees the logits that the parts before it made

A composition is a list of parts: attention, caches and modules take it apart by `parts_of`. Its parameters are a tuple with
the dict of each part, and its positions are one array for all parts or a tuple with those of each.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from attnjax.positions.base import PositionEncoding, Sizes, validate_encoding


def compose(*encodings: PositionEncoding) -> PositionEncoding:
    """Returns two or more encodings as one; the parts of a composition among them become parts of the result.

    Raises ValueError for fewer, for a part that replaces logits after one that adds to them, whose share would be lost, and for
    one that acts on the logits after one that makes weights of them (StickBreaking), which would no longer be shares of 1.

    Example:
        >>> from attnjax import ALiBi, RoPE, compose
        >>> compose(RoPE(), ALiBi()).has("angle", "bias")
        True
    """
    return Compose(tuple(part for encoding in encodings for part in parts_of(encoding)))


def parts_of(encoding: PositionEncoding) -> tuple[PositionEncoding, ...]:
    """Returns the parts of a composition, or the encoding itself as the only one.

    Example:
        >>> from attnjax.positions import LogN, NoPE
        >>> parts_of(compose(NoPE(), compose(LogN(), NoPE())))
        (NoPE(), LogN(length=4096), NoPE())
    """
    return encoding.parts if isinstance(encoding, Compose) else (encoding,)


def joined(parts: Sequence[PositionEncoding]) -> PositionEncoding:
    """Returns the composition of one or more encodings: the inverse of `parts_of`.

    Example:
        >>> from attnjax import ALiBi, RoPE
        >>> joined([RoPE()]) == RoPE(), joined([RoPE(), ALiBi()]) == compose(RoPE(), ALiBi())
        (True, True)
    """
    return compose(*parts) if len(parts) > 1 else parts[0]


def each(name: str, encoding: PositionEncoding, value: Any) -> tuple[Any, ...]:
    """Returns parameters or positions of each part: a tuple has one entry per part, any other value serves the only part.

    Raises ValueError for a tuple of another length, and for parameters of a composition that are no tuple.

    Example:
        >>> from attnjax.positions import NoPE
        >>> each("params", compose(NoPE(), NoPE()), ({}, {}))
        ({}, {})
    """
    if not isinstance(encoding, Compose):
        return (value,)
    if value is None:
        return (None,) * len(encoding.parts)
    if not isinstance(value, tuple | list) or len(value) != len(encoding.parts):
        came = f"{len(value)} entries" if isinstance(value, tuple | list) else type(value).__name__
        raise ValueError(
            f"{name} must be a tuple with one entry for each of the {len(encoding.parts)} parts, got {came}"
        )
    return tuple(value)


@dataclasses.dataclass(frozen=True)
class Compose(PositionEncoding):
    """The encodings in `parts`, applied in order. Made by `compose`.

    Example:
        >>> from attnjax import ALiBi, RoPE
        >>> [type(part).__name__ for part in compose(RoPE(), ALiBi()).parts]
        ['RoPE', 'ALiBi']
    """

    parts: tuple[PositionEncoding, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple) or len(self.parts) < 2:
            raise ValueError(f"compose: needs two or more encodings, got {self.parts!r}")
        earlier = weights = None
        for part in self.parts:
            validate_encoding("compose: every argument", part)
            if part.replaces_logits and earlier is not None:
                raise ValueError(f"compose: {part} replaces what {earlier} adds to the logits: put {part} first")
            if not part.has("bias", "score"):
                continue
            if weights is not None:
                raise ValueError(f"compose: {part} would change the weights that {weights} makes: put {weights} last")
            earlier = earlier or part
            weights = part if part.log_weights else None

    def init(self, key: jax.Array, sizes: Sizes) -> tuple[dict, ...]:
        """Returns the parameters of each part, from independent keys."""
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.init(key, sizes) for part, key in zip(self.parts, keys, strict=True))

    def constants(self, sizes: Sizes, length: int | None = None) -> tuple[dict, ...]:
        """Returns the constants of each part."""
        return tuple(part.constants(sizes, length) for part in self.parts)

    def for_encoder(self) -> "Compose":
        """Returns the composition of the parts for a mask that is not causal."""
        return Compose(tuple(part.for_encoder() for part in self.parts))

    def has(self, *hooks: str) -> bool:
        """Returns whether a part overrides one of these hooks."""
        return any(part.has(*hooks) for part in self.parts)
