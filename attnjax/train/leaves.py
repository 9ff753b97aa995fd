"""A state as a tree of NumPy arrays, and a table with type, shape and sha256 of each leaf.

    arrays, table = pack(state)        a tree like the state; {"['params']['w']": {"dtype", "shape", "sha256"}}
    state = unpack(arrays, table, like)

Keys of `jax.random` are stored as their words, with the name of their generator under "key". A leaf without elements has a
row and no array. Earlier versions stored the bytes of all leaves as one array: then the table gives the "offset" and
"bytes" of each leaf in it.
"""

import hashlib
import json
import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.typing import PyTree


class Damaged(Exception):
    """The content that was read differs from its digests."""


class Mismatch(Exception):
    """The content agrees with its digests, and describes another state than was asked for."""


def pack(state: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """Return the state as arrays of NumPy, without copies where it lies on the host, and the table of its leaves.

    Raises ValueError for NaN and infinity, naming the leaf, and for two leaves that have one name when the keys of their
    paths are joined by dots, as orbax names its arrays: it would keep one of them.

    Example:
      >>> arrays, table = pack({"w": np.zeros(2, np.float32)})
      >>> arrays["w"].tolist(), table["['w']"]["shape"]
      ([0.0, 0.0], [2])
    """
    table, held = describe(state), jax.tree.map(_on_host, state)
    for (path, leaf), array in zip(named(state), jax.tree.leaves(held), strict=True):
        if jnp.issubdtype(array.dtype, jnp.inexact) and not np.isfinite(array).all():
            raise ValueError(f"not finite at {path}")
        table[path] |= {"sha256": hashlib.sha256(_bytes(array).data).hexdigest()}
        table[path] |= {"key": str(jax.random.key_impl(leaf))} if _is_key(leaf) else {}
    if twice := [name for name, count in Counter(dotted(held)).items() if count > 1]:
        raise ValueError(f"ambiguous: two of its leaves have the name {twice[0]}")
    return jax.tree.map(lambda array: array if array.size else None, held), table


def unpack(arrays: PyTree, table: dict[str, Any], like: PyTree) -> PyTree:
    """Return the state, on the host, or where `like` has a ShapeDtypeStruct with a sharding; keys are arrays of JAX.

    Raises Damaged where a leaf has another sha256.

    Example:
      >>> state = {"w": np.float32([1, 2])}
      >>> unpack(*pack(state), state)["w"].tolist()
      [1.0, 2.0]
    """
    if is_packed(table):
        data = arrays["leaves"]
        parts = {path: data[leaf["offset"] : leaf["offset"] + leaf["bytes"]] for path, leaf in table.items()}
    else:
        parts = dict(named(arrays))
    parts = {path: _bytes(parts.get(path, np.zeros(0))) for path in table}
    wrong = [path for path, part in parts.items() if hashlib.sha256(part.data).hexdigest() != table[path]["sha256"]]
    if wrong:
        raise Damaged(f"sha256 differs at {', '.join(wrong[:3])}")
    found = [_leaf(parts[path], leaf, table[path].get("key")) for path, leaf in named(like)]
    return jax.tree.unflatten(jax.tree.structure(like), found)


def stored(table: dict[str, Any], like: PyTree) -> PyTree:
    """Return the abstract tree of the arrays that hold a state like `like`, as the version that wrote the table stored it."""
    if is_packed(table):
        return {"leaves": jax.ShapeDtypeStruct((size(like),), np.uint8)}
    held = jax.tree.map(_held, like)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if math.prod(leaf.shape) else None, held
    )


def is_packed(table: dict[str, Any]) -> bool:
    """Return whether the table is of an earlier version, which stored all leaves in one array."""
    return any("offset" in leaf for leaf in table.values())


def describe(tree: PyTree) -> dict[str, Any]:
    """Return type and shape of every leaf, by its path."""
    return {path: {"dtype": str(leaf.dtype), "shape": list(leaf.shape)} for path, leaf in named(tree)}


def named(tree: PyTree) -> list[tuple[str, Any]]:
    """Return the leaves with their paths, as "['params']['w']", in the order of the tree."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree)]


def dotted(tree: PyTree) -> list[str]:
    """Return the names that orbax gives the leaves: the keys of their paths, joined by dots.

    Example:
      >>> dotted({"params": [np.zeros(2)]})
      ['params.0']
    """
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(tree)]


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
    for path, leaf in named(like) if is_packed(table) else ():
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
    held = _held(leaf)
    return math.prod(held.shape) * held.dtype.itemsize


def _held(leaf: Any) -> Any:
    """Return the abstract array that holds a leaf: a key is held by its words."""
    return jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf


def _on_host(leaf: Any) -> np.ndarray:
    return np.ascontiguousarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf).reshape(_held(leaf).shape)


def _bytes(array: np.ndarray) -> np.ndarray:
    """Return a view of the bytes of an array, whatever its type."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _leaf(data: np.ndarray, like: Any, key: str | None) -> Any:
    """Return the leaf with these bytes; `key` names the generator of a key of `jax.random`."""
    held = _held(like)
    leaf = data.view(held.dtype).reshape(held.shape)
    if key is not None:
        leaf = jax.random.wrap_key_data(jnp.asarray(leaf), impl=key)
    sharding = like.sharding if isinstance(like, jax.ShapeDtypeStruct) else None
    return leaf if sharding is None else jax.device_put(leaf, sharding)


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
