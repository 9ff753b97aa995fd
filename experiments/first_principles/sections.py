"""The examples in the order of the page. A section is a module with `numbers`, `text` and `draw`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from experiments.first_principles import (
    attention,
    block,
    heads,
    masks,
    order,
    parameters,
    projection,
    pruning,
    recurrence,
    rotary,
    scale,
    sinusoidal,
    training,
)


class Section(NamedTuple):
    """One example. `draw` is None where there is no figure; `measured`: its numbers depend on the machine."""

    name: str
    title: str
    caption: str
    numbers: Callable[[], dict[str, Any]]
    text: Callable[[dict[str, Any]], str]
    draw: Callable[[dict[str, Any]], Any] | None
    measured: bool


def section(module: Any, measured: bool = False) -> Section:
    """The section that a module makes, called as the module is."""
    name = module.__name__.rpartition(".")[2]
    return Section(name, module.TITLE, module.CAPTION, module.numbers, module.text, module.draw, measured)


SECTIONS = (
    section(projection),
    section(attention),
    section(scale),
    section(training, measured=True),
    section(heads),
    section(parameters),
    section(sinusoidal),
    section(rotary),
    section(order),
    section(masks),
    section(block),
    section(recurrence, measured=True),
    section(pruning),
)
NAMES = tuple(one.name for one in SECTIONS)


def chosen(names: Sequence[str] | None) -> tuple[Section, ...]:
    """The sections of these names in the order of the page, or all. Raises ValueError for a name that none has."""
    for name in names or ():
        if name not in NAMES:
            raise ValueError(f"--only must name some of {', '.join(NAMES)}, got {name[:100]!r}")
    return tuple(one for one in SECTIONS if not names or one.name in names)
