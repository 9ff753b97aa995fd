"""Entries that are not what they should be: links, pipes, other kinds, other places, no permission.

Each function takes (draw, root, path, canary): the mutated folder, an entry of it, and the canary beside it. It returns in
words what it did, or "" where it does not apply.
"""

import os
import pathlib
import random
import shutil

from tests.fuzz import tree

Draw = random.Random
Path = pathlib.Path


def link(draw: Draw, root: Path, path: Path, canary: Path) -> str:
    """The entry becomes a link: out of the folder, to nothing, to itself, upwards, to a device or to a pipe."""
    fitting = [one for one in tree.entries(canary, "d" if path.is_dir() else "f") if one.name == path.name]
    any_of_its_kind = draw.choice(tree.entries(canary, "d" if path.is_dir() else "f"))
    outside = draw.choice(fitting) if fitting and draw.random() < 0.6 else any_of_its_kind
    folder = canary if path.is_dir() else outside
    # Devices that never end or never answer; opening a pipe waits for the other end.
    targets = (outside, outside, folder, canary / "absent", path, path.parent, "/dev/zero", canary / "pipe")
    target = Path(draw.choice(targets))
    moved = draw.random() < 0.3 and target == outside
    _remove(path)
    if moved:  # a link to what really is the right thing, but elsewhere in the folder
        target = root / "elsewhere"
        shutil.copytree(outside, target) if outside.is_dir() else shutil.copyfile(outside, target)
    relative = draw.random() < 0.5 and target.is_absolute() and "dev" not in target.parts
    path.symlink_to(os.path.relpath(target, path.parent) if relative else target)
    return f"is a link to {os.path.relpath(target, root.parent) if 'dev' not in target.parts else target}"


def hard_link(draw: Draw, root: Path, path: Path, canary: Path) -> str:
    if path.is_dir():
        return ""
    files = tree.entries(canary, "f")
    target = draw.choice([one for one in files if one.name == path.name] or files)
    path.unlink()
    path.hardlink_to(target)
    return f"is a hard link to {target.relative_to(canary.parent)}"


def pipe(draw: Draw, root: Path, path: Path, canary: Path) -> str:
    _remove(path)
    os.mkfifo(path)
    return "is a pipe"


def other_kind(draw: Draw, root: Path, path: Path, canary: Path) -> str:
    """An empty folder in place of a file, an empty file in place of a folder."""
    was_folder = path.is_dir()
    _remove(path)
    path.touch() if was_folder else path.mkdir()
    return "is an empty file" if was_folder else "is an empty folder"


def delete(draw: Draw, root: Path, path: Path, canary: Path) -> str:
    _remove(path)
    return "was deleted"


def swap(draw: Draw, root: Path, path: Path, canary: Path) -> str:
    other = tree.alike(draw, root, path)
    if other is None:
        return ""
    middle = path.with_name("middle")
    path.rename(middle)
    other.rename(path)
    middle.rename(other)
    return f"changed places with {other.relative_to(root)}"


def duplicate(draw: Draw, root: Path, path: Path, canary: Path) -> str:
    """A copy over another entry of its role, or under a name that resembles a step, a run, a lease or a leftover."""
    names = (
        "80",
        "040",
        "0",
        "-1",
        "9" * 30,
        "\uff16\uff10",
        "40.orbax-checkpoint-tmp-7",
        "lease-999999",
        "0" * 16,
        ".x",
        "a\nb",
    )
    other = tree.alike(draw, root, path) if draw.random() < 0.5 else path.with_name(draw.choice(names))
    if other is None or root in (path, other):
        return ""
    _remove(other)
    shutil.copytree(path, other) if path.is_dir() else shutil.copyfile(path, other)
    return f"was copied to {str(other.relative_to(root))!r}"


def forbid(draw: Draw, root: Path, path: Path, canary: Path) -> str:
    mode = draw.choice((0o000, 0o000, 0o444, 0o555, 0o200))
    path.chmod(mode)
    return f"has mode {mode:03o}"


def unlock(folder: Path) -> None:
    """Give back the permissions, so that the folder can be removed."""
    folder.chmod(0o700)
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            unlock(Path(entry.path))


LINKS = (link, link, link, hard_link)
FILES = (delete, swap, duplicate, duplicate, other_kind)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
