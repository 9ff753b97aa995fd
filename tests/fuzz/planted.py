"""Programs that misbehave on purpose, to see that the checks notice: `main([word])` in the folder `work` of a case."""

import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import NoReturn


def _raise() -> NoReturn:
    raise KeyError("planted")


def _hang() -> None:
    while True:
        time.sleep(60)


def _take_memory() -> None:
    bytearray(3 * 2**29)


def _append() -> None:
    with pathlib.Path("../thing/status.json").open("a") as file:
        file.write(" ")


DEEDS: dict[str, Callable[[], object]] = {
    "nothing": lambda: print("fine"),
    "raise": _raise,
    "print a traceback": lambda: print("Traceback (most recent call last):\n  ..."),
    "exit with 7": lambda: sys.exit(7),
    "die": lambda: os._exit(9),
    "hang": _hang,
    "take memory": _take_memory,
    "tell the secret": lambda: print(pathlib.Path("../canary/secret.txt").read_text()),
    "copy the secret": lambda: pathlib.Path("../out/x").write_text(pathlib.Path("../canary/secret.txt").read_text()),
    "move": lambda: pathlib.Path("../canary/60").rename("../thing/60"),
    "write beside": lambda: pathlib.Path("left.txt").touch(),
    "change what it reads": _append,
}


def main(arguments: list[str]) -> int:
    """Do what the word says."""
    DEEDS[arguments[0]]()
    return 0
