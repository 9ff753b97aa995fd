"""What lies in a folder, to be compared before and after."""

import os
import pathlib


def tree(folder: pathlib.Path) -> dict[str, tuple[bytes | str, int, int]]:
    """Everything below, by path: the content of a file or what a link says, the mode, and the time of the last change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (content, about.st_mode, about.st_mtime_ns)
    return found
