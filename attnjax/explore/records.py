"""What the page is told about a trained run, as plain values that are stored as JSON."""

import dataclasses
from typing import Any

from attnjax.records.values import clean, jsonable


@dataclasses.dataclass(frozen=True)
class Shown:
    """A text: its title, its tokens as the page shows them, and the weights of all heads, see `packing.pack`."""

    title: str
    tokens: tuple[str, ...]
    weights: str


@dataclasses.dataclass(frozen=True)
class Loss:
    """Mean loss and its standard error, in nats, against the number of tokens read.

    `text` says what was averaged. Training has seen sequences of up to `trained` tokens.
    """

    text: str
    trained: int
    context: tuple[int, ...]
    mean: tuple[float, ...]
    error: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Explored:
    """A run with L layers of N heads. `about` are names and values, `config` is JSON, `look` a colour class of `report`.

    `spaced`: tokens are words, and stand apart in a line.
    """

    name: str
    about: tuple[tuple[str, str], ...]
    config: str
    look: str
    layers: int
    heads: int
    causal: bool
    spaced: bool
    texts: tuple[Shown, ...]
    loss: Loss


def table(runs: tuple[Explored, ...], layer: int = 0, head: int = 0) -> dict[str, Any]:
    """What the page's script reads; `layer` and `head`, from 0, are shown first.

    A number that is not finite becomes null, and a character that no text should hold U+FFFD.
    """
    found = {"runs": [dataclasses.asdict(run) for run in runs], "first": {"layer": layer, "head": head}}
    return clean(jsonable(found))
