"""Files of weights that are damaged or malicious: a typed error that says what is wrong, before memory is spent on it."""

import json
import os
import pathlib
import tracemalloc

import numpy as np
import pytest

from attnjax.models.errors import DamagedFile, ModelError, UnsafePath, UnsupportedFormat
from attnjax.models.safetensors_files import HEADER, open_file, open_folder
from tests.models.toys import BFLOAT16, encoded, fused_tensors, sharded

ONE = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def file(header, data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    """A file with this header, whatever it is, and perhaps another length announced."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more) -> dict:
    return {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}}


DAMAGED = {
    "empty": (b"", "it has 0 bytes, too few"),
    "a few bytes": (b"\1\0\0\0\0", "it has 5 bytes, too few"),
    "header cut off": (file(ONE)[:20], "and the file ends after 20"),
    "header longer than the file": (file(ONE, length=10_000), "its header should have 10,000 bytes"),
    "header of 2^63 bytes": (file(ONE, length=2**63), "its header should have 9,223,372,036,854,775,808 bytes"),
    "header of no byte": (file(ONE, length=0), "its header should have 0 bytes, allowed are 2 to"),
    "data cut off": (file(ONE, b"\0" * 7), "must lie within the 7 bytes of data, got data_offsets [0, 8]"),
    "bytes behind": (file(ONE, b"\0" * 9), "its tensors end after"),
    "spaces before": (file(b" " + json.dumps(ONE).encode()), "begins with b' '"),
    "no JSON": (file(b"{nonsense}"), "is damaged or no JSON"),
    "no UTF-8": (file(b'{"\xff": 1}'), "is damaged or no JSON: 'utf-8' codec"),
    "no table": (file(b'{"a": [1]'), "is damaged or no JSON"),
    "nested": (file(b'{"a": ' * 100_000), "is nested too deeply"),
    "NaN": (file(b'{"a": NaN}'), "NaN is no number of JSON"),
    "number of 5000 digits": (file(b'{"a": ' + b"9" * 5000 + b"}"), "is damaged or no JSON"),
    "name twice": (file(b'{"a": {}, "b": {}, "a": {}}'), "key 'a' stands twice in one table"),
    "name too long": (file({"a" * 600: ONE["a"]}), "has a name of 600 characters"),
    "text in place of a table": (file({"a": "b"}), "must be described by dtype, shape and data_offsets, got 'b'"),
    "field missing": (file({"a": {"dtype": "F32", "shape": [2]}}), "must be described by dtype, shape and"),
    "field too many": (file(entry(device="cpu")), "must be described by dtype, shape and data_offsets"),
    "negative size": (file(entry(shape=(-2,))), "must have a shape of up to 16 whole numbers"),
    "half a size": (file(entry(shape=(2.0,))), "must have a shape of up to 16 whole numbers"),
    "boolean size": (file(entry(shape=(True, 2))), "must have a shape of up to 16 whole numbers"),
    "size of 80 bits": (file(entry(shape=(2**80,))), "must have a shape of up to 16 whole numbers"),
    "17 axes": (file(entry(shape=(1,) * 16 + (2,))), "must have a shape of up to 16 whole numbers"),
    "sizes that overflow": (
        file(entry(shape=(2**62, 4))),
        "F32[4611686018427387904, 4] needs 73,786,976,294,838,206,464",
    ),
    "offsets reversed": (file(entry(offsets=(8, 0))), "got data_offsets [8, 0]"),
    "three offsets": (file(entry(offsets=(0, 4, 8))), "got data_offsets [0, 4, 8]"),
    "offsets outside": (file(entry(offsets=(2**62, 2**62 + 8))), "must lie within the 8 bytes of data"),
    "offsets of another size": (file(entry(shape=(1,))), "F32[1] needs 4 bytes, its data_offsets [0, 8] hold 8"),
    "overlap": (
        file({**entry(), "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}),
        "tensor 'b' overlaps the one before",
    ),
    "hole": (file(entry(shape=(1,), offsets=(4, 8))), "tensor 'a' leaves a hole before it"),
    "metadata of numbers": (file({"__metadata__": {"a": 1}, **ONE}), "__metadata__ must be a table of texts"),
    "pointer of LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "run `git lfs pull`"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged(tmp_path, name):
    data, message = DAMAGED[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(DamagedFile) as error:
        open_folder(tmp_path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 700
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (file(entry(dtype="F4")), "tensor 'a' has type 'F4'; read are F64, F32,"),
        (file(entry(dtype=["F32"])), "tensor 'a' has type a list of 1"),
        (b"PK\3\4" + b"\0" * 4 + b"\xff" * 100, "no safetensors file but a pickle, which runs code"),
        (b"\x80\x02}q\0." + b"\xff" * 100, "no safetensors file but a pickle, which runs code"),
    ],
)
def test_other_formats(tmp_path, data, message):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(UnsupportedFormat, match=message):
        open_folder(tmp_path)


@pytest.mark.parametrize("announced", [HEADER + 1, 100_000_000])
def test_a_header_over_the_limit_is_not_read(tmp_path, announced):
    with (tmp_path / "model.safetensors").open("wb") as sparse:
        sparse.write(announced.to_bytes(8, "little") + b"{")
        sparse.truncate(2 * announced)
    tracemalloc.start()
    with pytest.raises(DamagedFile, match="allowed are 2 to 16,777,216"):
        open_folder(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_every_type_and_shape_is_read_as_written(tmp_path):
    tensors = fused_tensors(BFLOAT16) | {"empty": np.zeros((0, 3), np.float32), "scalar": np.array(2.5, np.float64)}
    tensors |= {"half": np.array([1, -2, 65504], np.float16), "flags": np.array([True, False])}
    (tmp_path / "a.safetensors").write_bytes(encoded(tensors, {"format": "pt"}))
    found = open_file(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype)
        np.testing.assert_array_equal(found[name].read(), value)
    np.testing.assert_array_equal(found["toy.0.qkv"].read(1, 3), tensors["toy.0.qkv"][1:3])


def test_a_file_that_shrinks_after_it_was_opened(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(file(ONE))
    found = open_folder(tmp_path)["a"]
    path.write_bytes(file(ONE)[:-4])
    with pytest.raises(DamagedFile, match="had .* bytes and now has"):
        found.read()


def index(folder: pathlib.Path, change) -> None:
    path = folder / "model.safetensors.index.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps(change(table) or table))


def put(name, file):
    return lambda table: table["weight_map"].update({name: file})


def test_two_files_and_an_index(tmp_path):
    tensors = fused_tensors()
    found = open_folder(sharded(tmp_path / "model", "fused", tensors))
    assert found.keys() == tensors.keys()
    assert {one.path.name for one in found.values()} == {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    for name, value in tensors.items():
        np.testing.assert_array_equal(found[name].read(), value)


UP = "../secret.safetensors"
RULE = "without folders in it, and may not begin with . or -, got"
INDICES = [
    (put("toy.embed", UP), UnsafePath, f"{RULE} '../secret.safetensors'"),
    (put("toy.embed", "/etc/passwd"), UnsafePath, f"{RULE} '/etc/passwd'"),
    (put("toy.embed", "..\\secret.safetensors"), UnsafePath, RULE),
    (put("toy.embed", "sub/a.safetensors"), UnsafePath, RULE),
    (put("toy.embed", ""), UnsafePath, RULE),
    (put("toy.embed", ".."), UnsafePath, RULE),
    (put("toy.embed", "a\0b"), UnsafePath, RULE),
    (put("toy.embed", "a" * 200), UnsafePath, RULE),
    (put("toy.embed", "weights.bin"), UnsupportedFormat, "names 'weights.bin'; only .safetensors files are read"),
    (put("toy.embed", "none.safetensors"), DamagedFile, "none.safetensors cannot be read: No such file"),
    (put("toy.other", "model-00001-of-00002.safetensors"), DamagedFile, "missing: toy.other in model-00001"),
    (lambda table: table["weight_map"].pop("toy.norm") and None, DamagedFile, "not listed: toy.norm in model-00002"),
    (put("toy.embed", 3), DamagedFile, "must hold a table weight_map of names of tensors to names of files"),
    (lambda table: {"weight_map": {}}, DamagedFile, "must hold a table weight_map"),
    (lambda table: {"weight_map": ["a"]}, DamagedFile, "must hold a table weight_map"),
    (lambda table: {"metadata": {}}, DamagedFile, "must hold a table weight_map"),
    (lambda table: [table], DamagedFile, "must hold a table, got a list of 1"),
]


@pytest.mark.parametrize(("change", "kind", "message"), INDICES)
def test_an_index_that_lies(tmp_path, change, kind, message):
    folder = sharded(tmp_path / "model", "fused", fused_tensors())
    (tmp_path / "secret.safetensors").write_bytes(file(ONE))
    index(folder, change)
    with pytest.raises(kind) as error:
        open_folder(folder)
    assert message in str(error.value)


def test_an_index_with_a_name_twice(tmp_path):
    folder = sharded(tmp_path / "model", "fused", fused_tensors())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}')
    with pytest.raises(DamagedFile, match="key 'a' stands twice"):
        open_folder(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_links_out_of_the_folder(tmp_path, name):
    outside, folder = tmp_path / "outside", tmp_path / "model"
    outside.mkdir()
    folder.mkdir()
    (outside / "file").write_bytes(file(ONE))
    (folder / name).symlink_to(outside / "file")
    with pytest.raises(UnsafePath, match="is a link out of the folder"):
        open_folder(folder)


def test_a_shard_that_is_a_link_out_of_the_folder(tmp_path):
    folder = sharded(tmp_path / "model", "fused", fused_tensors())
    shard = folder / "model-00001-of-00002.safetensors"
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(UnsafePath, match="is a link out of the folder"):
        open_folder(folder)
    shard.unlink()
    shard.symlink_to(folder / "model-00002-of-00002.safetensors")
    with pytest.raises(DamagedFile, match="does not fit its files"):
        open_folder(folder)


def test_the_links_of_a_hub_cache_are_followed_to_its_blobs_only(tmp_path):
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "0a1b"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "ffee").write_bytes(file(ONE))
    (snapshot / "model.safetensors").symlink_to("../../blobs/ffee")
    assert open_folder(snapshot).keys() == {"a"}
    (tmp_path / "outside").write_bytes(file(ONE))
    (blobs / "ffee").unlink()
    (blobs / "ffee").symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafePath, match="is a link out of the folder"):
        open_folder(snapshot)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(UnsafePath, match="must be a regular file, and it is a pipe or a device"):
        open_folder(tmp_path)


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read: Is a directory"):
        open_folder(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_pickles_are_refused_with_advice(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(UnsupportedFormat) as error:
        open_folder(tmp_path)
    assert f"as a pickle only ({name}), which runs code when it is read" in str(error.value)
    assert "save_pretrained(NEW, safe_serialization=True)" in str(error.value)


def test_nothing_to_read(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(DamagedFile, match=r"must hold model\.safetensors, or .*; it has model\.gguf"):
        open_folder(tmp_path)
