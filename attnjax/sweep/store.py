"""A folder of runs: `sweep.json` says which, and each run's folder holds all that is known about it.

    sweep.json                 name, config file, protocol, and the runs
    <run>/                     see `attnjax.records.runs`
    logs/                      what workers printed; who is changing the plan

The folders are the truth. Several drivers may work on one folder, on one sweep; another sweep is refused.
"""

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Iterator, Sequence

from attnjax import safety
from attnjax.config import RunConfig, canonical_json, cell_id, run_id, to_dict
from attnjax.config.files import SWEEP_FILE
from attnjax.config.names import safe_name
from attnjax.config.schema import SCHEMA
from attnjax.records import files, status
from attnjax.records.runs import CONFIG, SIZE_OF_PLAN, folder_of, read_config, read_plan, status_of
from attnjax.records.values import dotted
from attnjax.sweep.claim import PATIENCE, Owner, claim
from attnjax.sweep.plan import Planned, population_key

LOGS = "logs"
LOOK = 0.05
"""Seconds between looks at who is changing the plan."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A run of a sweep: its id, its cell's, and the population it may train in."""

    run: str
    cell: str
    group: str


@dataclasses.dataclass(frozen=True)
class Store:
    """A sweep's folder, as `prepare` or `load` found it. `runs` may be a part of those in the folder."""

    root: pathlib.Path
    name: str
    runs: tuple[Entry, ...]
    config_file: str = ""
    protocol: str = ""

    def only(self, runs: Sequence[str]) -> "Store":
        """Return the same folder, for a part of its runs."""
        wanted = set(runs)
        return dataclasses.replace(self, runs=tuple(entry for entry in self.runs if entry.run in wanted))

    def directory(self, run: str) -> pathlib.Path:
        """Return the folder of a run. Raises ValueError where a link stands in its place."""
        return safety.inside(self.root, run)

    def folder(self, run: str) -> pathlib.Path:
        """Return where the records and checkpoints of a run are, see `attnjax.records.runs.folder_of`."""
        return folder_of(self.directory(run))

    def config(self, run: str) -> RunConfig:
        """Return the config of a run. Raises ValueError where it is missing or not the one that was planned."""
        return read_config(self.directory(run))

    def status(self, run: str) -> status.Status:
        """Return the status of a run. Raises ValueError where it is damaged."""
        return status_of(self.directory(run))


def prepare(
    root: pathlib.Path,
    name: str,
    planned: Sequence[Planned],
    *,
    config_file: str = "",
    protocol: str = "",
    extend: bool = False,
    dry: bool = False,
) -> Store:
    """Return the folder of a sweep, with a folder for each planned run. Doing it again changes nothing: the protocol is the
    one that is stored.

    With `extend` the runs are added to those of a sweep that is there already. With `dry` nothing is made or changed, and
    what would be refused is refused. A process that is changing the plan is waited for.

    Raises ValueError where the folder cannot be written to or holds another sweep, before anything is made in it.
    """
    entries = tuple(Entry(run_id(one), cell_id(one), population_key(one)) for one, _ in planned)
    root = files.real(root)
    store = Store(root, safe_name(name, "the name of a sweep"), entries, config_file, protocol)
    _spec(store)  # refuses what would be too large
    if not dry:
        files.check_writable(root)
    there = _there(store)
    new = _new(there, store, planned, extend=extend)
    if dry:
        return dataclasses.replace(store, protocol=there.protocol)
    if new:
        with _planning(root):
            there = _there(store)  # another process may have planned meanwhile
            runs = there.runs + _new(there, store, planned, extend=extend)
            safety.write(root / SWEEP_FILE, _spec(dataclasses.replace(there, runs=runs)).encode())
    for one, entry in zip(planned, entries, strict=True):
        run = safety.inside(root, entry.run)
        run.mkdir(exist_ok=True)
        if not (run / CONFIG).exists():  # brought to the disk when the run ends: thousands, one by one, take minutes
            safety.write(run / CONFIG, canonical_json(one.config).encode(), durable=False)
    safety.sync(root)
    return dataclasses.replace(store, protocol=there.protocol)


def load(root: pathlib.Path) -> Store:
    """Return the sweep in a folder, which may itself be a link.

    Raises ValueError, naming the file, where there is none or it is damaged, and OSError where it cannot be read.
    """
    root = files.real(root)
    try:
        plan = read_plan(root)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{root} holds no sweep: there is no {SWEEP_FILE}") from None
    try:
        runs = [Entry(one["run"], str(one["cell"]), str(one["group"])) for one in plan["runs"]]
        name, config_file, protocol = (str(plan[name]) for name in ("name", "config_file", "protocol"))
        return Store(root, safe_name(name, "the name of a sweep"), tuple(runs), config_file, protocol)
    except (KeyError, TypeError, ValueError) as error:
        why = f"it or one of its runs has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{root / SWEEP_FILE} is damaged: {why}") from None


def _spec(store: Store) -> str:
    table = {
        "schema": SCHEMA,
        "name": store.name,
        "config_file": store.config_file,
        "protocol": store.protocol,
        "runs": [dataclasses.asdict(entry) for entry in store.runs],
    }
    text = json.dumps(table, indent=1) + "\n"
    if len(text) > SIZE_OF_PLAN:
        raise ValueError(
            f"the plan of these {len(store.runs)} runs would be larger than {SIZE_OF_PLAN // 2**20} MiB, more than is read: "
            "change fewer or smaller fields, or make several sweeps of it"
        )
    return text


def _there(store: Store) -> Store:
    """Return the sweep in the folder of a store: without runs where there is no plan yet."""
    return load(store.root) if (store.root / SWEEP_FILE).exists() else dataclasses.replace(store, runs=())


def _new(there: Store, store: Store, planned: Sequence[Planned], *, extend: bool) -> tuple[Entry, ...]:
    """Return the runs of a store that a folder does not have. Raises ValueError where they would be another sweep."""
    known = {entry.run for entry in there.runs}
    new = tuple(entry for entry in store.runs if entry.run not in known)
    if new and there.runs and not extend:
        first = next(one for one in planned if run_id(one.config) == new[0].run)
        raise ValueError(_refusal(there, first, f"{len(new)} of the {len(planned)} planned runs"))
    return new


@contextlib.contextmanager
def _planning(root: pathlib.Path) -> Iterator[None]:
    """Hold the plan of a folder alone: who changes it has a claim on the folder of logs."""
    logs = root / LOGS
    logs.mkdir(exist_ok=True)
    while isinstance(mine := claim(logs, PATIENCE), Owner):
        time.sleep(LOOK)
    try:
        yield
    finally:
        mine.release()


def _refusal(there: Store, new: Planned, which: str) -> str:
    """Return why the planned runs are not the sweep that is there, with how the first new one differs from one there."""
    example = ""
    with contextlib.suppress(ValueError, OSError, IndexError):
        before, after = (dict(dotted(to_dict(one))) for one in (there.config(there.runs[0].run), new.config))
        keys = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
        parts = [f"{key} is {json.dumps(after.get(key))} instead of {json.dumps(before.get(key))}" for key in keys[:4]]
        example = f" ({'; '.join(parts)}{', ...' * (len(keys) > 4)})"
    return (
        f"{there.root} holds the sweep {there.name!r} of {len(there.runs)} runs, and {which} are not among "
        f"them{example}. Choose another folder (--out), or add the runs to that sweep (--extend)"
    )
