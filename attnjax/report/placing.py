"""Replaces the files of a folder all at once or not at all, and never through a link.

    with placed(target) as temporary:
        (temporary / "table.md").write_text("...")

What the block writes lies in a temporary folder and is moved when the block has ended well. A target that is not there is
made by one rename. In one that is, each file replaces its namesake in one step, the page last, and files of others stay.
"""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from attnjax.folder import PARTIAL, Folder, LinkError, enter

LAST = "report.html"
"""The file that a reader opens: replaced when all it leads to is there."""


@contextlib.contextmanager
def placed(target: Path) -> Iterator[Path]:
    """A new folder to write to, whose files are at `target` after the block, and which is removed where the block fails.

    The folder above the target is made where there is none. Raises LinkError where the target is a link or has one in a
    place that is written to, and OSError where the disk refuses; what was there before is then as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with enter(target.parent, follow=True) as above:
        if above.kind(target.name):
            # Inside the target: the folder above may be another disk, or one that only others may write to.
            with above.enter(target.name) as there, new_folder(there, target.name) as made:
                yield made.path
                check_places(made, there)
                move_files(made, there)
        else:
            with new_folder(above, target.name) as made:
                yield made.path
                above.move(made.path.name, above, target.name)


@contextlib.contextmanager
def new_folder(above: Folder, name: str) -> Iterator[Folder]:
    """An empty folder, removed with all that is left in it at the end of the block."""
    temporary = f".{name}.{secrets.token_hex(6)}{PARTIAL}"
    try:
        with above.make(temporary) as made:
            yield made
    finally:
        above.remove(temporary)


def check_places(source: Folder, target: Folder) -> None:
    """Raise an error, before anything is moved, where the target has a link or another kind of entry in a file's place."""
    for name in source.names():
        kind, there = source.kind(name), target.kind(name)
        if there == "link":
            raise LinkError(target.path / name)
        if there not in ("", kind):
            raise ValueError(f"{target.path / name} is no {kind}: remove it, or give another folder")
        if kind == "folder" and there:
            with source.enter(name) as inner, target.enter(name) as below:
                check_places(inner, below)


def move_files(source: Folder, target: Folder) -> None:
    """Replace the files of the target by those of the source, folders first and `LAST` at the end."""
    for name in sorted(source.names(), key=lambda name: (source.kind(name) != "folder", name == LAST, name)):
        if source.kind(name) == "folder":
            with source.enter(name) as inner, target.make(name) as below:
                move_files(inner, below)
        else:
            source.move(name, target, name)
