"""The data of the page about a trained run, as plain values that are stored as JSON.

Attention weights are stored as 16-bit integers, in units of 1/65535, little-endian, in base64: [L, N, T, T], or of causal
weights only the entries on and below the diagonal, row by row, [L, N, T (T + 1) / 2]. A stored weight differs from the true
one by at most `ERROR`.
"""

import base64
import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from attnjax.records.values import clean, jsonable

STEPS = 65535
ERROR = 0.5 / STEPS
"""Largest difference between a stored and a true weight, 7.63e-6."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """A text on the page: its title, its tokens, and the weights of all heads (see `pack`)."""

    title: str
    tokens: tuple[str, ...]
    weights: str


@dataclasses.dataclass(frozen=True)
class HeadGrid:
    """One score of all heads, [L, N]: its name, what it measures, and which heads stand out.

    `share`: the score is a share, so that 1 has the full shade; any other score is shaded relative to its largest value.
    """

    name: str
    about: str
    share: bool
    values: tuple[tuple[float, ...], ...]
    marked: tuple[tuple[bool, ...], ...]


@dataclasses.dataclass(frozen=True)
class Explored:
    """A run with L layers of N heads.

    about: names and values that describe the run. config: its config as JSON. spaced: tokens are words, which the page
    separates by spaces. grids: scores of all heads. scored: what the scores were measured on, or why there are none.
    """

    name: str
    about: tuple[tuple[str, str], ...]
    config: str
    layers: int
    heads: int
    causal: bool
    spaced: bool
    texts: tuple[Shown, ...]
    grids: tuple[HeadGrid, ...] = ()
    scored: str = ""


def table(runs: tuple[Explored, ...], layer: int = 0, head: int = 0) -> dict[str, Any]:
    """The data that the script of the page reads; `layer` and `head`, from 0, are shown first.

    A number that is not finite becomes null. Control characters and lone surrogates become U+FFFD.
    """
    found = {"runs": [dataclasses.asdict(run) for run in runs], "first": {"layer": layer, "head": head}}
    return clean(jsonable(found))


def pack(weights: Float[np.ndarray, "L N T T"], *, causal: bool) -> str:
    """The weights of all heads as base64 text. Raises ValueError for weights that are not finite or lie outside 0 .. 1."""
    if not np.all((weights >= 0) & (weights <= 1 + 1e-5)):
        raise ValueError("attention weights must lie in 0 .. 1; those of this model do not, or are not finite")
    whole = np.rint(np.minimum(weights.astype(np.float64), 1) * STEPS).astype("<u2")
    rows, columns = np.tril_indices(whole.shape[-1]) if causal else np.indices(whole.shape[-2:]).reshape(2, -1)
    return base64.b64encode(whole[..., rows, columns].tobytes()).decode()
