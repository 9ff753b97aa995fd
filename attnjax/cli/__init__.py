"""The command line, `attnjax` or `python -m attnjax`. Nothing imports JAX before training starts or a model is measured.

Modules are imported inside `main`, so that Ctrl-C while they load is handled like any other Ctrl-C.
"""

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

WRONG, INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status, see `attnjax --help`."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: no character may end a command
    try:
        return _answer(parsed(arguments))
    except KeyboardInterrupt:
        print("attnjax: interrupted", file=sys.stderr)
        return INTERRUPTED


def parsed(arguments: Sequence[str] | None) -> "argparse.Namespace":
    """What the words of a command mean, `sys.argv` by default; argparse ends the process with 2 where they mean nothing."""
    from attnjax.cli.parser import parser

    top = parser()
    chosen, rest = top.parse_known_args(arguments)
    if any(word.startswith("-") or "=" not in word for word in rest) or (rest and not hasattr(chosen, "overrides")):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # overrides that stand behind options
        chosen.overrides += rest
    return chosen


def _answer(chosen: "argparse.Namespace") -> int:
    """Runs a command and returns its exit status; an error of the user, the disk or the platform becomes one sentence."""
    code = 0
    try:
        code = chosen.command(chosen)
        _flush()
        return code
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        pass
    except Exception as error:
        from attnjax.cli.errors import sentence

        code, told = WRONG, None if chosen.traceback else sentence(error)
        if told is None:
            raise
        print(f"attnjax: error: {told}", file=sys.stderr)
    try:
        _flush()
    except OSError:
        from attnjax.cli.progress import drop_output

        drop_output()
    return code


def _flush() -> None:
    if sys.stdout is not None:  # a process may be started without one
        sys.stdout.flush()
