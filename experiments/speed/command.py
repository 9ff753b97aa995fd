"""The command that measures: bench."""

import argparse
import importlib.util
import pathlib
import shlex
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.speed import suites

if TYPE_CHECKING:
    from experiments.speed.rows import Row

FOLDER = pathlib.Path("runs/bench")
NAME = "speed"


def bench(arguments: argparse.Namespace) -> int:
    """`attnjax bench [SUITE ...]`."""
    if arguments.list:
        print("\n".join(f"{name:<18}{text}" for name, (_, _, text) in suites.SUITES.items()))
        return 0
    if arguments.render is not None:
        if arguments.suites:
            raise ValueError(f"--render measures nothing, so it takes no suites, got {', '.join(arguments.suites)}")
        return _render(arguments.render)
    return _measure(arguments)


def _measure(arguments: argparse.Namespace) -> int:
    """Run the suites; every row is in the file before the next is measured."""
    torch = _interpreter(arguments.torch)
    names = suites.chosen(arguments.suites)
    folder = arguments.out or FOLDER
    _make(folder)

    from experiments.speed import rows, table
    from experiments.speed.settings import Settings

    record = rows.Record(folder / f"{NAME}.jsonl", _machine(arguments))
    refused: list[str] = []

    def emit(row: "Row") -> None:
        record.add(row)
        print(table.line(row), flush=True)

    def refuse(text: str) -> None:
        refused.append(text)
        print(text, flush=True)

    rounds, seconds = (3, 2.0) if arguments.smoke else (Settings.rounds, Settings.seconds)
    rounds, seconds = arguments.rounds or rounds, arguments.seconds or seconds
    failed = suites.run(names, Settings(emit, print, arguments.smoke, torch, rounds, seconds, refuse))
    _render(folder)
    if failed:
        print(f"{failed} of {len(names)} suites failed")
    if refused:
        print(f"{len(refused)} peers do not agree with us")
    return int(failed > 0 or (arguments.smoke and bool(refused)))


def _machine(arguments: argparse.Namespace) -> dict[str, Any]:
    """What is written above the rows: the machine, its measured rates, and the command without its folders."""
    from experiments.speed import machine

    seconds = 0.2 if arguments.smoke else 2.0
    options = [*arguments.suites, *(["--smoke"] if arguments.smoke else [])]
    options += ["--torch", "PYTHON"] if arguments.torch else []
    options += [f"--{name}={value:g}" for name in ("rounds", "seconds") if (value := getattr(arguments, name))]
    return {
        **machine.describe(),
        "peak_flops": machine.peak_flops(seconds),
        "bandwidth": machine.bandwidth(seconds),
        "smoke": arguments.smoke,
        "command": shlex.join(["attnjax", "bench", *options]),
    }


def _render(folder: pathlib.Path) -> int:
    """Write table and figure from the rows in a folder, and say which goals were missed."""
    from experiments.speed import rows, table

    path = folder / f"{NAME}.jsonl"
    try:
        machine, found = rows.read(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    page = path.with_suffix(".md")
    page.write_text(table.markdown(machine, found), encoding="utf-8")
    print(table.SMOKE if machine.get("smoke") else "\n".join(table.missed(found)))
    for made in [page, *_figure(machine, found, path.with_suffix(""))]:
        print(made)
    return 0


def _figure(machine: Mapping[str, Any], found: list["Row"], path: pathlib.Path) -> list[pathlib.Path]:
    """The files of the figure; none, and a line that says why, where it cannot be drawn."""
    from experiments.speed import figure

    if importlib.util.find_spec("matplotlib") is None:
        print("no figure: matplotlib is not installed: pip install 'attnjax[plot]'")
        return []
    made = figure.write(machine, found, path)
    if not made:
        print("no figure: no case was measured at several lengths T")
    return made


def _interpreter(name: str | None) -> pathlib.Path | None:
    """The program that --torch names. Raises ValueError where there is none."""
    if name is None:
        return None
    found = shutil.which(name)
    if found is None:
        raise ValueError(f"--torch must be a Python interpreter, got {name!r}, which is no program")
    return pathlib.Path(found)


def _make(folder: pathlib.Path) -> None:
    """Make the folder; an earlier record in it is kept under another name, because measuring it took long."""
    old = folder / f"{NAME}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if old.exists():
            old.replace(folder / f"{NAME}.before.jsonl")
    except OSError as error:
        raise ValueError(f"{folder} cannot be written to: {error.strerror or error}") from error
