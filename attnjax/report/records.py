"""The stored records of a sweep: what every number of a report is a function of.

A sweep is a directory with `sweep.json` and one folder per run, named by the 16 hex digits of its id, that holds
`config.json`, `manifest.json`, `status.json`, `metrics.jsonl` and `results.jsonl`. Whatever is torn, foreign or missing
is listed in `Sweep.skipped`; a run that the sweep lists and the directory lacks is kept, with the state "absent".
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from attnjax.folder import Folder, enter
from attnjax.report.jsonl import LINK, Skipped, Source, parse, printable, read_bytes, read_object, refuse_newer
from attnjax.report.rows import Result, as_dict, loss, result, text, typed
from attnjax.sweep.inventory import differences

STATES = ("pending", "running", "done", "failed", "preempted")
SEEDS = ("seed", "data_seed")
RUN_ID = re.compile(r"[0-9a-f]{16}")
OURS = re.compile(r"sweep\.json|index\.sqlite(-\w+)?|logs|report|README\.md|\..*")
"""Names in a sweep directory that are neither runs nor foreign."""
DAMAGED = "damaged"


@dataclass(frozen=True)
class Run:
    """One training: its id, its cell (the config without seeds), and everything it recorded.

    `state` is one of `STATES`, "absent" where the sweep lists a run that has no folder, "unknown" where its status was
    lost, or `DAMAGED` where it is done and its files of records are not what they were then. `losses` holds (step, training
    loss) in order of steps.
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
    """Everything a report is made from: the sweep's spec, its runs in order of their ids, and what was not used.

    `unchecked` lines of the records have no checksum, because an earlier version wrote them.
    """

    name: str
    spec: Mapping[str, Any]
    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...]
    unchecked: int = 0


def read(directory: Path, ignore: Iterable[Path] = ()) -> Sweep:
    """The records below `directory`, leaving out the paths in `ignore` (where the report itself is written).

    The directory may be a link; no link in it is followed.

    Raises:
        ValueError: there is no such directory, it holds no run, or a record has a newer schema.
    """
    root = Path(directory)
    try:
        folder = enter(root, follow=True)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{directory} is not a directory: give the folder that a sweep was written to") from None
    except OSError as error:
        raise ValueError(f"{directory} cannot be read: {error.strerror or error}") from None
    with folder:
        spec, skipped = read_object(Source(folder, "sweep.json"))
        listed, wrong = listing(spec)
        left_out = {path.name for path in ignore if path.parent.resolve() == root.resolve()}
        kinds = {name: folder.kind(name) for name in folder.names() if name not in left_out}
        folders = {name for name, kind in kinds.items() if RUN_ID.fullmatch(name) and kind == "folder"}
        skipped += wrong + foreign(kinds, folders)
        runs, unchecked = [], 0
        for run in sorted(folders | set(listed)):
            found = read_run(folder, run, listed.get(run, "")) if run in folders else absent(run, listed[run])
            runs.append(found.run)
            skipped += found.skipped
            unchecked += found.unchecked
    if not any(run.config for run in runs):
        raise ValueError(
            f"{directory} holds no run to report: no folder named by a run id (16 hex digits) has a readable "
            f"config.json. It has {len(kinds)} entries, and its sweep.json lists {len(listed)} runs."
        )
    name = text(spec.get("name")) or printable(root.resolve().name)
    return Sweep(name, spec, tuple(runs), tuple(skipped), unchecked)


def foreign(kinds: Mapping[str, str], folders: set[str]) -> list[Skipped]:
    """A note for every link of a sweep directory, and for every entry that no sweep writes."""
    links = [name for name, kind in kinds.items() if kind == "link" and name != "sweep.json"]
    others = [name for name in kinds if name not in (*links, *folders) and not OURS.fullmatch(name)]
    notes = [Skipped(printable(name), None, LINK) for name in links]
    return notes + [Skipped(printable(name), None, "is not part of a sweep") for name in others]


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


class Found(NamedTuple):
    """A run, what was skipped in its folder, and how many of its lines have no checksum."""

    run: Run
    skipped: list[Skipped]
    unchecked: int


def absent(run: str, cell: str) -> Found:
    """A run that was planned and has no folder."""
    return Found(Run(run, cell, {}, {}, "absent", "", (), ()), [], 0)


def read_run(root: Folder, run: str, cell: str) -> Found:
    """One folder of records; `cell` is what sweep.json says, used where the config cannot be read."""
    try:
        folder = root.enter(run)
    except (OSError, ValueError) as error:
        return Found(replace(absent(run, cell).run, state="unknown"), [Source(root, run).unreadable(error)], 0)
    with folder:
        config, skipped = read_config(Source(folder, "config.json", run), run)
        status, no_status = read_object(Source(folder, "status.json", run))
        manifest, no_manifest = read_object(Source(folder, "manifest.json", run))
        results = typed(Source(folder, "results.jsonl", run), lambda row: result(row, run))
        losses = typed(Source(folder, "metrics.jsonl", run), loss)
        said = text(status.get("state"))
        different = differences(folder.path, said, manifest)
    skipped += no_status + (no_manifest if said != "pending" else []) + results.skipped + losses.skipped
    skipped += [Skipped(f"{run}/{name}", None, reason) for name, reason in different.items()]
    found = Run(
        id=run,
        cell=cell_id(config) if config else cell,
        config=config,
        manifest=manifest,
        state="unknown" if said not in STATES else DAMAGED if said == "done" and different else said,
        reason=text(status.get("reason")),
        results=results.rows,
        losses=tuple(sorted(dict(losses.rows).items())),
    )
    return Found(found, skipped, results.unchecked + losses.unchecked)


def read_config(source: Source, run: str) -> tuple[dict[str, Any], list[Skipped]]:
    """The config of a run, empty where it cannot be the one that the run was made with; ValueError for a newer one."""
    raw = read_bytes(source)
    if isinstance(raw, Skipped):
        return {}, [raw]
    config = parse(raw)
    if isinstance(config, str):
        return {}, [source.skip(config)]
    if hashlib.sha256(raw.strip()).hexdigest()[:16] != run:
        reason = "has changed since the run was named: its sha256 does not begin with the name of its folder"
        return {}, [source.skip(reason)]
    refuse_newer(config, source.name)
    if not (text(as_dict(config.get("task")).get("name")) and encoding_names(config)):
        return {}, [source.skip("names no task or no encoding")]
    return config, []


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
