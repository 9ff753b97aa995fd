"""Folders that are damaged, or made to do harm: one sentence each, and no memory is taken for what they claim."""

import json
import os
import pathlib
import tracemalloc

import pytest

from attnjax.models import ModelError, load
from attnjax.models.files import SIZE
from attnjax.models.tensors import open_file, open_folder
from tests.models import published
from tests.models.folders import GPT2, folder, sharded, tensors

MEMORY = 4 * 2**20
LARGE = 2**31 - 1
FAMILIES = ("gpt2", "bert", "t5", "bloom", "gpt_neox_dynamic", "llama_longrope", "qwen2", "smollm3", "transformer")
ONE = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def file(header, data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    """A file with this header, whatever it is, and perhaps another length announced."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)) -> dict:
    return {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


def raw(data, name: str = "model.safetensors"):
    """A file replaced, by bytes or by a function of those that are there."""
    return lambda path: (path / name).write_bytes(data((path / name).read_bytes()) if callable(data) else data)


def sparse(name: str, size: int, start: bytes = b""):
    def harm(path: pathlib.Path) -> None:
        (path / name).write_bytes(start)
        os.truncate(path / name, size)

    return harm


def config(**fields):
    return raw(lambda data: json.dumps(json.loads(data) | fields).encode(), "config.json")


def index(target: str):
    """The weights beside the folder, and an index that names this file."""

    def harm(path: pathlib.Path) -> None:
        (path / "model.safetensors").rename(path.parent / "stolen.safetensors")
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": target}}))

    return harm


def link(name: str):
    def harm(path: pathlib.Path) -> None:
        (path / name).rename(path.parent / name)
        (path / name).symlink_to(f"../{name}")

    return harm


def pipe(path: pathlib.Path) -> None:
    (path / "model.safetensors").unlink()
    os.mkfifo(path / "model.safetensors")


HARM = {
    "weights cut off": (raw(lambda data: data[:-1]), "model.safetensors is damaged"),
    "no header": (raw(b""), "model.safetensors is damaged"),
    "no JSON": (raw(file(b"{nonsense}")), "model.safetensors is damaged"),
    "nested header": (raw(file(b'{"a": ' * 100_000)), "model.safetensors is damaged"),
    "header of 2^63 bytes": (raw(file(ONE, length=2**63)), "model.safetensors is damaged"),
    "header of 4 GB": (
        sparse("model.safetensors", 2**32, (2**32 - 8).to_bytes(8, "little")),
        "model.safetensors is damaged",
    ),
    "sizes that overflow": (raw(file(entry(shape=(2**62, 4)))), "model.safetensors is damaged"),
    "offsets outside": (raw(file(entry(offsets=(2**62, 2**62 + 8)))), "is damaged"),
    "hole": (raw(file(entry(shape=(1,), offsets=(4, 8)))), "model.safetensors is damaged"),
    "unknown dtype": (raw(lambda data: data.replace(b"F32", b"Q32")), "model.safetensors is damaged"),
    "integers": (raw(lambda data: data.replace(b"F32", b"I32")), "is I32"),
    "pointer of LFS": (raw(b"version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "pickle by another name": (raw(b"\x80\x02}q\0." + b"\xff" * 100), "model.safetensors is damaged"),
    "config cut off": (raw(b'{"model_type": "gpt2", ', "config.json"), "config.json is damaged"),
    "config too large": (sparse("config.json", SIZE + 1), f"larger than {SIZE} bytes"),
    "another family": (config(model_type="mamba"), "'mamba'"),
    "layers": (config(n_layer=10**9), "n_layer must be"),
    "index out of the folder": (index("../stolen.safetensors"), "'../stolen.safetensors'"),
    "index to nothing": (index("none.safetensors"), "No such file or directory: '"),
    "linked config": (link("config.json"), "is a link out of the folder"),
    "linked weights": (link("model.safetensors"), "is a link out of the folder"),
    "pipe": (pipe, "is no regular file"),
}


@pytest.mark.parametrize("name", HARM)
def test_harm(tmp_path, name):
    harm, message = HARM[name]
    path = folder(tmp_path / "model", GPT2)
    harm(path)
    tracemalloc.start()
    with pytest.raises((ValueError, OSError)) as error:
        load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in str(error.value)
    assert peak < MEMORY
    assert len(str(error.value)) < 3000
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_pickles_are_refused_with_advice(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(ModelError, match=rf"a pickle only \({name}\).*safe_serialization=True"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"other": "model-00001-of-00002.safetensors"},
        {"transformer.ln_f.bias": "model-00001-of-00002.safetensors"},
        {"transformer.wte.weight": 3},
        None,
    ],
)
def test_an_index_that_lies(tmp_path, change):
    path = sharded(tmp_path / "model", GPT2)
    assert open_folder(path).keys() == tensors(GPT2).keys()
    file = path / "model.safetensors.index.json"
    table = json.loads(file.read_text())
    file.write_text(json.dumps({"weight_map": change and {**table["weight_map"], **change}}))
    with pytest.raises(ModelError, match="index.json .*(other|ln_f.bias|weight_map)"):
        open_folder(path)


def test_the_links_of_a_hub_cache_are_followed_to_its_blobs_only(tmp_path):
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "0a1b"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "ffee").write_bytes(file(ONE))
    (snapshot / "model.safetensors").symlink_to("../../blobs/ffee")
    assert open_folder(snapshot).keys() == {"a"}
    (blobs / "ffee").rename(tmp_path / "outside")
    (blobs / "ffee").symlink_to(tmp_path / "outside")
    with pytest.raises(ModelError, match="is a link out of the folder"):
        open_folder(snapshot)


def test_a_file_that_shrinks_after_its_header_was_read(tmp_path):
    path = folder(tmp_path / "model", GPT2) / "model.safetensors"
    found = open_file(path)["transformer.ln_f.bias"]
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelError, match="cannot be read"):
        found.read()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_that_no_file_has(tmp_path, name):
    """Every whole number of a config.json made huge, or 0: an error, or a model that has not grown."""
    fields = published.case(name).json
    path, refused = folder(tmp_path / "model", fields), set()
    whole = [key for key, value in fields.items() if type(value) is int and not key.endswith("_token_id")]
    assert len(whole) >= 5
    tracemalloc.start()
    for key, value in ((key, value) for key in whole for value in (LARGE, 0)):
        (path / "config.json").write_text(json.dumps(fields | {key: value}))
        try:
            load(path)
        except ModelError as error:
            assert len(str(error)) < 20_000
            refused.add(key)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MEMORY
    assert len(refused) >= len(whole) - 3
