"""Choosing an entry of a folder such that the same seed chooses the same one, although runs and checkpoints name files anew."""

import os
import pathlib
import random
import re

SHALLOW = 3
NAMES = ((r"[0-9a-f]{32}", "H"), (r"[0-9a-f]{16}", "R"), (r"\d+", "N"))


def entries(root: pathlib.Path, kinds: str = "fd") -> list[pathlib.Path]:
    """Regular files (f) and folders (d) below a folder, in an order that names made at random do not change."""
    found = []
    for folder, folders, files in os.walk(root):
        here = pathlib.Path(folder)
        found += [here / name for name in folders if "d" in kinds and not (here / name).is_symlink()]
        found += [here / name for name in files if "f" in kinds and _regular(here / name)]
    return sorted(found, key=lambda path: (role(root, path), _size(path), str(path)))


def role(root: pathlib.Path, path: pathlib.Path) -> str:
    """What an entry is for: its path, where runs are R, steps and numbers N and other names of digits H."""
    parts = path.relative_to(root).parts
    for pattern, letter in NAMES:
        parts = tuple(re.sub(rf"^{pattern}$", letter, part) for part in parts)
    return "/".join(parts)


def pick(draw: random.Random, root: pathlib.Path, kinds: str = "fd", ends: str = "") -> pathlib.Path | None:
    """An entry, each role as likely as another; None where there is none whose name ends as asked.

    Every other time none below the folder of a checkpoint: what is deep would else be drawn most of the time.
    """
    roles: dict[str, list[pathlib.Path]] = {}
    deepest = draw.choice((SHALLOW, 99))
    for path in entries(root, kinds):
        if path.name.endswith(ends) and len(path.relative_to(root).parts) <= deepest:
            roles.setdefault(role(root, path), []).append(path)
    return draw.choice(roles[draw.choice(sorted(roles))]) if roles else None


def alike(draw: random.Random, root: pathlib.Path, path: pathlib.Path) -> pathlib.Path | None:
    """Another entry of the same kind and, if there is one, of the same role."""
    others = [other for other in entries(root, "d" if path.is_dir() else "f") if other != path]
    same = [other for other in others if role(root, other) == role(root, path)]
    apart = [other for other in same or others if path not in other.parents and other not in path.parents]
    return draw.choice(apart) if apart else None


def _regular(path: pathlib.Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.is_file() else 0
