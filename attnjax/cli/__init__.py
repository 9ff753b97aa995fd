"""The command line, `attnjax` or `python -m attnjax`. Nothing imports JAX before training starts or a model is measured."""

import os
import sys
from collections.abc import Sequence

from attnjax.cli.parser import parser
from attnjax.sweep.stop import exit_status

FAILED, WRONG = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status, see `attnjax --help`."""
    top = parser()
    chosen, rest = top.parse_known_args(arguments)
    if any(word.startswith("-") or "=" not in word for word in rest) or (rest and not hasattr(chosen, "overrides")):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # overrides that stand behind options
        chosen.overrides += rest
    try:
        return chosen.command(chosen)
    except ValueError as error:
        if chosen.traceback:
            raise
        print(f"attnjax: error: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt as interrupt:
        print("attnjax: interrupted", file=sys.stderr)
        return exit_status(interrupt)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if chosen.traceback:
            raise
        print(f"attnjax: error: {error.filename} cannot be used: {error.strerror or error}", file=sys.stderr)
        return WRONG
