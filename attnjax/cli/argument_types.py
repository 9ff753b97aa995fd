"""Types of command-line arguments for argparse: each returns the value, or raises an error that says what is allowed."""

import argparse
import pathlib
import re

from attnjax.config.mesh import MeshShape, parse_mesh

LONGEST = 2**24
"""The longest text that `evaluate` makes, in tokens."""


def count(text: str) -> int:
    """A whole number from 1 to 999,999,999."""
    return _whole(text, 1, 999_999_999)


def index(text: str) -> int:
    """A whole number from 0 to 999,999,999."""
    return _whole(text, 0, 999_999_999)


def seed(text: str) -> int:
    """A whole number below 2^32."""
    return _whole(text, 0, 2**32 - 1)


def _whole(text: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 20 or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, got {text[:40]!r}")
    return int(text)


def lengths(text: str) -> tuple[int, ...]:
    """Lengths such as 512,1k,4k in ascending order, each once; k is 1,024."""
    found = [count(one[:-1]) * 1024 if one[-1:] in "kK" and one else count(one) for one in text.split(",")]
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"must name each length once, got {text[:40]!r}")
    if max(found) > LONGEST:
        raise argparse.ArgumentTypeError(f"must have lengths of at most {LONGEST}, got {max(found)}")
    return tuple(sorted(found))


def pair(text: str) -> tuple[str, str]:
    """KEY=VALUE, of one line, since a script of the shell gets it."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[a-z][a-z_-]*", key) or not value.isprintable() or not value.isascii():
        raise argparse.ArgumentTypeError(
            f"must be KEY=VALUE, as partition=gpu, in one line of ASCII; got {text[:80]!r}"
        )
    return key, value


def words(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(text.split(","))


def seconds(text: str) -> float:
    """Seconds above 0."""
    return _between(text, 1e9, "a number of seconds above 0")


def tolerance(text: str) -> float:
    """A number between 0 and 1."""
    return _between(text, 1.0, "a number between 0 and 1")


def _between(text: str, most: float, allowed: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < most:
        raise argparse.ArgumentTypeError(f"must be {allowed}, got {text[:40]!r}")
    return value


def folder(text: str) -> pathlib.Path:
    """A folder in which runs are trained."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"must be a folder that all workers see, got the URL {text[:80]!r}; copy the folder there afterwards"
        )
    return pathlib.Path(text)


def mesh(text: str) -> MeshShape:
    """Devices along the axes of a mesh."""
    try:
        return parse_mesh(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("mesh: ")) from None


def coordinator(text: str) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][\w.-]*):[1-9][0-9]{0,4}", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"must be HOST:PORT of process 0, an IPv6 address in brackets, got {text[:80]!r}"
        )
    return text
