"""Checkpoints that cannot lie: orbax for the files, a sha256 of every array to know that they are what was saved.

Orbax commits a step by an atomic rename, but does not notice a bit that flipped on disk, and casts silently to another
type. Here the digest of every leaf (path, type, shape, sha256 of its bytes) is saved in the same commit and checked on
restore. A step that is damaged in any way is set aside with a warning, and the newest sound one is used instead. This is
the only module that knows orbax, and it loads it with the first checkpoint: a start without one does not wait for it.

Orbax takes milliseconds for each array, so all leaves are one, of bytes: `state/leaves`, where the JSON of `digest` says at
which offset each begins, and of which type and shape it is.
"""

import hashlib
import json
import pathlib
import secrets
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.typing import PyTree

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

DAMAGED = "damaged"
PARTIAL = "orbax-checkpoint-tmp"


def save(directory: pathlib.Path, step: int, state: PyTree, *, keep: int = 2) -> None:
    """Commit `state` as `step`, and delete all but the newest `keep` steps.

    Raises ValueError if the state holds NaN or Inf, which must never be what a run resumes from, and OSError where the
    disk refuses; earlier steps stay as they are, and nothing half-written stays behind.
    """
    import orbax.checkpoint as ocp

    leaves = {path: _raw(leaf) for path, leaf in _named(state)}
    check_finite(leaves, step)
    table = _digest(state, leaves)
    digest = {"leaves": table, "sha256": _hash_json(table)}
    data = np.frombuffer(b"".join(leaf.tobytes() for leaf in leaves.values()), np.uint8)
    items = {"state": ocp.args.StandardSave({"leaves": data}), "digest": ocp.args.JsonSave(digest)}
    try:
        _sweep_up(directory)
        with _checkpointer() as checkpointer:
            checkpointer.save(directory.resolve() / str(step), args=ocp.args.Composite(**items))
        for old in steps(directory)[:-keep]:
            _delete(directory / str(old))
    except Exception as error:
        _sweep_up(directory)
        raise OSError(f"checkpoint of step {step} could not be saved in {directory.name}: {error}") from error


def steps(directory: pathlib.Path) -> list[int]:
    """Committed steps, ascending."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal() and path.is_dir())


def restore(directory: pathlib.Path, like: PyTree, step: int | None = None) -> tuple[int, PyTree] | None:
    """The newest sound step (not after `step`, if given) and its state on the host; None where there is none.

    `like` gives structure, shapes and types. Raises ValueError, naming every leaf, where a sound checkpoint has others.
    """
    for candidate in reversed(steps(directory)):
        if step is not None and candidate > step:
            continue
        reason = ""
        try:
            return candidate, _restore_one(directory / str(candidate), candidate, like)
        except Mismatch as error:
            raise ValueError(str(error)) from None
        except Exception as error:  # Orbax raises anything from ValueError to bare Exception on a damaged file.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        _set_aside(directory, candidate, reason)
    return None


def drop_after(directory: pathlib.Path, step: int) -> None:
    """Delete the steps after `step`: a population that resumes there will make them again."""
    for later in steps(directory):
        if later > step:
            _delete(directory / str(later))


class Mismatch(Exception):
    """A sound checkpoint of something else."""


def check_finite(leaves: dict[str, np.ndarray], step: int) -> None:
    """Raise ValueError if a leaf, given by its path, holds NaN or Inf."""
    for path, leaf in leaves.items():
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not np.isfinite(leaf).all():
            raise ValueError(f"state of step {step} is not finite at {path}; it is not saved")


def _restore_one(folder: pathlib.Path, step: int, like: PyTree) -> PyTree:
    import orbax.checkpoint as ocp

    with _checkpointer() as checkpointer:
        read = lambda **items: checkpointer.restore(folder.resolve(), args=ocp.args.Composite(**items))
        digest = read(digest=ocp.args.JsonRestore()).digest
        table = digest["leaves"]
        if digest["sha256"] != _hash_json(table):
            raise ValueError("the digest does not match itself")
        _check_match(table, _digest(like), step)
        size = sum(leaf["bytes"] for leaf in table.values())
        wanted = {"leaves": np.zeros(size, np.uint8)}
        data = memoryview(read(state=ocp.args.StandardRestore(wanted)).state["leaves"])
    parts = {path: data[leaf["offset"] : leaf["offset"] + leaf["bytes"]] for path, leaf in table.items()}
    wrong = [path for path, part in parts.items() if hashlib.sha256(part).hexdigest() != table[path]["sha256"]]
    if wrong:
        raise ValueError(f"sha256 differs at {', '.join(wrong[:3])}")
    found = [_leaf(parts[path], leaf, table[path].get("key")) for path, leaf in _named(like)]
    return jax.tree.unflatten(jax.tree.structure(like), found)


def _check_match(saved: dict[str, Any], wanted: dict[str, Any], step: int) -> None:
    differences = []
    for path in sorted(saved.keys() | wanted.keys()):
        old, new = (side.get(path) for side in (saved, wanted))
        if old is None or new is None or (old["dtype"], old["shape"]) != (new["dtype"], new["shape"]):
            describe = lambda leaf: "nothing" if leaf is None else f"{leaf['dtype']}{leaf['shape']}"
            differences.append(f"{path}: saved {describe(old)}, wanted {describe(new)}")
    if differences:
        raise Mismatch(f"the checkpoint of step {step} is of something else: " + "; ".join(differences))


def _named(tree: PyTree) -> list[tuple[str, Any]]:
    """Leaves with their paths, as "['params']['w']", in the order of the tree."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree)]


def _digest(tree: PyTree, raw: dict[str, np.ndarray] | None = None) -> dict[str, Any]:
    """Type and shape of every leaf, by its path; of raw leaves also place, size and hash of their bytes."""
    table, offset = {}, 0
    for path, leaf in _named(tree):
        table[path] = {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
        if raw is not None:
            data = raw[path].tobytes()
            table[path] |= {"offset": offset, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            table[path] |= {"key": str(jax.random.key_impl(leaf))} if _is_key(leaf) else {}
            offset += len(data)
    return table


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf: Any) -> np.ndarray:
    """A leaf on the host; of a key, its data."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _leaf(data: memoryview, like: Any, key: str | None) -> Any:
    """The leaf that these bytes are; `key` names the generator of a key."""
    if key is None:
        return np.frombuffer(data, like.dtype).reshape(like.shape)
    words = np.frombuffer(data, np.uint32).reshape(*like.shape, -1)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=key)


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _checkpointer() -> "ocp.Checkpointer":
    import orbax.checkpoint as ocp

    return ocp.Checkpointer(ocp.CompositeCheckpointHandler())


def _sweep_up(directory: pathlib.Path) -> None:
    """Remove what a killed process left half-written or half-deleted; one process at a time has the folder."""
    for rest in directory.glob(f"*{PARTIAL}*"):
        shutil.rmtree(rest, ignore_errors=True)


def _delete(folder: pathlib.Path) -> None:
    """Delete a step. The rename makes it invalid at once, however much a killed process then leaves."""
    rest = folder.with_name(f"{folder.name}.{PARTIAL}-{secrets.token_hex(4)}")
    folder.rename(rest)
    shutil.rmtree(rest, ignore_errors=True)


def _set_aside(directory: pathlib.Path, step: int, reason: str) -> None:
    """Move a damaged step out of the way, so that the step can be saved again."""
    place = directory.parent / f"{directory.name}_{DAMAGED}"
    place.mkdir(exist_ok=True)
    target = place / str(step)
    shutil.rmtree(target, ignore_errors=True)
    (directory / str(step)).rename(target)
    warnings.warn(f"checkpoint of step {step} is damaged ({reason}); set aside in {place.name}", stacklevel=3)
