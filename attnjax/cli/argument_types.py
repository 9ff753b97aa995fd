"""Types of command-line arguments for argparse: each returns the value, or raises an error that says what is allowed."""

import argparse
import ipaddress
import pathlib
import re

from attnjax.config.mesh import MeshShape, parse_mesh
from attnjax.records.remote import local
from attnjax.sweep.store import NO_CLAIMS

COORDINATOR = re.compile(
    r"(\[(?P<v6>[0-9A-Fa-f:.]+)\]|[A-Za-z0-9]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9])?):(?P<port>[0-9]{1,5})"
)

LONGEST = 2**24
"""The longest text that `evaluate` makes, in tokens."""


def count(text: str) -> int:
    """A whole number from 1 to 999,999,999."""
    return _whole(text, 1)


def index(text: str) -> int:
    """A whole number from 0 to 999,999,999."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.isascii() or not text.isdecimal() or not least <= int(text[:9]) == int(text[:10]):
        raise argparse.ArgumentTypeError(f"must be a whole number from {least} to 999999999, got {text[:40]!r}")
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
    """KEY=VALUE, of one line."""
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
    value = _number(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text[:40]!r}")
    return value


def tolerance(text: str) -> float:
    """A number between 0 and 1."""
    value = _number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1, got {text[:40]!r}")
    return value


def seed(text: str) -> int:
    """A whole number below 2^32."""
    if not text.isascii() or not text.isdecimal() or not int(text[:11]) == int(text[:12]) < 2**32:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2^32 - 1, got {text[:40]!r}")
    return int(text)


def folder(text: str) -> pathlib.Path:
    """A folder in which runs are trained."""
    try:
        return local(text, NO_CLAIMS)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def mesh(text: str) -> MeshShape:
    """Devices along the axes of a mesh."""
    try:
        return parse_mesh(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("mesh: ")) from None


def coordinator(text: str) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    found = COORDINATOR.fullmatch(text)
    valid = found is not None and 0 < int(found["port"]) < 2**16
    if found is not None and found["v6"] is not None:
        try:
            ipaddress.IPv6Address(found["v6"])
        except ValueError:
            valid = False
    if not valid:
        raise argparse.ArgumentTypeError(
            f"must be HOST:PORT of process 0, an IPv6 address in brackets, with a port from 1 to 65535; got {text[:80]!r}"
        )
    return text


def _number(text: str) -> float:
    """The number that the text means, NaN for a text that is no number."""
    try:
        return float(text)
    except ValueError:
        return float("nan")
