"""Keeps compiled programs on the disk, where the next start of a sweep, and every worker after the first, finds them.

JAX reads the folder from the environment, so this must run before JAX is imported; workers inherit the setting. JAX executes
the programs in the folder, so it is used only if it belongs to the user and nobody else can write to it. If the user has set
JAX_COMPILATION_CACHE_DIR, or has switched the cache off with JAX_ENABLE_COMPILATION_CACHE=false, nothing is changed.
"""

import contextlib
import os
import pathlib
import stat
import time
from collections.abc import MutableMapping

FOLDER = "JAX_COMPILATION_CACHE_DIR"
SWITCH = "JAX_ENABLE_COMPILATION_CACHE"
SMALL = (("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"), ("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1"))
"""By default JAX keeps only programs that took a second to compile, which those of small models seldom do."""
OLD = 30 * 86_400
"""Seconds after which programs are removed; versions of JAX leave theirs behind."""


def keep_programs(environ: MutableMapping[str, str] = os.environ) -> pathlib.Path | None:
    """Set the environment so that JAX keeps programs in attnjax/programs of the user's cache. Returns that folder.

    None where the user has decided otherwise, and where the folder cannot be made, is a link, belongs to another user, or can
    be written by others.
    """
    home = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or "", ".cache")
    chosen = environ.get(FOLDER) or environ.get(SWITCH, "true").lower() in ("0", "false", "no", "off")
    folder = pathlib.Path(home, "attnjax", "programs")
    if chosen or not folder.is_absolute():
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (_is_private(folder) and _is_private(folder.parent)):
            return None
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another process removes it too
                if path.stat().st_mtime < time.time() - OLD:
                    path.unlink()
    except OSError:
        return None
    environ[FOLDER] = str(folder)
    for name, value in SMALL:
        environ.setdefault(name, value)
    return folder


def _is_private(folder: pathlib.Path) -> bool:
    found = folder.lstat()
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others
