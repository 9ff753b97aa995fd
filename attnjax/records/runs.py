"""Reads a folder of results: which runs it has, and what each run recorded, sound or damaged.

    sweep.json                 the plan
    <run>/config.json          the canonical JSON, whose sha256 begins with the folder's name
    <run>/claim                who trains the run now, see `attnjax.sweep.claim`
    <run>/attempt-<token>/     what one process trained: checkpoints/ and records
    <run>/result/              the attempt with which the run ended
    logs/  report/  tuning/  tuning.json

Records are manifest.json, status.json, metrics.jsonl, results.jsonl, examples.npz, traceback.txt. Version 0.2.0 wrote them
into <run>/ itself: such runs are refused.
"""

import hashlib
import pathlib
import re
from typing import Any, NamedTuple

from attnjax.config import RunConfig, parse
from attnjax.config.files import SIZE, SWEEP_FILE
from attnjax.records import files, status
from attnjax.records.files import VersionError
from attnjax.records.values import as_dict, text
from attnjax.safety import read_text, refuse_link

RUN = re.compile(r"[0-9a-f]{16}")
"""Names of runs."""
OURS = re.compile(rf"{re.escape(SWEEP_FILE)}|logs|live|report|tuning(\.json)?|README\.md|\..*")
"""Names in a folder of results that are neither runs nor foreign."""
CONFIG, MANIFEST, EXAMPLES = "config.json", "manifest.json", "examples.npz"
TUNING = "tuning.json"
"""What the families of a sweep chose, see `attnjax.sweep.choices`."""
RESULT, ATTEMPT = "result", "attempt-"
PACKED, SCORES = "runs.jsonl", "scores.csv.xz"
"""Files of a packed folder, see `attnjax.records.packed`."""
SIZE_OF_PLAN = 2**28
"""Bytes of sweep.json beyond which it is not read; the largest number of runs takes 15 to 60 MB."""
LINK = "is a link, which is not followed"


class Entries(NamedTuple):
    """Names in a folder of results: runs, links that are not followed, and what no sweep writes."""

    runs: list[str]
    links: list[str]
    foreign: list[str]


def folder_of(run: pathlib.Path) -> pathlib.Path:
    """Return where the records of a run are: its newest attempt, or its result, which is not there before the run begins.

    Raises ValueError where a link stands in place of the result, and for a run of version 0.2.0.
    """
    result = run / RESULT
    refuse_link(result)
    if result.is_dir():
        return result
    attempts = [path for path in run.glob(f"{ATTEMPT}*") if path.is_dir() and not path.is_symlink()]
    if not attempts and (run / status.FILE).exists():
        raise VersionError(
            f"{run} was written by attnjax 0.2.0, whose layout this version does not read: use 0.2.0 for it"
        )
    return max(attempts, default=result)  # names begin with a number


def status_of(run: pathlib.Path) -> status.Status:
    """Return the status of a run. An attempt that was not published has not ended, whatever it says.

    Raises as `status.read` does.
    """
    return status_in(folder_of(run))


def status_in(folder: pathlib.Path) -> status.Status:
    """Return the same, of the folder of its records."""
    found = status.read(folder)
    if found.state in status.FINAL and folder.name.startswith(ATTEMPT):
        return found._replace(state="preempted", reason="")
    return found


def entries(root: pathlib.Path) -> Entries:
    """Return what a folder of results holds, by name. Raises OSError where it cannot be read, ValueError where it is a link."""
    refuse_link(root)
    there = sorted(root.iterdir())
    links = [path.name for path in there if path.is_symlink() and path.name != SWEEP_FILE]
    runs = [path.name for path in there if RUN.fullmatch(path.name) and path.name not in links and path.is_dir()]
    others = {path.name for path in there} - {*runs, *links}
    return Entries(runs, links, sorted(name for name in others if not OURS.fullmatch(name)))


def read_plan(root: pathlib.Path) -> dict[str, Any]:
    """Return the plan in a folder of results, each of whose runs is a table that names one.

    Raises OSError where it cannot be read, ValueError where it is damaged, and VersionError where it is of a newer schema.
    """
    table = files.read_table(root / SWEEP_FILE, SIZE_OF_PLAN)
    if not isinstance(table.get("runs"), list):
        raise ValueError(f"{root / SWEEP_FILE} is damaged: it lists no runs")
    for place, entry in enumerate(table["runs"]):
        if not RUN.fullmatch(text(as_dict(entry).get("run"))):
            raise ValueError(f"{root / SWEEP_FILE} is damaged: entry {place} of its runs names no run id")
    return table


def read_config(run: pathlib.Path) -> RunConfig:
    """Return the config in a run's folder.

    Raises ValueError where there is none, it is damaged, or has changed since the run was named; OSError where it cannot be
    read.
    """
    try:
        return parse(config_table(run))
    except FileNotFoundError:
        raise ValueError(f"{run} holds no run: there is no {CONFIG}") from None


def config_table(run: pathlib.Path) -> dict[str, Any]:
    """Return the same, not parsed: its hash is compared with the name of the folder. Raises FileNotFoundError for none."""
    path = run / CONFIG
    content = read_text(path, SIZE)
    if hashlib.sha256(content.encode()).hexdigest()[:16] != run.name:
        raise ValueError(f"{path} has changed since the run was planned: its sha256 does not begin with {run.name}")
    return files.parse_table(content, path)


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """Return the manifest in a folder of records; {} where it is missing or damaged. Raises OSError where it cannot be read."""
    try:
        return files.read_table(folder / MANIFEST)
    except (FileNotFoundError, ValueError):
        return {}
