"""`record.json`: every number of the page, and what computed it. Reading checks that it is a record of this experiment."""

import json
import math
import os
import pathlib
from typing import Any

import flax
import jax
import numpy as np

from attnjax import __version__
from experiments.first_principles.sections import NAMES, Section
from experiments.speed import machine

FILE, SCHEMA = "record.json", 1
DIGITS = 8
"""Significant digits kept: float32 has fewer."""
OF_MACHINE = ("processor", "cores", "memory_bytes", "python", "jaxlib", "backend", "device")

Record = dict[str, Any]


def entry(section: Section) -> Record:
    """What one section computes now; with machine and day where its numbers depend on them."""
    made: Record = {"attnjax": __version__, "jax": jax.__version__, "flax": flax.__version__}
    made["numbers"] = rounded(section.numbers())
    if section.measured:
        known = machine.describe()
        made |= {"machine": {name: known[name] for name in OF_MACHINE}, "date": known["date"][:10]}
    return made


def rounded(value: Any) -> Any:
    """Plain values as JSON has them: numbers to `DIGITS` significant digits, None for what is not finite.

    Raises TypeError for anything else.
    """
    if isinstance(value, dict):
        return {str(name): rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float | np.floating):
        return float(f"{float(value):.{DIGITS}g}") if math.isfinite(value) else None
    raise TypeError(f"a record holds plain numbers and texts, got {type(value).__name__}")


def write(folder: pathlib.Path, sections: dict[str, Record]) -> None:
    """Write the record, whole or not at all."""
    ordered = {name: sections[name] for name in NAMES if name in sections}
    beside = folder / f"{FILE}.new"
    beside.write_text(laid_out({"schema": SCHEMA, "sections": ordered}) + "\n", encoding="utf-8")
    os.replace(beside, folder / FILE)


def laid_out(value: Any, indent: int = 0) -> str:
    """JSON with a line for every name, and lists in one line each."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    pad = " " * (indent + 1)
    inner = (f"{pad}{json.dumps(name)}: {laid_out(held, indent + 1)}" for name, held in value.items())
    return "{\n" + ",\n".join(inner) + "\n" + " " * indent + "}"


def read(folder: pathlib.Path) -> dict[str, Record]:
    """The sections of a record by name, in the order of the page.

    Raises ValueError where the folder has no record, or the file is not one.
    """
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("sections"), dict):
        raise ValueError(f"{path} must hold schema {SCHEMA} and sections, as `--out` writes them")
    for name, held in found["sections"].items():
        if name not in NAMES:
            raise ValueError(f"{path}: sections are some of {', '.join(NAMES)}, got {name[:100]!r}")
        if not isinstance(held, dict) or not isinstance(held.get("numbers"), dict):
            raise ValueError(f"{path}: section {name!r} must hold its numbers")
    return {name: found["sections"][name] for name in NAMES if name in found["sections"]}
