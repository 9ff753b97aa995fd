"""Adds the document of every window to the scores of text runs that were recorded before it was stored.

    python scripts/add_documents.py experiments/theta/records ...

Windows are drawn again from the test split, whose digest must be the one in the run's manifest, so the text has to be there:
for Python's standard library, the version of Python that the run had. Nothing else of a run changes but the size and digest
of its examples.npz in its manifest. Runs that have documents, and runs of other tasks, are left as they are; one
whose files are not those that its manifest says is refused.
"""

import dataclasses
import pathlib
import sys
from typing import Any

from attnjax.config import RunConfig, parse
from attnjax.config.files import read_json
from attnjax.records import examples, inventory, status
from attnjax.records.examples import DOCUMENT
from attnjax.records.runs import read_manifest
from attnjax.sweep.run_context import update_manifest
from attnjax.train.evaluate import Evaluator, evaluation_lengths
from attnjax.train.loop import data_sha256, make_task
from attnjax.train.model import build

Documents = dict[examples.Key, Any]


def documents_of(run: RunConfig) -> tuple[Documents, dict[str, str]]:
    """Return the documents of the windows of each test, and the digests of the text's splits."""
    task = make_task(run)
    evaluator = Evaluator(run, task, build(run, task))
    found: Documents = {}
    for kind, lengths in evaluation_lengths(run).items():
        for length in lengths:
            split = "train" if kind == "test" and length <= run.task.length_max else kind
            found[split, length, DOCUMENT] = evaluator.documents(length, split)
    return found, data_sha256(run, task) or {}


def main(folders: list[str]) -> None:
    """Add what is missing in each folder of records."""
    known: dict[str, tuple[Documents, dict[str, str]]] = {}
    for directory in sorted(path.parent for folder in folders for path in pathlib.Path(folder).glob("*/config.json")):
        run = parse(read_json(directory / "config.json"))
        if run.task.name != "text" or not (directory / examples.FILE).exists():
            continue
        kept, manifest = examples.read(directory), read_manifest(directory)
        if any(name == DOCUMENT for _, _, name in kept.scores):
            continue
        if wrong := inventory.differences(directory, status.read(directory).state, manifest):
            raise SystemExit(f"{directory}: {' and '.join(f'{name} {text}' for name, text in wrong.items())}")
        key = repr((run.task, run.evaluate))
        if key not in known:
            known[key] = documents_of(run)
        found, digests = known[key]
        if manifest["data_sha256"] != digests:
            raise SystemExit(f"{directory}: the text here is not that of the run, whose splits have other digests")
        tested = {key: value for key, value in found.items() if any(one[:2] == key[:2] for one in kept.scores)}
        examples.write(directory, dataclasses.replace(kept, scores={**kept.scores, **tested}))
        if inventory.FIELD in manifest:
            entry = {inventory.EXAMPLES: inventory.take(directory)[inventory.EXAMPLES]}
            update_manifest(directory, {inventory.FIELD: {**manifest[inventory.FIELD], **entry}})
        print(f"{directory}: {len(tested)} lengths")


if __name__ == "__main__":
    main(sys.argv[1:])
