"""Checkpoints that cannot lie: orbax for the files, a sha256 of every array to know that they are what was saved.

Orbax commits a step by an atomic rename, but does not notice a bit that flipped on disk, and casts silently to another
type. Here the digest of every leaf (path, type, shape, sha256 of its bytes) is saved in the same commit and checked on
restore. A step that is damaged in any way is set aside with a warning, and the newest sound one is used instead. This is
the only module that knows orbax.
"""

import hashlib
import json
import pathlib
import shutil
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from attnjax.typing import PyTree

DAMAGED = "damaged"


def save(directory: pathlib.Path, step: int, state: PyTree, *, keep: int = 2) -> None:
    """Commit `state` as `step`, and delete all but the newest `keep` steps.

    Raises ValueError if the state holds NaN or Inf, which must never be what a run resumes from, and OSError where the
    disk refuses; earlier steps stay as they are, and nothing half-written stays behind.
    """
    check_finite(state, step)
    leaves = _digest(state)
    digest = {"leaves": leaves, "sha256": _hash_json(leaves)}
    items = {"state": ocp.args.StandardSave(state), "digest": ocp.args.JsonSave(digest)}
    try:
        with _manager(directory) as manager:
            manager.save(step, args=ocp.args.Composite(**items), force=True)
            for old in sorted(manager.all_steps())[:-keep]:
                manager.delete(old)
    except Exception as error:
        for rest in directory.glob("*orbax-checkpoint-tmp*"):
            shutil.rmtree(rest, ignore_errors=True)
        raise OSError(f"checkpoint of step {step} could not be saved in {directory.name}: {error}") from error


def steps(directory: pathlib.Path) -> list[int]:
    """Committed steps, ascending."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal() and path.is_dir())


def restore(directory: pathlib.Path, like: PyTree, step: int | None = None) -> tuple[int, PyTree] | None:
    """The newest sound step (not after `step`, if given) and its state; None where there is none.

    `like` gives structure, shapes and types. Raises ValueError, naming every leaf, where a sound checkpoint has others.
    """
    for candidate in reversed(steps(directory)):
        if step is not None and candidate > step:
            continue
        reason = ""
        try:
            return candidate, _restore_one(directory, candidate, like)
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
            shutil.rmtree(directory / str(later))


class Mismatch(Exception):
    """A sound checkpoint of something else."""


def check_finite(state: PyTree, step: int) -> None:
    """Raise ValueError if a leaf holds NaN or Inf."""
    for path, leaf in jax.tree.leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not bool(jnp.isfinite(leaf).all()):
            raise ValueError(f"state of step {step} is not finite at {jax.tree_util.keystr(path)}; it is not saved")


def _restore_one(directory: pathlib.Path, step: int, like: PyTree) -> PyTree:
    with _manager(directory) as manager:
        digest = manager.restore(step, args=ocp.args.Composite(digest=ocp.args.JsonRestore())).digest
        if digest["sha256"] != _hash_json(digest["leaves"]):
            raise ValueError("the digest does not match itself")
        _check_match(digest["leaves"], _digest(like, abstract=True), step)
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), like)
        state = manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract))).state
    found = _digest(state)
    wrong = [path for path, leaf in digest["leaves"].items() if found.get(path) != leaf]
    if wrong:
        raise ValueError(f"sha256 differs at {', '.join(wrong[:3])}")
    return state


def _check_match(saved: dict[str, Any], wanted: dict[str, Any], step: int) -> None:
    differences = []
    for path in sorted(saved.keys() | wanted.keys()):
        old, new = (side.get(path) for side in (saved, wanted))
        if old is None or new is None or (old["dtype"], old["shape"]) != (new["dtype"], new["shape"]):
            describe = lambda leaf: "nothing" if leaf is None else f"{leaf['dtype']}{leaf['shape']}"
            differences.append(f"{path}: saved {describe(old)}, wanted {describe(new)}")
    if differences:
        raise Mismatch(f"the checkpoint of step {step} is of something else: " + "; ".join(differences))


def _digest(state: PyTree, *, abstract: bool = False) -> dict[str, Any]:
    """Type, shape and hash of every leaf, by its path."""
    leaves = {}
    for path, leaf in jax.tree.leaves_with_path(state):
        entry: dict[str, Any] = {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
        if not abstract:
            raw = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
            entry["sha256"] = hashlib.sha256(np.ascontiguousarray(raw).tobytes()).hexdigest()
        leaves[jax.tree_util.keystr(path)] = entry
    return leaves


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _manager(directory: pathlib.Path) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False, cleanup_tmp_directories=True)
    return ocp.CheckpointManager(directory.resolve(), options=options)


def _set_aside(directory: pathlib.Path, step: int, reason: str) -> None:
    """Move a damaged step out of the way, so that the step can be saved again."""
    place = directory.parent / f"{directory.name}_{DAMAGED}"
    place.mkdir(exist_ok=True)
    target = place / str(step)
    shutil.rmtree(target, ignore_errors=True)
    (directory / str(step)).rename(target)
    warnings.warn(f"checkpoint of step {step} is damaged ({reason}); set aside in {place.name}", stacklevel=3)
