"""Live curves: what a run records goes to a writer as well, once a step, also after a resume."""

import types

import fake_training
import pytest

from attnjax.cli import main
from attnjax.sweep import ExecutionConfig, Stop, live, run_here, seeds


class Writer:
    """What tensorboardX.SummaryWriter does, in a list."""

    opened = ()

    def __init__(self, folder, purge_step):
        Writer.opened += (self,)
        self.folder, self.purged, self.scalars, self.closed = folder, purge_step, [], False

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def flush(self): ...

    def close(self):
        self.closed = True


def test_numbers_are_written_while_a_run_trains_and_go_on_after_a_stop(make, monkeypatch):
    monkeypatch.setattr(live, "library", lambda kind: types.SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setattr(Writer, "opened", ())
    store, stop, execution = make(seeds(1)), Stop(), ExecutionConfig(log="tensorboard")
    train = fake_training.watched(fake_training.train, lambda _, step: step == 4 and stop.set("enough"))
    run_here(store, train, execution, stop=stop)
    run_here(store, fake_training.train, execution)
    first, second = Writer.opened
    assert (first.folder, first.closed) == (second.folder, True)
    assert first.folder.startswith(str(store.root / "live" / "tensorboard"))
    step = first.scalars[-1][2]
    assert (first.purged, second.purged) == (1, step + 1)
    losses = [one for one in first.scalars + second.scalars if one[0] == "training/loss"]
    assert losses == [("training/loss", 1.0 / step, step) for step in range(1, 11)]
    assert {name for name, _, _ in second.scalars} == {"training/loss", "test/exact_match/10", "test/exact_match/20"}


@pytest.mark.parametrize("kind", live.FORMATS)
def test_a_library_that_is_missing_is_told_before_anything_is_made(kind, monkeypatch, tmp_path, capsys):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(live.importlib, "import_module", missing)
    config = tmp_path / "small.json"
    config.write_text('{"name": "small"}')
    assert main(["run", str(config), "--out", str(tmp_path / "out"), "--log", kind]) == 2
    assert f"attnjax[{kind}]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
