"""Checkpoints under attack and on bad disks: nothing outside is touched, and what cannot be read is not called damaged."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import shutil
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from attnjax.config import parse
from attnjax.folder import LinkError
from attnjax.train import checkpoint
from attnjax.train.loop import CHECKPOINTS, fingerprint, make_task
from attnjax.train.step import Trainer
from tests.train.conftest import LEFT_BY_ORBAX
from tests.trees import tree

FROZEN = pathlib.Path(__file__).parents[1] / "frozen" / "format_1"
STATE = {"w": jnp.arange(12.0), "key": jax.random.key(5)}
LIKE = jax.eval_shape(lambda: STATE)

pytestmark = LEFT_BY_ORBAX


@pytest.fixture
def saved(tmp_path):
    """A run's folder with steps 2 and 3."""
    directory = tmp_path / "run" / CHECKPOINTS
    directory.parent.mkdir()
    for step in (2, 3):
        checkpoint.save(directory, step, {**STATE, "w": STATE["w"] + step})
    return directory


@pytest.fixture
def victim(tmp_path):
    """A tree outside the run, whose names are those that a checkpoint's folder has."""
    folder = tmp_path / "victim"
    for name in ("2024", "2025", "60", "3", "partial-1-00000000", "7.orbax-checkpoint-tmp", "state"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file.txt").write_text(name)
    before = tree(folder)
    yield folder
    assert tree(folder) == before, "a link led out of the run"


def restore(directory, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return checkpoint.restore(directory, LIKE, **options)


def value(found):
    return (found.step, found.state["w"].tolist())


def good(step):
    return (step, (np.arange(12.0) + step).tolist())


USES = {
    "steps": checkpoint.steps,
    "restore": restore,
    "resume": lambda directory: restore(directory, set_aside=True),
    "save": lambda directory: checkpoint.save(directory, 4, STATE),
    "drop_after": lambda directory: checkpoint.drop_after(directory, 0),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", [CHECKPOINTS, f"{CHECKPOINTS}/3", f"{CHECKPOINTS}/9"])
def test_a_link_in_place_of_steps_is_refused(saved, victim, use, place):
    path = saved.parent / place
    if path.exists():
        path.rename(saved.parent / "away")
    path.symlink_to(victim)
    before = tree(saved.parent)
    with pytest.raises(LinkError, match=f"{path.name} is a link"):
        USES[use](saved)
    assert tree(saved.parent) == before


@pytest.mark.parametrize("place", ["state", "state/manifest.ocdbt", "digest/metadata", "SHA256SUMS", "new"])
@pytest.mark.parametrize("set_aside", [False, True])
def test_a_link_inside_a_step_is_refused(saved, victim, place, set_aside):
    path = saved / "3" / place
    if path.exists():
        path.rename(saved.parent / "away")
    path.symlink_to(victim / "3" if place == "state" else victim / "3" / "file.txt")
    before = tree(saved.parent)
    with pytest.raises(LinkError, match=f"{path.name} is a link"):
        restore(saved, set_aside=set_aside)
    assert tree(saved.parent) == before


def test_a_link_in_place_of_where_damage_goes_is_refused(saved, victim):
    """What `ln -s victim run/checkpoints_damaged` did before: it deleted victim/3."""
    (saved.parent / "checkpoints_damaged").symlink_to(victim)
    for path in (saved / "3").rglob("d/*"):
        path.write_bytes(b"")
    before = tree(saved.parent)
    with pytest.raises(LinkError, match="checkpoints_damaged is a link"):
        restore(saved, set_aside=True)
    assert tree(saved.parent) == before
    assert value(restore(saved)) == good(2), "who only reads has no need of that folder"


def test_a_link_that_is_called_a_half_written_step_goes_and_what_it_names_stays(saved, victim):
    (saved / "partial-9-00000000").symlink_to(victim)
    (saved / "9.orbax-checkpoint-tmp").symlink_to(victim)
    (saved / "partial-8-00000000").mkdir()
    (saved / "partial-8-00000000" / "inner").symlink_to(victim)
    checkpoint.save(saved, 4, STATE)
    assert sorted(path.name for path in saved.iterdir()) == ["3", "4"]


def test_a_pipe_or_a_file_of_any_length_ends_neither_in_waiting_nor_in_reading_it_all(saved):
    os.mkfifo(saved / "3" / "state" / "pipe")
    with pytest.raises(ValueError, match="pipe is no regular file"):
        restore(saved)
    (saved / "3" / "state" / "pipe").unlink()
    with (saved / "3" / "state" / "huge").open("wb") as file:
        file.truncate(2**40)
    assert value(restore(saved)) == good(2)


def refusing(monkeypatch, name, error):
    """Makes reading files of this name fail as a disk would, after they were opened, or at once."""
    real_open, real_read, held = os.open, os.read, set()

    def opened(path, *arguments, **named):
        if os.path.basename(path) == name and error.errno == errno.EACCES:
            raise error
        descriptor = real_open(path, *arguments, **named)
        (held.add if os.path.basename(path) == name else held.discard)(descriptor)
        return descriptor

    def read(descriptor, count):
        if descriptor in held:
            raise error
        return real_read(descriptor, count)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "read", read)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("name", ["manifest.ocdbt", "metadata", "SHA256SUMS", "_METADATA"])
@pytest.mark.parametrize("set_aside", [False, True])
def test_what_cannot_be_read_is_not_damaged(saved, monkeypatch, name, number, set_aside):
    before = tree(saved.parent)
    with monkeypatch.context() as patch:
        refusing(patch, name, OSError(number, os.strerror(number)))
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            restore(saved, set_aside=set_aside)
    assert os.path.basename(caught.value.filename) == name
    assert tree(saved.parent) == before
    assert value(restore(saved, set_aside=set_aside)) == good(3), "later it is read as if nothing had been"


@pytest.mark.parametrize("error", [MemoryError(), ImportError("no tensorstore"), ValueError("odd"), OSError(5, "I/O")])
@pytest.mark.parametrize("set_aside", [False, True])
def test_a_library_that_fails_on_sound_files_is_not_damage(saved, monkeypatch, error, set_aside):
    def failing(*_):
        raise error

    before = tree(saved.parent)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "load", failing)
        with pytest.raises(OSError, match=f"the checkpoint of step 3 cannot be read: {type(error).__name__}"):
            restore(saved, set_aside=set_aside)
    assert tree(saved.parent) == before


def test_a_missing_library_is_not_damage(saved, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "orbax.checkpoint", None)
        with pytest.raises(OSError, match="the checkpoint of step 3 cannot be read: ModuleNotFoundError"):
            restore(saved, set_aside=True)
    assert value(restore(saved)) == good(3)


def test_a_table_that_claims_another_size_is_refused_before_memory_is_spent(saved):
    """An early step has no SHA256SUMS, so that only the table's own digest vouches for the table."""
    table = json.loads((saved / "3" / "digest" / "metadata").read_text())["leaves"]
    for leaf in table.values():
        leaf |= {"offset": 0, "bytes": 10**15}
    (saved / "3" / "digest" / "metadata").write_text(json.dumps(checkpoint.leaves.digest(table)))
    (saved / "3" / "SHA256SUMS").unlink()
    found = restore(saved)
    assert value(found) == good(2)
    assert "another place than its type and shape do" in found.damaged[0][1]


def vouch(step):
    """Give a forged step the SHA256SUMS of its files."""
    files = [path for path in step.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(step)}\n" for path in files]
    (step / "SHA256SUMS").write_text("".join(lines))


@pytest.mark.parametrize("fields", [{"shape": [10**12], "chunks": [4]}, {"shape": [12], "chunks": [10**12]}])
def test_arrays_that_claim_another_size_are_refused_before_memory_is_spent(saved, fields):
    """A forged step whose table is right, with arrays of terabytes that take no place on the disk."""
    state, arrays = saved / "3" / "state", {"w": np.zeros(12, np.float32), "key": np.zeros(2, np.uint32)}
    shutil.rmtree(state)
    state.mkdir()
    with contextlib.closing(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as handler:
        handler.save(state, args=ocp.args.PyTreeSave(arrays))
        handler.finalize(state)
    about = json.loads((state / "w" / ".zarray").read_text())
    (state / "w" / ".zarray").write_text(json.dumps(about | fields))
    vouch(saved / "3")
    found = restore(saved)
    assert value(found) == good(2)
    assert found.damaged == ((3, "state holds other arrays than its table of leaves says"),)


def test_a_name_of_an_array_that_is_a_path_is_not_followed(saved, tmp_path):
    """orbax would open the pipe, and wait for its other end without end."""
    (tmp_path / "outside").mkdir()
    os.mkfifo(tmp_path / "outside" / ".zarray")
    metadata = saved / "3" / "state" / "_METADATA"
    table = json.loads(metadata.read_text())
    (row, *_) = table["tree_metadata"].values()
    row["key_metadata"] = [{"key": str(tmp_path / "outside"), "key_type": 2}]
    metadata.write_text(json.dumps({**table, "tree_metadata": {"('outside',)": row}, "use_ocdbt": False}))
    vouch(saved / "3")
    found = restore(saved)
    assert value(found) == good(2)
    assert found.damaged == ((3, "state holds other arrays than its table of leaves says"),)


def test_the_checkpoint_of_another_run_or_step_is_not_taken_for_this_one(saved, tmp_path):
    other = tmp_path / "other" / CHECKPOINTS
    other.parent.mkdir()
    checkpoint.save(other, 9, STATE)
    shutil.copytree(other / "9", saved / "9")
    shutil.copytree(saved / "2", saved / "8")
    found = restore(saved)
    assert value(found) == good(3)
    assert found.damaged == (
        (9, "it was saved as that of run other"),
        (8, "it was saved as that of step 2"),
    )


def test_names_that_are_no_numbers_of_steps_do_not_count(saved):
    for name in ("03", "\uff16\uff10", "3.5", "9" * 30):
        shutil.copytree(saved / "2", saved / name)
    assert checkpoint.steps(saved) == [2, 3]


@pytest.mark.parametrize("run", [path.name for path in sorted(FROZEN.iterdir()) if path.is_dir()])
def test_what_earlier_versions_saved_is_read(run):
    """The manifest of the run that was finished has the digest of the parameters, which that version computed."""
    config = parse(json.loads((FROZEN / run / "config.json").read_text()))
    manifest = json.loads((FROZEN / run / "manifest.json").read_text())
    found = checkpoint.restore(FROZEN / run / CHECKPOINTS, Trainer(config, make_task(config)).shapes())
    assert (found.step, int(found.state.step), found.damaged) == (manifest["steps"], manifest["steps"], ())
    if manifest["state"] == "done":
        assert fingerprint(found.state.params) == manifest["parameters_sha256"]


def test_damage_to_what_earlier_versions_saved_is_found(tmp_path):
    (run,) = (path for path in FROZEN.iterdir() if path.is_dir() and (path / CHECKPOINTS / "60").is_dir())
    config = parse(json.loads((run / "config.json").read_text()))
    like = Trainer(config, make_task(config)).shapes()
    for number, path in enumerate(path for path in (run / CHECKPOINTS).rglob("d/*") if path.stat().st_size > 4000):
        copy = tmp_path / str(number)
        shutil.copytree(run, copy)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        (copy / path.relative_to(run)).write_bytes(data)
        with pytest.warns(UserWarning, match="checkpoint of step 60 is damaged"):
            assert checkpoint.restore(copy / CHECKPOINTS, like) is None
