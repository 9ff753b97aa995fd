"""Folders made to do harm, read by `load` as a user would: a typed error each, and no memory spent on what they claim."""

import json
import pathlib
import tracemalloc

import numpy as np
import pytest

from attnjax.models import load
from attnjax.models.errors import DamagedFile, ModelError, UnsafePath, UnsupportedFormat, WrongWeights
from tests.models import published
from tests.models.toys import encoded

MEMORY = 4 * 2**20
LARGE = 2**31 - 1
FAMILIES = (
    "gpt2",
    "bert",
    "t5",
    "bloom",
    "gpt_neox_dynamic",
    "llama_longrope",
    "mistral",
    "qwen2",
    "smollm3",
    "transformer",
)


def tensors(name: str) -> dict[str, np.ndarray]:
    case = published.case(name)
    found = {weight.names[0]: np.zeros(weight.shape, np.float32) for weight in case.table()}
    return found


def folder(path: pathlib.Path, name: str = "gpt2", **fields) -> pathlib.Path:
    """A folder with a small model, and fields of its config.json replaced."""
    path.mkdir()
    config = json.loads(str(published.case(name).arrays["config"])) | fields
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(encoded(tensors(name)))
    return path


def weights(path: pathlib.Path, change) -> None:
    file = path / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))


def header(change):
    """A change of the header as text, the length in front of it made to fit."""

    def changed(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        text = change(data[8 : 8 + length].decode()).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    return changed


def indexed(path: pathlib.Path, name: str) -> None:
    (path / "model.safetensors").rename(path.parent / "stolen.safetensors")
    places = dict.fromkeys(tensors("gpt2"), name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def linked(path: pathlib.Path) -> None:
    (path / "config.json").rename(path.parent / "config.json")
    (path / "config.json").symlink_to("../config.json")


def configured(text: str):
    return lambda path: (path / "config.json").write_text(text)


def sparse(path: pathlib.Path) -> None:
    with (path / "model.safetensors").open("wb") as file:
        file.write((2**32 - 8).to_bytes(8, "little"))
        file.truncate(2**32)


HARM = {
    "corrupted weights": (lambda path: weights(path, lambda data: data[:8] + b"\xff" * 16 + data[24:]), DamagedFile),
    "corrupted config": (configured('{"model_type": "gpt2", '), DamagedFile),
    "truncated weights": (lambda path: weights(path, lambda data: data[:-1]), DamagedFile),
    "truncated header": (lambda path: weights(path, lambda data: data[:50]), DamagedFile),
    "oversized header": (sparse, DamagedFile),
    "oversized config": (configured(" " * 17 * 2**20), DamagedFile),
    "wrong dtype": (lambda path: weights(path, header(lambda text: text.replace("F32", "I32"))), WrongWeights),
    "unknown dtype": (lambda path: weights(path, header(lambda text: text.replace("F32", "Q32"))), UnsupportedFormat),
    "extra key in the header": (
        lambda path: weights(path, header(lambda text: text.replace('"shape"', '"run": "x", "shape"', 1))),
        DamagedFile,
    ),
    "extra tensor": (
        lambda path: weights(path, header(lambda text: text.replace("transformer.wpe", "transformer.other"))),
        WrongWeights,
    ),
    "extra key in the config": (
        lambda path: configured(json.dumps(json.loads((path / "config.json").read_text()) | {"x": 1}))(path),
        UnsupportedFormat,
    ),
    "index out of the folder": (lambda path: indexed(path, "../stolen.safetensors"), UnsafePath),
    "index to a pickle": (lambda path: indexed(path, "pytorch_model.bin"), UnsupportedFormat),
    "config out of the folder": (linked, UnsafePath),
}


@pytest.mark.parametrize("name", HARM)
def test_harm(tmp_path, name):
    harm, kind = HARM[name]
    path = folder(tmp_path / "model")
    load(path)
    harm(path)
    tracemalloc.start()
    with pytest.raises(kind) as error:
        load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MEMORY
    assert len(str(error.value)) < 20_000
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_that_no_file_has(tmp_path, name):
    """Every whole number of a config.json made huge, or 0: an error, or a model that has not grown."""
    fields = json.loads(str(published.case(name).arrays["config"]))
    path, refused = folder(tmp_path / "model", name), []
    whole = [key for key, value in fields.items() if type(value) is int and not key.endswith("_token_id")]
    assert len(whole) >= 5
    tracemalloc.start()
    for key in whole:
        for value in (LARGE, 0):
            (path / "config.json").write_text(json.dumps(fields | {key: value}))
            try:
                load(path)
            except ModelError as error:
                assert len(str(error)) < 20_000
                refused.append((key, value))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MEMORY
    assert len({key for key, _ in refused}) >= len(whole) - 3
