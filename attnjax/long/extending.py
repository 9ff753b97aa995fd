"""Models of the suite read past their trained length: which method, by how much, and what length a model was trained at."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from attnjax.models import Loaded
from attnjax.modules import Decoder, extended

TRAINED = ("original_max_position_embeddings", "max_position_embeddings", "n_positions", "seq_length")
"""Where a config.json may say what length a model was trained at, the first that is there."""


@dataclasses.dataclass(frozen=True)
class Extension:
    """A method of `attnjax.modules.extended`.

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

    def __call__(self, model: Decoder, trained: int) -> Decoder:
        """Returns the model read by the method. Raises ValueError for a model without RoPE and what the method refuses."""
        length = self.trained or trained
        return extended(model, self.method, trained=length, factor=max(1.0, self.longest / length), **self.options)


def trained_length(loaded: Loaded) -> int:
    """Returns what config.json says, inside the table of the scaling or outside of it.

    Raises ValueError where it says nothing.
    """
    json = loaded.json
    tables = (json.get("rope_scaling"), json.get("rope_parameters"), json)
    for key in TRAINED:
        for table in tables:
            if table and isinstance(table.get(key), int):
                return table[key]
    raise ValueError(f"config.json has none of {', '.join(TRAINED)}: give the trained length with --trained")
