"""Converts between a model and a flat table of its parameters, from path to array.

The table has a path for each layer, ("blocks", 0, "attention", "w_q"), also of a model with `scan_layers`, whose layers are
one table of stacked parameters: weight maps know no difference.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from flax import nnx

from attnjax.models.base import Architecture, Path, Spec
from attnjax.modules.stack import stacked


def parameters(model: nnx.Module) -> dict[Path, Any]:
    """Returns every parameter by its path, in the order of the model."""
    return dict(_leaves(nnx.to_pure_dict(nnx.split(model, graph=False)[1])))


def abstract(architecture: Architecture, spec: Spec, seed: int = 0) -> nnx.Module:
    """Returns the model of a spec with shapes and dtypes in place of arrays; nothing is computed."""
    return nnx.eval_shape(lambda: architecture.build(spec, nnx.Rngs(seed)))


def with_parameters(model: nnx.Module, values: Mapping[Path, Any]) -> Any:
    """Returns a model of the same structure with these parameters, all of which must be given."""
    graph, state = nnx.split(model, graph=False)
    nnx.replace_by_pure_dict(state, _as_in(nnx.to_pure_dict(state), _nested(values)))
    return nnx.merge(graph, state)


def dotted(path: Path) -> str:
    """Returns a path as text, such as stack.blocks.0.attention.w_q."""
    return ".".join(map(str, path))


def _leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if not isinstance(tree, Mapping):
        yield path, tree
        return
    for name, inner in tree.items():
        if name == "blocks" and not _is_by_layer(inner):
            first = jax.tree.leaves(inner)[0]
            inner = {i: jax.tree.map(functools.partial(_row, i), inner) for i in range(first.shape[0])}
        yield from _leaves(inner, (*path, name))


def _is_by_layer(blocks: Mapping[Any, Any]) -> bool:
    """Returns whether blocks are numbered, and not one block of stacked parameters."""
    return all(isinstance(name, int) for name in blocks)


def _row(i: int, leaf: Any) -> Any:
    return jax.eval_shape(lambda leaf: leaf[i], leaf) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf[i]


def _as_in(made: Any, tree: Any) -> Any:
    """Returns a tree of parameters with its layers stacked where those of `made` are."""
    if not isinstance(tree, Mapping):
        return tree
    if "blocks" in tree and not _is_by_layer(made["blocks"]):
        tree = {**tree, "blocks": stacked([tree["blocks"][i] for i in sorted(tree["blocks"])])}
    return {name: _as_in(made[name], inner) for name, inner in tree.items()}


def _nested(values: Mapping[Path, Any]) -> dict[Any, Any]:
    tree: dict[Any, Any] = {}
    for path, value in values.items():
        inner = tree
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return tree
