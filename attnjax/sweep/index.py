"""An SQLite index of a folder of runs, for questions across runs. Never the truth: made anew from the folders at will."""

import contextlib
import json
import os
import pathlib
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from attnjax.config import canonical_json, cell_id, encoding_name
from attnjax.folder import enter
from attnjax.records.jsonl import Records
from attnjax.sweep.scan import Found, Run, scan

FILE = "index.sqlite"
TABLES = """
CREATE TABLE runs (run TEXT PRIMARY KEY, cell TEXT, name TEXT, task TEXT, encoding TEXT, seed INTEGER, data_seed INTEGER,
                   state TEXT, step INTEGER, reason TEXT, config TEXT, manifest TEXT);
CREATE TABLE results (run TEXT, step INTEGER, length INTEGER, metric TEXT, split TEXT, value REAL, count INTEGER);
CREATE TABLE metrics (run TEXT, step INTEGER, name TEXT, value REAL);
CREATE TABLE problems (text TEXT);
CREATE INDEX results_by_run ON results (run, metric, length);
CREATE INDEX metrics_by_run ON metrics (run, name, step);
"""


def rebuild(root: pathlib.Path) -> pathlib.Path:
    """Make the index of a folder anew, in one step for its readers. Raises ValueError where it cannot be read or written."""
    found = scan(root)
    path, temporary = root / FILE, root / f".{FILE}.{secrets.token_hex(6)}.tmp"
    try:
        with contextlib.closing(sqlite3.connect(temporary)) as database, database:
            database.executescript(TABLES)
            _fill(database, found)
        os.replace(temporary, path)
    except (sqlite3.Error, OSError) as error:
        raise ValueError(f"the index of {root} cannot be written: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return path


def query(root: pathlib.Path, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Rows of a question to the index, which is opened for reading only.

    Raises ValueError where SQLite refuses, or a link stands in place of the index.
    """
    try:
        with enter(root, follow=True) as folder:
            os.close(folder.open(FILE))
        address = f"{(root / FILE).resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            return database.execute(sql, parameters).fetchall()
    except (sqlite3.Error, OSError) as error:
        raise ValueError(f"the index of {root}: {error}") from None


def _fill(database: sqlite3.Connection, found: Found) -> None:
    problems = [*found.problems, *(f"{name} does not belong to a sweep" for name in found.foreign)]
    for run in found.runs:
        metrics, results = _records(run.metrics), _records(run.results)
        problems += [f"{run.run}/metrics.jsonl {text}" for text in metrics.damaged]
        problems += [f"{run.run}/results.jsonl {text}" for text in results.damaged]
        database.execute(f"INSERT INTO runs VALUES ({','.join('?' * 12)})", _run(run))  # noqa: S608 (a constant)
        database.executemany(
            "INSERT INTO results VALUES (?,?,?,?,?,?,?)", (_result(run.run, r) for r in results.tables)
        )
        database.executemany("INSERT INTO metrics VALUES (?,?,?,?)", _metrics(run.run, metrics.tables))
    database.executemany("INSERT INTO problems VALUES (?)", ((text,) for text in problems))


def _records(read: Callable[[], Records]) -> Records:
    """Records, or why there are none."""
    try:
        return read()
    except ValueError as error:
        return Records([], [str(error)])


def _run(run: Run) -> tuple[Any, ...]:
    config, state = run.config, run.status
    known: tuple[Any, ...] = (None,) * 6
    if config is not None:
        encoding = encoding_name(config.model)
        known = (cell_id(config), config.name, config.task.name, encoding, config.seed, config.data_seed)
    ended = ("damaged", None, "; ".join(run.problems)) if state is None else tuple(state)
    text = None if config is None else canonical_json(config)
    return (run.run, *known, *ended, text, json.dumps(run.manifest()))


def _result(run: str, record: dict[str, Any]) -> tuple[Any, ...]:
    names = ("step", "length", "metric", "split", "value", "count")
    return (run, *(_plain(record.get(name)) for name in names))


def _metrics(run: str, records: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for record in records:
        for name, value in record.items():
            if name not in ("schema", "step", "run"):
                yield run, _plain(record.get("step")), name, _plain(value)


def _plain(value: Any) -> Any:
    """What SQLite can hold; tables as their JSON."""
    fits = value is None or isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 2**63)
    return value if fits else json.dumps(value)
