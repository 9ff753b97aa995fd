"""Files of folders that somebody else made: what is refused, and that a replaced file is old or new."""

import os

import pytest

from attnjax.safety import files, inside, read, write


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b", "/etc", "x" * 300])
def test_a_name_is_one_component(tmp_path, name):
    with pytest.raises(ValueError, match="one name"):
        inside(tmp_path, name)


def test_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "run").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    for refused in (
        lambda: inside(root, "run", "secret"),
        lambda: read(root / "file", 100),
        lambda: write(root / "run" / "new", b""),
        lambda: list(files(root)),
    ):
        with pytest.raises(ValueError, match="link"):
            refused()
    write(root / "file", b"mine")  # replaces the link
    assert (outside / "secret").read_text() == "secret"
    assert (root / "file").read_bytes() == b"mine"
    assert not (outside / "new").exists()


def test_pipes_and_large_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="regular file"):
        read(tmp_path / "pipe", 100)
    with pytest.raises(ValueError, match="regular file"):
        list(files(tmp_path))
    (tmp_path / "large").write_bytes(b"x" * 101)
    with pytest.raises(ValueError, match="larger than 100"):
        read(tmp_path / "large", 100)
    assert read(tmp_path / "large", 101) == b"x" * 101


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    write(tmp_path / "a", b"old")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_files_below_a_folder_have_a_depth(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("")
    assert list(files(tmp_path)) == [tmp_path / "a" / "b" / "c"]
    with pytest.raises(ValueError, match="deeply"):
        list(files(tmp_path, deepest=1))
