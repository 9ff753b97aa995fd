"""Reads a folder of results: which runs it has, and the files of each run, sound or damaged.

    sweep.json                 the plan
    <run>/config.json          the canonical JSON, whose sha256 begins with the folder's name
    <run>/manifest.json  status.json  metrics.jsonl  results.jsonl  examples.npz  checkpoints/  lease-000001  traceback.txt
    logs/  report/  tuning/  tuning.json

Damage is reported as a `Problem` beside the sound data, and callers decide what to do.
"""

import hashlib
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from attnjax.config import RunConfig, parse
from attnjax.config.files import SWEEP_FILE
from attnjax.folder import enter
from attnjax.records import files, inventory, status
from attnjax.records.files import Problem, problem
from attnjax.records.values import as_dict, text

RUN = re.compile(r"[0-9a-f]{16}")
"""Names of runs."""
OURS = re.compile(rf"{re.escape(SWEEP_FILE)}|index\.sqlite(-\w+)?|logs|report|tuning(\.json)?|README\.md|\..*")
"""Names in a folder of results that are neither runs nor foreign; earlier versions made an index."""
CONFIG, MANIFEST = "config.json", "manifest.json"
TUNING = "tuning.json"
"""What the families of a sweep chose, see `attnjax.sweep.choices`."""
SIZE_OF_PLAN = 2**28
"""Bytes of sweep.json beyond which it is not read; the largest number of runs takes 15 to 60 MB."""
LINK = "is a link, which is not followed"

T = TypeVar("T")


class Entries(NamedTuple):
    """Names in a folder of results: runs, links that are not followed, and what no sweep writes."""

    runs: list[str]
    links: list[str]
    foreign: list[str]


class Plan(NamedTuple):
    """What sweep.json says: its table, the entries of its runs that name one, and what is wrong with the others."""

    table: dict[str, Any]
    entries: list[dict[str, Any]]
    wrong: list[str]


class RunFolder(NamedTuple):
    """What the folder of a run says beside its logs, and what is wrong with it.

    `config`, not parsed yet, and `manifest` are {}, and `status` is None, where they are missing or damaged. `different`
    says which logs do not hold what they held when the run ended.
    """

    directory: pathlib.Path
    config: dict[str, Any]
    status: status.Status | None
    manifest: dict[str, Any]
    problems: list[Problem]
    different: list[Problem]


def entries(root: pathlib.Path) -> Entries:
    """What a folder of results holds, by name. Raises OSError, or LinkError, where it cannot be read or is a link."""
    with enter(root) as folder:
        kinds = {name: folder.kind(name) for name in folder.names()}
    runs = [name for name, kind in kinds.items() if RUN.fullmatch(name) and kind == "folder"]
    links = [name for name, kind in kinds.items() if kind == "link" and name != SWEEP_FILE]
    others = kinds.keys() - {*runs, *links}
    return Entries(runs, links, [name for name in kinds if name in others and not OURS.fullmatch(name)])


def read_plan(root: pathlib.Path) -> Plan:
    """The plan in a folder of results.

    Raises OSError where it cannot be read, ValueError where it is damaged, and NewerError where it is of a newer schema.
    """
    path = root / SWEEP_FILE
    table = files.parse_table(files.read_text(path, SIZE_OF_PLAN), path)
    there = table.get("runs")
    found = [as_dict(entry) for entry in (there if isinstance(there, list) else [])]
    named = [RUN.fullmatch(text(entry.get("run"))) is not None for entry in found]
    wrong = [f"entry {place} of its runs names no run id" for place, known in enumerate(named) if not known]
    return Plan(table, [entry for entry, known in zip(found, named, strict=True) if known], wrong)


def read(directory: pathlib.Path) -> RunFolder:
    """All that the folder of a run says beside its logs; nothing is fatal.

    That there is no manifest is no problem of a run that has not begun, or whose status says nothing.
    """
    problems: list[Problem] = []

    def attempt(name: str, function: Callable[[pathlib.Path], T], otherwise: T) -> T:
        try:
            return function(directory)
        except (OSError, ValueError) as error:
            problems.append(problem(directory / name, error))
            return otherwise

    config = attempt(CONFIG, config_table, {})
    state = attempt(status.FILE, status.stored, None)
    manifest = attempt(MANIFEST, lambda folder: files.read_table(folder / MANIFEST), {})
    if state is None or state.state == "pending":
        problems = [one for one in problems if (one.path.name, one.kind) != (MANIFEST, "missing")]
    different = {} if state is None else inventory.differences(directory, state.state, manifest)
    told = [Problem(directory / name, reason) for name, reason in different.items()]
    return RunFolder(directory, config, state, manifest, problems, told)


def read_config(directory: pathlib.Path) -> RunConfig:
    """The config in a run's folder.

    Raises ValueError where there is none, it is damaged, or has changed since the run was named; OSError where it cannot be
    read.
    """
    try:
        return parse(config_table(directory))
    except FileNotFoundError:
        raise ValueError(f"{directory} holds no run: there is no {CONFIG}") from None


def config_table(directory: pathlib.Path) -> dict[str, Any]:
    """The same, not parsed: its hash is compared with the name of the folder. Raises FileNotFoundError where there is none."""
    path = directory / CONFIG
    content = files.read_text(path)
    if hashlib.sha256(content.encode()).hexdigest()[:16] != directory.name:
        raise ValueError(
            f"{path} has changed since the run was planned: its sha256 does not begin with {directory.name}"
        )
    return files.parse_table(content, path)


def read_manifest(directory: pathlib.Path) -> dict[str, Any]:
    """The manifest of a run; {} where it is missing or damaged. Raises OSError where it cannot be read."""
    try:
        return files.read_table(directory / MANIFEST)
    except (FileNotFoundError, ValueError):
        return {}
