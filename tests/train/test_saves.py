"""Checkpoints that one process writes and another commits, and which process has which member."""

import contextlib
import types

import jax
import numpy as np
import pytest

from attnjax.config.mesh import parse_mesh
from attnjax.train import checkpoint, saves, sums
from attnjax.train.mesh import make_mesh, owners, place
from tests.train.conftest import LEFT_BY_ORBAX

ATTEMPT = "0123456789abcdef"
STATE = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.int32(60)}
pytestmark = LEFT_BY_ORBAX


@pytest.fixture
def place_of_steps(tmp_path):
    """Two steps that count."""
    directory = tmp_path / "run" / "checkpoints"
    directory.parent.mkdir()
    for step in (20, 40):
        checkpoint.save(directory, step, STATE)
    return directory


def test_a_prepared_step_counts_when_it_is_committed(place_of_steps):
    checkpoint.prepare(place_of_steps, 60, STATE, ATTEMPT)
    assert checkpoint.steps(place_of_steps) == [20, 40]
    assert checkpoint.restore(place_of_steps, STATE).step == 40
    checkpoint.commit(place_of_steps, 60, ATTEMPT)
    assert checkpoint.steps(place_of_steps) == [20, 40, 60]
    checkpoint.prune(place_of_steps)
    assert checkpoint.steps(place_of_steps) == [40, 60]
    found = checkpoint.restore(place_of_steps, STATE)
    np.testing.assert_array_equal(found.state["w"], STATE["w"])
    assert sorted(path.name for path in place_of_steps.iterdir()) == ["40", "60"]


def test_where_one_step_is_kept_members_always_have_one_in_common(tmp_path, monkeypatch):
    """A kill between the saves of two members of one process, as an error of the second."""
    members = [tmp_path / name for name in "ab"]
    for directory in members:
        directory.mkdir()
    state = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), STATE)
    found = lambda: [checkpoint.steps(directory / saves.CHECKPOINTS) for directory in members]
    write = checkpoint.save

    def killed(directory, step, state, **options):
        if step == 60 and directory.parent == members[1]:
            raise OSError("killed")
        write(directory, step, state, **options)

    monkeypatch.setattr(checkpoint, "save", killed)
    holder = types.SimpleNamespace(holds=lambda directory: True)
    with contextlib.suppress(OSError), saves.Saves(members, None, 1, holder) as saving:
        for step in (20, 40, 60):
            saving.begin(state, [0, 1], step)
            saving.wait()
    assert found() == [[40, 60], [40]]
    monkeypatch.undo()
    with saves.Saves(members, None, 1, holder) as saving:
        saving.begin(state, [0, 1], 60)
    assert found() == [[60], [60]]


def test_it_has_the_files_of_one_that_was_saved(place_of_steps):
    """All but the names that orbax draws, how many files of data it makes (of one state now and then one fewer), and what is
    derived from them.
    """
    checkpoint.prepare(place_of_steps, 40, STATE, ATTEMPT)
    one, other = place_of_steps / "40", place_of_steps / f"partial-40-{ATTEMPT}"
    kinds = lambda folder: {
        path.parent.relative_to(folder) if path.parent.name == "d" else path.relative_to(folder)
        for path in folder.rglob("*")
    }
    assert kinds(one) == kinds(other)
    for name in ("state/_METADATA", "digest/metadata"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_the_commit_of_another_attempt_is_refused_and_what_that_left_goes(place_of_steps):
    checkpoint.prepare(place_of_steps, 60, STATE, ATTEMPT)
    with pytest.raises(OSError, match="^checkpoint of step 60 could not be saved in checkpoints: .*No such file"):
        checkpoint.commit(place_of_steps, 60, "f" * 16)
    assert sorted(path.name for path in place_of_steps.iterdir()) == ["20", "40"]


def test_what_fails_while_it_is_prepared_removes_its_own_files_alone(place_of_steps, monkeypatch):
    checkpoint.prepare(place_of_steps, 60, STATE, ATTEMPT)

    def full(path, arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(OSError, match="^checkpoint of step 80 could not be saved in checkpoints: .*No space left"):
        checkpoint.prepare(place_of_steps, 80, STATE, ATTEMPT)
    assert sorted(path.name for path in place_of_steps.iterdir()) == ["20", "40", f"partial-60-{ATTEMPT}"]
    checkpoint.sweep_up(place_of_steps)
    assert checkpoint.steps(place_of_steps) == [20, 40]
    assert len(list(place_of_steps.iterdir())) == 2
    with pytest.raises(ValueError, match=r"^state of step 80 is not finite at \['w'\]; it is not saved$"):
        checkpoint.prepare(place_of_steps, 80, {"w": np.float32([np.inf])}, ATTEMPT)


def test_a_folder_without_steps_has_nothing_to_sweep_up(tmp_path):
    checkpoint.sweep_up(tmp_path / "checkpoints")
    assert list(tmp_path.iterdir()) == []


def test_folders_under_one_path_on_two_machines_are_told_apart(tmp_path):
    """The mark is of this attempt; a link is not followed, and a folder without the mark is left as it is."""
    run, elsewhere, mark = tmp_path / "run", tmp_path / "elsewhere", f"partial-{ATTEMPT}"
    assert not saves._is_seen(run, mark)
    (run / "checkpoints" / "partial-of-another").mkdir(parents=True)
    assert not saves._is_seen(run, mark)
    elsewhere.mkdir()
    (run / "checkpoints" / mark).symlink_to(elsewhere)
    assert not saves._is_seen(run, mark)
    assert list(elsewhere.iterdir()) == []
    (run / "checkpoints" / mark).unlink()
    (run / "checkpoints" / mark).mkdir()
    assert saves._is_seen(run, mark)


def test_a_member_is_of_the_first_process_that_has_it():
    """Three members on a mesh of four processes: population=2, data=2, then population=4; the last member stands in twice."""
    devices = np.array([types.SimpleNamespace(process_index=i) for i in range(4)])
    mesh = lambda *shape: types.SimpleNamespace(
        devices=devices.reshape(shape), shape=dict(zip(("population", "data", "sequence"), shape, strict=True))
    )
    assert owners(3, mesh(2, 2, 1)) == [0, 0, 2]
    assert owners(3, mesh(4, 1, 1)) == [0, 1, 2]
    assert owners(3, mesh(1, 2, 2)) == [0, 0, 0]


@pytest.mark.parametrize("mesh", ["population=4,data=2", "population=2"])
def test_a_member_is_copied_from_the_device_that_has_it(mesh):
    leaf = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    spread = place(jax.numpy.asarray(leaf), make_mesh(parse_mesh(mesh)))
    for i in range(4):
        own = saves._row(spread, i)
        np.testing.assert_array_equal(own, leaf[i])
        assert own.flags.owndata


def test_sums_are_of_every_other_file(tmp_path):
    """The digest is that of `printf abc | sha256sum`."""
    from attnjax.folder import enter

    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "d").write_bytes(b"abc")
    with contextlib.closing(enter(tmp_path)) as folder:
        text = sums.of(folder)
    assert text == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  state/d\n"
