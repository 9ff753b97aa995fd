"""Checkpoints: what is read is what was saved, or it is not read; nothing outside of the run is touched."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import sys
import warnings

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from attnjax.train import checkpoint
from attnjax.train.loop import CHECKPOINTS
from tests.train.conftest import LEFT_BY_ORBAX
from tests.trees import tree

STATE = {"params": {"w": np.arange(3072.0, dtype=np.float32).reshape(48, 64)}, "step": np.int32(0)}
pytestmark = LEFT_BY_ORBAX


def at(step):
    return {**STATE, "step": np.int32(step)}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Three steps saved, of which the last two are kept."""
    directory = tmp_path_factory.mktemp("run") / CHECKPOINTS
    for step in (1, 2, 3):
        checkpoint.save(directory, step, at(step))
    return directory


@pytest.fixture
def saved(original, tmp_path):
    """A copy of it."""
    return shutil.copytree(original, tmp_path / "run" / CHECKPOINTS)


def restore(directory, like=STATE, step=None):
    """The restored step, and the reasons why newer ones were passed over; the state must be that of the step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = checkpoint.restore(directory, like, step)
    jax.tree.map(np.testing.assert_array_equal, found.state, at(found.step))
    return found.step, dict(found.damaged)


def test_round_trip_keeps_the_newest(saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    checkpoint.save(pathlib.Path(CHECKPOINTS), 3, at(3))  # orbax wants whole paths
    assert restore(pathlib.Path(CHECKPOINTS)) == (3, {})
    assert checkpoint.steps(saved) == [2, 3]
    assert restore(saved, step=2) == (2, {})
    checkpoint.drop_after(saved, 2)
    assert checkpoint.steps(saved) == [2]
    assert checkpoint.restore(saved.parent / "none", STATE) is None


def test_orbax_reads_it_without_us_and_sha256sum_checks_it(original):
    saved = original
    with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
        found = handler.restore(saved / "3" / "state")
    jax.tree.map(np.testing.assert_array_equal, found, at(3))
    lines = dict(reversed(line.split("  ")) for line in (saved / "3" / "SHA256SUMS").read_text().splitlines())
    files = [path for path in (saved / "3" / "state").rglob("*") if path.is_file()]
    digests = {path.relative_to(saved / "3").as_posix(): hashlib.sha256(path.read_bytes()) for path in files}
    assert lines == {name: digest.hexdigest() for name, digest in digests.items()}


def test_every_type_and_shape_comes_back(tmp_path):
    """Also leaves without elements, which orbax refuses, nested ones, and views that are not contiguous."""
    state = {}
    for dtype in ("bool", "uint8", "int64", "bfloat16", "float64", "complex64", "float8_e4m3fn"):
        whole = np.arange(12).astype(dtype)[::2]
        state[dtype] = {"a": (whole.reshape(2, 3).T, [{"b": whole[0]}, None]), "c": whole[:0].reshape(0, 3)}
    checkpoint.save(tmp_path / CHECKPOINTS, 1, state)
    found = checkpoint.restore(tmp_path / CHECKPOINTS, state).state
    jax.tree.map(np.testing.assert_array_equal, found, state)
    assert jax.tree.map(lambda x: (x.dtype, x.shape), found) == jax.tree.map(lambda x: (x.dtype, x.shape), state)


def test_what_must_not_be_saved_is_refused(saved):
    before = tree(saved)
    for state, message in (
        ({"a.b": np.ones(2), "a": {"b": np.zeros(2)}}, "two leaves"),
        ({"params": {"b": np.full(3, np.nan, "bfloat16")}}, "step 4 .* params.b"),
        ({"params": {"b": np.float32([1, -np.inf])}}, "step 4 .* params.b"),
    ):
        with pytest.raises(ValueError, match=message):
            checkpoint.save(saved, 4, state)
    assert tree(saved) == before


@pytest.mark.parametrize("bits", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_flipped_bits_never_pass(saved, bits):
    """Bits of any file of a step, one at a time: each is found, and the step before is read."""
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
            assert checkpoint.restore(saved, STATE).step == 2
        path.write_bytes(sound)
    assert restore(saved) == (3, {})


def test_another_state_is_refused_by_every_name(original):
    other = {"step": np.float32(0), "more": np.int32(0), "params": {"w": np.zeros((48, 65), np.float32)}}
    told = "more: saved nothing, wanted int32[]; params.w: saved float32[48, 64], wanted float32[48, 65]; "
    with pytest.raises(ValueError, match=re.escape(told + "step: saved int32[], wanted float32[]")):
        checkpoint.restore(original, jax.eval_shape(lambda: other))


@pytest.fixture
def victim(tmp_path):
    """A tree outside of the run, with names that a folder of checkpoints has."""
    folder = tmp_path / "victim"
    for name in ("60", "3", "partial-1-00000000", "state"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file.txt").write_text(name)
    before = tree(folder)
    yield folder
    assert tree(folder) == before, "a link led out of the run"


@pytest.mark.parametrize("place", ["", "3", "9"])
def test_a_link_in_place_of_steps_is_refused(saved, victim, place):
    path = saved / place
    if path.exists():
        path.rename(saved.parent / "away")
    path.symlink_to(victim)
    before = tree(saved.parent)
    for use in (
        checkpoint.steps,
        restore,
        lambda directory: checkpoint.save(directory, 4, STATE),
        lambda directory: checkpoint.drop_after(directory, 0),
    ):
        with pytest.raises(ValueError, match=f"{path.name} is a link"):
            use(saved)
    assert tree(saved.parent) == before


@pytest.mark.parametrize("place", ["state", "state/manifest.ocdbt", "SHA256SUMS", "new"])
def test_a_link_inside_a_step_is_refused(saved, victim, place):
    path = saved / "3" / place
    if path.exists():
        path.rename(saved.parent / "away")
    path.symlink_to(victim / "3" if place == "state" else victim / "3" / "file.txt")
    with pytest.raises(ValueError, match=f"{path.name} is a link"):
        checkpoint.restore(saved, STATE)


def test_links_that_are_called_half_written_steps_go_and_what_they_name_stays(saved, victim):
    (saved / "partial-9-00000000").symlink_to(victim)
    (saved / "partial-8-00000000").mkdir()
    (saved / "partial-8-00000000" / "inner").symlink_to(victim)
    checkpoint.save(saved, 4, STATE)
    assert sorted(path.name for path in saved.iterdir()) == ["3", "4"]


def test_pipes_are_not_waited_for_and_long_files_are_not_read(saved):
    os.mkfifo(saved / "3" / "state" / "pipe")
    with pytest.raises(ValueError, match="pipe is no regular file"):
        checkpoint.restore(saved, STATE)
    (saved / "3" / "state" / "pipe").unlink()
    with (saved / "3" / "state" / "huge").open("wb") as file:
        file.truncate(2**40)
    assert restore(saved) == (2, {3: "it is larger than this state can be"})


def vouch(step):
    """Give a forged step the SHA256SUMS of its files."""
    files = [path for path in step.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(step)}\n" for path in files]
    (step / "SHA256SUMS").write_text("".join(lines))


@pytest.mark.parametrize("fields", [{"shape": [10**12], "chunks": [4]}, {"shape": [12], "chunks": [10**12]}])
def test_arrays_that_claim_another_size_are_refused_before_memory_is_taken(saved, fields):
    state = saved / "3" / "state"
    shutil.rmtree(state)
    state.mkdir()
    with contextlib.closing(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as handler:
        handler.save(state, args=ocp.args.PyTreeSave({"w": np.zeros(12, np.float32)}))
        handler.finalize(state)
    about = json.loads((state / "w" / ".zarray").read_text())
    (state / "w" / ".zarray").write_text(json.dumps(about | fields))
    vouch(saved / "3")
    with pytest.raises(ValueError, match="larger than the array|w: saved float32"):
        checkpoint.restore(saved, {"w": np.zeros(12, np.float32)})


def test_a_name_of_an_array_that_is_a_path_is_not_followed(saved, tmp_path):
    """Orbax would open the pipe, and wait for its other end."""
    (tmp_path / "outside").mkdir()
    os.mkfifo(tmp_path / "outside" / ".zarray")
    metadata = saved / "3" / "state" / "_METADATA"
    table = json.loads(metadata.read_text())
    (row, *_) = table["tree_metadata"].values()
    row["key_metadata"] = [{"key": str(tmp_path / "outside"), "key_type": 2}]
    metadata.write_text(json.dumps({**table, "tree_metadata": {"('outside',)": row}, "use_ocdbt": False}))
    vouch(saved / "3")
    with pytest.raises(ValueError, match="path for a name"):
        checkpoint.restore(saved, STATE)


def test_what_cannot_be_read_is_an_error_and_not_damage(original, monkeypatch):
    def failing(*_, **__):
        raise OSError(errno.EIO, "Input/output error", "name")

    before = tree(original.parent)
    for kind, owner, name in (
        (OSError, hashlib, "file_digest"),
        (OSError, ocp.PyTreeCheckpointHandler, "restore"),
        (ImportError, sys.modules, "orbax.checkpoint"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(owner, name, None) if kind is ImportError else patch.setattr(owner, name, failing)
            with pytest.raises(kind):
                checkpoint.restore(original, STATE)
    assert tree(original.parent) == before
    assert restore(original) == (3, {})
