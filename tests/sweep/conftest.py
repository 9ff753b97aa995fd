"""Sweeps over a config that costs nothing, and a training function that worker processes can import."""

import pathlib
import sys
from collections.abc import Callable

import pytest

from attnjax.config import RunConfig, parse
from attnjax.sweep import Store, plan, prepare, seeds

# Test files import `fake_training`, and worker processes find what their driver finds.
sys.path.insert(0, str(pathlib.Path(__file__).parent))


def small(**changes) -> RunConfig:
    """Ten steps with a checkpoint every second one."""
    train = {"steps": 10, "checkpoint_every": 2, **changes.pop("train", {})}
    return parse({"name": "small", "train": train, "evaluate": {"lengths": [10, 20]}, **changes})


@pytest.fixture
def make(tmp_path) -> Callable[..., Store]:
    """Prepares a folder with a sweep over the small config."""

    def prepared(sweep=None, *, root=None, extend=False, **changes) -> Store:
        config = small(**changes)
        return prepare(root or tmp_path / "runs", config.name, plan(config, sweep or seeds(1)), extend=extend)

    return prepared
