"""Models of the suite read past their trained length: which method, by how much, and what length a model was trained at.

What config.json says of a scaling of RoPE decides which of its lengths the weights were trained at:

    llama3, longrope    trained on with the scaling, at max_position_embeddings; the scaling stays
    yarn, dynamic       put on afterwards, to read further than the original_max_position_embeddings; the method takes its place
    linear, none        max_position_embeddings

A checkpoint that was trained on with YaRN does not say so in a key that is read here: its length goes into `trained`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from attnjax.long.methods import extended_config, with_config
from attnjax.models import Loaded
from attnjax.modules import Decoder, TransformerConfig

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


@dataclasses.dataclass(frozen=True)
class Extension:
    """A method of `attnjax.long.methods`.

    Attributes:
      method: its name.
      longest: the longest sequence that is read; with the trained length it gives the factor.
      trained: the length that the model was trained at, where it does not say it.
      options: sizes in place of those of the method.
    """

    method: str
    longest: int
    trained: int | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def factor(self, trained: Trained) -> float:
        """Returns by how much the trained length is exceeded, at least 1."""
        return max(1.0, self.longest / trained.length)

    def config(self, config: TransformerConfig, trained: Trained) -> TransformerConfig:
        """Returns the config of a model read by the method. Raises ValueError without RoPE and for what the method refuses."""
        known = {"trained": trained.length, "factor": self.factor(trained), "scaled_after": trained.scaled_after}
        return extended_config(config, self.method, **known, **self.options)

    def __call__(self, model: Decoder, trained: Trained) -> Decoder:
        """Returns the model read by the method. Raises ValueError where `config` does."""
        return with_config(model, self.config(model.config, trained))

    def told(self, trained: Trained) -> str:
        """Returns a sentence on which trained length was taken.

        Example:
          >>> Extension("yarn", 8192).told(Trained(2048, "max_position_embeddings of config.json"))
          'Read by yarn at 4 times the trained length of 2,048 tokens (max_position_embeddings of config.json).'
        """
        times = f"{self.factor(trained):.4g} times the trained length of {trained.length:,} tokens"
        return f"Read by {self.method} at {times} ({trained.source})."


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
