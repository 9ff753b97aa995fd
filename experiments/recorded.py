"""A file of records that begins with a protocol, and what is made from it alone: results, pages, figures.

The first two records are the protocol, what every number depends on, and "made", where and when it was followed.
"""

import importlib.util
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from attnjax.records import jsonl
from attnjax.report.formatting import markdown
from attnjax.report.intervals import FEWEST, of_mean
from attnjax.sweep import manifest

RECORDS = "records.jsonl"
Record = dict[str, Any]
C = TypeVar("C")
T = TypeVar("T")


def ends_of(runs: int) -> str:
    """What stands in brackets behind a mean of runs: the ends of 95 % of the resamples of a bootstrap over them.

    Those of 3 runs or fewer are the lowest and the highest run, and so no interval. With 4 or 5 such an interval holds the
    mean in 87 to 91 % of cases.

    Example:
      >>> ends_of(3), ends_of(4), ends_of(8)
      ('range of the 3 runs', 'bootstrap interval of 4 runs, too narrow for 95 %,', '95 % bootstrap interval of 8 runs')
    """
    if runs == 1:
        return "value of the only run"
    if runs <= 3:
        return f"range of the {runs} runs"
    if runs < FEWEST:
        return f"bootstrap interval of {runs} runs, too narrow for 95 %,"
    return f"95 % bootstrap interval of {runs} runs"


def t_ends_of(runs: int) -> str:
    """What stands behind a mean of runs of `attnjax.report.intervals.of_mean`.

    Example:
      >>> t_ends_of(3), t_ends_of(8)
      ('range of the 3 runs', '95 % t interval of 8 runs')
    """
    return (
        f"95 % t interval of {runs} runs"
        if runs >= FEWEST
        else ends_of(runs)
        if runs == 1
        else f"range of the {runs} runs"
    )


def begin(path: pathlib.Path, protocol: Record) -> list[Record]:
    """All records that are in the file already. A new file begins with the protocol and where it is followed.

    Raises ValueError where the file holds records of another protocol.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    jsonl.keep(path, lambda _: True)  # a line that was cut short goes, since its record is made again
    found = jsonl.read(path).tables
    if not found:
        jsonl.append(path, protocol, {"kind": "made", **place()})
        return []
    first = {name: value for name, value in found[0].items() if name != "schema"}
    if first != protocol:
        differ = sorted(key for key in first.keys() | protocol.keys() if first.get(key) != protocol.get(key))
        raise ValueError(
            f"{path} holds records of another protocol ({', '.join(differ)}); choose another folder with --out"
        )
    return found


def place() -> Record:
    """Where and when records are made: processor, date and versions."""
    here = manifest.of_machine()
    versions = {"python": here["python"], **{name: here[f"version_{name}"] for name in ("jax", "flax", "numpy")}}
    return {"processor": here["processor"], "date": manifest.now()[:10], **versions}


def check_cells(where: pathlib.Path, cells: Iterable[tuple[str, str]]) -> None:
    """Refuse runs, given as encoding and cell, of one encoding that differ in more than their seeds, which would be averaged.

    Example:
        >>> check_cells(pathlib.Path("runs/theta"), [("rope", "049b"), ("rope", "049b"), ("alibi", "7c1d")])
    """
    found: dict[str, set[str]] = {}
    for encoding, cell in cells:
        found.setdefault(encoding, set()).add(cell)
    if several := [name for name, own in found.items() if len(own) > 1]:
        raise ValueError(
            f"{where} holds runs of one encoding that differ in more than their seeds ({', '.join(several)}): measure one cell "
            "of each encoding at a time"
        )


def read(path: pathlib.Path, subject: str, results: Callable[[list[Record]], T]) -> T:
    """`results` of the records in a file. Raises ValueError, naming the file, where they are damaged or not of `subject`."""
    found = jsonl.read(path)
    if found.damaged:
        raise ValueError(f"{path} is damaged: {found.damaged[0]}")
    try:
        return results(found.tables)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} holds what is no record of {subject}: {error!r}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def numbers(values: Any) -> Float[np.ndarray, "..."]:
    """Losses and shares of records. JSON has null for a loss that is not finite: here it is infinite, the worst there is.

    Example:
        >>> numbers([1.5, None]).tolist()
        [1.5, inf]
    """
    found = np.array(values, np.float64)
    return np.where(np.isnan(found), np.inf, found)


def sorted_out(
    cells: Iterable[C], difference: Callable[[C], Float[np.ndarray, " U"]]
) -> tuple[list[C], list[C], list[C]]:
    """Cells whose mean difference of pairs is below 0, above 0, and neither, by its 95 % interval or the range of fewer than 6.

    An infinite mean, of what diverged against what did not, has its sign. Nothing is shown by one pair, or where both diverged.

    Example:
        >>> sorted_out([-0.1, 0.0, 0.1, np.inf], lambda x: np.array([x, 2 * x]))
        ([-0.1], [0.1, inf], [0.0])
    """
    below, above, neither = [], [], []
    for cell in cells:
        with np.errstate(invalid="ignore"):  # of two infinite losses
            values = difference(cell)
            one = of_mean(values)
        low, high = (one.value, one.value) if np.isinf(one.value) else (one.low, one.high)
        known = len(values) > 1
        (below if known and high < 0 else above if known and low > 0 else neither).append(cell)
    return below, above, neither


def about(tables: list[Record]) -> Record:
    """The protocol, and where it was followed."""
    first = lambda kind: next((table for table in tables if table.get("kind") == kind), {})
    return {**first("protocol"), **first("made")}


def measured_on(about: Mapping[str, Any]) -> str:
    """When, with which versions and on which processor it was measured: the end of a page, without a full stop."""
    versions = ", ".join(f"{name} {about[name]}" for name in ("jax", "flax", "numpy"))
    return f"Measured on {about['date']} with Python {about['python']}, {versions} on {markdown(about['processor'])}"


def render(
    folder: pathlib.Path,
    read: Callable[[pathlib.Path], Any],
    pages: Mapping[str, Callable[[Any], str]],
    draw: Callable[[Any, pathlib.Path], list[pathlib.Path]],
) -> list[pathlib.Path]:
    """Write the pages, by name, and where matplotlib is installed the figures, from the records in a folder.

    Raises ValueError where the records are missing or damaged.
    """
    if not (folder / RECORDS).is_file():
        raise ValueError(f"{folder} holds no {RECORDS}: measure first, or render another folder")
    results = read(folder / RECORDS)
    texts = {folder / name: page(results) for name, page in pages.items()}
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    drawn = draw(results, folder) if importlib.util.find_spec("matplotlib") is not None else []
    return [*texts, *drawn]
