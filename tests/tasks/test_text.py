"""The byte-level language model: what is read, how it is split, crops; near duplicates are on one side of a split."""

import hashlib
import itertools
import os
import sysconfig
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats

from attnjax.tasks import Text, task, text as module
from attnjax.tasks.near_duplicates import groups, long_lines
from attnjax.tasks.text import SPLITS
from tests.tasks import cases


@pytest.fixture
def corpus(tmp_path):
    return cases.corpus(tmp_path)


def sampled(text, lengths, size, seed=0):
    """Examples as NumPy arrays, and the bytes of each input with those that follow."""
    sample = cases.compiled(lambda key, n, *arrays: text.given(*arrays).sample(key, n, size))
    made = jax.tree.map(np.asarray, sample(jax.random.key(seed), np.asarray(lengths, np.int32), *text.arrays))
    return made, cases.rows(made.inputs, made.input_length), cases.rows(made.targets, made.target_length)


def test_a_crop_ends_anywhere_and_at_the_same_byte_whatever_its_length_and_padding(tmp_path):
    """Inputs are bytes of the text in order, and a target is the byte that follows."""
    (tmp_path / "noise").write_bytes(np.random.default_rng(0).bytes(40_000))
    text = Text(str(tmp_path / "noise"))
    data, lengths = text.data.tobytes(), np.arange(200) % 64 + 1
    _, inputs, targets = sampled(text, np.full(200, 64), 64, seed=3)
    short = sampled(text, lengths, 70, seed=3)
    for x, y in zip([*inputs, *short[1]], [*targets, *short[2]], strict=True):
        assert bytes([*x, y[-1]]) in data
        assert x[1:] == y[:-1]
    assert not short[0].inputs[np.arange(70) >= lengths[:, None]].any()
    np.testing.assert_array_equal(short[0].weight.sum(-1), lengths)
    # Only a crop of 64 that would begin before the text is drawn anew, once in 36,000 / 63.
    same = [y[-n:] == z for y, z, n in zip(targets, short[2], lengths, strict=True)]
    assert sum(same) >= 197
    with pytest.raises(ValueError, match="max_length .* 35999, got 36000"):
        text.sample(jax.random.key(0), [1], 36_000)


def test_crops_begin_anywhere(tmp_path):
    (tmp_path / "alphabet").write_bytes(bytes(range(20)))
    # 90 % of 20 bytes are 18: a crop of 3 and its next byte begin at 0 .. 14.
    made, *_ = sampled(Text(str(tmp_path / "alphabet")), np.full(3000, 3), 3)
    counts = np.bincount(made.inputs[:, 0], minlength=15)
    assert counts.size == 15
    assert stats.chisquare(counts).pvalue > 1e-6


def test_a_file_is_split_by_place(tmp_path):
    (tmp_path / "f").write_bytes(bytes(range(200)))
    parts = [Text(str(tmp_path / "f"), split).data.tolist() for split in ("train", "validation", "test")]
    assert parts == [list(range(180)), list(range(180, 190)), list(range(190, 200))]


def test_a_folder_is_split_by_a_hash_of_the_name(corpus, tmp_path):
    parts = {split: Text(str(tmp_path), split).data.tobytes().split(b"\0") for split in SPLITS}
    expected = {split: [] for split in SPLITS}
    for file in sorted(tmp_path.iterdir(), key=lambda file: hashlib.sha256(file.name.encode()).hexdigest()):
        percent = int(hashlib.sha256(file.name.encode()).hexdigest()[:8], 16) / 2**32 * 100
        split = "train" if percent < 90 else "validation" if percent < 95 else "test"
        expected[split].append(file.read_bytes())
    assert parts == {split: [*files, b""] for split, files in expected.items()}
    assert all(expected.values())
    # Another file, or another place of the folder, moves no file from one split to another.
    (tmp_path / "new.txt").write_text("new")
    again = {split: Text(str(tmp_path), split).data.tobytes().split(b"\0") for split in SPLITS}
    assert all(set(parts[split]) <= set(again[split]) for split in SPLITS)


def test_pattern_and_cap(corpus, tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "one.rst").write_bytes(b"only this" * 9)
    split = module.place("deep/er/one.rst")[0]
    assert Text(str(tmp_path), split, pattern="*.rst").data.tobytes() == b"only this" * 9 + b"\0"
    assert Text(str(tmp_path), split, pattern="*.rst", cap=4).data.tobytes() == b"only"
    assert Text(str(tmp_path), cap=5000).data.tobytes() == corpus.data.tobytes()[:5000]


def test_links_and_pipes_in_a_folder_are_not_read(tmp_path):
    (outside := tmp_path / "outside").mkdir()
    (outside / "secret").write_text("secret")
    (inside := tmp_path / "inside").mkdir()
    (inside / "link").symlink_to(outside / "secret")
    (inside / "folder").symlink_to(outside)
    os.mkfifo(inside / "pipe")
    assert list(module.names(inside, "*", ())) == []


def test_the_standard_library_is_the_default():
    source = Text(split="validation", cap=10**5)
    assert source.data.size == 10**5
    root = Path(sysconfig.get_path("stdlib"))
    names = module.names(root, "*.py", module.NOT_EVERYWHERE)
    files = sorted((name for name in names if module.place(name)[0] == "validation"), key=module.place)
    assert source.data.tobytes().startswith((root / files[0]).read_bytes()[:1000])
    assert not any("site-packages" in name or name.startswith("test/") for name in files)
    assert task("text", split="validation", cap=10**5) == source
    assert hash(source) == hash(Text(split="validation", cap=10**5))


def test_all_bytes_of_the_largest_split_are_drawn():
    """The largest cap is that of an int32, of which the place of a crop is drawn."""
    text = Text(cap=2**31 - 1).given(jax.ShapeDtypeStruct((2**31 - 1,), np.uint8))
    made = jax.eval_shape(lambda x: text.given(x).sample(jax.random.key(0), [9], 9), text.data)
    assert made.inputs.shape == (1, 9)


def test_a_folder_of_too_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("attnjax.tasks.text.MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("text")
    with pytest.raises(ValueError, match="has more than 3 files; give a smaller folder, or a pattern"):
        Text(path=str(tmp_path)).data  # noqa: B018
    assert len(Text(path=str(tmp_path), pattern="[012].txt", split="train").for_split("train").data) > 0


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    def refuse(self, *args):
        raise PermissionError(13, "Permission denied", str(self))

    (tmp_path / "f").write_text("content")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ValueError, match=r"Text: cannot read '.*f': Permission denied"):
        _ = Text(str(tmp_path / "f")).data


# Near duplicates -----------------------------------------------------------------------------------------------------


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
