"""Checkpoints: what is read is what was saved, or it is not read."""

import gc
import random
import re
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.train import checkpoint

# Orbax leaves an event loop behind where a read fails, which Python mentions when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _collect():
    yield
    gc.collect()


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


def raw(tree):
    bits = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return [np.asarray(bits(leaf)) for leaf in jax.tree.leaves(tree)]


def same(a, b):
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(raw(a), raw(b), strict=True))


def test_round_trip_keeps_the_newest(saved, state):
    assert checkpoint.steps(saved) == [2, 3]
    step, found = checkpoint.restore(saved, jax.eval_shape(lambda: state))
    assert step == 3
    assert same(found, {**state, "count": jnp.int32(3)})
    assert checkpoint.restore(saved, jax.eval_shape(lambda: state), 2)[0] == 2


def test_nothing_to_restore(tmp_path, state):
    assert checkpoint.restore(tmp_path / "none", jax.eval_shape(lambda: state)) is None


def test_flipped_bits_never_pass(saved, state, tmp_path):
    like, original = jax.eval_shape(lambda: state), tmp_path / "original"
    shutil.copytree(saved, original)
    files = [path for path in (saved / "3").rglob("*") if path.is_file() and path.stat().st_size]
    generator, sizes = random.Random(0), [path.stat().st_size for path in files]
    fell_back = 0
    for _ in range(200):
        _renew(saved, original)
        path = generator.choices(files, sizes)[0]
        data = bytearray(path.read_bytes())
        place = generator.randrange(8 * len(data))
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)
        step, found = _restore(saved, like)
        assert same(found, {**state, "count": jnp.int32(step)})
        fell_back += step == 2
    assert fell_back > 100, "most bits matter"


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
        step, found = _restore(saved, like)
        assert same(found, {**state, "count": jnp.int32(step)})


def _renew(directory, original):
    for folder in (directory, directory.parent / "checkpoints_damaged"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, directory)


def _restore(directory, like):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return checkpoint.restore(directory, like)


def test_damage_is_told_and_set_aside(saved, state):
    for path in (saved / "3").rglob("d/*"):
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="checkpoint of step 3 is damaged .* set aside in checkpoints_damaged"):
        assert checkpoint.restore(saved, jax.eval_shape(lambda: state))[0] == 2
    assert checkpoint.steps(saved) == [2]
    checkpoint.save(saved, 3, state)
    assert checkpoint.restore(saved, jax.eval_shape(lambda: state))[0] == 3


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
    """Half-written (4), and half-deleted (1): either has a name of its own."""
    for name in ("4.orbax-checkpoint-tmp", "1.orbax-checkpoint-tmp-0a"):
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
