"""Groups runs: a panel is a task, a variant is one cell of it, named by the settings that distinguish it.

Runs of one cell differ in their seeds alone. A variant is called by its encoding, followed by those settings, and only
those, in which the cells of the same encoding and task differ: "RoPE", or "RoPE theta=500000, policy=offset". Positions that
are not 0, 1, 2 ... in training are named in any case, because they make another method of the same encoding. What was tuned is
named only where cells have no other difference: what a variant chose for one task is no name of it in all of them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attnjax.config.parse import SEEDS
from attnjax.records.values import as_dict, dotted, text, whole
from attnjax.report.records import Run, encoding_names
from attnjax.report.style import order, style

UNNAMED = (*SEEDS, "schema", "name")
"""Fields that tell nobody what a run is about."""
ALWAYS = (("positions.policy", "arange"),)
"""Fields that are named wherever they do not have this value, also where all cells have the same."""


@dataclass(frozen=True)
class Variant:
    """One cell: its name in words, its encoding, its number among the variants of that encoding, and all its runs."""

    label: str
    encoding: str
    number: int
    cell: str
    runs: tuple[Run, ...]

    @property
    def source(self) -> str:
        """A text that names the records from which the numbers are computed."""
        return f"made from the records of {' '.join(run.id for run in self.runs)}"

    @property
    def config(self) -> Mapping[str, Any]:
        """The config that its runs share, except for the seeds."""
        return next(run.config for run in self.runs if run.config)


@dataclass(frozen=True)
class Panel:
    """One task: its name in words, a name for files, the training lengths, and its variants in a fixed order."""

    label: str
    slug: str
    task: str
    trained: tuple[int, int]
    variants: tuple[Variant, ...]


def panels(runs: Iterable[Run], tuned: Iterable[str] = ()) -> tuple[Panel, ...]:
    """The tasks of a sweep by name; `tuned` are the fields that its cells chose among candidates.

    A run without a readable config joins its cell where sweep.json names it.
    """
    tuned = tuple(tuned)
    tasks: dict[str, list[list[Run]]] = {}
    for cell in cells(runs):
        tasks.setdefault(canonical(config_of(cell)["task"]), []).append(cell)
    fields = [json.loads(task) for task in tasks]
    labels = names(fields, "name")
    found, slugs = [], set()
    for label, task, members in sorted(zip(labels, fields, tasks.values(), strict=True), key=lambda item: item[0]):
        low, high = (task[key] if whole(task.get(key)) else 0 for key in ("length_min", "length_max"))
        slug = unique(slugify(label), slugs, "-")
        found.append(Panel(label, slug, text(task["name"]), (low, high), variants(members, tuned)))
    return numbered(found)


def numbered(found: list[Panel]) -> tuple[Panel, ...]:
    """The panels with the variants of each encoding numbered alike in all of them, so that one name has one style."""
    known: dict[str, set[str]] = {}
    for panel in found:
        for variant in panel.variants:
            known.setdefault(variant.encoding, set()).add(variant.label)
    place = {
        encoding: {label: i for i, label in enumerate(sorted(labels, key=natural))}
        for encoding, labels in known.items()
    }
    return tuple(
        replace(panel, variants=tuple(replace(v, number=place[v.encoding][v.label]) for v in panel.variants))
        for panel in found
    )


def cells(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs of every cell that has at least one readable config, failed and absent runs among them."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.cell, []).append(run)
    return [members for members in found.values() if any(run.config for run in members)]


def homeless(runs: Iterable[Run]) -> list[Run]:
    """Runs without a config whose cell has no run with one, so that their task is unknown."""
    runs = list(runs)
    known = {run.cell for run in runs if run.config}
    return [run for run in runs if run.cell not in known]


def config_of(members: Iterable[Run]) -> Mapping[str, Any]:
    """The config of the first run that has one."""
    return next(run.config for run in members if run.config)


def variants(members: list[list[Run]], tuned: tuple[str, ...] = ()) -> tuple[Variant, ...]:
    """The cells of one task, named, in the order of their encodings and then of their names."""
    by_encoding: dict[str, list[list[Run]]] = {}
    for cell in members:
        by_encoding.setdefault("+".join(encoding_names(config_of(cell))), []).append(cell)
    found = []
    for encoding in sorted(by_encoding, key=lambda name: (order(name), name)):
        group = by_encoding[encoding]
        configs, always = [dict(config_of(cell)) for cell in group], ("task", "model.encoding.name")
        untuned = {canonical(naming_fields(config, (*always, *tuned))) for config in configs}
        labels = names(configs, None, (*always, *tuned) if len(untuned) == len(configs) else always)
        for label, cell in sorted(
            zip(labels, group, strict=True), key=lambda pair: (natural(pair[0]), pair[1][0].cell)
        ):
            full = f"{style(encoding).label} {label}".strip()
            found.append(Variant(full, encoding, 0, cell[0].cell, tuple(cell)))
    return tuple(found)


def names(configs: list[dict[str, Any]], key: str | None, ignore: tuple[str, ...] = ()) -> list[str]:
    """A name per config: the value at `key`, then the settings in which configs of the same `key` differ, and `ALWAYS`."""
    heads = [text(config.get(key)) if key else "" for config in configs]
    flats = [naming_fields(config, ignore) for config in configs]
    differing = {
        head: different([own for name, own in zip(heads, flats, strict=True) if name == head]) for head in set(heads)
    }
    labels = []
    for head, own in zip(heads, flats, strict=True):
        settings = [f"{short(field, differing[head])}={own[field]}" for field in differing[head] if field in own]
        labels.append(" ".join(filter(None, (head, ", ".join(settings)))))
    taken: set[str] = set()
    return [unique(label, taken) for label in labels]


def different(flats: list[dict[str, str]]) -> list[str]:
    """The keys whose values, or whose absence, differ, and those of `ALWAYS` that have another value than the usual one."""
    named = [key for key, usual in ALWAYS if any(own.get(key, usual) != usual for own in flats)]
    known = sorted({key for own in flats for key in own})
    return [key for key in known if key in named or len({own.get(key) for own in flats}) > 1]


def naming_fields(config: Mapping[str, Any], ignore: tuple[str, ...]) -> dict[str, str]:
    """What may name a config, without the fields of `ignore` and what lies in them."""
    left_out = tuple(f"{field}." for field in (*UNNAMED, *ignore))
    return {key: value for key, value in flat(config).items() if not f"{key}.".startswith(left_out)}


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """A nested config as {dotted key: value in words}; what is empty is left out."""
    return {key: shown(value) for key, value in dotted(config) if value != {}}


def shown(value: Any) -> str:
    """A setting in words: 500000 rather than 500000.0, a list as its items, None as "none"."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:g}"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, list):
        return " ".join(shown(item) for item in value) if not any(map(as_dict, value)) else canonical(value)
    return value if isinstance(value, str) else canonical(value) if isinstance(value, dict) else str(value)


def short(field: str, differing: list[str]) -> str:
    """The last part of a dotted key, or the whole key where another one ends in the same word."""
    last = field.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in differing) == 1 else field


def canonical(value: Any) -> str:
    """One text for equal values: JSON with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def natural(label: str) -> list[tuple[float, str]]:
    """A sort key that puts theta=10000 before theta=500000 and after theta=100."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", label)
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]


def slugify(label: str) -> str:
    """Letters, digits, dashes and underscores, for a file name on every system."""
    return re.sub(r"[^a-z0-9_]+", "-", label.lower()).strip("-_")[:60] or "task"


def unique(name: str, taken: set[str], joint: str = " ") -> str:
    """The name, with a number behind it if it is taken; added to `taken`."""
    candidates = (name if i == 1 else f"{name}{joint}{i}".strip() for i in range(1, len(taken) + 2))
    found = next(candidate for candidate in candidates if candidate not in taken)
    taken.add(found)
    return found
