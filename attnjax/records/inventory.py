"""Size, lines and sha256 of a run's files of records when it ended, kept in its manifest to detect later changes.

The checksum of a line shows that the line is unchanged; the inventory shows that no line is missing.
"""

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from attnjax.folder import enter
from attnjax.records import jsonl
from attnjax.records.files import opened
from attnjax.records.values import as_dict

EXAMPLES = "examples.npz"
"""The file of `attnjax.records.examples`, which needs NumPy; what only asks for its name does not."""
FIELD = "records"
"""The manifest's field: {"results.jsonl": {"bytes": 541, "lines": 4, "sha256": "..."}, ...}."""
ENDED = ("done", "failed", "preempted")
LARGEST = 2**32
"""Bytes beyond which a file is not hashed."""


def take(directory: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Bytes, lines and sha256 of each file of records; of a missing log those of an empty one.

    A link, or what is no file, is left out. Raises OSError where a file cannot be read.
    """
    found = {}
    for name in jsonl.FILES:
        with contextlib.suppress(ValueError):
            found[name] = _digest(directory / name)
    with contextlib.suppress(ValueError), enter(directory) as folder:
        if folder.kind(EXAMPLES) == "file":
            found[EXAMPLES] = _digest(directory / EXAMPLES)
    return found


def differences(directory: pathlib.Path, state: str, manifest: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong, by file, where the records of a run in this state are not those of its end.

    A run that has not ended has none to compare, and so has one of an earlier version, whose manifest does not say.
    """
    # A run whose workers died one after the other fails without an end of its own: its manifest still says "running".
    if state not in ENDED or manifest.get("state") != state or FIELD not in manifest:
        return {}
    then = as_dict(manifest[FIELD])
    names = (*jsonl.FILES, *(name for name in (EXAMPLES,) if name in then))
    found = {name: _difference(directory / name, then.get(name)) for name in names}
    return {name: text for name, text in found.items() if text}


def _difference(path: pathlib.Path, then: Any) -> str:
    """What a file lacks of what the manifest says that it held, "" where it lacks nothing."""
    size, count, digest = (as_dict(then).get(key) for key in ("bytes", "lines", "sha256"))
    if not (isinstance(size, int) and isinstance(count, int) and isinstance(digest, str)):
        return "cannot be compared with what it held at the end of the run: the manifest does not say"
    held = f"when the run ended it had {size} bytes in {count} lines"
    try:
        with opened(path, os.O_RDONLY) as file:
            there = os.fstat(file).st_size
        if there != size:
            return f"has {there} bytes; {held}"
        if there > LARGEST:
            return f"is larger than {LARGEST // 2**30} GiB, more than is compared"
        changed = _digest(path)["sha256"] != digest
        return "has changed since the run ended: its sha256 is not the one in the manifest" if changed else ""
    except FileNotFoundError:
        return f"is missing; {held}" if size else ""
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except ValueError as error:
        return str(error).removeprefix(f"{path} ")


def _digest(path: pathlib.Path) -> dict[str, Any]:
    size, count, digest = 0, 0, hashlib.sha256()
    try:
        with opened(path, os.O_RDONLY) as file:
            while part := os.read(file, 2**20):
                size, count = size + len(part), count + part.count(b"\n")
                digest.update(part)
    except FileNotFoundError:
        pass
    return {"bytes": size, "lines": count, "sha256": digest.hexdigest()}
