"""The leaves of a state as one array of bytes, and a table that says where each lies in it, of which type, shape and sha256.

    data, table = pack(state)          uint8 [total]; {"['params']['w']": {"dtype", "shape", "offset", "bytes", "sha256"}}
    state = unpack(data, table, like)

Keys of `jax.random` are stored as their words, with the name of their generator under "key".
"""

import hashlib
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.typing import PyTree


class Damaged(Exception):
    """The content that was read differs from its digests."""


class Mismatch(Exception):
    """The content agrees with its digests, and describes another state than was asked for."""


def pack(state: PyTree) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the bytes of all leaves, and their table. Raises ValueError, naming the leaf, for NaN and infinity.

    Example:
      >>> data, table = pack({"w": np.zeros(2, np.float32)})
      >>> data.shape, table["['w']"]["shape"], table["['w']"]["bytes"]
      ((8,), [2], 8)
    """
    table, parts, offset = describe(state), [], 0
    for path, leaf in named(state):
        raw = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        if jnp.issubdtype(raw.dtype, jnp.inexact) and not np.isfinite(raw).all():
            raise ValueError(f"not finite at {path}")
        parts.append(raw.tobytes())
        table[path] |= {"offset": offset, "bytes": len(parts[-1]), "sha256": hashlib.sha256(parts[-1]).hexdigest()}
        table[path] |= {"key": str(jax.random.key_impl(leaf))} if _is_key(leaf) else {}
        offset += len(parts[-1])
    return np.frombuffer(b"".join(parts), np.uint8), table


def unpack(data: memoryview, table: dict[str, Any], like: PyTree) -> PyTree:
    """Return the state, on the host; keys are arrays of JAX. Raises Damaged where a leaf has another sha256.

    Example:
      >>> state = {"w": np.float32([1, 2])}
      >>> data, table = pack(state)
      >>> unpack(memoryview(data), table, state)["w"].tolist()
      [1.0, 2.0]
    """
    parts = {path: data[leaf["offset"] : leaf["offset"] + leaf["bytes"]] for path, leaf in table.items()}
    wrong = [path for path, part in parts.items() if hashlib.sha256(part).hexdigest() != table[path]["sha256"]]
    if wrong:
        raise Damaged(f"sha256 differs at {', '.join(wrong[:3])}")
    found = [_leaf(parts[path], leaf, table[path].get("key")) for path, leaf in named(like)]
    return jax.tree.unflatten(jax.tree.structure(like), found)


def describe(tree: PyTree) -> dict[str, Any]:
    """Return type and shape of every leaf, by its path."""
    return {path: {"dtype": str(leaf.dtype), "shape": list(leaf.shape)} for path, leaf in named(tree)}


def named(tree: PyTree) -> list[tuple[str, Any]]:
    """Return the leaves with their paths, as "['params']['w']", in the order of the tree."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree)]


def size(tree: PyTree) -> int:
    """Return the number of bytes of all leaves, which may be arrays or abstract arrays.

    Example:
      >>> size({"w": np.zeros((2, 3), np.float32), "b": jax.ShapeDtypeStruct((3,), jnp.bfloat16)})
      30
    """
    return sum(_size(leaf) for _, leaf in named(tree))


def digest(table: dict[str, Any], **about: Any) -> dict[str, Any]:
    """Return the table and facts `about` it with a sha256 of both, to be stored. (Earlier versions had no such facts.)"""
    return {"leaves": table, **about, "sha256": _hash_json({"leaves": table, **about} if about else table)}


def checked(stored: Any, like: PyTree) -> dict[str, Any]:
    """Return the table inside of what `digest` made, after checking that it describes `like`.

    Raises Damaged where it is not what was stored, or claims other sizes than its types and shapes have; Mismatch, naming
    every leaf, where it describes another state.
    """
    if not isinstance(stored, dict) or not isinstance(stored.get("leaves"), dict):
        raise Damaged("it has no table of leaves")
    table, about = stored["leaves"], {name: value for name, value in stored.items() if name not in ("leaves", "sha256")}
    if stored.get("sha256") != digest(table, **about)["sha256"]:
        raise Damaged("the digest does not match itself")
    _check_match(table, describe(like))
    offset = 0
    for path, leaf in named(like):
        if (table[path].get("offset"), table[path].get("bytes")) != (offset, _size(leaf)):
            raise Damaged(f"the table of leaves gives {path} another place than its type and shape do")
        offset += _size(leaf)
    return table


def _check_match(saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    differences = []
    for path in sorted(saved.keys() | wanted.keys()):
        old, new = (_described(side.get(path)) for side in (saved, wanted))
        if old != new:
            differences.append(f"{path}: saved {old}, wanted {new}")
    if differences:
        raise Mismatch("; ".join(differences))


def _described(leaf: Any) -> str:
    if leaf is None:
        return "nothing"
    return f"{leaf.get('dtype')}{leaf.get('shape')}" if isinstance(leaf, dict) else repr(leaf)[:40]


def _size(leaf: Any) -> int:
    held = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    return math.prod(held.shape) * held.dtype.itemsize


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _leaf(data: memoryview, like: Any, key: str | None) -> Any:
    """Return the leaf with these bytes; `key` names the generator of a key of `jax.random`."""
    if key is None:
        return np.frombuffer(data, like.dtype).reshape(like.shape)
    words = np.frombuffer(data, np.uint32).reshape(*like.shape, -1)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=key)


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
