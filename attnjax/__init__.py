"""attnjax: how does a Transformer know where a token is, and what happens past the training length?

Pure functions for attention and positional encodings. Public names load when first used, so that `import attnjax` costs
nothing and the command line can answer without importing JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

from attnjax import registry

if TYPE_CHECKING:  # what `__getattr__` loads, for type checkers, which would take every name for Any
    from attnjax import (
        attention as attention,
        modules as modules,
        positions as positions,
        tasks as tasks,
        typing as typing,
    )
    from attnjax.attention import *  # noqa: F403
    from attnjax.positions import *  # noqa: F403
    from attnjax.positions import indices as indices
    from attnjax.records.table import results as results

__version__ = "0.2.0"

_NAMES = {
    "attnjax.attention": (
        "Dropout Explanation KVCache Mask Tiling attend attend_with_lse attention_fn attention_weights combine explain "
        "gate_heads process_heads reference_attention"
    ),
    "attnjax.positions": (
        "ENCODINGS Compose DynamicNTK Llama3 LongRoPE NTKAware PositionEncoding PositionInterpolation Remapped Resonance "
        "Sizes Tile YaRN compose context_positions embed encoding learns resolve"
    ),
}
_HOME = {row.name: row.path.partition(":")[0] for row in registry.ENCODINGS.values()}
_HOME["results"] = "attnjax.records.table"
_HOME |= {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = {"indices": "attnjax.positions.indices", "attention": "attnjax.attention", "positions": "attnjax.positions"}
_MODULES |= {name: f"attnjax.{name}" for name in ("modules", "tasks", "typing")}

__all__ = [*sorted(_HOME), *sorted(_MODULES)]


if not TYPE_CHECKING:  # or a misspelt name would be one of its names too

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module 'attnjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
