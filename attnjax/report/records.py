"""The stored records of a sweep: what every number of a report is a function of.

A sweep is a directory with `sweep.json` and one folder per run, named by the 16 hex digits of its id, that holds
`config.json`, `manifest.json`, `status.json`, `metrics.jsonl` and `results.jsonl`. Whatever is torn, foreign or missing
is listed in `Sweep.skipped`; a run that the sweep lists and the directory lacks is kept, with the state "absent".
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnjax.report.jsonl import Skipped, Source, printable, read_object
from attnjax.report.rows import Result, as_dict, loss, result, text, typed

STATES = ("pending", "running", "done", "failed", "preempted")
SEEDS = ("seed", "data_seed")
RUN_ID = re.compile(r"[0-9a-f]{16}")
OURS = re.compile(r"sweep\.json|index\.sqlite(-\w+)?|logs|report|README\.md|\..*")
"""Names in a sweep directory that are neither runs nor foreign."""


@dataclass(frozen=True)
class Run:
    """One training: its id, its cell (the config without seeds), and everything it recorded.

    `state` is one of `STATES`, "absent" where the sweep lists a run that has no folder, or "unknown" where its status
    was lost. `losses` holds (step, training loss) in order of steps.
    """

    id: str
    cell: str
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    state: str
    reason: str
    results: tuple[Result, ...]
    losses: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Sweep:
    """Everything a report is made from: the sweep's spec, its runs in order of their ids, and what was not used."""

    name: str
    spec: Mapping[str, Any]
    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...]


def read(directory: Path, ignore: Iterable[Path] = ()) -> Sweep:
    """The records below `directory`, leaving out the paths in `ignore` (where the report itself is written).

    Raises:
        ValueError: there is no such directory, it holds no run, or a record has a newer schema.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ValueError(f"{directory} is not a directory: give the folder that a sweep was written to")
    spec, skipped = read_object(Source(root, root / "sweep.json"))
    listed, wrong = listing(spec)
    left_out = {path.resolve() for path in ignore}
    entries = sorted(path for path in root.iterdir() if path.resolve() not in left_out)
    folders = {path.name for path in entries if RUN_ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink()}
    skipped += wrong + foreign(entries, folders)
    runs = []
    for run in sorted(folders | set(listed)):
        known = run in folders
        found, wrong = read_run(root, run, listed.get(run, "")) if known else (absent(run, listed[run]), [])
        runs.append(found)
        skipped += wrong
    if not any(run.config for run in runs):
        raise ValueError(
            f"{directory} holds no run to report: no folder named by a run id (16 hex digits) has a readable "
            f"config.json. It has {len(entries)} entries, and its sweep.json lists {len(listed)} runs."
        )
    return Sweep(text(spec.get("name")) or printable(root.resolve().name), spec, tuple(runs), tuple(skipped))


def foreign(entries: Iterable[Path], folders: set[str]) -> list[Skipped]:
    """A note for every entry of a sweep directory that no sweep writes."""
    names = [path.name for path in entries if path.name not in folders and not OURS.fullmatch(path.name)]
    return [Skipped(printable(name), None, "is not part of a sweep") for name in names]


def listing(spec: Mapping[str, Any]) -> tuple[dict[str, str], list[Skipped]]:
    """The cell of every run that sweep.json lists, and a note for every entry that names no run."""
    runs = spec.get("runs", [])
    entries = [{"run": run, **as_dict(item)} for run, item in runs.items()] if isinstance(runs, dict) else runs
    listed, skipped = {}, []
    for place, entry in enumerate(entries if isinstance(entries, list) else []):
        item = {"run": entry} if isinstance(entry, str) else as_dict(entry)
        run = text(item.get("run", item.get("id")))
        if RUN_ID.fullmatch(run):
            listed[run] = text(item.get("cell"))
        else:
            skipped.append(Skipped("sweep.json", None, f"entry {place} of its runs names no run id"))
    return listed, skipped


def absent(run: str, cell: str) -> Run:
    """A run that was planned and has no folder."""
    return Run(run, cell, {}, {}, "absent", "", (), ())


def read_run(root: Path, run: str, cell: str) -> tuple[Run, list[Skipped]]:
    """One folder of records; `cell` is what sweep.json says, used where the config cannot be read."""
    config_file, *others = (Source(root, root / run / f"{name}.json") for name in ("config", "status", "manifest"))
    config, skipped = read_object(config_file)
    (status, no_status), (manifest, no_manifest) = map(read_object, others)
    state = text(status.get("state"))
    skipped += no_status + (no_manifest if state != "pending" else [])
    reason = unusable(config, config_file, run) if config else ""
    if reason:
        config, skipped = {}, [*skipped, config_file.skip(reason)]
    results, wrong_results = typed(Source(root, root / run / "results.jsonl"), lambda row: result(row, run))
    losses, wrong_losses = typed(Source(root, root / run / "metrics.jsonl"), loss)
    found = Run(
        id=run,
        cell=cell_id(config) if config else cell,
        config=config,
        manifest=manifest,
        state=state if state in STATES else "unknown",
        reason=text(status.get("reason")),
        results=results,
        losses=tuple(sorted(dict(losses).items())),
    )
    return found, [*skipped, *wrong_results, *wrong_losses]


def unusable(config: Mapping[str, Any], source: Source, run: str) -> str:
    """Why a config cannot be the one that its run was made with, if so."""
    if hashlib.sha256(source.path.read_bytes().strip()).hexdigest()[:16] != run:
        return "has changed since the run was named: its sha256 does not begin with the name of its folder"
    named = text(as_dict(config.get("task")).get("name")) and encoding_names(config)
    return "" if named else "names no task or no encoding"


def cell_id(config: Mapping[str, Any]) -> str:
    """The first 16 hex digits of sha256 of the config without its seeds, as canonical JSON."""
    point = {key: value for key, value in config.items() if key not in SEEDS}
    return hashlib.sha256(json.dumps(point, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def encoding_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The encodings of a model: one, or those of its layers without repetition and in order."""
    encoding = as_dict(config.get("model")).get("encoding")
    layers = encoding if isinstance(encoding, list) else [encoding]
    names = [text(layer if isinstance(layer, str) else as_dict(layer).get("name")) for layer in layers]
    return tuple(dict.fromkeys(name for name in names if name))
