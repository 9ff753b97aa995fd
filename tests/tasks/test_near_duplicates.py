"""Files that say nearly the same are found, by a second counting too, and stand on one side of every split."""

import itertools

import numpy as np
import pytest

from attnjax.tasks import Text
from attnjax.tasks.near_duplicates import groups, long_lines
from attnjax.tasks.text import SPLITS, place


def line(i: int) -> bytes:
    return b"line number %05d of this made-up corpus" % i


def test_lines_that_count():
    content = b"  short\n\t" + line(1) + b"  \n" + line(1) + b"\n" + b"x" * 20 + b"\n" + b"x" * 19
    assert long_lines(content) == {line(1), b"x" * 20}
    two_bytes_each = "\u00e9".encode()
    assert long_lines(two_bytes_each * 9 + b"\n" + two_bytes_each * 10) == {two_bytes_each * 10}


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_the_connected_components_of_near_files(seed: int):
    """By all pairs of files, and by joining sets for as long as any two meet."""
    generator = np.random.default_rng(seed)
    lines = {f"f{i:02d}": frozenset(map(line, generator.integers(0, 30, generator.integers(0, 12)))) for i in range(25)}
    sets = [{name} for name in lines]
    for a, b in itertools.combinations(lines, 2):
        both = len(lines[a] & lines[b])
        if both and 2 * both >= max(len(lines[a]), len(lines[b])):
            sets.append({a, b})
    while meeting := next(((x, y) for x, y in itertools.combinations(sets, 2) if x & y), None):
        sets = [one for one in sets if one not in meeting] + [meeting[0] | meeting[1]]
    assert {min(one): one for one in sets} == {
        first: {name for name, of in groups(lines).items() if of == first} for first in set(groups(lines).values())
    }
    assert len(sets) < 25, "some files are near"


def test_a_line_of_very_many_files_links_none():
    lines = {f"{i:04d}": frozenset([line(0), line(1)]) for i in range(501)}
    assert groups(lines) == {name: name for name in lines}
    del lines["0000"]
    assert set(groups(lines).values()) == {"0001"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """120 files: 40 alone, and 20 families of four that differ in a line."""
    root = tmp_path_factory.mktemp("corpus")
    for i in range(40):
        (root / f"alone{i}.txt").write_bytes(b"\n".join(line(10_000 + 20 * i + k) for k in range(10)))
    for family, copy in itertools.product(range(20), range(4)):
        body = [line(20 * family + k) for k in range(10)]
        (root / f"family{family}-{copy}.txt").write_bytes(b"\n".join([*body, line(90_000 + 4 * family + copy)]))
    return root


def families(root, split_by: str) -> dict[str, set[str]]:
    """The splits in which the lines of each family stand."""
    found: dict[str, set[str]] = {}
    for split in SPLITS:
        for text in Text(str(root), split=split, split_by=split_by).data.tobytes().split(b"\n"):
            number = int(text.split(b" ")[2]) if text.startswith(b"line") else 10**6
            if number < 400:
                found.setdefault(str(number // 20), set()).add(split)
    return found


def test_near_duplicates_stand_on_one_side(folder):
    assert len(families(folder, "group")) == 20
    assert all(len(splits) == 1 for splits in families(folder, "group").values())
    assert any(len(splits) > 1 for splits in families(folder, "file").values()), "or nothing would be mended"


def test_nothing_is_lost_and_the_default_is_as_before(folder):
    size = sum(path.stat().st_size + 1 for path in folder.iterdir())
    for split_by in ("file", "group"):
        parts = [Text(str(folder), split=split, split_by=split_by).data.tobytes() for split in SPLITS]
        assert sum(map(len, parts)) == size
        assert parts == [Text(str(folder), split=split, split_by=split_by).data.tobytes() for split in SPLITS]
    chosen = sorted((place(path.name)[1], path) for path in folder.iterdir() if place(path.name)[0] == "test")
    assert Text(str(folder), split="test").data.tobytes() == b"".join(path.read_bytes() + b"\0" for _, path in chosen)


def test_a_mistake_is_one_sentence(folder):
    with pytest.raises(ValueError, match="is one file, which is split by place: split_by must be 'file'$"):
        _ = Text(str(folder / "alone0.txt"), split_by="group").data
