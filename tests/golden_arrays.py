"""Arrays that other libraries made; `golden/README.md` says what each is."""

import functools
from pathlib import Path

import numpy as np

import attnjax as aj

GOLDEN = Path(__file__).parent / "golden"


@functools.cache
def load(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def constants(encoding: aj.PositionEncoding, head: int, length: int | None = None) -> dict:
    """Those of one head."""
    return encoding.constants(aj.Sizes(head, 1, 1, head), length)
