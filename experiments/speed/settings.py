"""What a suite is given: how thorough to be, which peers there are, and where its rows go."""

import dataclasses
import pathlib
from collections.abc import Callable

from experiments.speed.rows import Row


@dataclasses.dataclass(frozen=True)
class Settings:
    """`smoke`: the smallest sizes and few rounds, to check agreement, bytes and compilations rather than time.
    `torch`: the Python interpreter of an environment with PyTorch, or None. `emit` takes each row as it is made, `say`
    each line for the reader, `refuse` the line about a peer whose numbers are not ours, which is not measured.
    """

    emit: Callable[[Row], None]
    say: Callable[[str], None] = print
    smoke: bool = False
    torch: pathlib.Path | None = None
    rounds: int = 15
    seconds: float = 30.0
    refuse: Callable[[str], None] = print
