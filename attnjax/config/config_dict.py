"""Configs as `ml_collections.ConfigDict`, whose fields may be derived from other fields and follow a change of them.

`config.train.warmup = config.train.get_ref("steps") * 6 // 100` follows `train.steps`; a `required_placeholder` must be given.
"""

import copy
import sys
from collections.abc import Mapping
from typing import Any

from attnjax.config.keys import kind_of
from attnjax.config.kinds import coerce


def is_config_dict(config: Any) -> bool:
    """Returns whether this is a `ConfigDict`, which is no `Mapping`. ml_collections is not imported for the answer."""
    module = sys.modules.get("ml_collections")
    return module is not None and isinstance(config, module.ConfigDict)


def derives(config: Any) -> bool:
    """Returns whether a field of a `ConfigDict` may be derived from another field, or has to be given."""
    from ml_collections import FieldReference

    for name, field in config.items(preserve_field_references=True):
        # The references of `defaults` have the type `object`.
        if isinstance(field, FieldReference) and field.get_type() is not object:
            return True
        if is_config_dict(config[name]) and derives(config[name]):
            return True
    return False


def followed(config: Any, changes: Mapping[str, Any]) -> Any:
    """Returns a copy of a `ConfigDict` in which what is derived from changed fields is computed from their new values.

    Raises ValueError, with the dotted key, for a value that a field does not take.
    """
    config = copy.deepcopy(config)
    for key, value in changes.items():
        value = coerce(kind_of(key), value, key)
        *path, name = key.split(".")
        table = _inside(config, path)
        if is_config_dict(table) and name in table:
            with table.unlocked(), table.ignore_type():
                table[name] = value
    return config


def values(config: Any, prefix: str = "") -> dict[str, Any]:
    """Returns a `ConfigDict` as a nested dict.

    Raises ValueError, with the dotted key, for a field that must be given or cannot be derived.
    """
    table = {}
    for name in config:
        key = f"{prefix}{name}"
        try:
            value = config[name]
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
            raise ValueError(f"{key} has no value, give {key}=VALUE ({why})") from error
        table[name] = values(value, f"{key}.") if is_config_dict(value) else value
    return table


def _inside(config: Any, path: list[str]) -> Any:
    """The field at a path, None where there is none."""
    for name in path:
        if not is_config_dict(config) or name not in config:
            return None
        config = config[name]
    return config
