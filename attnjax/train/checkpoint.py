"""Checkpoints that are verified when they are read: orbax writes the files, digests say whether they are what was saved.

A step is a folder, `checkpoints/60`, that appears by one rename:

    SHA256SUMS         the sha256 of every other file, as `sha256sum` writes it (`sha256sum -c SHA256SUMS` checks them)
    state/             the tree of arrays, as orbax writes it: `orbax.checkpoint` reads it without attnjax
    digest/metadata    JSON: path, type, shape and sha256 of each leaf, the run and the step

One process may write a step, and another commit it: `prepare` and `commit`.

Orbax does not notice a bit that flipped on disk, and casts silently to another type, so both digests are checked on restore.
A step is *damaged* if its content differs from its digests, and for no other reason: then the newest older step that is
sound is used. A file that cannot be read (permission, an error of the disk, too little memory) says nothing about its
content; that is an `OSError` that names it, and everything stays as it is. Only training sets damaged steps aside, by
moving them, never by deleting.

`arrays.py` alone knows orbax.
"""

import contextlib
import errno
import itertools
import json
import pathlib
import re
import secrets
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from attnjax.config.files import parse_json
from attnjax.folder import Folder, LinkError, enter
from attnjax.train import leaves, sums
from attnjax.train.arrays import load, write
from attnjax.train.leaves import Damaged, Mismatch
from attnjax.typing import PyTree

DAMAGED = "damaged"
PARTIAL = re.compile(r"partial-.*|.*orbax-checkpoint-tmp.*")
"""Folders that a killed process left half-written or half-deleted."""
STEP = re.compile(r"0|[1-9][0-9]{0,17}")
SPARE = 64 * 2**20
"""A step may have so many bytes more than four times its state; a larger one is not read."""


class Restored(NamedTuple):
    """The restored step, its state, and the damaged steps that were passed over, each with the reason."""

    step: int
    state: PyTree
    damaged: tuple[tuple[int, str], ...] = ()


def save(directory: pathlib.Path, step: int, state: PyTree, *, keep: int | None = 2) -> None:
    """Commit `state` as `step`, and delete all but the newest `keep` steps, or none where that is None.

    Raises ValueError if the state holds NaN or Inf, which must never be what a run resumes from, or if a link stands where
    files are written, and OSError where the disk refuses; earlier steps stay as they are, and nothing half-written stays
    behind.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> state = {"w": np.arange(3, dtype=np.float32)}
      >>> with tempfile.TemporaryDirectory() as run:
      ...     place = pathlib.Path(run) / "checkpoints"
      ...     save(place, 60, state)
      ...     found = restore(place, state)
      >>> found.step, found.state["w"].tolist()
      (60, [0.0, 1.0, 2.0])
    """
    arrays, stored = _packed(directory, step, state)
    with enter(directory.parent) as run, run.make(directory.name) as folder:
        _steps(folder)  # refuses a link in place of one of them, before anything is written
        with _whole_or_not(folder, step, PARTIAL):
            _sweep_up(folder)
            partial = _name(step, secrets.token_hex(4))
            _fill(folder, partial, arrays, stored)
            _put(folder, partial, step)
            if keep is not None:
                _prune(folder, keep)


def prepare(directory: pathlib.Path, step: int, state: PyTree, attempt: str) -> None:
    """Write `state` as a step that is not there before `commit`, so that one process may write it and another commit it.

    `attempt`, a word of hexadecimal digits, parts what this training writes from what an earlier one left. The folder of
    all steps must be there. Raises as `save` does.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> with tempfile.TemporaryDirectory() as run:
      ...     place = pathlib.Path(run) / "checkpoints"
      ...     place.mkdir()
      ...     prepare(place, 60, {"w": np.zeros(3, np.float32)}, "0a1b")
      ...     before = steps(place)
      ...     commit(place, 60, "0a1b")
      ...     before, steps(place)
      ([], [60])
    """
    arrays, stored = _packed(directory, step, state)
    name = _name(step, attempt)
    own = re.compile(re.escape(name))
    with enter(directory.parent) as run, run.enter(directory.name) as folder, _whole_or_not(folder, step, own):
        _fill(folder, name, arrays, stored)


def commit(directory: pathlib.Path, step: int, attempt: str) -> None:
    """Commit a step that was prepared, by one rename. Raises OSError where the disk refuses."""
    with enter(directory.parent) as run, run.enter(directory.name) as folder, _whole_or_not(folder, step, PARTIAL):
        _put(folder, _name(step, attempt), step)


def prune(directory: pathlib.Path, *, keep: int = 2) -> None:
    """Delete all but the newest `keep` steps."""
    with enter(directory.parent) as run, run.enter(directory.name) as folder:
        _prune(folder, keep)


def sweep_up(directory: pathlib.Path) -> None:
    """Remove what is half-written or half-deleted: no process may be writing into the folder."""
    with _entered(directory) as folder:
        if folder is not None:
            _sweep_up(folder)


def steps(directory: pathlib.Path) -> list[int]:
    """Return the committed steps, ascending. Raises ValueError where a link stands in place of the folder or of a step.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as run:
      ...     steps(pathlib.Path(run) / "checkpoints")
      []
    """
    with _entered(directory) as folder:
        return [] if folder is None else _steps(folder)


def refresh(directory: pathlib.Path) -> None:
    """Let this machine see the steps that another has just saved or deleted; only training calls it, before it resumes.

    A shared file system may list a folder as it was up to a minute ago, but not as it was before a change of one's own.
    """
    with _entered(directory) as folder, contextlib.suppress(OSError):  # the next save tells what the disk refuses
        if folder is not None:
            mark = f"partial-{secrets.token_hex(4)}"
            folder.make(mark).close()
            folder.remove(mark)


def restore(
    directory: pathlib.Path, like: PyTree, step: int | None = None, *, set_aside: bool = False
) -> Restored | None:
    """Return the newest step whose digests hold (not after `step`, if given) and its state, or None.

    `like` gives structure, shapes and types. A leaf is on the host, or, where `like` has a ShapeDtypeStruct with a sharding,
    on those devices, whatever devices it was saved from. A warning names each damaged step that is passed over; with
    `set_aside`, which only training uses, that step is moved to `checkpoints_damaged`, beside those that were moved before.

    Raises ValueError, naming every leaf, where a sound checkpoint has others, and for a link; OSError, naming the file,
    where one cannot be read.
    """
    damaged: list[tuple[int, str]] = []
    with _entered(directory) as folder:
        if folder is None:
            return None
        for candidate in reversed([one for one in _steps(folder) if step is None or one <= step]):
            try:
                return Restored(candidate, _restore_one(folder, candidate, like), tuple(damaged))
            except Mismatch as error:
                raise ValueError(f"the checkpoint of step {candidate} is of something else: {error}") from None
            except Damaged as error:
                damaged.append((candidate, str(error)))
            where = f"; set aside as {_set_aside(directory, folder, candidate)}" if set_aside else ""
            warnings.warn(f"checkpoint of step {candidate} is damaged ({damaged[-1][1]}){where}", stacklevel=2)
    return None


def drop_after(directory: pathlib.Path, step: int) -> None:
    """Delete the steps after `step`: a population that resumes from `step` saves them again."""
    with _entered(directory) as folder:
        if folder is None:
            return
        for later in _steps(folder):
            if later > step:
                _delete(folder, later)


@contextlib.contextmanager
def _entered(directory: pathlib.Path) -> Iterator[Folder | None]:
    """Open the folder of all steps; yields None where there is none."""
    with enter(directory.parent) as run:
        if not run.kind(directory.name):
            yield None
            return
        with run.enter(directory.name) as folder:
            yield folder


def _packed(directory: pathlib.Path, step: int, state: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """Return the arrays of a state and what is stored beside them. Raises ValueError where it must not be saved."""
    try:
        arrays, table = leaves.pack(state)
    except ValueError as error:
        raise ValueError(f"state of step {step} is {error}; it is not saved") from None
    return arrays, leaves.digest(table, run=_run_of(directory.parent), step=step)


def _run_of(directory: pathlib.Path) -> str:
    """Return the run whose checkpoints lie in a folder: its name, or above an attempt or a result that of the one above."""
    return directory.parent.name if directory.name.startswith(("attempt-", "result")) else directory.name


def _name(step: int, attempt: str) -> str:
    return f"partial-{step}-{attempt}"


@contextlib.contextmanager
def _whole_or_not(folder: Folder, step: int, undone: re.Pattern[str]) -> Iterator[None]:
    """Remove the entries `undone` after an error, which becomes an OSError that names the step."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(OSError):
            _sweep_up(folder, undone)
        raise OSError(f"checkpoint of step {step} could not be saved in {folder.path.name}: {error}") from error


def _fill(folder: Folder, name: str, arrays: PyTree, stored: dict[str, Any]) -> None:
    """Write all files of a step."""
    with folder.make(name) as written:
        with written.make("digest") as digest:
            digest.write("metadata", json.dumps(stored).encode(), durable=False)
        written.make("state").close()
        write(written.path.resolve() / "state", arrays)
        written.write(sums.FILE, sums.of(written).encode(), durable=False)


def _put(folder: Folder, name: str, step: int) -> None:
    if folder.kind(str(step)):  # an old listing had hidden it when the run was resumed
        _delete(folder, step)
    folder.move(name, folder, str(step))
    folder.sync()


def _prune(folder: Folder, keep: int) -> None:
    for old in _steps(folder)[:-keep]:
        _delete(folder, old)


def _steps(folder: Folder) -> list[int]:
    found = []
    for name in filter(STEP.fullmatch, folder.names()):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile: a shared file system may show an old listing
            folder.enter(name).close()
            found.append(int(name))
    return sorted(found)


def _restore_one(folder: Folder, step: int, like: PyTree) -> PyTree:
    with folder.enter(str(step)) as here:
        whole = sums.check(here, SPARE + 4 * leaves.size(like))
        table, arrays = _read(here, step, like, whole=whole)
    return leaves.unpack(arrays, table, like)


def _read(folder: Folder, step: int, like: PyTree, *, whole: bool) -> tuple[dict[str, Any], PyTree]:
    """Return the table of leaves and the arrays that hold them. `whole`: SHA256SUMS has confirmed every file.

    Raises Damaged, Mismatch, and OSError for whatever keeps orbax from reading sound files.
    """
    stored = _table(folder)
    table = leaves.checked(stored, like)
    _check_place(stored, folder)
    try:
        return table, load(folder, leaves.stored(table, like))
    except Damaged:
        raise
    except Exception as error:  # Orbax raises anything from ValueError to bare Exception on a damaged file.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if whole or _says_nothing_of_content(error):
            refusal = f"the checkpoint of step {step} cannot be read: {type(error).__name__}: {reason}"
            raise OSError(getattr(error, "errno", None) or errno.EIO, refusal, str(folder.path)) from error
        raise Damaged(reason) from error


def _table(folder: Folder) -> Any:
    """Return the stored table of leaves, not checked yet."""
    if folder.kind("digest") != "folder":
        raise Damaged("it has no table of leaves")
    with folder.enter("digest") as digest:
        try:
            return parse_json(digest.read("metadata", sums.LARGEST).decode("utf-8"))
        except FileNotFoundError:
            raise Damaged("it has no table of leaves") from None
        except LinkError:
            raise
        except ValueError as error:
            raise Damaged(f"its table of leaves is no JSON: {error}") from None


def _check_place(stored: dict[str, Any], folder: Folder) -> None:
    """Refuse a checkpoint that was saved by another run or at another step; earlier versions recorded neither."""
    here = {"run": _run_of(folder.path.parent.parent), "step": int(folder.path.name)}
    wrong = [f"{name} {str(stored[name])[:40]}" for name in here if name in stored and stored[name] != here[name]]
    if wrong:
        raise Damaged(f"it was saved as that of {' and '.join(wrong)}")


def _says_nothing_of_content(error: Exception) -> bool:
    """Return whether an error is about this machine rather than about the content of the files."""
    refusals = (errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)
    told = any(word in str(error) for word in ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "Unable to allocate"))
    return told or isinstance(error, MemoryError | ImportError) or getattr(error, "errno", None) in refusals


def _sweep_up(folder: Folder, undone: re.Pattern[str] = PARTIAL) -> None:
    """Remove folders that a killed process left half-written or half-deleted; the lease gives the folder to one process."""
    for name in folder.names():
        if undone.fullmatch(name):
            folder.remove(name)


def _delete(folder: Folder, step: int) -> None:
    """Delete a step. It is renamed first, so that a process killed amid the deletion leaves no incomplete step behind."""
    partial = _name(step, secrets.token_hex(4))
    folder.move(str(step), folder, partial)
    folder.remove(partial)


def _set_aside(directory: pathlib.Path, folder: Folder, step: int) -> str:
    """Move a damaged step aside, so that the step can be saved again, and return its new place."""
    name = f"{directory.name}_{DAMAGED}"
    with enter(directory.parent) as run, run.make(name) as place:
        free = next(one for one in _names(step) if not place.kind(one))
        folder.move(str(step), place, free)
    return f"{name}/{free}"


def _names(step: int) -> Iterator[str]:
    """Yield the names that a damaged step may get: 60, 60.2, 60.3, ..."""
    yield str(step)
    yield from (f"{step}.{number}" for number in itertools.count(2))
