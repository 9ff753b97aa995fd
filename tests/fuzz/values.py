"""Changes of JSON by structure: a wrong type, a huge number, an unknown key, deep nesting, a key twice."""

import json
import random
from collections.abc import Iterator
from typing import Any

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>[a](javascript:alert(1))|`"
RAW = "\x02raw\x03"
"""Stands in the place of text that no JSON library would write; `change` puts it in."""
POOL: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2**31 - 1,
    2**63,
    10**30,
    -(10**30),
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x" * 5000,
    "../../canary",
    "/dev/zero",
    "\x00",
    "\ud800",
    "\u202eevil",
    MARKUP,
    [],
    {},
    [[]],
    [1, "a", None],
    {"name": "rope"},
)
TEXTS = ("1e400", "-0", "[" * 30 + "]" * 30, "[" * 3000 + "]" * 3000, "1" * 5000, "{}{}", "")


def change(draw: random.Random, table: Any) -> tuple[str, str]:
    """What was done in words, and the JSON text of the changed value."""
    places = [place for place in _places(table) if place]
    if not places:
        return "replaced the whole", json.dumps(draw.choice(POOL))
    *path, key = draw.choice(places)
    parent = table
    for part in path:
        parent = parent[part]
    name = ".".join(map(str, (*path, key)))
    kind = draw.choice(("replace", "replace", "replace", "number", "raw", "delete", "add", "twice"))
    if kind == "delete":
        del parent[key]
        return f"deleted {name}", json.dumps(table)
    if kind == "add" and isinstance(parent, dict):
        new = draw.choice(("unknown", "__proto__", MARKUP, "", "schema", "\ud800"))
        parent[new] = draw.choice(POOL)
        return f"set {new[:20]!r} beside {name} to {parent[new]!r:.30}", json.dumps(table)
    if kind == "number" and isinstance(parent[key], int | float):
        parent[key] = parent[key] + draw.choice((-20, -1, 1, 20)) if draw.random() < 0.5 else parent[key] * 2
        return f"{name} is now {parent[key]!r:.30}", json.dumps(table)
    return _raw(draw, table, parent, key, name, kind)


def _raw(draw: random.Random, table: Any, parent: Any, key: Any, name: str, kind: str) -> tuple[str, str]:
    if kind == "raw":
        text = draw.choice(TEXTS)
        parent[key] = RAW
        return f"{name} is now the text {text:.20}", json.dumps(table).replace(json.dumps(RAW), text)
    if kind == "twice" and isinstance(parent, dict):
        parent[RAW] = parent[key]
        return f"{name} stands twice", json.dumps(table).replace(json.dumps(RAW), json.dumps(key))
    parent[key] = draw.choice(POOL)
    return f"{name} is now {parent[key]!r:.30}", json.dumps(table)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))
