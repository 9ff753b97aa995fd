"""Which processes are in the middle of a run, so that a blow meets a training, and how many were met, by the leases."""

import contextlib
import json
import pathlib

import psutil

from attnjax.sweep import Store
from attnjax.sweep.lease import FILE, holder


def in_training(store: Store) -> list[psutil.Process]:
    """The processes of this machine that hold a run which has done a step and has not ended, in the order of runs."""
    found = {}
    for entry in store.runs:
        now = store.status(entry.run)
        owner = holder(store.directory(entry.run)) if now.state == "running" and now.step else None
        if owner is not None and not owner.released:
            with contextlib.suppress(psutil.Error):
                found[owner.pid] = psutil.Process(owner.pid)
    return list(found.values())


def leases(directory: pathlib.Path) -> list[pathlib.Path]:
    """The leases that a run has had, the first one first: one more than the times that it was given back or lost."""
    return sorted(path for path in directory.iterdir() if FILE.fullmatch(path.name))


def resumptions(directory: pathlib.Path) -> int:
    """How often a run was claimed again from a checkpoint: each time its training had been met by something."""
    heads = [json.loads(path.read_text(encoding="utf-8").splitlines()[0]) for path in leases(directory)]
    return sum(head["step"] > 0 for head in heads[1:])
