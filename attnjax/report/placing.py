"""Replaces the files of a folder all at once or not at all, and never through a link.

    with placed(target) as temporary:
        (temporary / "table.md").write_text("...")

The block writes files, and no folders, in a temporary folder; they are moved when it has ended well. A target that is not there
is made by one rename. In one that is, each file replaces its namesake in one step, the page last, and files of others stay.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from attnjax.safety import refuse_link

LAST = "report.html"
"""The file that a reader opens: replaced when all it leads to is there."""


@contextlib.contextmanager
def placed(target: Path) -> Iterator[Path]:
    """Yield a new folder to write to, whose files are at `target` after the block, and which is removed where the block fails.

    The folder above the target is made where there is none. Raises ValueError where the target is a link or has one in a
    place that is written to, and OSError where the disk refuses; what was there before is then as it was.
    """
    refuse_link(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    there = target.is_dir()
    # Inside the target: the folder above may be another disk, or one that only others may write to.
    made = (target if there else target.parent) / f".{target.name}.{secrets.token_hex(6)}.tmp"
    made.mkdir()
    try:
        yield made
        if there:
            _move_files(made, target)
        else:
            made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _move_files(source: Path, target: Path) -> None:
    """Replace the files of the target by those of the source, `LAST` at the end, after a look at all places."""
    names = sorted((path.name for path in source.iterdir()), key=lambda name: (name == LAST, name))
    for name in names:
        refuse_link(target / name)
        if (target / name).is_dir():
            raise ValueError(f"{target / name} is no file: remove it, or give another folder")
    for name in names:
        os.replace(source / name, target / name)
