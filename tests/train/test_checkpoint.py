"""Checkpoints: what is read is what was saved, or it is not read."""

import contextlib
import hashlib
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from attnjax.train import checkpoint
from tests.train.conftest import LEFT_BY_ORBAX
from tests.trees import tree

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = LEFT_BY_ORBAX


@pytest.fixture
def state():
    w = jax.random.normal(jax.random.key(0), (48, 64))
    return {"params": {"w": w, "b": jnp.ones(3, jnp.bfloat16)}, "count": jnp.int32(7), "key": jax.random.key(5)}


@pytest.fixture
def saved(tmp_path, state):
    """Three steps saved, the last two kept, and the tree of the newest."""
    directory = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        later = {**state, "count": jnp.int32(step)}
        checkpoint.save(directory, step, later, keep=2)
    return directory


def raw(state):
    bits = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return [np.asarray(bits(leaf)) for leaf in jax.tree.leaves(state)]


def same(a, b):
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(raw(a), raw(b), strict=True))


def test_round_trip_keeps_the_newest(saved, state):
    assert checkpoint.steps(saved) == [2, 3]
    found = checkpoint.restore(saved, jax.eval_shape(lambda: state))
    assert (found.step, found.damaged) == (3, ())
    assert same(found.state, {**state, "count": jnp.int32(3)})
    assert checkpoint.restore(saved, jax.eval_shape(lambda: state), 2)[0] == 2


def test_orbax_reads_it_without_us(saved, state):
    with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
        found = handler.restore(saved / "3" / "state")
    words = jax.random.key_data(state["key"])
    expected = {**state, "count": jnp.int32(3), "key": words}
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert same(found, expected)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float64", "complex64", "float8_e4m3fn"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_every_type_and_shape_comes_back(tmp_path, dtype, shape):
    """Also leaves without elements, which orbax refuses, nested, and views that are not contiguous."""
    leaf = np.arange(2 * np.prod(shape, dtype=int)).astype(dtype)[::2].reshape(shape)
    state = {"a": (leaf.T, [{"b": leaf}, None]), "count": np.int32(1)}
    checkpoint.save(tmp_path / "checkpoints", 1, state)
    found = checkpoint.restore(tmp_path / "checkpoints", state)
    assert same(found.state, state)
    assert [one.shape for one in jax.tree.leaves(found.state)] == [one.shape for one in jax.tree.leaves(state)]


def test_two_leaves_that_orbax_would_call_the_same_are_refused(tmp_path):
    """It keeps one of them, in silence."""
    with pytest.raises(ValueError, match=re.escape("ambiguous: two of its leaves have the name a.b; it is not saved")):
        checkpoint.save(tmp_path / "checkpoints", 1, {"a.b": np.ones(2), "a": {"b": np.zeros(2)}})
    assert not (tmp_path / "checkpoints").exists()


def test_a_state_of_many_devices_is_restored_onto_another_mesh(tmp_path):
    """Saved from a mesh of 4 x 2 devices, restored onto 2 x 3 and onto the host, in a process that has 8 devices."""
    code = """
import pathlib, sys, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from attnjax.train import checkpoint
place = pathlib.Path(sys.argv[1]) / "checkpoints"
w, devices = np.arange(288.0, dtype=np.float32).reshape(12, 24), np.array(jax.devices())
first = NamedSharding(Mesh(devices.reshape(4, 2), ("data", "model")), P("data", "model"))
other = NamedSharding(Mesh(devices[:6].reshape(2, 3), ("data", "model")), P("model", "data"))
state = {"w": jax.device_put(w, first), "key": jax.random.key(3)}
checkpoint.save(place, 1, state)
key = jax.ShapeDtypeStruct((), state["key"].dtype)
found = checkpoint.restore(place, {"w": jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=other), "key": key})
assert found.state["w"].sharding == other
assert {shard.data.shape for shard in found.state["w"].addressable_shards} == {(4, 12)}
np.testing.assert_array_equal(found.state["w"], w)
assert jax.random.key_data(found.state["key"]).tolist() == jax.random.key_data(state["key"]).tolist()
here = checkpoint.restore(place, {"w": jax.ShapeDtypeStruct(w.shape, w.dtype), "key": key}).state["w"]
assert isinstance(here, np.ndarray) and np.array_equal(here, w)
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, env={**os.environ, **flags})


def test_nothing_to_restore(tmp_path, state):
    assert checkpoint.restore(tmp_path / "none", jax.eval_shape(lambda: state)) is None


@pytest.mark.parametrize("bits", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_flipped_bits_never_pass(saved, state, bits):
    """Bits of any file of a step, one at a time: each is found, and the step before is read."""
    like, before = jax.eval_shape(lambda: state), {**state, "count": jnp.int32(2)}
    files = [path for path in (saved / "3").rglob("*") if path.is_file() and path.stat().st_size]
    generator, sizes = random.Random(0), [path.stat().st_size for path in files]
    for _ in range(bits):
        path = generator.choices(files, sizes)[0]
        sound = path.read_bytes()
        data = bytearray(sound)
        place = generator.randrange(8 * len(data))
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)
        with pytest.warns(UserWarning, match="checkpoint of step 3 is damaged"):
            found = checkpoint.restore(saved, like)
        assert found.step == 2
        assert same(found.state, before)
        path.write_bytes(sound)
    assert checkpoint.restore(saved, like).step == 3


@pytest.mark.parametrize("damage", ["delete", "empty", "halve"])
def test_damaged_files_never_pass(saved, state, tmp_path, damage):
    like, original = jax.eval_shape(lambda: state), tmp_path / "original"
    shutil.copytree(saved, original)
    for path in [path for path in (saved / "3").rglob("*") if path.is_file()]:
        _renew(saved, original)
        if damage == "delete":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 if damage == "halve" else 0])
        found = _restore(saved, like)
        assert same(found.state, {**state, "count": jnp.int32(found.step)})


def _renew(directory, original):
    for folder in (directory, directory.parent / "checkpoints_damaged"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, directory)


def _restore(directory, like):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return checkpoint.restore(directory, like, set_aside=True)


def test_damage_is_told_and_set_aside_where_earlier_damage_is_kept(saved, state):
    like = jax.eval_shape(lambda: state)
    for name in ("3", "3.2", "3.3"):
        for path in (saved / "3").rglob("d/*"):
            path.write_bytes(name.encode())
        with pytest.warns(
            UserWarning, match=f"step 3 is damaged .*SHA256SUMS.*set aside as checkpoints_damaged/{name}$"
        ):
            found = checkpoint.restore(saved, like, set_aside=True)
        assert (found.step, [step for step, _ in found.damaged]) == (2, [3])
        assert checkpoint.steps(saved) == [2]
        checkpoint.save(saved, 3, state)
        assert checkpoint.restore(saved, like).step == 3
    kept = saved.parent / "checkpoints_damaged"
    assert sorted(path.name for path in kept.iterdir()) == ["3", "3.2", "3.3"]
    assert {next(path.rglob("d/*")).read_text() for path in kept.iterdir()} == {"3", "3.2", "3.3"}


def test_who_only_reads_changes_nothing(saved, state):
    for path in (saved / "3").rglob("d/*"):
        path.write_bytes(b"")
    (saved / "partial-4-00000000").mkdir()
    before = tree(saved.parent)
    with pytest.warns(UserWarning, match="checkpoint of step 3 is damaged"):
        found = checkpoint.restore(saved, jax.eval_shape(lambda: state))
    assert found.step == 2
    assert found.damaged[0][0] == 3
    assert "SHA256SUMS disagrees with state/" in found.damaged[0][1]
    assert tree(saved.parent) == before


def test_sums_are_those_of_sha256sum(saved):
    lines = [line.split("  ") for line in (saved / "3" / "SHA256SUMS").read_text().splitlines()]
    files = [path for path in (saved / "3").rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    assert {name: digest for digest, name in lines} == {
        path.relative_to(saved / "3").as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": jnp.float32(0)}, "['count']: saved int32[], wanted float32[]"),
        ({"more": jnp.int32(0)}, "['more']: saved nothing, wanted int32[]"),
        ({"params": {"w": jnp.zeros((48, 65)), "b": jnp.ones(3, jnp.bfloat16)}}, "saved float32[48, 64], wanted"),
    ],
)
def test_another_state_is_refused_by_name(saved, state, change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        checkpoint.restore(saved, jax.eval_shape(lambda: {**state, **change}))
    assert checkpoint.steps(saved) == [2, 3], "a sound checkpoint is not set aside"


def test_nan_is_not_saved(saved, state):
    with pytest.raises(ValueError, match=re.escape("state of step 4 is not finite at ['params']['b']")):
        checkpoint.save(saved, 4, {**state, "params": {**state["params"], "b": jnp.full(3, jnp.nan, jnp.bfloat16)}})
    assert checkpoint.steps(saved) == [2, 3]


def test_what_a_killed_process_left_does_not_count_and_goes(saved, state):
    """Half-written (4), half-deleted (1), and what an earlier version called them: each has a name of its own."""
    for name in ("partial-4-0a1b2c3d", "partial-1-0a1b2c3d", "4.orbax-checkpoint-tmp", "1.orbax-checkpoint-tmp-0a"):
        (saved / name / "state").mkdir(parents=True)
    assert checkpoint.steps(saved) == [2, 3]
    assert checkpoint.restore(saved, jax.eval_shape(lambda: state))[0] == 3
    checkpoint.save(saved, 4, state)
    assert sorted(path.name for path in saved.iterdir()) == ["3", "4"]


def test_a_deletion_that_is_interrupted_leaves_no_half_step(saved, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.drop_after(saved, 2)
    assert checkpoint.steps(saved) == [2]
