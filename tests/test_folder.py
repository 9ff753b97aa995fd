"""A folder that somebody else made: nothing outside it is touched, nothing in it is waited for."""

import errno
import os
import re

import pytest

from attnjax.folder import LinkError, enter


@pytest.fixture
def outside(tmp_path):
    """What links lead to, and must stay as it is."""
    folder = tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    (folder / "secret.txt").write_text("secret")
    (folder / "deep" / "more.txt").write_text("more")
    yield folder
    assert (folder / "secret.txt").read_text() == "secret"
    assert (folder / "deep" / "more.txt").read_text() == "more"


@pytest.fixture
def run(tmp_path, outside):
    """A folder with a file, a folder, and a link of each kind."""
    folder = tmp_path / "run"
    (folder / "inner").mkdir(parents=True)
    (folder / "file.txt").write_text("text")
    (folder / "inner" / "file.txt").write_text("inner")
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "linked").symlink_to(outside)
    (folder / "broken").symlink_to(outside / "nothing")
    return folder


def test_kinds(run):
    os.mkfifo(run / "pipe")
    with enter(run) as folder:
        kinds = {name: folder.kind(name) for name in [*folder.names(), "absent"]}
    links = {"link.txt": "link", "linked": "link", "broken": "link"}
    assert kinds == {**links, "file.txt": "file", "inner": "folder", "pipe": "other", "absent": ""}


@pytest.mark.parametrize("name", ["link.txt", "linked", "broken"])
@pytest.mark.parametrize("use", ["open", "enter", "make", "write"])
def test_links_are_refused_by_name(run, name, use):
    uses = {
        "open": lambda folder: folder.read(name, 100),
        "enter": lambda folder: folder.enter(name),
        "make": lambda folder: folder.make(name),
        "write": lambda folder: folder.open(name, os.O_WRONLY | os.O_CREAT),
    }
    with enter(run) as folder, pytest.raises(LinkError, match=f"{name} is a link; in a folder of results") as caught:
        uses[use](folder)
    assert str(run) in str(caught.value)


def test_a_link_in_place_of_the_folder_itself(tmp_path, run):
    (tmp_path / "alias").symlink_to(run)
    with pytest.raises(LinkError, match="alias is a link"):
        enter(tmp_path / "alias")
    with enter(tmp_path / "alias", follow=True) as folder:
        assert folder.read("file.txt", 100) == b"text"


def test_a_folder_that_is_swapped_for_a_link_while_open(tmp_path, run, outside):
    with enter(run) as folder, folder.enter("inner") as inner:
        (run / "inner").rename(tmp_path / "moved")
        (run / "inner").symlink_to(outside)
        assert inner.read("file.txt", 100) == b"inner"
        inner.remove("file.txt")
        with pytest.raises(LinkError):
            folder.enter("inner")
    assert not (tmp_path / "moved" / "file.txt").exists()


def test_removing_removes_links_and_not_what_they_point_to(run):
    (run / "inner" / "linked").symlink_to(run.parent / "outside")
    with enter(run) as folder:
        for name in ("link.txt", "linked", "broken", "inner", "absent"):
            folder.remove(name)
        assert folder.names() == ["file.txt"]


def test_a_hard_link_is_not_written_to(run, outside):
    os.link(outside / "secret.txt", run / "hard.txt")
    with enter(run) as folder:
        assert folder.read("hard.txt", 9) == b"secret"
        with pytest.raises(ValueError, match=r"hard.txt is a hard link: writing would change another file"):
            folder.open("hard.txt", os.O_WRONLY | os.O_APPEND)
        folder.write("hard.txt", b"new")
        os.close(folder.open("hard.txt", os.O_WRONLY | os.O_APPEND))


def test_moving_keeps_links_as_links(run, outside):
    with enter(run) as folder, folder.enter("inner") as inner:
        folder.move("link.txt", inner, "kept")
        assert inner.kind("kept") == "link"
    assert os.readlink(run / "inner" / "kept") == str(outside / "secret.txt")


@pytest.mark.parametrize("name", ["link.txt", "broken", "file.txt"])
def test_writing_replaces_a_link_and_never_writes_through_it(run, outside, name):
    with enter(run) as folder:
        assert not folder.create(name, b"new"), "something of this name is there"
        folder.write(name, b"new")
        assert (folder.kind(name), folder.read(name, 9)) == ("file", b"new")
        assert folder.create("another", b"new")
        assert not [left for left in folder.names() if left.startswith(".")]
    assert not (outside / "nothing").exists()


def test_a_disk_that_refuses_leaves_the_old_file(run, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with enter(run) as folder:
        for operation in ("write", "fsync", "replace"):
            with monkeypatch.context() as patch:
                patch.setattr(os, operation, full)
                with pytest.raises(OSError, match="No space left") as caught:
                    folder.write("file.txt", b"new")
            assert str(run) in caught.value.filename
            assert folder.read("file.txt", 9) == b"text"
        assert not [left for left in folder.names() if left.startswith(".")]


def test_a_pipe_is_not_waited_for(run):
    os.mkfifo(run / "pipe")
    with enter(run) as folder, pytest.raises(ValueError, match="pipe is no regular file"):
        folder.read("pipe", 100)


def test_all_files_below_or_the_first_thing_that_is_none(run):
    with enter(run) as folder:
        for name in ("link.txt", "linked", "broken"):
            folder.remove(name)
        assert {path: where.read(name, 9) for path, where, name in folder.files()} == {
            "file.txt": b"text",
            "inner/file.txt": b"inner",
        }
        (run / "inner" / "z").symlink_to("/")
        with pytest.raises(LinkError, match="inner/z is a link"):
            list(folder.files())
        (run / "inner" / "z").unlink()
        os.mkfifo(run / "inner" / "z")
        with pytest.raises(ValueError, match="inner/z is no regular file"):
            list(folder.files())


def test_depth_is_bounded(tmp_path):
    (tmp_path / "/".join("a" * 30)).mkdir(parents=True)
    with enter(tmp_path) as folder, pytest.raises(ValueError, match="nested too deeply"):
        list(folder.files())


def test_a_file_larger_than_its_limit_is_not_read(run):
    with enter(run) as folder:
        assert folder.read("file.txt", 4) == b"text"
        with pytest.raises(ValueError, match=re.escape("file.txt is larger than 3 bytes")):
            folder.read("file.txt", 3)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../run", "a\0b"])
def test_names_of_more_than_one_part_are_refused(run, name):
    with enter(run) as folder:
        for use in (folder.kind, folder.enter, folder.open, folder.remove):
            with pytest.raises(ValueError, match="an entry of a folder must be one name"):
                use(name)


def test_errors_of_the_system_name_the_whole_path(tmp_path, run):
    with enter(run) as folder:
        for use in (folder.open, folder.enter):
            with pytest.raises(FileNotFoundError) as caught:
                use("absent")
            assert caught.value.filename == str(run / "absent")
    with pytest.raises(FileNotFoundError):
        enter(tmp_path / "absent")
    with pytest.raises(NotADirectoryError):
        enter(run / "file.txt")
