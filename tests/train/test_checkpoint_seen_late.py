"""A shared file system may show an old listing of `checkpoints/` to whoever takes a run over: no step and no bit is lost."""

import shutil

import pytest

from attnjax.folder import Folder
from attnjax.train import checkpoint, loop, train

CHECKPOINTS = "checkpoints"
LISTINGS = {
    "newest missing": ["8", "16"],
    "newest missing, as is what was deleted": ["16"],
    "a deleted one": ["8", "16", "24"],
    "deleted ones alone": ["0", "8"],
    "none": [],
}
"""Of a folder that holds the steps 16 and 24."""


@pytest.fixture(scope="module", autouse=True)
def _one_compilation():
    """All calls of `train` here are of one config, and share their programs."""
    kept = {}
    with pytest.MonkeyPatch.context() as patch:
        for real in (loop.Trainer, loop.Evaluator):
            patch.setattr(loop, real.__name__, lambda *given, real=real: kept.setdefault(real, real(*given)))
        yield


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The records of a run that was not interrupted, and the folder of one that was stopped at its step 24."""
    from tests.train.conftest import Recorder

    root = tmp_path_factory.mktemp("whole")
    (root / "alone" / "0").mkdir(parents=True)
    (root / "stopped" / "0").mkdir(parents=True)
    expected, stopped = Recorder(), Recorder()
    stopped.stopping = lambda: "a test" if [one["step"] for one in stopped.logs["0"]][-1:] == [24] else ""
    train([tiny], [root / "alone" / "0"], expected)
    train([tiny], [root / "stopped" / "0"], stopped)
    assert checkpoint.steps(root / "stopped" / "0" / CHECKPOINTS) == [16, 24]
    return expected, stopped, root / "stopped" / "0"


class Cached:
    """Shows an old listing of `checkpoints/` until this machine has changed the folder itself; with `always`, for good."""

    def __init__(self, monkeypatch, names, always):
        self._names, self._always, self.changed = names, always, False
        self._listed = Folder.names
        monkeypatch.setattr(Folder, "names", lambda folder: self.names(folder))
        for change in ("make", "move", "remove"):
            monkeypatch.setattr(Folder, change, self.changing(getattr(Folder, change)))

    def names(self, folder):
        if folder.path.name != CHECKPOINTS or (self.changed and not self._always):
            return self._listed(folder)
        return list(self._names)

    def changing(self, real):
        def call(folder, name, *arguments):
            self.changed |= folder.path.name == CHECKPOINTS and bool(folder.kind(name) or real.__name__ == "make")
            return real(folder, name, *arguments)

        return call


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True], ids=["until it changes the folder", "for good"])
@pytest.mark.parametrize("listing", LISTINGS)
def test_whatever_listing_the_heir_of_a_run_sees_it_ends_with_the_same_bits(
    whole, tiny, folders, recorder, monkeypatch, listing, always
):
    expected, stopped, left = whole
    [heir] = folders("heir", 1)
    shutil.copytree(left, heir, dirs_exist_ok=True)
    context = recorder()
    context.logs, resumed, truncate = {"0": list(stopped.logs["0"])}, [], context.truncate_after
    context.truncate_after = lambda directory, step: (resumed.append(step), truncate(directory, step))
    with monkeypatch.context() as patch:
        cached = Cached(patch, LISTINGS[listing], always)
        train([tiny], [heir], context)
    assert cached.changed
    assert (context.logs, context.found, context.notes) == (expected.logs, expected.found, expected.notes)
    assert checkpoint.steps(heir / CHECKPOINTS)[-1] == 40
    shown = [int(step) for step in LISTINGS[listing] if step in ("16", "24")]
    assert resumed == [max(shown, default=0) if always else 24]
