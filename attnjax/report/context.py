"""Configs and manifests in words: what all runs share, and in what they differ."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attnjax.config.parse import SEEDS
from attnjax.report.groups import flat, natural

PRIVATE = ("host", "process", "environment", "population", "chance", "schema", "run", "records")
"""Manifest fields that say more about a place than about a result, or stand elsewhere in a report."""

MOST = 12
LONGEST = 300


def settings(records: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """({dotted key: value} that all share, {dotted key: all values} for the rest), in order of keys; seeds are not
    told.
    """
    flats = [flat(record) for record in records]
    keys = sorted({key for item in flats for key in item} - {*SEEDS, "schema", ""})
    shared, differing = {}, {}
    for key in keys:
        values = sorted({item.get(key, "unset")[:LONGEST] for item in flats}, key=natural)
        if len(values) == 1:
            shared[key] = values[0]
        else:
            differing[key] = values
    return shared, differing


def public(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest without what is about a place or a person."""
    return {key: value for key, value in manifest.items() if key not in PRIVATE}


def few(values: Sequence[str]) -> str:
    """Some of the values, and how many there are."""
    shown = ", ".join(values[:MOST])
    return shown if len(values) <= MOST else f"{shown} ... ({len(values)} different values)"


def pretty(value: Any) -> str:
    """A nested value as indented JSON."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
