"""The check before training: it is asked about every encoding, also where runs that differ in its numbers train together."""

import sys

import pytest

from attnjax.config.mesh import MeshShape
from attnjax.sweep import groups, plan, product, seeds, vary
from attnjax.sweep.preflight import check, check_apart

THETA = "model.encoding.options.theta"
TRAINER = """
def train(configs, directories, context): ...


def check(run):
    theta = run.model.encoding.options["theta"]
    with open("asked.txt", "a") as file:
        file.write(f"{theta} ")
    if theta == 7.0:
        raise ValueError("no theta of 7")
"""


def configs(*thetas):
    """Two seeds of each theta, which are one population."""
    base = {"model": {"encoding": "rope", "layers": 1, "model": 8, "heads": 1, "hidden": 8}, "task": {"length_max": 4}}
    found = [one.config for one in plan(base, product(vary(THETA, thetas), seeds(2)))]
    assert len(groups(found)) == 1
    return found


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "asking.py").write_text(TRAINER)
    yield tmp_path
    sys.modules.pop("asking", None)


@pytest.mark.parametrize("apart", [False, True], ids=["here", "apart"])
def test_each_encoding_of_a_population_is_asked_about_once(here, apart):
    asked = lambda *thetas: (
        check_apart("asking:train", configs(*thetas), sys.path) if apart else check("asking:train", configs(*thetas))
    )
    asked(10000.0, 500.0)
    assert (here / "asked.txt").read_text() == "10000.0 500.0 "
    with pytest.raises(ValueError, match="^no theta of 7$"):
        asked(10000.0, 7.0)


def test_what_a_mesh_cannot_spread_is_told_before_anything_is_queued(here):
    """In the process that checks, there are as many devices as the mesh has."""
    (here / "spread.py").write_text(
        "from attnjax.train import check_mesh\n\n\ndef train(configs, runs, context): ...\n"
    )
    check("spread:train", configs(500.0), MeshShape(data=4))
    with pytest.raises(ValueError, match=r"train.batch=\d+ is no multiple of the 7 devices along data"):
        check_apart("spread:train", configs(500.0), sys.path, mesh=MeshShape(data=7))
    with pytest.raises(ValueError, match="the trainer asking:train knows no mesh"):
        check("asking:train", configs(500.0), MeshShape(data=4))


def test_a_number_that_an_encoding_refuses_is_told_before_training():
    with pytest.raises(ValueError, match=r"^RoPE\.theta must be a finite number above 0, got -1\.0$"):
        check("attnjax.train:train", configs(10000.0, -1.0))
