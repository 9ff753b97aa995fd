"""Folders of small models of published families, written byte by byte, without the library or our writer."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from attnjax.models import MODELS
from attnjax.models.matching import groups
from tests.golden import drawn

BFLOAT16 = ml_dtypes.bfloat16
TYPES = {"float32": "F32", "float16": "F16", "float64": "F64", "bfloat16": "BF16", "int8": "I8", "bool": "BOOL"}
GPT2 = {"model_type": "gpt2", "vocab_size": 11, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16}
"""One tensor holds queries, keys and values; the embedding is tied."""
LLAMA = {"model_type": "llama", "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA |= {"num_key_value_heads": 1, "intermediate_size": 12, "tie_word_embeddings": False}
"""No tensor holds two parameters, the output matrix is one of its own, and heads share keys."""
T5 = {"model_type": "t5", "vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}


def encoded(tensors: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file."""
    table: dict[str, Any] = {}
    data = b""
    for name, value in tensors.items():
        offsets = [len(data), len(data) + value.nbytes]
        table[name] = {"dtype": TYPES[value.dtype.name], "shape": list(value.shape), "data_offsets": offsets}
        data += value.tobytes()
    header = json.dumps(table).encode()
    return len(header).to_bytes(8, "little") + header + data


def tensors(table: Mapping[str, Any], dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Drawn weights of a config.json, by the names of its tensors."""
    family = MODELS[table["model_type"]]
    rows = [rows[0] for rows in groups(family.weights(family.config(table)))]
    return {row.names[0]: drawn.weight(row.names[0], row.shape).astype(dtype) for row in rows}


def folder(path: pathlib.Path, table: Mapping[str, Any], held: Mapping[str, np.ndarray] | None = None) -> pathlib.Path:
    """A folder with config.json and one file of tensors, drawn ones unless given."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(table))
    (path / "model.safetensors").write_bytes(encoded(tensors(table) if held is None else held))
    return path


def sharded(path: pathlib.Path, table: Mapping[str, Any]) -> pathlib.Path:
    """The same in two files with an index."""
    held = tensors(table)
    (folder(path, table) / "model.safetensors").unlink()
    names, half = list(held), len(held) // 2
    files = {"model-00001-of-00002.safetensors": names[:half], "model-00002-of-00002.safetensors": names[half:]}
    for file, inside in files.items():
        (path / file).write_bytes(encoded({name: held[name] for name in inside}))
    index = {"metadata": {}, "weight_map": {name: file for file, inside in files.items() for name in inside}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path
