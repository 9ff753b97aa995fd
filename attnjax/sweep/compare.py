"""What two configs differ in, said in one line."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from attnjax.config import RunConfig, to_dict


def changes(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, with the old and the new one."""
    before, after = dict(_flat(to_dict(old), "")), dict(_flat(to_dict(new), ""))
    keys = sorted(before.keys() | after.keys())
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def difference(new: RunConfig, others: Sequence[RunConfig]) -> str:
    """How `new` differs from the nearest of the others; "" without others."""
    if not others:
        return ""
    nearest = min((changes(old, new) for old in others), key=len)
    parts = [f"{key} is {json.dumps(new)} instead of {json.dumps(old)}" for key, (old, new) in nearest.items()]
    more = f" and {len(parts) - 4} more" if len(parts) > 4 else ""
    return f" ({'; '.join(parts[:4])}{more})"


def _flat(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
