"""Measure suites into a record, and write table and figure from it. Needs no JAX until it measures."""

import argparse
import importlib.util
import pathlib
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.speed import suites

if TYPE_CHECKING:
    from experiments.speed.records import Row

FOLDER = pathlib.Path("runs/bench")
NAME = "speed"


def bench(arguments: argparse.Namespace) -> int:
    """Return 0, or 1 where a suite failed, or with --smoke a peer does not agree with us.

    Raises ValueError for a mistake of the user, before anything is measured.
    """
    if arguments.list:
        print("\n".join(f"{name:<18}{suite}" for name, suite in suites.SUITES.items()))
        return 0
    if arguments.render is not None:
        if arguments.suites:
            raise ValueError(f"--render measures nothing, so it takes no suites, got {', '.join(arguments.suites)}")
        render(arguments.render)
        return 0
    return measure(arguments)


def measure(arguments: argparse.Namespace) -> int:
    """Run the suites; every row is in the file before the next is measured."""
    names, folder, torch = suites.chosen(arguments.suites), arguments.out or FOLDER, arguments.torch
    check_lengths(names, arguments)
    if torch is not None and shutil.which(torch) is None:
        raise ValueError(f"--torch must be a Python interpreter, got {torch!r}, which is no program")
    old = folder / f"{NAME}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if old.exists():  # measuring it took long
            old.replace(folder / f"{NAME}.before.jsonl")
    except OSError as error:
        raise ValueError(f"{folder} cannot be written to: {error.strerror or error}") from error

    from experiments.speed import records, table
    from experiments.speed.harness import Settings

    record = records.Record(old, machine_of(arguments))
    refused: list[str] = []

    def emit(row: "Row") -> None:
        record.add(row)
        print(table.line(row), flush=True)

    def refuse(text: str) -> None:
        refused.append(text)
        print(text, flush=True)

    rounds, seconds = (3, 2.0) if arguments.smoke else (Settings.rounds, Settings.seconds)
    given = {"rounds": arguments.rounds or rounds, "seconds": arguments.seconds or seconds, "refuse": refuse}
    given["only"] = arguments.lengths
    given["torch"] = pathlib.Path(shutil.which(torch) or torch) if torch else None
    failed = suites.run(names, Settings(emit, print, arguments.smoke, **given))
    render(folder)
    if failed:
        print(f"{failed} of {len(names)} suites failed")
    if refused:
        print(f"{len(refused)} peers do not agree with us")
    return int(failed > 0 or (arguments.smoke and bool(refused)))


def check_lengths(names: Sequence[str], arguments: argparse.Namespace) -> None:
    """Raises ValueError for a length of --lengths at which one of the suites does not measure."""
    for name in names if arguments.lengths else ():
        suite = suites.SUITES[name]
        if suite.fixed:
            raise ValueError(f"suite {name} measures at all its lengths: leave out --lengths")
        there = suite.smoke if arguments.smoke else suite.lengths
        if wrong := sorted(set(arguments.lengths) - set(there)):
            several = ", ".join(map(str, there))
            raise ValueError(f"suite {name} measures at T = {several}, and not at {', '.join(map(str, wrong))}")


def machine_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What is written above the rows: the machine, its measured rates, and the command without its folders."""
    from experiments.speed import machine

    seconds = 0.2 if arguments.smoke else 2.0
    options = [*arguments.suites, *(["--smoke"] if arguments.smoke else [])]
    options += ["--lengths", *map(str, arguments.lengths)] if arguments.lengths else []
    options += ["--torch", "PYTHON"] if arguments.torch else []
    options += [f"--{name}={value:g}" for name in ("rounds", "seconds") if (value := getattr(arguments, name))]
    return {
        **machine.describe(),
        "peak_flops": machine.peak_flops(seconds),
        "bandwidth": machine.bandwidth(seconds),
        "smoke": arguments.smoke,
        "command": shlex.join(["python", "-m", "experiments.speed", *options]),
    }


def render(folder: pathlib.Path) -> None:
    """Write table and figure from the rows in a folder, and say which goals were missed.

    Raises ValueError where the rows are missing or damaged.
    """
    from experiments.speed import records, table

    path = folder / f"{NAME}.jsonl"
    try:
        machine, rows = records.read(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    page = path.with_suffix(".md")
    page.write_text(table.markdown(machine, rows), encoding="utf-8")
    print(table.SMOKE if machine.get("smoke") else "\n".join(table.missed(rows)))
    for made in [page, *drawn(machine, rows, path.with_suffix(""))]:
        print(made)


def drawn(machine: Mapping[str, Any], rows: Sequence["Row"], path: pathlib.Path) -> list[pathlib.Path]:
    """The files of the figure; none, and a line that says why, where it cannot be drawn."""
    from experiments.speed import figure

    if importlib.util.find_spec("matplotlib") is None:
        print("no figure: matplotlib is not installed: pip install 'attnjax[plot]'")
        return []
    made = figure.write(machine, rows, path)
    if not made:
        print("no figure: no case was measured at several lengths T")
    return made
