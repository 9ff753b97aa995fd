"""Scores of single examples: what was written is read, and what nobody wrote is refused with a sentence."""

import io
import zipfile

import numpy as np
import pytest

from attnjax.records.examples import FILE, LARGEST, Examples, read, write

SCORES = {("test", 128, "exact_match"): np.array([1.0, 0.0, 1.0]), ("train", 64, "loss_sliding"): np.linspace(0, 3, 7)}


def test_what_is_written_is_read(tmp_path):
    write(tmp_path, Examples(300, SCORES))
    found = read(tmp_path)
    assert found.step == 300
    assert found.scores.keys() == SCORES.keys()
    for key, array in SCORES.items():
        assert found.scores[key].dtype == np.float64
        assert np.array_equal(found.scores[key], array.astype(np.float32), equal_nan=True)


def test_the_same_scores_are_the_same_bytes_and_answers_are_small(tmp_path):
    answers = {("test", n, "exact_match"): np.arange(10_000) % 2 for n in range(8)}
    contents = []
    for _ in range(2):
        write(tmp_path, Examples(1, answers))
        contents.append((tmp_path / FILE).read_bytes())
    assert contents[0] == contents[1]
    assert len(contents[0]) < 8_000


@pytest.mark.parametrize("key", [("te/st", 1, "loss"), ("test", -1, "loss"), ("test", 1, "loss@"), ("test", 1, "../x")])
def test_a_name_that_could_not_be_read_is_not_written(tmp_path, key):
    with pytest.raises(ValueError, match=r"^no name of a split, length and metric: "):
        write(tmp_path, Examples(1, {key: np.zeros(1)}))
    assert not (tmp_path / FILE).exists()


def stored(**arrays):
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    return packed.getvalue()


ONE = np.int64(1)
LOSS = "test/1/loss"


def bomb():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("step.npy", "w") as entry:
        for _ in range(LARGEST // 2**20 + 1):
            entry.write(bytes(2**20))
    return packed.getvalue()


def zipped(**members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def header(dtype, size):
    """The first bytes of an array of so many entries, and none of them."""
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": dtype, "fortran_order": False, "shape": (size,)})
    return written.getvalue()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "File is not a zip file"),
        (stored(step=ONE)[:-40], "File is not a zip file"),
        (stored(**{LOSS: np.zeros(3)}), "it must have a step, a whole number"),
        (stored(step=-ONE), "it must have a step, a whole number"),
        (stored(step=ONE, loss=np.zeros(3)), "'loss' is no list of scores of a split, length and metric"),
        (stored(step=ONE, **{LOSS: np.zeros((3, 1))}), "'test/1/loss' is no list of scores"),
        (stored(step=ONE, **{LOSS: np.array(["a"])}), "'test/1/loss' is no list of scores"),
        (stored(step=ONE, **{LOSS: np.array([{}])}), "Object arrays cannot be loaded when allow_pickle=False"),
        (bomb(), "more than 256 MiB are packed in it"),
        (zipped(**{"step.npy": b"x", "test": b"no array"}), "'step' is no array"),
        (zipped(**{"step.npy": header("<f8", 10**15)}), "it says that it holds more than there is memory for"),
    ],
)
def test_a_damaged_file_is_a_sentence(tmp_path, content, error):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ValueError, match=r"examples.npz is damaged: ") as raised:
        read(tmp_path)
    assert error in str(raised.value)


def test_a_changed_byte_is_found(tmp_path):
    write(tmp_path, Examples(300, {("test", 1, "loss"): np.random.default_rng(0).random(500)}))
    content = bytearray((tmp_path / FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ValueError, match=r"examples.npz is damaged: "):
        read(tmp_path)


def test_a_run_without_the_file_and_a_link(tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path)
    (tmp_path / FILE).symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="is a link"):
        read(tmp_path)
