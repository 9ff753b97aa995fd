"""Folders of weights to models: values, types and places; and everything that does not fit, in one error."""

import json
import os
import tracemalloc

import jax
import numpy as np
import pytest

from attnjax.models.errors import DamagedFile, ModelError, UnsafePath, UnsupportedFormat, WrongWeights
from attnjax.models.files import SIZE
from attnjax.models.folder import load
from attnjax.models.param_paths import dotted, parameters
from attnjax.positions import ALiBi, Kerple, Learned
from tests.models.toys import BFLOAT16, TENSORS, TOYS, D, F, H, N, folder, fused_tensors, plain_tensors, sharded


def loaded(path, **options):
    return load(path, models=TOYS, **options)


@pytest.mark.parametrize("write", [folder, sharded])
def test_every_parameter_is_where_it_belongs(tmp_path, write):
    tensors = fused_tensors()
    found = loaded(write(tmp_path / "model", "fused", tensors))
    kinds = {(type(value), value.dtype.name) for value in parameters(found.model).values()}
    assert kinds == {(type(jax.numpy.zeros(1)), "float32")}
    values = {name: np.asarray(value) for name, value in parameters(found.model).items()}
    assert len(values) == 1 + 2 * 8 + 1
    attention, feed_forward = ("stack", "blocks", 1, "attention"), ("stack", "blocks", 1, "feed_forward")
    np.testing.assert_array_equal(values["embedding", "table"], tensors["toy.embed"])
    for d, n, h in np.ndindex(D, N, H):
        for j, letter in enumerate("qkv"):
            assert values[*attention, f"w_{letter}"][d, n, h] == tensors["toy.1.qkv"][j, d, n * H + h]
        assert values[*attention, "w_o"][n, h, d] == tensors["toy.1.out"][d, n * H + h]
    assert values[*feed_forward, "w_in"].shape == (D, F)
    np.testing.assert_array_equal(values[*feed_forward, "w_out"], tensors["toy.1.down"].T)
    assert (found.architecture, found.json["width"], found.folder) == (TOYS["fused"], D, tmp_path / "model")
    assert jax.eval_shape(found.model, np.array([[1, 2, 3]])).shape == (1, 3, 11)


def rounded(value: np.ndarray) -> np.ndarray:
    """float32 to bfloat16, ties to even, by the bits."""
    bits = value.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def test_float32_read_as_bfloat16_is_rounded(tmp_path):
    tensors = plain_tensors()
    found = loaded(folder(tmp_path / "model", "plain", tensors), dtype="bfloat16")
    values = parameters(found.model)
    w = np.asarray(values["stack", "blocks", 0, "attention", "w_q"])
    np.testing.assert_array_equal(w.reshape(D, D).view(np.uint16).T, rounded(tensors["layers.0.q.weight"]))
    assert (found.spec.config.dtype, found.spec.config.param_dtype) == ("bfloat16", "bfloat16")
    table = values["stack", "inputs", 0, "table"]
    assert table.dtype == np.float32, "what an encoding learns keeps its digits"
    np.testing.assert_array_equal(table, tensors["positions.weight"])


def test_bfloat16_read_as_float32_is_exact(tmp_path):
    tensors = plain_tensors(BFLOAT16)
    values = parameters(loaded(folder(tmp_path / "model", "plain", tensors), dtype="float32").model)
    assert {value.dtype.name for value in values.values()} == {"float32"}
    np.testing.assert_array_equal(values["embedding", "table"], tensors["embed.weight"].astype(np.float32))


def test_types_are_those_of_the_files_unless_given(tmp_path):
    tensors = fused_tensors(BFLOAT16) | {"toy.norm": fused_tensors()["toy.norm"]}
    found = loaded(folder(tmp_path / "model", "fused", tensors))
    values = parameters(found.model)
    assert values.pop(("stack", "norm", "scale")).dtype == np.float32
    assert {value.dtype.name for value in values.values()} == {"bfloat16"}
    assert (found.spec.config.dtype, found.spec.config.param_dtype) == ("bfloat16", "bfloat16")


def test_float64_needs_to_be_switched_on(tmp_path):
    path = folder(tmp_path / "model", "fused", fused_tensors(np.float64))
    with pytest.raises(WrongWeights, match=r"float64 need jax.*; or say dtype='float32'"):
        loaded(path)
    assert parameters(loaded(path, dtype="float32").model)["embedding", "table"].dtype == np.float32
    with jax.enable_x64(True):
        values = parameters(loaded(path).model)
        np.testing.assert_array_equal(values["embedding", "table"], fused_tensors(np.float64)["toy.embed"])


def test_a_bare_model_lacks_the_prefix_and_may_have_buffers(tmp_path):
    tensors = {name.removeprefix("toy."): value for name, value in fused_tensors().items()}
    tensors |= {"0.mask": np.ones(3, bool), "head": np.zeros((2, 2), np.float32)}
    values = parameters(loaded(folder(tmp_path / "model", "fused", tensors)).model)
    np.testing.assert_array_equal(values["embedding", "table"], tensors["embed"])


TABLE = ("stack", "inputs", 0, "table")
ABLATIONS = {
    "no parameters": (ALiBi(), set()),
    "parameters of its own": (Kerple(), {("stack", "blocks", i, "attention", "position") for i in range(2)}),
    "a longer table": (Learned(32), {TABLE}),
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_another_encoding(tmp_path, name):
    """What fits is kept to the last bit; what is new is drawn from the seed and told, and so is what is left over."""
    encoding, own = ABLATIONS[name]
    path = folder(tmp_path / "model", "plain", plain_tensors())
    before = loaded(path)
    assert (before.new, before.unused) == ((), ())
    first, other = (loaded(path, fields={"encoding": encoding}, seed=seed) for seed in (1, 2))
    new = {path for path in parameters(first.model) if any(path[: len(one)] == one for one in own)}
    assert bool(new) == bool(own)
    assert first.new == other.new == tuple(dotted(path) for path in parameters(first.model) if path in new)
    assert first.unused == ("positions.weight",)
    kept, mine, theirs = (parameters(one.model) for one in (before, first, other))
    assert mine.keys() == (kept.keys() - {TABLE}) | new
    for one in mine.keys() - new:
        assert np.asarray(mine[one]).tobytes() == np.asarray(kept[one]).tobytes(), one
    if name == "a longer table":
        assert mine[TABLE].shape == (32, D)
        assert not np.array_equal(mine[TABLE], theirs[TABLE])


def test_the_shape_of_a_tensor_is_that_of_config_json_also_with_another_encoding(tmp_path):
    path = folder(tmp_path / "model", "plain", plain_tensors() | {"layers.0.q.weight": np.zeros((D, 3), np.float32)})
    with pytest.raises(WrongWeights, match=r"wrong shape: layers\.0\.q\.weight is \[8, 3\] and must be \[8, 8\]"):
        loaded(path, fields={"encoding": ALiBi()})


def test_straight_into_a_sharding(tmp_path):
    path = folder(tmp_path / "model", "fused", fused_tensors())
    mesh = jax.make_mesh((2,), ("heads",), devices=jax.devices()[:2])
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "heads"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    places = lambda path, shape: spread if path[-1] in ("w_q", "w_k", "w_v") else whole
    values, plain = parameters(loaded(path, sharding=places).model), parameters(loaded(path).model)
    for name, value in values.items():
        assert value.sharding == places(name, value.shape)
        np.testing.assert_array_equal(value, plain[name])
    shards = values["stack", "blocks", 0, "attention", "w_q"].addressable_shards
    assert {shard.data.shape for shard in shards} == {(D, N // 2, H)}
    everywhere = parameters(loaded(path, sharding=whole).model)
    assert {value.sharding for value in everywhere.values()} == {whole}


def test_all_that_is_wrong_is_in_one_error(tmp_path):
    tensors = fused_tensors()
    missing = [name for name in tensors if "norm" in name]
    for name in missing:
        del tensors[name]
    tensors |= {"toy.0.up": np.zeros((D, F), np.float32), "toy.1.down": np.zeros((D, F), np.int8)}
    tensors |= {f"extra.{i}": np.zeros(1, np.float32) for i in range(3)}
    with pytest.raises(WrongWeights) as error:
        loaded(folder(tmp_path / "model", "fused", tensors))
    text = str(error.value)
    assert text.startswith("the weights are not those of the fused in config.json. missing: ")
    assert all(name in text.partition("left over")[0] for name in missing)
    assert "left over: extra.0, extra.1, extra.2; " in text
    assert "wrong shape: toy.0.up is [8, 12] and must be [12, 8]; " in text
    assert "wrong type: toy.1.down is int8 (quantised weights are not read)" in text


def test_a_long_list_is_cut(tmp_path):
    tensors = fused_tensors() | {f"extra.{i}": np.zeros(1, np.float32) for i in range(150)}
    with pytest.raises(WrongWeights, match=r"left over: extra\.0, .*, extra\.99 and 50 more$"):
        loaded(folder(tmp_path / "model", "fused", tensors))


def test_the_memory_is_that_of_the_largest_tensor(tmp_path):
    sizes = {"vocab": 4096, "width": 256, "layers": 3, "heads": 2, "hidden": 512}
    spec = TOYS["fused"].config(sizes)
    tensors = {weight.names[0]: np.ones(weight.shape, np.float32) for weight in TOYS["fused"].weights(spec)}
    path = folder(tmp_path / "model", "fused", tensors, **sizes)
    largest, total = tensors["toy.embed"].nbytes, sum(value.nbytes for value in tensors.values())
    del tensors
    tracemalloc.start()
    found = loaded(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Arrays of JAX on the CPU may be those of NumPy, which are counted here, or copies, which are not.
    assert peak <= max(total, 2 * largest) + 2**20
    assert parameters(found.model)["embedding", "table"].shape == (4096, 256)


CONFIGS = {
    "empty": (b"", DamagedFile, "is damaged or no JSON"),
    "cut off": (b'{"model_type": "fus', DamagedFile, "is damaged or no JSON"),
    "a list": (b"[]", DamagedFile, "must hold a table, got a list of 0"),
    "nested": (b"[" * 100_000, DamagedFile, "is nested too deeply"),
    "key twice": (b'{"model_type": "a", "model_type": "b"}', DamagedFile, "key 'model_type' stands twice"),
    "no family": (b"{}", UnsupportedFormat, "model_type must be one of fused, plain, got None"),
    "other family": (b'{"model_type": "mamba"}', UnsupportedFormat, "must be one of fused, plain, got 'mamba'"),
    "list of families": (b'{"model_type": ["fused"]}', UnsupportedFormat, "got a list of 1"),
    "long name": (b'{"model_type": "' + b"x" * 1000 + b'"}', UnsupportedFormat, "xxx..."),
    "size missing": (b'{"model_type": "fused"}', DamagedFile, "does not describe a fused: KeyError 'vocab'"),
    "size wrong": (
        b'{"model_type": "fused", "vocab": 11, "width": 8, "layers": 2, "heads": 3, "hidden": 12}',
        UnsupportedFormat,
        "TransformerConfig.model=8 is no multiple of TransformerConfig.heads=3",
    ),
    "quantised": (
        b'{"model_type": "fused", "quantization_config": {}}',
        UnsupportedFormat,
        "has a quantization_config",
    ),
    "layers": (b'{"model_type": "fused", "num_hidden_layers": 1000000000}', WrongWeights, "hold 14 tensors"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_is_wrong(tmp_path, name):
    data, kind, message = CONFIGS[name]
    path = folder(tmp_path / "model", "fused", fused_tensors())
    (path / "config.json").write_bytes(data)
    with pytest.raises(kind) as error:
        loaded(path)
    assert message in str(error.value)
    assert "config.json" in str(error.value)
    assert len(str(error.value)) < 600


def test_a_config_that_is_no_file(tmp_path):
    path = folder(tmp_path / "model", "fused", fused_tensors())
    config = path / "config.json"
    config.unlink()
    with pytest.raises(DamagedFile, match=r"config\.json cannot be read: No such file"):
        loaded(path)
    with config.open("wb") as sparse:
        sparse.truncate(SIZE + 1)
    with pytest.raises(DamagedFile, match="has 16,777,217 bytes, more than the 16,777,216 that"):
        loaded(path)
    config.unlink()
    (tmp_path / "other.json").write_text(json.dumps({"model_type": "fused"}))
    config.symlink_to("../other.json")
    with pytest.raises(UnsafePath, match=r"config\.json is a link out of the folder"):
        loaded(path)
    config.unlink()
    config.symlink_to("config.json")
    with pytest.raises(ModelError, match="is a link that leads nowhere|cannot be read"):
        loaded(path)
    config.unlink()
    os.mkfifo(config)
    with pytest.raises(UnsafePath, match="a pipe or a device"):
        loaded(path)


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(DamagedFile, match="but it does not exist"):
        loaded(tmp_path / "nowhere")
    (tmp_path / "file.safetensors").write_bytes(b"")
    with pytest.raises(DamagedFile, match="but it is a file; give the folder that it lies in"):
        loaded(tmp_path / "file.safetensors")


def test_every_error_is_a_value_error():
    assert all(issubclass(kind, ModelError) for kind in (DamagedFile, UnsafePath, UnsupportedFormat, WrongWeights))
    assert issubclass(ModelError, ValueError)


def test_the_toys_name_every_parameter(tmp_path):
    for name, toy in TOYS.items():
        found = loaded(folder(tmp_path / name, name, TENSORS[name]()))
        assert {weight.path for weight in toy.weights(found.spec)} == parameters(found.model).keys()
