"""Reads the folders of runs and writes the page."""

import importlib
import pathlib
from collections.abc import Sequence

from attnjax import safety
from attnjax.explore.contents import Explored
from attnjax.explore.page import page

MOST_RUNS = 2


def build(
    runs: Sequence[str | pathlib.Path] = (),
    out: str | pathlib.Path = "explore.html",
    texts: Sequence[bytes] = (),
    layer: int = 0,
    head: int = 0,
) -> pathlib.Path:
    """Write the page, with up to two trained runs, each shown on `texts` or on held-out examples; returns its path.

    Without runs JAX is not imported. Raises ValueError for more than two runs, texts without a run, runs that cannot be
    shown (see `data.explore`), and a file that cannot be written.
    """
    if len(runs) > MOST_RUNS:
        raise ValueError(f"explore compares at most {MOST_RUNS} runs, got {len(runs)}")
    if not runs and (texts or layer or head):
        raise ValueError("a text, a layer and a head are for trained runs: give the folder of a run")
    out = pathlib.Path(out)
    if out.is_dir():
        raise ValueError(f"{out} is a folder: give the name of a file, such as {out / 'explore.html'}")
    found = tuple(_explored(pathlib.Path(run), texts, layer, head) for run in runs)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        safety.write(out.parent.resolve() / out.name, page(found, layer, head).encode(), durable=False)
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error.strerror or error}") from error
    return out


def _explored(run: pathlib.Path, texts: Sequence[bytes], layer: int, head: int) -> Explored:
    return importlib.import_module("attnjax.explore.data").explore(run, texts, layer, head)
