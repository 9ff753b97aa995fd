"""The command `attnjax explore`: writes the interactive page."""

import argparse
import os
import pathlib

from attnjax.cli.commands import provided
from attnjax.cli.compilation_cache import keep_programs
from attnjax.config.outside import import_modules
from attnjax.sweep import find_run

MOST_BYTES = 2**16
"""A file with more bytes than this is refused."""


def explore(arguments: argparse.Namespace) -> int:
    """`attnjax explore [RUN [RUN]]`."""
    if arguments.runs:
        keep_programs()
    import_modules(arguments.imports)
    texts = [os.fsencode(text) for text in arguments.text] + [_read(path) for path in arguments.file]
    build = provided("attnjax.explore", "build")
    path = build([find_run(run) for run in arguments.runs], arguments.out, texts, arguments.layer, arguments.head)
    print(f"{path}  {path.stat().st_size / 2**20:.1f} MiB")
    return 0


def _read(path: pathlib.Path) -> bytes:
    """The bytes of a file. Raises ValueError where it cannot be read, or is far longer than a map."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES} bytes; a map shows at most 128 tokens")
    return data
