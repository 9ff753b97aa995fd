"""Workers get one GPU each, and the driver that watches them takes none."""

import json
import os

import pytest

from attnjax.cli import main
from attnjax.sweep.devices import CUDA, FRACTION, JAX, of_worker, visible

SETTINGS = {"name": "small", "task": {"name": "reverse_string"}, "train": {"steps": 2}, "evaluate": {"lengths": [4]}}
TRAINER = '''"""A trainer that says where it was asked."""

import json
import os
import pathlib

from fake_training import train


def check(config):
    told = [os.environ.get("JAX_PLATFORMS"), config.model.encoding.name, config.seed]
    pathlib.Path("asked.json").write_text(json.dumps(told))
    if config.seed == 13:
        raise ValueError("no runs with the seed 13")
'''


@pytest.fixture
def gpus(tmp_path):
    """A folder of devices with four GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("count", "environ", "expected"),
    [
        (4, {}, [("0", None), ("1", None), ("2", None), ("3", None)]),
        (6, {}, [("0", "0.450"), ("1", "0.450"), ("2", None), ("3", None), ("0", "0.450"), ("1", "0.450")]),
        (3, {CUDA: "GPU-1a, GPU-2b"}, [("GPU-1a", "0.450"), ("GPU-2b", None), ("GPU-1a", "0.450")]),
        (2, {CUDA: "2,-1,3"}, [("2", "0.450"), ("2", "0.450")]),
        (2, {CUDA: "1", FRACTION: "0.2"}, [("1", None), ("1", None)]),
    ],
)
def test_each_worker_has_a_gpu_in_turn(gpus, count, environ, expected):
    found = [of_worker(number, count, environ, gpus) for number in range(count)]
    assert [(one.get(CUDA), one.get(FRACTION)) for one in found] == expected


@pytest.mark.parametrize("environ", [{CUDA: ""}, {CUDA: "-1"}, {"JAX_PLATFORMS": "cpu"}, {"JAX_PLATFORMS": "cpu,tpu"}])
def test_who_asks_for_no_gpu_gets_none(gpus, environ):
    assert visible(environ, gpus)[1] == []
    assert of_worker(0, 1, environ, gpus) == {}
    assert of_worker(0, 3, environ, gpus) == {FRACTION: "0.300"}


def test_the_variable_of_jax_is_respected(gpus):
    environ = {CUDA: "4,5,6,7", JAX: "1,3"}
    assert [of_worker(number, 2, environ, gpus) for number in range(2)] == [{JAX: "1"}, {JAX: "3"}]
    assert of_worker(1, 2, {**environ, JAX: "all"}, gpus) == {CUDA: "5"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "telling.py").write_text(TRAINER)
    (tmp_path / "small.json").write_text(json.dumps(SETTINGS))
    return tmp_path


@pytest.mark.parametrize(("seed", "told"), [(0, ""), (13, "no runs with the seed 13")])
def test_the_driver_of_workers_checks_on_the_cpu_before_anything_is_made(here, capsys, monkeypatch, seed, told):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    command = ["run", "small.json", f"seed={seed}", "--trainer", "telling:train", "--workers", "1", "--out", "out"]
    assert main([*command, "model.encoding=alibi"]) == (2 if told else 0)
    assert told in capsys.readouterr().err
    assert (here / "out").exists() == (not told)
    assert json.loads((here / "asked.json").read_text()) == ["cpu", "alibi", seed]
    assert os.environ["JAX_PLATFORMS"] == "cuda"
