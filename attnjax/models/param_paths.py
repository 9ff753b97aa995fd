"""Converts between a model and a flat table of its parameters, from path to array.

The table has a path for each layer, ("blocks", 0, "attention", "w_q"), also of a model with `scan_layers`, whose layers are
one table of stacked parameters: weight maps know no difference.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from attnjax.models.base import Architecture, Path, Spec
from attnjax.modules.stack import stacked


def parameters(model: nnx.Module) -> dict[Path, Any]:
    """Returns every parameter by its path, in the order of the model."""
    tree = nnx.to_pure_dict(nnx.split(model, graph=False)[1])
    return flatten_dict({name: _by_layer(part) for name, part in tree.items()})


def abstract(architecture: Architecture, spec: Spec, seed: int = 0) -> nnx.Module:
    """Returns the model of a spec with shapes and dtypes in place of arrays; nothing is computed."""
    return nnx.eval_shape(lambda: architecture.build(spec, nnx.Rngs(seed)))


def with_parameters(model: nnx.Module, values: Mapping[Path, Any]) -> Any:
    """Returns a model of the same structure with these parameters, all of which must be given."""
    graph, state = nnx.split(model, graph=False)
    tree = unflatten_dict(dict(values))
    for name, part in nnx.to_pure_dict(state).items():
        if _is_stacked(part):
            tree[name]["blocks"] = stacked([block for _, block in sorted(tree[name]["blocks"].items())])
    nnx.replace_by_pure_dict(state, tree)
    return nnx.merge(graph, state)


def dotted(path: Path) -> str:
    """Returns a path as text, such as stack.blocks.0.attention.w_q."""
    return ".".join(map(str, path))


def _is_stacked(part: Any) -> bool:
    """Returns whether a part of a model is a stack whose blocks are one block of stacked parameters."""
    return isinstance(part, Mapping) and not all(isinstance(name, int) for name in part.get("blocks", ()))


def _by_layer(part: Any) -> Any:
    if not _is_stacked(part):
        return part
    layers = jax.tree.leaves(part["blocks"])[0].shape[0]
    blocks = {i: jax.tree.map(functools.partial(_row, i), part["blocks"]) for i in range(layers)}
    return {**part, "blocks": blocks}


def _row(i: int, leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf[i]
