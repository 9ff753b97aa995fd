"""Converts between a model and a flat table of its parameters, from path to array."""

from collections.abc import Iterator, Mapping
from typing import Any

from flax import nnx

from attnjax.models.base import Architecture, Path, Spec


def parameters(model: nnx.Module) -> dict[Path, Any]:
    """Returns every parameter by its path, in the order of the model."""
    return dict(_leaves(nnx.to_pure_dict(nnx.split(model, graph=False)[1])))


def abstract(architecture: Architecture, spec: Spec, seed: int = 0) -> nnx.Module:
    """Returns the model of a spec with shapes and dtypes in place of arrays; nothing is computed."""
    return nnx.eval_shape(lambda: architecture.build(spec, nnx.Rngs(seed)))


def with_parameters(model: nnx.Module, values: Mapping[Path, Any]) -> Any:
    """Returns a model of the same structure with these parameters, all of which must be given."""
    graph, state = nnx.split(model, graph=False)
    nnx.replace_by_pure_dict(state, _nested(values))
    return nnx.merge(graph, state)


def dotted(path: Path) -> str:
    """Returns a path as text, such as stack.blocks.0.attention.w_q."""
    return ".".join(map(str, path))


def _leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if not isinstance(tree, Mapping):
        yield path, tree
        return
    for name, inner in tree.items():
        yield from _leaves(inner, (*path, name))


def _nested(values: Mapping[Path, Any]) -> dict[Any, Any]:
    tree: dict[Any, Any] = {}
    for path, value in values.items():
        inner = tree
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return tree
