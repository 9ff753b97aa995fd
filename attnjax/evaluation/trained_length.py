"""The length that a published model was trained at, and whether its RoPE was scaled afterwards.

What config.json says of a scaling of RoPE decides which of its lengths the weights were trained at:

    llama3, longrope    trained on with the scaling, at max_position_embeddings; the scaling stays
    yarn, dynamic       put on afterwards, to read further than the original_max_position_embeddings; the method takes its place
    linear, none        max_position_embeddings

A checkpoint that was trained on with YaRN does not say so in a key that is read here: its length is given.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from attnjax.models import Loaded

ORIGINAL = "original_max_position_embeddings"
LONGEST = ("max_position_embeddings", "n_positions", "seq_length")
"""Where a config.json may say the longest sequence of a model, the first that is there."""
AFTERWARDS = ("yarn", "dynamic")
"""Scalings that are put on a model that was trained without."""


class Trained(NamedTuple):
    """The length that a model was trained at, which part of its config or which option says so, and what becomes of a scaling.

    Attributes:
      length: L.
      source: in words, for a table.
      scaled_after: whether its RoPE has a scaling that was put on after training, which a method takes the place of.
    """

    length: int
    source: str
    scaled_after: bool = False


def trained_length(loaded: Loaded, given: int | None = None) -> Trained:
    """Returns the length that a published model was trained at: the one given, or that of config.json by its kind of scaling.

    Raises ValueError where config.json does not say it.
    """
    json = loaded.json
    table: Mapping[str, Any] = json.get("rope_parameters") or json.get("rope_scaling") or {}
    kind = table.get("rope_type", table.get("type", "default"))
    lengths = ((key, json.get(key)) for key in LONGEST)
    longest = next(((key, length) for key, length in lengths if isinstance(length, int)), None)
    original = next((at[ORIGINAL] for at in (table, json) if isinstance(at.get(ORIGINAL), int)), None)
    if kind in AFTERWARDS:
        key, length = longest if original is None and longest is not None else (ORIGINAL, original)
        why = f", since its scaling, {kind}, was put on after training and is taken off"
        if given is not None and length is not None and given > length:
            return Trained(given, f"--trained, which is more than its {key} of {length:,}: its scaling, {kind}, stays")
    else:
        key, length = longest or (LONGEST[0], None)
        why = "" if kind == "default" else f", with its scaling, {kind}, which stays"
    if given is not None:
        return Trained(given, f"--trained{why}", kind in AFTERWARDS)
    if length is None:
        raise ValueError(
            f"config.json has none of {', '.join((ORIGINAL, *LONGEST))}: give the trained length with --trained"
        )
    return Trained(length, f"{key} of config.json{why}", kind in AFTERWARDS)
