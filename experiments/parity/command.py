"""The command that compares a folder of weights with transformers: parity."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.parity.comparing import Difference

WORST = 10
"""Gradients that are listed."""


def parity(arguments: argparse.Namespace) -> int:
    """`attnjax parity FOLDER`: 0 if every relative difference is within the tolerance, 1 otherwise."""
    from experiments.parity.comparing import compare

    found = compare(arguments.folder, tokens=arguments.tokens, seed=arguments.seed, dtype=arguments.dtype)
    lines, failed = told(found, arguments.tolerance)
    print("\n".join(lines))
    return int(failed > 0)


def told(differences: Sequence["Difference"], tolerance: float) -> tuple[list[str], int]:
    """A table with outputs, loss and the worst gradients; and how many differences exceed the tolerance. NaN does."""
    gradients = [one for one in differences if one.name.startswith("gradient of ")]
    first = [one for one in differences if one not in gradients]
    failed = [one.name for one in differences if not one.relative <= tolerance]
    worst = sorted(gradients, key=lambda one: -one.relative if one.relative == one.relative else -float("inf"))
    shown = [*first, *worst[:WORST]]
    width = max(len(one.name) for one in shown)
    lines = [f"{'largest difference':<{width}}  absolute  relative"]
    lines += [f"{one.name:<{width}}  {one.absolute:8.1e}  {one.relative:8.1e}" for one in shown]
    if len(gradients) > WORST:
        lines.append(f"and {len(gradients) - WORST} gradients with smaller differences")
    count = f"{len(failed)} of {len(differences)}" if failed else f"none of {len(differences)}"
    lines.append(f"{count} exceed the relative tolerance {tolerance:g}")
    return lines, len(failed)
