"""The runs of a sweep with all that their folders hold, in the order of the plan."""

import json
import pathlib
from typing import Any, NamedTuple

from attnjax.config import RunConfig
from attnjax.records import jsonl, status
from attnjax.sweep import load


class Found(NamedTuple):
    """A run: its id, its folder, and that of its records."""

    run: str
    directory: pathlib.Path
    folder: pathlib.Path
    config: RunConfig
    status: status.Status

    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "manifest.json").read_text())

    def metrics(self) -> list[dict[str, Any]]:
        return jsonl.read(self.folder / jsonl.METRICS).rows

    def results(self) -> list[dict[str, Any]]:
        return jsonl.read(self.folder / jsonl.RESULTS).rows


def runs_in(root: pathlib.Path) -> list[Found]:
    store = load(root)
    names = [entry.run for entry in store.runs]
    return [Found(run, store.directory(run), store.folder(run), store.config(run), store.status(run)) for run in names]
