"""The commands that are experiments of a checkout and no part of the installed package: bench and parity."""

import argparse
import importlib
import pathlib
import sys
import types

import attnjax

ROOT = pathlib.Path(attnjax.__file__).resolve().parents[1]
"""The checkout that holds this package, where it was installed by `pip install -e`."""


def bench(arguments: argparse.Namespace) -> int:
    """`attnjax bench [SUITE ...]`: the exit status, see `experiments/speed/command.py`."""
    return experiment("bench", "speed").bench(arguments)


def parity(arguments: argparse.Namespace) -> int:
    """`attnjax parity FOLDER`: the exit status, see `experiments/parity/command.py`."""
    return experiment("parity", "parity").parity(arguments)


def experiment(command: str, name: str) -> types.ModuleType:
    """Returns the module experiments/NAME/command.py of the checkout. Raises ValueError where there is no checkout."""
    if not (ROOT / "experiments" / name / "command.py").is_file():
        raise ValueError(
            f"`attnjax {command}` is the experiment experiments/{name} of the source repository, which an installed package "
            "does not hold; install a checkout with `pip install -e .` and use the command of that environment"
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))  # before a folder named experiments where the command was started
    return importlib.import_module(f"experiments.{name}.command")
