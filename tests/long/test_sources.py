"""Which bytes of a text are read: of files, folders and the standard library, and of the text that a model was trained on."""

import pytest

from attnjax.long.sources import haystack, overlap, read_source
from attnjax.tasks import Text
from attnjax.tasks.text import place


def test_a_file_is_read_as_a_whole_unless_the_model_was_trained_on_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = bytes(range(200))
    (tmp_path / "a.txt").write_bytes(data)
    assert read_source("a.txt") == (data, "")
    assert read_source("a.txt", trained_on=Text("elsewhere")) == (data, "")
    part, said = read_source("a.txt", trained_on=Text(str(tmp_path / "a.txt")))
    assert (part, said) == (data[190:], "the last 5 % of the file, which the model was not trained on")
    part, said = read_source("a.txt", Text(str(tmp_path / "a.txt")), "train")
    assert (part, said) == (data[:180], "its train split")
    assert read_source("a.txt", split="train") == (data, "")
    part, said = read_source("stdlib")
    assert said.startswith("its test split")
    assert 10**5 < len(part) <= 2**24
    monkeypatch.setattr("attnjax.long.sources.LARGEST", 199)
    with pytest.raises(ValueError, match="a.txt has 200 bytes, more than the 199 of the largest text that is read"):
        read_source("a.txt")
    with pytest.raises(ValueError, match="no file or folder at 'nowhere'"):
        read_source("nowhere")
    monkeypatch.setattr("attnjax.long.sources.MOST", 9)
    assert read_source("stdlib") == (part[:9], "its test split, the first 9 bytes of it")


LINES = "".join(f"a line that two files have, number {i}\n" for i in range(9))


def corpus(folder, **options):
    """A folder of 40 files of their own, and of one in the training split and one in the test split that share their lines."""
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.txt").write_text(f"file {i}, " * 50)
    twins = {
        split: next(f"a{i}.txt" for i in range(99) if place(f"a{i}.txt")[0] == split) for split in ("train", "test")
    }
    for name in twins.values():
        (folder / name).write_text(LINES)
    (folder / "inner").mkdir()
    (folder / "inner" / "notes.md").write_text("notes")
    return Text(str(folder), **options)


def test_the_text_of_a_run_is_read_in_the_split_of_its_own_options(tmp_path):
    """Files that say the same are placed together, so that the test split by file would have lines of training."""
    for split_by, shared in (("file", True), ("group", False)):
        text = corpus(tmp_path / split_by, split_by=split_by)
        data, said = read_source(str(tmp_path / split_by), text)
        assert said == "its test split"
        assert data == text.for_split("test").data.tobytes()
        assert all(LINES.encode() in one for one in (data, text.data.tobytes())) == shared
    one = Text(str(tmp_path / "file"), pattern="1*.txt")
    assert read_source(str(tmp_path / "file"), one, "train")[0] == one.data.tobytes()
    assert read_source(str(tmp_path / "file"))[0] == Text(str(tmp_path / "file"), split="test").data.tobytes()


def test_parts_of_the_text_of_a_run_by_another_name_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = corpus(tmp_path / "folder", pattern="*.txt")
    own = "is or has a file of the text that the model was trained on: name that text, {}, of which the test split is read"
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "7.txt")
    for source in ("folder/7.txt", "folder/../folder/7.txt", "link", ".", str(tmp_path)):
        with pytest.raises(ValueError, match=own.format(".*folder")):
            read_source(source, text)
    assert read_source("folder/inner/notes.md", text) == (b"notes", ""), "no file that the pattern takes"
    with pytest.raises(ValueError, match="Text: no file or folder at 'folder/nowhere'"):
        read_source("folder/nowhere", text)
    alone = Text(str(tmp_path / "folder" / "7.txt"))
    with pytest.raises(ValueError, match=own.format(r".*7\.txt")):
        read_source("folder", alone)
    assert read_source("folder/8.txt", alone)[1] == ""
    for source in (str(Text().root / "json" / "decoder.py"), str(Text().root / "json")):
        with pytest.raises(ValueError, match=own.format("stdlib")):
            read_source(source, Text())
    small = Text(cap=1000)
    for source in ("stdlib", str(Text().root)):
        assert read_source(source, small) == (small.for_split("test").data.tobytes(), "its test split")


def test_a_text_to_fit_to_has_none_of_the_bytes_that_are_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = corpus(tmp_path / "folder")
    (tmp_path / "other.txt").write_text("another text")
    for fitted, measured in (("folder/7.txt", "folder"), ("folder", "folder/7.txt"), ("other.txt", "other.txt")):
        assert overlap(fitted, measured)
    for fitted, measured in (("folder", "folder"), ("other.txt", "folder"), ("folder/7.txt", "folder/8.txt")):
        assert not overlap(fitted, measured)
    assert not overlap("other.txt", "other.txt", Text("other.txt")), "its splits are read"
    assert not overlap("stdlib", "folder", text)
    assert overlap(str(Text().root / "json" / "decoder.py"), "stdlib")


def test_a_needle_is_hidden_in_bytes_that_the_model_was_not_trained_on(tmp_path):
    """A file is a whole haystack; of the text of a run it is the test split by the options of that run."""
    text = corpus(tmp_path / "folder", split_by="group")
    assert haystack(str(tmp_path / "folder"), text) == tuple(text.for_split("test").data.tobytes().decode().split())
    assert haystack(str(tmp_path / "folder")) != haystack(str(tmp_path / "folder"), text)
    (tmp_path / "essay.txt").write_text("one two " * 100)
    assert haystack(str(tmp_path / "essay.txt"), text) == ("one", "two") * 100
    assert haystack("noise", text) == ()
