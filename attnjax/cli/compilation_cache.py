"""Keeps compiled programs on the disk, where the next start of a sweep, and every worker after the first, finds them.

JAX reads the folder from the environment, so this must run before JAX is imported; workers inherit the setting. JAX executes
the programs in the folder, so it is used only if it belongs to the user and nobody else can write to it. If the user has set
JAX_COMPILATION_CACHE_DIR, or has switched the cache off with JAX_ENABLE_COMPILATION_CACHE=false, nothing is changed.
"""

import os
import pathlib
import stat
import time
from collections.abc import MutableMapping

FOLDER = "JAX_COMPILATION_CACHE_DIR"
SWITCH = "JAX_ENABLE_COMPILATION_CACHE"
SMALL = (("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"), ("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1"))
"""By default JAX keeps only programs that took a second to compile, which those of small models seldom do."""
DAYS = 30
"""Programs older than this are removed; versions of JAX leave theirs behind."""


def keep_programs(environ: MutableMapping[str, str] = os.environ) -> pathlib.Path | None:
    """Set the environment so that JAX keeps programs. Returns the folder, or None if there is no private one."""
    if environ.get(FOLDER) or environ.get(SWITCH, "true").lower() in ("0", "false", "no", "off"):
        return None
    folder = private_folder(environ)
    if folder is None:
        return None
    remove_old(folder)
    environ[FOLDER] = str(folder)
    for name, value in SMALL:
        environ.setdefault(name, value)
    return folder


def private_folder(environ: MutableMapping[str, str]) -> pathlib.Path | None:
    """$XDG_CACHE_HOME/attnjax/programs, or ~/.cache/attnjax/programs, made for this user alone.

    None where it cannot be made, is a link, belongs to another user, or can be written by others.
    """
    home = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or "", ".cache")
    if not os.path.isabs(home):
        return None
    folder = pathlib.Path(home) / "attnjax" / "programs"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if all(_ours(path) for path in (folder, folder.parent)) else None
    except OSError:
        return None


def _ours(folder: pathlib.Path) -> bool:
    found = folder.lstat()
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    owned = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISDIR(found.st_mode) and owned and not others


def remove_old(folder: pathlib.Path, days: float = DAYS) -> int:
    """Remove files that were written more than `days` ago; returns how many. Another process may do the same."""
    removed, limit = 0, time.time() - days * 86_400
    for path in folder.iterdir():
        try:
            if path.is_file() and path.stat().st_mtime < limit:
                path.unlink()
                removed += 1
        except OSError:
            continue
    return removed
