"""Populations: encodings that differ in numbers alone, vmapped as one compiled program.

An encoding splits into a program, which is compiled, and constants, which are arrays:

    encodings = [RoPE(theta=theta) for theta in (100.0, 10_000.0)]
    stacked = stacked_constants(encodings, sizes)
    jax.vmap(lambda params: attend(q, k, v, encoding=program(encodings[0]), params=params))(stacked)

A field that enters an encoding through `constants` alone is declared with `numeric`. It may differ between the members of
a population; every other field is part of the program.

Encodings of different classes share one program too, the composition of all, where the constants of `PositionEncoding.absent`
switch a part off: sinusoids of amplitude 0, rotations by 0, slopes of 0. They change no bit, because 0 * x + y is y.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from attnjax.positions.base import HOOKS, PositionEncoding, Sizes
from attnjax.positions.compose import joined, parts_of


def numeric(default: Any) -> Any:
    """Returns a dataclass field that enters an encoding through `constants` alone.

    Example:
        >>> from attnjax import RoPE
        >>> [field.name for field in dataclasses.fields(RoPE) if field.metadata.get("numeric")]
        ['theta', 'scaling', 'keep']
    """
    return dataclasses.field(default=default, metadata={"numeric": True})


def program(encoding: PositionEncoding) -> PositionEncoding:
    """Returns the encoding with its numeric fields at their defaults: members of a population with equal programs share code.

    An encoding without numeric fields is its own program, and so is one whose constants depend on the length.

    Example:
        >>> from attnjax import RoPE
        >>> program(RoPE(theta=500.0, fraction=0.5)) == RoPE(fraction=0.5)
        True
    """
    return joined([_program_of_part(part) for part in parts_of(encoding)])


def shared_program(encodings: Sequence[PositionEncoding]) -> PositionEncoding:
    """Returns one program for all encodings: the composition of their parts, each of which is absent from some of them.

    Raises ValueError where a class would be two parts.

    Example:
        >>> from attnjax import ALiBi, NoPE, RoPE
        >>> shared_program([NoPE(), RoPE(theta=500.0), RoPE(), ALiBi()]).parts
        (RoPE(...), ALiBi(...))
    """
    programs = list(dict.fromkeys(map(program, encodings)))
    if len(programs) == 1:
        return programs[0]
    parts = list(dict.fromkeys(part for one in programs for part in parts_of(one) if part.has(*HOOKS)))
    if not parts or len({type(part) for part in parts}) < len(parts):
        raise ValueError(f"a population needs encodings that share one program, got the programs {programs}")
    return joined(parts)


def stacked_constants(encodings: Sequence[PositionEncoding], sizes: Sizes) -> Any:
    """Returns the constants of P encodings in their `shared_program`, stacked as arrays [P, ...].

    They are passed to `attend` under `jax.vmap`. Equal encodings need none: the result is then empty, and constants are
    compiled in.

    Raises ValueError where the encodings do not share one program.

    Example:
        >>> from attnjax import ALiBi
        >>> one = Sizes(model=8, heads=1, kv_heads=1, head_dim=8)
        >>> stacked_constants([ALiBi(slopes=(0.5,)), ALiBi(slopes=(0.25,))], one)["slope"].tolist()
        [[0.5], [0.25]]
    """
    parts = parts_of(shared_program(encodings))
    if len(set(encodings)) == 1:
        rows: list[tuple[Any, ...]] = [({},) * len(parts)]
    else:
        rows = [_constants(encoding, parts, sizes) for encoding in encodings]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    return stacked if len(parts) > 1 else stacked[0]


def _constants(encoding: PositionEncoding, parts: Sequence[PositionEncoding], sizes: Sizes) -> tuple[Any, ...]:
    """Returns the constants of each part of a shared program with which the program is this encoding."""
    if program(encoding) == joined(parts):
        return tuple(part.constants(sizes) for part in parts_of(encoding))
    own = {type(part): part.constants(sizes) for part in parts_of(encoding)}
    found = tuple(own[type(part)] if type(part) in own else part.absent(sizes) for part in parts)
    if None in found:
        never = parts[found.index(None)]
        raise ValueError(f"a population needs encodings that share one program, and {never} cannot be absent from it")
    return found


def _program_of_part(part: PositionEncoding) -> PositionEncoding:
    defaults = {field.name: field.default for field in dataclasses.fields(part) if field.metadata.get("numeric")}
    return part if part.by_length else dataclasses.replace(part, **defaults)
