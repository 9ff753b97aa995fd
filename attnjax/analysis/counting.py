"""Counts for the scores of heads: for each document the attention on targets, and that of fixed offsets and of chance.

Letters here: Q patterns, D documents, O offsets. Windows of one document are not independent samples, so their counts are
added.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.analysis.heads import check_tokens, visible_keys
from attnjax.analysis.loaded_model import LoadedModel
from attnjax.analysis.patterns import PATTERNS, SEPARATORS, token_targets
from attnjax.typing import Array, ArrayLike, Bool, Float, Int


class Counts(NamedTuple):
    """Of one pattern, by document: sums over the rows that have a target.

    mass: of attention on the targets, for each head. rows: their number. hits: in how many of them the key at each offset is
    a target. chance: of the share of visible keys that are targets.
    """

    mass: Float[np.ndarray, "D L N"]
    rows: Float[np.ndarray, " D"]
    hits: Float[np.ndarray, "D O"]
    chance: Float[np.ndarray, " D"]
    offsets: Int[np.ndarray, " O"]


@jax.jit
def count(
    weights: Float[Array, "L B N T T"],
    targets: Bool[ArrayLike, "Q B T T"],
    visible: Bool[ArrayLike, "T T"],
    keys: Int[ArrayLike, "O T"],
) -> tuple[Float[Array, "Q B L N"], Float[Array, "Q B"], Float[Array, "Q B O"], Float[Array, "Q B"]]:
    """(mass, rows, hits, chance) of every example. `keys` says which key each offset means to each row."""
    dtype = weights.dtype
    targets = jnp.asarray(targets) & jnp.asarray(visible)[None, None]
    mass = jnp.einsum("lbnts,qbts->qbln", weights, targets.astype(dtype))
    number = jnp.sum(targets, axis=-1)
    rows = jnp.sum(number > 0, axis=-1).astype(dtype)
    seen = jnp.maximum(jnp.sum(jnp.asarray(visible), axis=-1), 1).astype(dtype)
    chance = jnp.sum(number.astype(dtype) / seen[None, None], axis=-1)
    hit = lambda key: jnp.sum(targets[:, :, jnp.arange(targets.shape[2]), key], axis=-1)
    hits = jax.lax.map(hit, jnp.asarray(keys))
    return mass, rows, jnp.moveaxis(hits, 0, -1).astype(dtype), chance


def offset_keys(visible: Bool[np.ndarray, "T T"]) -> tuple[Int[np.ndarray, " O"], Int[np.ndarray, "O T"]]:
    """All offsets i - j that some row can see, and the key that each means to every row.

    Where a row does not reach as far, it is the nearest key that it sees: a head that attends by distance alone, to the
    farthest key say, looks there. Visible keys of a row are neighbours, as under causal masks and windows.
    """
    places = np.arange(len(visible))
    distances = places[:, None] - places[None, :]
    offsets = np.arange(distances[visible].min(), distances[visible].max() + 1)
    first, last = visible.argmax(-1), len(visible) - 1 - visible[:, ::-1].argmax(-1)
    return offsets, np.clip(places[None, :] - offsets[:, None], first[None, :], last[None, :]).astype(np.int32)


def count_heads(
    subject: LoadedModel,
    tokens: Int[np.ndarray, "W T"],
    document: Int[np.ndarray, " W"],
    linked: Mapping[str, Bool[np.ndarray, "W T T"]],
    *,
    separators: tuple[int, ...] = SEPARATORS,
    batch: int = 16,
) -> dict[str, Counts]:
    """The counts of every pattern of `patterns.py`, and of `linked`, whose targets are given, over all windows.

    Patterns in the future are left out for a decoder. Raises ValueError for tokens that the subject cannot take, or arrays
    that do not fit together.
    """
    tokens = check_tokens(subject, tokens)
    _check_windows(tokens, document, linked)
    visible = visible_keys(subject, tokens.shape[1])
    offsets, keys = offset_keys(visible)
    own = tuple(name for name, _ in PATTERNS if visible[0, 1:].any() or name != "next_token")
    parts = []
    for start in range(0, len(tokens), batch):
        here = _filled(tokens[start : start + batch], batch)
        given = [_filled(masks[start : start + batch], batch) for masks in linked.values()]
        targets = _targets(separators, own, here)
        targets = jnp.concatenate([targets, jnp.asarray(np.stack(given))]) if given else targets
        parts.append(jax.device_get(count(subject.weights(jnp.asarray(here)), targets, visible, keys)))
    found = [np.concatenate(part, axis=1)[:, : len(tokens)].astype(np.float64) for part in zip(*parts, strict=True)]
    by_document = functools.partial(_by_document, document=np.asarray(document))
    one = lambda q: Counts._make([*(by_document(part[q]) for part in found), offsets])
    return {name: one(q) for q, name in enumerate((*own, *linked))}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _targets(separators: tuple[int, ...], names: tuple[str, ...], tokens: Int[Array, "B T"]) -> Bool[Array, "Q B T T"]:
    found = token_targets(tokens, separators)
    return jnp.stack([found[name] for name in names])


def _filled(part: np.ndarray, size: int) -> np.ndarray:
    """The last batch, padded to the size of the others, so that one program computes all."""
    return np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), part.dtype)])


def _by_document(part: Float[np.ndarray, "W *axes"], document: Int[np.ndarray, " W"]) -> Float[np.ndarray, "D *axes"]:
    """Sums over the windows of each document."""
    _, place = np.unique(document, return_inverse=True)
    out = np.zeros((place.max() + 1, *part.shape[1:]))
    np.add.at(out, place, part)
    return out


def _check_windows(tokens: np.ndarray, document: np.ndarray, linked: Mapping[str, np.ndarray]) -> None:
    W, T = tokens.shape
    if np.shape(document) != (W,):
        raise ValueError(f"document must have one entry for each of the {W} windows, got shape {np.shape(document)}")
    for name, masks in linked.items():
        if masks.shape != (W, T, T) or masks.dtype != bool:
            raise ValueError(f"targets of {name!r} must be booleans {[W, T, T]}, got {masks.dtype}{list(masks.shape)}")
