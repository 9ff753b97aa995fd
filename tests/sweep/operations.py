"""Counts the file operations of this process: what an operation on a folder costs, whatever the machine and its disk."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator

CALLS = ("open", "listdir", "stat", "lstat", "mkdir", "link", "replace", "unlink", "write", "fsync")


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often the block calls each function of `CALLS`."""
    found, real = Counter(), {name: getattr(os, name) for name in CALLS}

    def counting(name):
        def call(*arguments, **named):
            found[name] += 1
            return real[name](*arguments, **named)

        return call

    for name in CALLS:
        setattr(os, name, counting(name))
    try:
        yield found
    finally:
        for name in CALLS:
            setattr(os, name, real[name])
