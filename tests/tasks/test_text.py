"""The byte-level language model: what is read, how it is split, and that crops are crops."""

import hashlib
import os
import sysconfig
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.tasks import Text, task, text as module
from tests.tasks import cases


@pytest.fixture
def corpus(tmp_path):
    return cases.corpus(tmp_path)


def test_a_target_is_the_byte_that_follows(corpus):
    example = jax.jit(corpus.sample, static_argnums=2)(jax.random.key(0), jnp.array([1, 7, 30, 12]), 30)
    data = corpus.data.tobytes()
    inputs = cases.rows(np.asarray(example.inputs), np.asarray(example.input_length))
    targets = cases.rows(np.asarray(example.targets), np.asarray(example.target_length))
    for x, y, n in zip(inputs, targets, (1, 7, 30, 12), strict=True):
        assert len(x) == len(y) == n
        assert bytes([*x, y[-1]]) in data
        assert x[1:] == y[:-1]
    assert not example.inputs[0, 1:].any()
    np.testing.assert_array_equal(example.weight.sum(-1), [1, 7, 30, 12])


def test_crops_do_not_depend_on_padding_and_map_over_keys(corpus):
    lengths = jnp.array([5, 9])
    keys = jax.random.split(jax.random.key(1), 3)
    wide = jax.jit(jax.vmap(lambda key: corpus.sample(key, lengths, 20)))(keys)
    narrow = corpus.sample(keys[2], lengths, 9)
    np.testing.assert_array_equal(wide.inputs[2, :, :9], narrow.inputs)
    np.testing.assert_array_equal(wide.targets[2, :, :9], narrow.targets)
    assert not wide.inputs[:, :, 9:].any()


def test_crops_begin_anywhere(tmp_path):
    (tmp_path / "alphabet").write_bytes(bytes(range(20)))
    t = Text(str(tmp_path / "alphabet"))
    # 90 % of 20 bytes are 18: a crop of 3 and its next byte begin at 0 .. 14.
    example = jax.jit(t.sample, static_argnums=2)(jax.random.key(0), jnp.full(3000, 3), 3)
    counts = np.bincount(np.asarray(example.inputs[:, 0]), minlength=15)
    assert counts.size == 15
    assert np.abs(counts - 200).max() < 5 * np.sqrt(200)
    with pytest.raises(ValueError, match="max_length must be at most 17"):
        t.sample(jax.random.key(0), [18], 18)


def test_crops_of_one_key_end_at_the_same_byte(tmp_path):
    (tmp_path / "noise").write_bytes(np.random.default_rng(0).bytes(40_000))
    t, key = Text(str(tmp_path / "noise")), jax.random.key(3)
    long, short = (t.sample(key, jnp.full(200, n, jnp.int32), n) for n in (64, 5))
    same = (np.asarray(long.targets[:, -5:]) == np.asarray(short.targets)).all(-1)
    # Only a crop of 64 that would begin before the text is drawn anew, once in 36,000 / 63.
    assert same.sum() >= 197
    assert (np.asarray(long.inputs[:, -5:]) == np.asarray(short.inputs)).all(-1)[same].all()


def test_a_file_is_split_by_place(tmp_path):
    (tmp_path / "f").write_bytes(bytes(range(200)))
    parts = [Text(str(tmp_path / "f"), split).data.tolist() for split in ("train", "validation", "test")]
    assert parts == [list(range(180)), list(range(180, 190)), list(range(190, 200))]


def test_a_folder_is_split_by_a_hash_of_the_name(corpus, tmp_path):
    parts = {split: Text(str(tmp_path), split).data.tobytes().split(b"\0") for split in module.SPLITS}
    expected = {split: [] for split in module.SPLITS}
    for file in sorted(tmp_path.iterdir(), key=lambda file: hashlib.sha256(file.name.encode()).hexdigest()):
        percent = int(hashlib.sha256(file.name.encode()).hexdigest()[:8], 16) / 2**32 * 100
        split = "train" if percent < 90 else "validation" if percent < 95 else "test"
        expected[split].append(file.read_bytes())
    assert parts == {split: [*files, b""] for split, files in expected.items()}
    assert all(expected.values())
    # Another file, or another place of the folder, moves no file from one split to another.
    (tmp_path / "new.txt").write_text("new")
    again = {split: Text(str(tmp_path), split).data.tobytes().split(b"\0") for split in module.SPLITS}
    assert all(set(parts[split]) <= set(again[split]) for split in module.SPLITS)


def test_pattern_and_cap(corpus, tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "one.rst").write_bytes(b"only this" * 9)
    split = module.place("deep/er/one.rst")[0]
    assert Text(str(tmp_path), split, pattern="*.rst").data.tobytes() == b"only this" * 9 + b"\0"
    assert Text(str(tmp_path), split, pattern="*.rst", cap=4).data.tobytes() == b"only"
    assert Text(str(tmp_path), cap=5000).data.tobytes() == corpus.data.tobytes()[:5000]


def test_links_and_pipes_in_a_folder_are_not_read(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside / "secret")
    (inside / "folder").symlink_to(outside)
    os.mkfifo(inside / "pipe")
    assert list(module.names(inside, "*", ())) == []


def test_the_standard_library_is_the_default():
    source = Text(split="validation", cap=10**5)
    assert source.data.size == 10**5
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        name for name in module.names(root, "*.py", module.NOT_EVERYWHERE) if module.place(name)[0] == "validation"
    ]
    files.sort(key=lambda name: module.place(name)[1])
    assert source.data.tobytes().startswith((root / files[0]).read_bytes()[:1000])
    assert not any("site-packages" in name or name.startswith("test/") for name in files)
    assert task("text", split="validation", cap=10**5) == source
    assert hash(source) == hash(Text(split="validation", cap=10**5))


def test_a_text_holds_its_files_and_the_folders_around_them(tmp_path):
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for name in ("a.txt", "b.md", "inner/c.txt"):
        (tmp_path / "folder" / name).write_text(name)
    text, root = Text(str(tmp_path / "folder"), pattern="*.txt"), tmp_path / "folder"
    held = [path for path in (tmp_path, root, *sorted(root.rglob("*")), tmp_path / "else") if text.holds(path)]
    assert held == [tmp_path, root, root / "a.txt", root / "inner", root / "inner" / "c.txt"]
    alone = Text(str(root / "a.txt"))
    assert [alone.holds(path) for path in (root / "a.txt", root, root / "b.md")] == [True, True, False]
    library = Path(sysconfig.get_path("stdlib"))
    assert [Text().holds(library / name) for name in ("json", "json/decoder.py", "test")] == [True, True, False]


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
