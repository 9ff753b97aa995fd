"""Finds folders of runs and single runs: `find_folder` and `find_run` are the one rule by which all commands read a name.

    runs/theta                   a folder, by its path
    theta                        the folder runs/theta
    theta/025b                   a run in it, by the beginning of its hash,
    theta/encoding=rope,seed=0   by fields of its config (`encoding` and `task` are short for their names),
    theta/rope/0                 or by its encoding (or task) and seed
    one                          the only run of the sweep runs/one

Nothing is changed, and no link in such a folder is followed.
"""

import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attnjax.config import RunConfig, encoding_name, override, parse, to_dict
from attnjax.config.files import SWEEP_FILE
from attnjax.config.overrides import kind_of, read_value, split_override
from attnjax.records import files
from attnjax.records.runs import entries, read_config, status_of

RUNS = pathlib.Path("runs")
"""Where the command line puts sweeps."""
PREFIX = re.compile(r"[0-9a-f]{1,16}")
FILTER = re.compile(r"[A-Za-z_][\w.]*=")
LISTED = 10
"""Runs that an error names."""


class Run(NamedTuple):
    """One run's folder. `config` and `state` are None and "damaged" where they cannot be read."""

    directory: pathlib.Path
    config: RunConfig | None
    state: str

    def __str__(self) -> str:
        if self.config is None:
            return f"{self.directory} (damaged)"
        encoding, task = encoding_name(self.config.model, options=True), self.config.task.name
        return f"{self.directory} ({encoding}, {task}, seed {self.config.seed}, {self.state})"


def _run(directory: pathlib.Path) -> Run:
    try:
        return Run(directory, read_config(directory), status_of(directory).state)
    except (OSError, ValueError):
        return Run(directory, None, "damaged")


def find_folder(address: str | os.PathLike[str]) -> pathlib.Path:
    """Return the folder at a path, or the folder of that name in ./runs.

    Raises ValueError, with the sweeps in ./runs, where there is neither.
    """
    path = pathlib.Path(address)
    places = [path, RUNS / path]
    for place in (*(one for one in places if (one / SWEEP_FILE).exists()), *places):
        if place.is_dir():
            return place
    raise ValueError(f"{_short(address)} is no folder, here or in {RUNS}; {_known()}")


def sweeps() -> list[str]:
    """Return the names of the sweeps in ./runs."""
    return sorted(path.parent.name for path in RUNS.glob(f"*/{SWEEP_FILE}"))


def find_run(address: str | os.PathLike[str]) -> pathlib.Path:
    """Return the folder of the one run that an address names; the text of the module lists the forms.

    Raises ValueError, with the runs to choose from, where it names none or several, and for a field that no config has;
    OSError where a folder cannot be read.
    """
    path = pathlib.Path(address)
    if path.is_dir() and not (path / SWEEP_FILE).exists():
        # "." has no name, which is the hash of the config; `abspath` follows no link.
        return path if path.name not in ("", "..") else pathlib.Path(os.path.abspath(path))
    root, selector = _split(os.fspath(address))
    wanted = _matcher(selector)
    found = [_run(files.real(root) / name) for name in entries(files.real(root)).runs]
    meant = [run for run in found if wanted(run)]
    if len(meant) == 1:
        return meant[0].directory
    if not meant:
        raise ValueError(f"no run in {root} is {_short(selector)!r}; there are: {_listed(found)}")
    which = f"{len(meant)} runs in {root} are {_short(selector)!r}" if selector else f"{root} has {len(meant)} runs"
    raise ValueError(f"{which}; name one of them: {_listed(meant)}")


def _short(address: str | os.PathLike[str]) -> str:
    return os.fspath(address)[:200]


def _known() -> str:
    return f"{RUNS} has {', '.join(sweeps()[:LISTED]) or 'no sweep'}"


def _listed(there: list[Run]) -> str:
    more = f"; and {len(there) - LISTED} more" if len(there) > LISTED else ""
    return "; ".join(map(str, there[:LISTED])) + more if there else "none"


def _split(text: str) -> tuple[pathlib.Path, str]:
    """The longest beginning of an address that is a sweep, and what is behind it."""
    before = text.partition("=")[0]
    ends = [len(text)] if before == text else []
    for end in (*ends, *(i for i in range(len(before) - 1, 0, -1) if before[i] == "/")):
        for folder in (pathlib.Path(text[:end]), RUNS / text[:end]):
            if (folder / SWEEP_FILE).is_file():
                return folder, text[end:].strip("/")
    raise ValueError(
        f"{_short(text)} is no run: give its folder, or NAME/RUN, where NAME is a sweep in {RUNS} or its folder, and RUN the "
        f"beginning of a hash, KEY=VALUE,... or ENCODING/SEED; {_known()}"
    )


def _matcher(selector: str) -> Callable[[Run], bool]:
    """Whether a run is what a selector says; "" says nothing."""
    if FILTER.match(selector):
        fields = [split_override(one) for one in re.split(rf",(?={FILTER.pattern})", selector)]
        tests = [_field(key, value) for key, value in fields]
        return lambda run: all(test(run) for test in tests)
    words = [word for word in selector.split("/") if word]
    by_hash = len(words) == 1 and PREFIX.fullmatch(words[0]) is not None
    return lambda run: (
        (by_hash and run.directory.name.startswith(words[0])) or all(_is(run.config, word) for word in words)
    )


def _is(config: RunConfig | None, word: str) -> bool:
    """Whether a word is the encoding, the task or the seed of a run."""
    return config is not None and word in (*_encodings(config), config.task.name, str(config.seed))


def _encodings(config: RunConfig) -> tuple[str, str]:
    return encoding_name(config.model), encoding_name(config.model, options=True)


def _field(key: str, text: str) -> Callable[[Run], bool]:
    """Whether a run has this value in this field. Raises ValueError for a field that no config has, with the nearest one."""
    if key in ("encoding", "model.encoding"):
        return lambda run: run.config is not None and text in _encodings(run.config)
    dotted = "task.name" if key == "task" else key
    change = {dotted: read_value(text, kind_of(dotted))}
    return lambda run: run.config is not None and _unchanged(run.config, change)


def _unchanged(config: RunConfig, change: Mapping[str, Any]) -> bool:
    try:
        return parse(override(to_dict(config), change)) == config
    except ValueError:  # a value that does not fit to the rest
        return False
