"""Groups runs and names the groups as people say them: a panel is a task, a variant is one cell of it.

Runs of one cell differ in their seeds alone. A variant is called by its encoding, followed by those settings, and only those,
in which the cells of the same encoding and task differ: "RoPE", "RoPE, theta 500000", "Sinusoidal, embeddings not scaled".
Positions that are not 0, 1, 2 ... in training are named in any case, because they make another method of the same encoding.
What was tuned is named only where cells have no other difference: what a variant chose for one task is no name of it in all.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attnjax.config.parse import SEEDS
from attnjax.records.typed import Run, encoding_names
from attnjax.records.values import as_dict, dotted, text, whole
from attnjax.report.style import Style, order, style

UNNAMED = (*SEEDS, "schema", "name")
"""Fields that tell nobody what a run is about."""
ALWAYS = (("positions.policy", "arange"), ("options.variant", ""))
"""Fields that are named wherever they do not have this value, also where all cells have the same."""
TASKS = (
    ("markov", "Markov chains"),
    ("copy", "copying"),
    ("reverse", "reversing"),
    ("mqar", "associative recall, many queries"),
)
SAID = (
    ("embed_scale", "no", "embeddings not scaled"),
    ("embed_scale", "yes", ""),
    ("variant", "rsc", "one token repeated"),
    ("variant", "rdc", "one token repeated, another given"),
    ("variant", "cmc", "any tokens"),
    ("variant", "mc", "any tokens"),
)
"""Settings that have a name of their own, by the last part of their key and their value; "" for the usual one."""


@dataclass(frozen=True)
class Variant:
    """One cell: its name in words, its encoding, how its curve is drawn, and all its runs."""

    label: str
    encoding: str
    look: Style
    cell: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Panel:
    """One task: its name in words, the task of its config, the training lengths, and its variants in a fixed order."""

    label: str
    task: str
    trained: tuple[int, int]
    variants: tuple[Variant, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs of the task."""
        return [run for variant in self.variants for run in variant.runs]


def panels(runs: Iterable[Run], tuned: Iterable[str] = ()) -> tuple[Panel, ...]:
    """Return the tasks of a sweep by name; `tuned` are the fields that its cells chose among candidates.

    A run without a readable config joins its cell where sweep.json names it.
    """
    tasks: dict[str, list[list[Run]]] = {}
    for cell in cells(runs):
        tasks.setdefault(canonical(config_of(cell)["task"]), []).append(cell)
    fields = [json.loads(task) for task in tasks]
    heads = [dict(TASKS).get(name, name.replace("_", " ")) for name in (text(task["name"]) for task in fields)]
    labels = names(heads, fields, (), "{} ({})")
    found = []
    for label, task, members in sorted(zip(labels, fields, tasks.values(), strict=True), key=lambda item: item[0]):
        low, high = (task[key] if whole(task.get(key)) else 0 for key in ("length_min", "length_max"))
        found.append(Panel(label, text(task["name"]), (low, high), variants(members, tuple(tuned))))
    return styled(found)


def styled(found: list[Panel]) -> tuple[Panel, ...]:
    """Return the panels with one look for each name in all of them."""
    known: dict[str, set[str]] = {}
    for panel in found:
        for variant in panel.variants:
            known.setdefault(variant.encoding, set()).add(variant.label)
    looks = {
        (name, label): style(name, i, alone=len(known) == 1 < len(labels))
        for name, labels in known.items()
        for i, label in enumerate(sorted(labels, key=natural))
    }
    return tuple(
        replace(panel, variants=tuple(replace(v, look=looks[v.encoding, v.label]) for v in panel.variants))
        for panel in found
    )


def cells(runs: Iterable[Run]) -> list[list[Run]]:
    """Return the runs of every cell that has at least one readable config, failed and absent runs among them."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.cell, []).append(run)
    return [members for members in found.values() if any(run.config for run in members)]


def config_of(members: Iterable[Run]) -> Mapping[str, Any]:
    """Return the config of the first run that has one."""
    return next(run.config for run in members if run.config)


def variants(members: list[list[Run]], tuned: tuple[str, ...] = ()) -> tuple[Variant, ...]:
    """Return the cells of one task, named, in the order of their encodings and then of their names."""
    configs, always = [dict(config_of(cell)) for cell in members], ("task", "model.encoding.name")
    encodings = ["+".join(encoding_names(config)) for config in configs]
    labels = [style(encoding).label for encoding in encodings]
    untuned = {
        (name, canonical(fields(config, (*always, *tuned)))) for name, config in zip(encodings, configs, strict=True)
    }
    labels = names(labels, configs, (*always, *tuned) if len(untuned) == len(configs) else always)
    made = [
        Variant(label, encoding, style(encoding), cell[0].cell, tuple(cell))
        for label, encoding, cell in zip(labels, encodings, members, strict=True)
    ]
    return tuple(sorted(made, key=lambda one: (order(one.encoding), one.encoding, natural(one.label), one.cell)))


def names(heads: list[str], configs: list[dict[str, Any]], ignore: tuple[str, ...], joint: str = "{}, {}") -> list[str]:
    """Return each head with the settings in which configs of the same head differ, and those of `ALWAYS`, in words."""
    flats = [fields(config, ignore) for config in configs]
    labels, taken = [], set[str]()
    for head, own in zip(heads, flats, strict=True):
        named = differing([other for name, other in zip(heads, flats, strict=True) if name == head])
        words = ", ".join(filter(None, (said(field, own[field], named) for field in named if field in own)))
        label = joint.format(head, words) if words else head
        tries = (label if i == 1 else f"{label} ({i})" for i in range(1, len(labels) + 2))
        labels.append(next(name for name in tries if name not in taken))
        taken.add(labels[-1])
    return labels


def differing(flats: list[dict[str, str]]) -> list[str]:
    """Return the keys whose values, or whose absence, differ, and those of `ALWAYS` that have another value than the usual."""
    named = [key for key, usual in ALWAYS if any(own.get(key, usual) != usual for own in flats)]
    known = sorted({key for own in flats for key in own})
    return [key for key in known if key in named or len({own.get(key) for own in flats}) > 1]


def fields(config: Mapping[str, Any], ignore: tuple[str, ...] = ()) -> dict[str, str]:
    """Return what may name a config as {dotted key: value in words}, without the fields of `ignore` and what lies in them."""
    left_out = tuple(f"{field}." for field in (*UNNAMED, *ignore))
    found = {key: shown(value) for key, value in dotted(config) if value != {}}
    return {key: value for key, value in found.items() if not f"{key}.".startswith(left_out)}


def said(field: str, value: str, others: list[str]) -> str:
    """Return a setting in words; its whole key where another one ends in the same word.

    Example:
      >>> said("model.embed_scale", "no", []), said("encoding.options.theta", "500", []), said("model.qk_norm", "yes", [])
      ('embeddings not scaled', 'theta 500', 'with qk norm')
    """
    last = field.rpartition(".")[2]
    if known := [words for name, given, words in SAID if (name, given) == (last, value)]:
        return known[0]
    word = (last if sum(other.rpartition(".")[2] == last for other in others) <= 1 else field).replace("_", " ")
    return {"yes": f"with {word}", "no": f"without {word}"}.get(value, f"{word} {value}")


def shown(value: Any) -> str:
    """Return a setting as text: 500000 rather than 500000.0, a list as its items, None as "none"."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:g}"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, list):
        return " ".join(shown(item) for item in value) if not any(map(as_dict, value)) else canonical(value)
    return value if isinstance(value, str) else canonical(value) if isinstance(value, dict) else str(value)


def canonical(value: Any) -> str:
    """Return one text for equal values: JSON with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def natural(label: str) -> list[tuple[float, str]]:
    """Return a sort key that puts theta 10000 before theta 500000 and after theta 100."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", label)
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]
