"""Held-out files in windows: the split of training, links that lie inside, files that are skipped and said so."""

import numpy as np
import pytest

from attnjax.tasks import Text
from experiments.head_specialization.corpus import Source, as_mask, cut, held_out, read_source, read_sources
from experiments.head_specialization.source import Link

CODE = "def add(first, second):\n    return (first + second)\n"


@pytest.fixture
def folder(tmp_path):
    """Forty files of code, some of which no Python reads."""
    for number in range(40):
        text = CODE + f"x{number} = add({number}, [1])\n"
        (tmp_path / f"f{number}.py").write_text("def (:\n" if number % 10 == 3 else text)
    return tmp_path


def test_files_are_those_that_text_reads(folder):
    text = Text(str(folder))
    for split in ("validation", "test"):
        whole = b"".join(data + b"\0" for _, data in held_out(text, split))
        assert whole == text.for_split(split).data.tobytes()


def test_near_duplicates_stay_in_the_split_that_text_puts_them_in(tmp_path):
    """Parted file by file, copies would be held out of which training reads others."""
    lines = lambda name: "".join(f"{name}_{k} = 'a line that is long enough to be counted: {k}'\n" for k in range(9))
    for number in range(40):
        (tmp_path / f"own{number}.py").write_text(lines(f"value{number}"))
        (tmp_path / f"copy{number}.py").write_text(lines("value") + f"x = {number}\n")
    held = {}
    for split_by in ("file", "group"):
        text = Text(str(tmp_path), split_by=split_by)
        for split in ("validation", "test"):
            found = list(held_out(text, split))
            assert b"".join(data + b"\0" for _, data in found) == text.for_split(split).data.tobytes()
            held.setdefault(split_by, []).extend(name for name, _ in found if "copy" in name)
    assert 0 < len(held["file"]) < 40
    assert len(held["group"]) in (0, 40)


def test_files_that_are_no_python_are_skipped_and_counted(folder):
    text = Text(str(folder))
    files = list(held_out(text, "test"))
    found = read_sources(text)
    broken = [name for name, data in files if data == b"def (:\n"]
    assert [name for name, _ in found.skipped] == broken
    assert all(reason.startswith("is no Python") for _, reason in found.skipped)
    assert [source.name for source in found.sources] == [name for name, _ in files if name not in broken]
    assert len(read_sources(text, files=1).sources) == 1


def test_the_standard_library_is_the_default():
    source = next(source for source in read_sources(Text(), "validation", files=3).sources if source.names)
    assert source.brackets
    assert source.name.endswith(".py")


def test_windows_hold_the_links_that_lie_inside():
    source = read_source("a", CODE.encode())
    one = cut([source], len(CODE))
    assert bytes(one.tokens[0].astype(np.uint8)) == CODE.encode()
    rows = {(CODE[i], CODE[j]) for i, j in np.argwhere(one.bracket[0])}
    assert rows == {(")", "(")}
    assert one.bracket.sum() == 2
    uses = {int(i): "".join(CODE[j] for j in np.flatnonzero(row)) for i, row in enumerate(one.name[0]) if row.any()}
    assert uses == {CODE.rindex("first") + 4: "first", CODE.rindex("second") + 5: "second"}
    # The body begins behind the parameters, so that its names point out of a window of the body alone.
    body = cut([Source("b", source.data[24:], *moved(source, 24))], len(CODE) - 24)
    assert not body.name.any()
    assert body.bracket.sum() == 1


def moved(source: Source, by: int) -> list[list[Link]]:
    """The links of a file without its first bytes."""
    return [[Link(*(place - by for place in link)) for link in links] for links in (source.brackets, source.names)]


def test_windows_are_spread_and_do_not_overlap():
    data = bytes(range(100))
    made = cut(
        [Source("a", data, [], []), Source("b", data[:25], [], []), Source("c", data[:9], [], [])], 10, per_file=3
    )
    assert made.document.tolist() == [0, 0, 0, 1, 1]
    assert made.tokens[:, 0].tolist() == [11, 45, 78, 1, 13]
    assert (np.diff(made.tokens, axis=1) == 1).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: read_sources(Text(str(folder)), "train"), "split must be validation or test.*got 'train'"),
        (
            lambda folder: read_sources(Text(str(folder / "f1.py"))),
            "documents are files of a folder; '.*f1.py' is none",
        ),
        (
            lambda folder: read_sources(Text(str(folder), pattern="*.c")),
            "no file of the test split of .* 0 were skipped",
        ),
        (lambda folder: cut([read_source("a", b"x\n")], 3), "none of the 1 files has 3 bytes"),
        (lambda folder: read_source("a", b"def (:\n"), "is no Python"),
        (lambda folder: as_mask([Link(3, 1, 2)], 3), r"Link\(row=3, start=1, stop=2\) does not lie in 3 tokens"),
    ],
)
def test_mistakes_are_named(folder, call, message):
    with pytest.raises(ValueError, match=message):
        call(folder)
