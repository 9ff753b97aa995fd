"""Two small families of models that nobody publishes, and files written byte by byte, without the library or our writer."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from attnjax.models.base import Architecture, Spec, Weight
from attnjax.modules import Decoder, TransformerConfig
from attnjax.positions import Learned, RoPE

NAMES = {"float32": "F32", "float16": "F16", "float64": "F64", "bfloat16": "BF16", "int8": "I8", "bool": "BOOL"}
SIZES = {"vocab": 11, "width": 8, "layers": 2, "heads": 2, "hidden": 12}
V, D, L, N, F = SIZES.values()
H = D // N


def encoded(tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file."""
    table: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, value in tensors.items():
        offsets = [len(data), len(data) + value.nbytes]
        table[name] = {"dtype": NAMES[value.dtype.name], "shape": list(value.shape), "data_offsets": offsets}
        data += value.tobytes()
    header = json.dumps(table).encode()
    return len(header).to_bytes(8, "little") + header + data


def folder(path: pathlib.Path, model_type: str, tensors: Mapping[str, np.ndarray], **fields: Any) -> pathlib.Path:
    """A folder with config.json and one file of weights."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": model_type, **SIZES, **fields}))
    (path / "model.safetensors").write_bytes(encoded(tensors))
    return path


def sharded(path: pathlib.Path, model_type: str, tensors: Mapping[str, np.ndarray], **fields: Any) -> pathlib.Path:
    """The same in two files with an index."""
    folder(path, model_type, {}, **fields)
    (path / "model.safetensors").unlink()
    names, half = list(tensors), len(tensors) // 2
    files = {"model-00001-of-00002.safetensors": names[:half], "model-00002-of-00002.safetensors": names[half:]}
    for file, inside in files.items():
        (path / file).write_bytes(encoded({name: tensors[name] for name in inside}))
    index = {"metadata": {}, "weight_map": {name: file for file, inside in files.items() for name in inside}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def fused_tensors(dtype: Any = np.float32, seed: int = 0) -> dict[str, np.ndarray]:
    """The tensors of the family "fused": queries, keys and values in one, no bias, tied embeddings."""
    draw = _draw(dtype, seed)
    tensors = {"toy.embed": draw(V, D)}
    for i in range(L):
        tensors |= {f"toy.{i}.qkv": draw(3, D, N * H), f"toy.{i}.out": draw(D, N * H)}
        tensors |= {f"toy.{i}.up": draw(F, D), f"toy.{i}.down": draw(D, F)}
        tensors |= {f"toy.{i}.norm_1": draw(D), f"toy.{i}.norm_2": draw(D)}
    return tensors | {"toy.norm": draw(D)}


def plain_tensors(dtype: Any = np.float32, seed: int = 0) -> dict[str, np.ndarray]:
    """The tensors of the family "plain": matrices [outputs, inputs], every bias, learned positions, an output matrix."""
    draw = _draw(dtype, seed)
    tensors = {"embed.weight": draw(V, D), "positions.weight": draw(16, D), "head.weight": draw(V, D)}
    for i in range(L):
        for name in "qkvo":
            tensors |= {f"layers.{i}.{name}.weight": draw(D, D), f"layers.{i}.{name}.bias": draw(D)}
        tensors |= {f"layers.{i}.in.weight": draw(F, D), f"layers.{i}.in.bias": draw(F)}
        tensors |= {f"layers.{i}.out.weight": draw(D, F), f"layers.{i}.out.bias": draw(D)}
        for name in ("norm_1", "norm_2"):
            tensors |= {f"layers.{i}.{name}.weight": draw(D), f"layers.{i}.{name}.bias": draw(D)}
    return tensors | {"norm.weight": draw(D), "norm.bias": draw(D)}


def _draw(dtype: Any, seed: int):
    generator = np.random.default_rng(seed)
    return lambda *shape: (0.3 * generator.normal(size=shape)).astype(dtype)


def _config(json: Mapping[str, Any], **fields: Any) -> TransformerConfig:
    sizes = {"vocab": json["vocab"], "model": json["width"], "layers": json["layers"], "heads": json["heads"]}
    return TransformerConfig(**sizes, hidden=json["hidden"], **fields)


def _json(model_type: str, spec: Spec) -> dict[str, Any]:
    c = spec.config
    return {"model_type": model_type, **dict(zip(SIZES, (c.vocab, c.model, c.layers, c.heads, c.hidden)))}


def _same(path, name, *shape):
    return Weight(path, (name,), shape, lambda tensor: tensor, lambda ours: ours)


def _transposed(path, name, outputs, inputs, ours):
    shape = (outputs, inputs)
    return Weight(path, (name,), shape, lambda t: t.T.reshape(ours), lambda x: x.reshape(inputs, outputs).T)


def _fused_weights(spec: Spec) -> tuple[Weight, ...]:
    D, N, _, H = spec.config.sizes
    V, F = spec.config.vocab, spec.config.hidden
    rows = [_same(("embedding", "table"), "toy.embed", V, D)]
    for i in range(spec.config.layers):
        block = ("stack", "blocks", i)
        for j, letter in enumerate("qkv"):
            whole = lambda *parts: np.stack([part.reshape(D, N * H) for part in parts])
            part = lambda tensor, j=j: tensor[j].reshape(D, N, H)
            rows.append(Weight((*block, "attention", f"w_{letter}"), (f"toy.{i}.qkv",), (3, D, N * H), part, whole))
        rows.append(_transposed((*block, "attention", "w_o"), f"toy.{i}.out", D, N * H, (N, H, D)))
        rows.append(_transposed((*block, "feed_forward", "w_in"), f"toy.{i}.up", F, D, (D, F)))
        rows.append(_transposed((*block, "feed_forward", "w_out"), f"toy.{i}.down", D, F, (F, D)))
        rows.append(_same((*block, "attention_norm", "scale"), f"toy.{i}.norm_1", D))
        rows.append(_same((*block, "feed_forward_norm", "scale"), f"toy.{i}.norm_2", D))
    return (*rows, _same(("stack", "norm", "scale"), "toy.norm", D))


def _plain_weights(spec: Spec) -> tuple[Weight, ...]:
    c = spec.config
    D, N, _, H = c.sizes
    rows = [_same(("embedding", "table"), "embed.weight", c.vocab, D)]
    rows.append(_transposed(("embedding", "w_out"), "head.weight", c.vocab, D, (D, c.vocab)))
    if isinstance(c.encoding, Learned):
        rows.append(_same(("stack", "inputs", 0, "table"), "positions.weight", c.encoding.length, D))
    for i in range(c.layers):
        block, name = ("stack", "blocks", i), f"layers.{i}"
        for letter in "qkvo":
            inside = (*block, "attention")
            ours, bias = ((N, H, D), (D,)) if letter == "o" else ((D, N, H), (N, H))
            rows.append(_transposed((*inside, f"w_{letter}"), f"{name}.{letter}.weight", D, D, ours))
            names = (f"{name}.{letter}.bias",)
            part, whole = lambda t, bias=bias: t.reshape(bias), lambda x: x.reshape(-1)
            rows.append(Weight((*inside, f"b_{letter}"), names, (D,), part, whole))
        for part, outputs, inputs in (("in", c.hidden, D), ("out", D, c.hidden)):
            inside = (*block, "feed_forward")
            rows.append(
                _transposed((*inside, f"w_{part}"), f"{name}.{part}.weight", outputs, inputs, (inputs, outputs))
            )
            rows.append(_same((*inside, f"b_{part}"), f"{name}.{part}.bias", outputs))
        rows += _norm((*block, "attention_norm"), f"{name}.norm_1", D)
        rows += _norm((*block, "feed_forward_norm"), f"{name}.norm_2", D)
    return (*rows, *_norm(("stack", "norm"), "norm", D))


def _norm(path, name, size):
    return [_same((*path, "scale"), f"{name}.weight", size), _same((*path, "bias"), f"{name}.bias", size)]


FUSED = Architecture(
    model_type="fused",
    config=lambda json: Spec(_config(json, bias=False, norm="rms", encoding=RoPE())),
    to_json=lambda spec: _json("fused", spec),
    weights=_fused_weights,
    build=lambda spec, rngs: Decoder(spec.config, rngs=rngs),
    prefix="toy.",
    ignored=(r"toy\.\d+\.mask", r"head"),
)
PLAIN = Architecture(
    model_type="plain",
    config=lambda json: Spec(_config(json, encoding=Learned(16), tie_embeddings=False)),
    to_json=lambda spec: _json("plain", spec),
    weights=_plain_weights,
    build=lambda spec, rngs: Decoder(spec.config, rngs=rngs),
)
TOYS = {"fused": FUSED, "plain": PLAIN}
TENSORS = {"fused": fused_tensors, "plain": plain_tensors}
BFLOAT16 = ml_dtypes.bfloat16
