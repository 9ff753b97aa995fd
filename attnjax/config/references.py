"""Fields of a `ConfigDict` that are derived from other fields, and follow a change of them.

    config.train.warmup = config.train.get_ref("steps") * 6 // 100     # follows train.steps
    config.seed = config_dict.required_placeholder(int)                # must be given: seed=VALUE

A change first sets the reference, so that fields derived from it are computed again. `override` then sets the value in the
resulting table too, so that it holds even if two fields share one reference and receive different values.
"""

import copy
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from attnjax.config.keys import kind_of, record_of
from attnjax.config.kinds import coerce

DEPTH = 20


def is_config_dict(config: Any) -> bool:
    """Whether this is an `ml_collections.ConfigDict`, which is no `Mapping`. The module is not imported for the answer."""
    module = sys.modules.get("ml_collections")
    return module is not None and isinstance(config, module.ConfigDict)


def has_references(config: Any) -> bool:
    """Whether a field of a `ConfigDict` holds a `FieldReference`, so that it may be derived from another field."""
    return bool(_references(_tree(config)))


def resolved(config: Any, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A `ConfigDict` as a nested dict, its references computed after they were set to the changed values.

    Raises ValueError, with the dotted key, where a reference cannot hold its value, has none, or cannot be computed.
    """
    tree = _tree(config)
    if changes:
        tree = copy.deepcopy(tree)
        found = _references(tree)
        for key, value in _leaves(changes):
            if key in found and record_of(kind := kind_of(key)) is None:
                found[key].set(value if kind is Any else coerce(kind, value, key), type_safe=False)
    _refuse_placeholders(_references(tree))
    return _computed(tree)


def _tree(config: Any, depth: int = 0) -> dict[str, Any]:
    """The fields as nested dicts, with references as leaves; one that holds a table is replaced by the table."""
    if depth > DEPTH:
        raise ValueError(f"a config must not be nested more than {DEPTH} deep")
    tree = {}
    for name, field in config.items(preserve_field_references=True):
        table = _value(field) if _refers(field) else field
        tree[name] = _tree(table, depth + 1) if is_config_dict(table) else field
    return tree


def _references(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The references of a tree by their dotted keys."""
    found = {}
    for name, field in tree.items():
        if isinstance(field, dict):
            found.update(_references(field, f"{prefix}{name}."))
        elif _refers(field):
            found[f"{prefix}{name}"] = field
    return found


def _computed(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The tree with values instead of references."""
    table = {}
    for name, field in tree.items():
        if isinstance(field, dict):
            table[name] = _computed(field, f"{prefix}{name}.")
            continue
        try:
            table[name] = field.get() if _refers(field) else field
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
            raise ValueError(f"{prefix}{name} cannot be derived from the field that it refers to: {why}") from error
    return table


def _refuse_placeholders(found: Mapping[str, Any]) -> None:
    """Raise ValueError, naming them all, where required placeholders are left without a value."""
    from ml_collections.config_dict import RequiredValueError

    unset = [key for key, field in found.items() if isinstance(_value(field), RequiredValueError)]
    if unset:
        raise ValueError(f"{' and '.join(unset)} must be given, as {unset[0]}=VALUE: the config has no value for it")


def _leaves(changes: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The changes with tables split into dotted keys, the shorter keys first."""
    for key in sorted(changes, key=lambda key: str(key).count(".")):
        value = changes[key]
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _refers(field: Any) -> bool:
    from ml_collections import FieldReference

    return isinstance(field, FieldReference)


def _value(field: Any) -> Any:
    """What a reference holds now, or the error that says why it has no value."""
    try:
        return field.get()
    except Exception as error:
        return error
