"""Checkpoints: orbax writes the arrays of a step, and SHA256SUMS says whether they are still what was saved.

A step is a folder that appears by one rename:

    checkpoints/60/state/        the tree of arrays; `orbax.checkpoint` reads it without attnjax
    checkpoints/60/SHA256SUMS    the sha256 of every other file (`sha256sum -c SHA256SUMS` checks them)

Orbax does not notice a bit that flipped on disk, casts silently to another type, follows names that are paths, and allocates
whatever size a file claims. So digests, names, shapes and types are checked before it opens anything. A step is *damaged* if
its files differ from its digests: `restore` warns and takes the step before. A file that cannot be read for another reason
(permission, an error of the disk) is an OSError.
"""

import contextlib
import errno
import functools
import hashlib
import json
import math
import operator
import os
import pathlib
import re
import secrets
import shutil
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax import safety
from attnjax.typing import PyTree

CHECKPOINTS = "checkpoints"
"""The folder of all steps in the folder of a run."""
SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
STEP = re.compile(r"0|[1-9][0-9]{0,17}")
PARTIAL = re.compile(r"partial-.*|.*orbax-checkpoint-tmp.*")
"""Folders that a killed process left half-written or half-deleted."""
TEXT = 16 * 2**20
"""Most bytes that are read of SHA256SUMS, and of orbax's description of the arrays."""
SPARE = 64 * 2**20
"""A step may have so many bytes more than four times its state; a larger one is not read."""


class Restored(NamedTuple):
    """The restored step, its state on the host, and the damaged steps that were passed over, each with the reason."""

    step: int
    state: PyTree
    damaged: tuple[tuple[int, str], ...] = ()


class DamagedError(Exception):
    """The files of a step are not those that were saved."""


def save(directory: pathlib.Path, step: int, state: PyTree, *, keep: int | None = 2) -> None:
    """Write `state` as `step`, and delete all but the newest `keep` steps, or none where that is None.

    Raises ValueError if the state holds NaN or Inf, which no run must resume from, and OSError where the disk refuses; earlier
    steps stay as they are, and nothing half-written stays behind.

    Example:
      >>> import tempfile
      >>> state = {"w": np.arange(3, dtype=np.float32)}
      >>> with tempfile.TemporaryDirectory() as run:
      ...     save(pathlib.Path(run, CHECKPOINTS), 60, state)
      ...     found = restore(pathlib.Path(run, CHECKPOINTS), state)
      >>> found.step, found.state["w"].tolist()
      (60, [0.0, 1.0, 2.0])
    """
    arrays = jax.tree.map(functools.partial(np.asarray, order="C"), state)
    for name, leaf in _named(arrays).items():
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not np.isfinite(leaf).all():
            raise ValueError(f"state of step {step} is not finite at {name}; it is not saved")
    steps(directory)  # refuses a link before anything is written
    partial = directory / f"partial-{step}-{secrets.token_hex(4)}"
    try:
        directory.mkdir(exist_ok=True)
        _sweep_up(directory)
        partial.mkdir()
        _write(partial.absolute() / "state", arrays)
        lines = [f"{_sha256(path)}  {path.relative_to(partial).as_posix()}\n" for path in safety.files(partial)]
        safety.write(partial / SUMS, "".join(lines).encode())
        _delete(directory / str(step))  # a damaged one, or one that a slower process saved
        partial.rename(directory / str(step))
        safety.sync(directory)
    except Exception as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise OSError(f"checkpoint of step {step} could not be saved in {directory.name}: {error}") from error
    if keep is not None:
        prune(directory, keep)


def steps(directory: pathlib.Path) -> list[int]:
    """Return the saved steps, ascending. Raises ValueError where the folder or a step is a link.

    Example:
      >>> steps(pathlib.Path("nowhere", CHECKPOINTS))
      []
    """
    safety.refuse_link(directory)
    if not directory.exists():
        return []
    names = [path.name for path in directory.iterdir() if STEP.fullmatch(path.name)]
    return sorted(int(safety.inside(directory, name).name) for name in names)


def restore(directory: pathlib.Path, like: PyTree, step: int | None = None) -> Restored | None:
    """Return the newest step whose digests hold (not after `step`, if given) and its state, or None.

    `like` gives structure, shapes and types of the state. A warning names each damaged step that is passed over.

    Raises ValueError, naming every leaf, where a sound checkpoint has others, and for a link; OSError where one cannot be read.
    """
    damaged: list[tuple[int, str]] = []
    for one in reversed([one for one in steps(directory) if step is None or one <= step]):
        try:
            _check_sums(directory / str(one), most=SPARE + 4 * _size(like))
        except DamagedError as error:
            damaged.append((one, str(error)))
            warnings.warn(f"checkpoint of step {one} is damaged: {error}", stacklevel=2)
            continue
        return Restored(one, _read(directory.absolute() / str(one) / "state", like), tuple(damaged))
    return None


def drop_after(directory: pathlib.Path, step: int) -> None:
    """Delete the steps after `step`, sound or damaged: a run that resumes from `step` saves them again."""
    for later in steps(directory):
        if later > step:
            _delete(directory / str(later))


def prune(directory: pathlib.Path, keep: int) -> None:
    """Delete all but the newest `keep` steps."""
    for old in steps(directory)[:-keep]:
        _delete(directory / str(old))


def _delete(step: pathlib.Path) -> None:
    """Delete a step, if it is there. It is renamed first, so that a killed process leaves no incomplete step behind."""
    if step.exists():
        partial = step.with_name(f"partial-{step.name}-{secrets.token_hex(4)}")
        step.rename(partial)
        shutil.rmtree(partial)


def _sweep_up(directory: pathlib.Path) -> None:
    for path in directory.iterdir():
        if PARTIAL.fullmatch(path.name):
            path.unlink() if path.is_symlink() else shutil.rmtree(path)


def _check_sums(step: pathlib.Path, most: int) -> None:
    """Raise DamagedError where the files of a step differ from its digests, or hold more than `most` bytes."""
    paths = {path.relative_to(step).as_posix(): path for path in safety.files(step)}
    if sum(path.stat().st_size for path in paths.values()) > most:
        raise DamagedError("it is larger than this state can be")
    if paths.pop(SUMS, None) is None:
        raise DamagedError(f"it has no {SUMS}")
    lines = [LINE.fullmatch(line) for line in safety.read(step / SUMS, TEXT).decode("utf-8", "replace").splitlines()]
    listed = {line[2]: line[1] for line in lines if line is not None}
    found = {name: _sha256(path) for name, path in paths.items()}
    wrong = sorted(name for name in listed.keys() | found.keys() if listed.get(name) != found.get(name))
    if wrong or None in lines:
        raise DamagedError(f"{SUMS} disagrees with {', '.join(wrong[:3]) or 'itself'}")


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Any, arrays: PyTree) -> None:
    """Write arrays by orbax's handler alone: its `Checkpointer` waits five minutes where a folder cannot be made."""
    import orbax.checkpoint as ocp  # with the first checkpoint: a start without one does not wait for it

    path.mkdir()
    # Orbax refuses leaves without elements. Compressing 1 GiB of floats saves 8 % of the bytes for twice the processor time.
    stored = jax.tree.map(lambda leaf: leaf if leaf.size else None, arrays)
    with contextlib.closing(ocp.PyTreeCheckpointHandler(use_compression=False)) as handler:
        handler.save(path, args=ocp.args.PyTreeSave(stored))
        handler.finalize(path)


def _read(state: Any, like: PyTree) -> PyTree:
    """Return the state that `_write` wrote, after its names, shapes and types were compared with those of `like`."""
    import orbax.checkpoint as ocp

    wanted = jax.tree.map(lambda leaf: leaf if math.prod(leaf.shape) else None, like)
    _check_paths(state)
    with _reading(state) as handler:
        stored = handler.metadata(state).tree
    _check_leaves(_named(stored), _named(wanted))
    with _reading(state) as handler:
        types = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
        found = _named(handler.restore(state, args=ocp.args.PyTreeRestore(wanted, restore_args=types)))
    leaves = [found[name] if name in found else np.zeros(leaf.shape, leaf.dtype) for name, leaf in _named(like).items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


@contextlib.contextmanager
def _reading(state: pathlib.Path) -> Iterator[Any]:
    """Yield orbax's handler. What it raises on files that agree with their digests is an OSError."""
    import orbax.checkpoint as ocp

    try:
        with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
            yield handler
    except Exception as error:
        reason = f"the checkpoint cannot be read: {type(error).__name__}: {error}".splitlines()[0]
        raise OSError(getattr(error, "errno", None) or errno.EIO, reason, str(state)) from error


def _check_paths(state: pathlib.Path) -> None:
    """Raise ValueError where an array has a path for a name: orbax would follow it to wherever it leads."""
    try:
        rows = json.loads(safety.read(state / "_METADATA", TEXT))["tree_metadata"].values()
        names = [str(part["key"]) for row in rows for part in row["key_metadata"]]
    except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError):
        raise ValueError(f"{state / '_METADATA'} is not what orbax writes") from None
    if any("/" in name or os.sep in name for name in names):
        raise ValueError(f"an array in {state} has a path for a name")


def _check_leaves(stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise ValueError, naming every leaf, where the stored arrays have other names, shapes or types than the wanted ones."""
    if any(any(map(operator.gt, leaf.storage.chunk_shape, leaf.shape)) for leaf in stored.values()):
        raise ValueError("the checkpoint claims parts of an array that are larger than the array")
    told = lambda leaf: "nothing" if leaf is None else f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
    pairs = {name: (told(stored.get(name)), told(wanted.get(name))) for name in sorted(stored.keys() | wanted.keys())}
    differences = [f"{name}: saved {old}, wanted {new}" for name, (old, new) in pairs.items() if old != new]
    if differences:
        raise ValueError(f"the checkpoint is of something else: {'; '.join(differences)}")


def _named(tree: PyTree) -> dict[str, Any]:
    """Return the leaves by the names that orbax gives them: the keys of their paths, joined by dots."""
    leaves = jax.tree.leaves_with_path(tree)
    found = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    if len(found) < len(leaves):
        raise ValueError("two leaves of the state have one name for orbax, which would keep one of them")
    return found


def _size(tree: PyTree) -> int:
    """Return the number of bytes of all leaves."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
