"""Which processes are in the middle of a run, so that a blow meets a training."""

import contextlib

import psutil

from attnjax.sweep import Store
from attnjax.sweep.claim import holder


def in_training(store: Store) -> list[psutil.Process]:
    """The processes of this machine that hold a run which has done a step and has not ended, in the order of runs."""
    found = {}
    for entry in store.runs:
        now = store.status(entry.run)
        owner = holder(store.directory(entry.run)) if now.state == "running" and now.step else None
        if owner is not None:
            with contextlib.suppress(psutil.Error):
                found[owner.pid] = psutil.Process(owner.pid)
    return list(found.values())
