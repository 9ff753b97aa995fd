"""Saves a model as a folder that Hugging Face transformers loads: config.json, safetensors and the tokenizer.

The folder appears complete or not at all. No file is ever replaced.
"""

import json
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnjax.models.base import Spec, with_fields
from attnjax.models.files import ModelError, read_bytes
from attnjax.models.loading import CONFIG, Loaded
from attnjax.models.matching import groups
from attnjax.models.param_paths import abstract, dotted, parameters
from attnjax.models.tensors import SINGLE, write_file

TEXT = 64 * 2**20
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tokenizer.model",
    "chat_template.jinja",
)
"""Files that belong to a model, and are copied unchanged."""
RUN_FIELDS = (
    *("dtype", "param_dtype", "implementation", "embed_std", "kernel_std", "residual_start"),
    *("attention_dropout", "residual_dropout", "embedding_dropout", "remat", "scan_layers"),
)
"""Fields of `TransformerConfig` that describe a run, not a model."""


def save(
    loaded: Loaded,
    folder: str | pathlib.Path,
    *,
    dtype: str | None = None,
) -> pathlib.Path:
    """Writes a model to a folder, and returns the absolute path of the folder. After an error nothing is left behind.

    Args:
      loaded: the result of `load`, `dataclasses.replace(loaded, model=trained)`, or a `Loaded` made by hand. Its `json` is
        written, and must describe the model.
      folder: a new or empty folder.
      dtype: of all tensors in the files; that of the parameters unless given.

    Raises:
      ModelError: a folder that holds files.
      ValueError: `loaded.json` describes another model.
      OSError: a file that cannot be written.

    Example:
      >>> import tempfile
      >>> from attnjax.models import MODELS
      >>> from flax import nnx
      >>> sizes = {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
      >>> spec = MODELS["gpt2"].config(sizes)
      >>> made = Loaded(MODELS["gpt2"].build(spec, nnx.Rngs(0)), spec, MODELS["gpt2"], sizes)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     sorted(path.name for path in save(made, folder + "/tiny").iterdir())
      ['config.json', 'model.safetensors']
    """
    target = pathlib.Path(os.path.abspath(folder))
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise ModelError(f"{target} must be a new or an empty folder; no model is written over files")
    table = described(loaded, dtype)
    tensors = _tensors(loaded, dtype)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Complete or not at all: written under a temporary name beside the folder, and renamed.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent) as temporary:
        made = pathlib.Path(temporary, "model")
        made.mkdir()
        write_file(made / SINGLE, tensors)
        (made / CONFIG).write_text(json.dumps(table, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        for name in COMPANIONS:
            if loaded.folder is not None and (loaded.folder / name).exists():
                (made / name).write_bytes(read_bytes(loaded.folder, name, TEXT))
        os.rename(made, target)
    return target


def tensors_of(loaded: Loaded, values: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    """Returns whole tensors by their published names, from arrays by path: parameters, or their gradients."""
    table = loaded.architecture.weights(loaded.spec)
    whole = lambda rows: rows[0].to_theirs(*(np.asarray(values[weight.path]) for weight in rows))
    return {rows[0].names[0]: whole(rows) for rows in groups(table)}


def _tensors(loaded: Loaded, dtype: str | None) -> dict[str, np.ndarray]:
    """Returns every tensor in the dtype that its file shall have: of its parameter, if the model does not widen it.

    Raises ModelError for parameters that have no place in a checkpoint.
    """
    values, kept = parameters(loaded.model), loaded.spec.config.param_dtype
    table = loaded.architecture.weights(loaded.spec)
    if unknown := [dotted(path) for path in values if path not in {weight.path for weight in table}]:
        family = loaded.architecture.model_type
        raise ModelError(f"checkpoints of a {family} have no place for the parameters {', '.join(unknown)}")
    made = parameters(abstract(loaded.architecture, loaded.spec))
    found = tensors_of(loaded, values)
    for weight in table:
        wide = made[weight.path].dtype.name != kept
        stored = dtype or (kept if wide else values[weight.path].dtype.name)
        found[weight.names[0]] = found[weight.names[0]].astype(jnp.dtype(stored), copy=False)
    return found


def described(loaded: Loaded, dtype: str | None = None) -> dict[str, Any]:
    """Returns config.json with the type of the tensors.

    Raises:
      ValueError: it does not describe the model; the error names the fields.
    """
    family, spec = loaded.architecture, loaded.spec
    table = {"model_type": family.model_type, **loaded.json}
    read, mine = _fields(with_fields(family.config(table))), _fields(with_fields(spec))
    if wrong := [f"{name} is {mine[name]}, not {read[name]}" for name in mine if mine[name] != read[name]]:
        raise ModelError(
            f"config.json does not describe the model: {'; '.join(wrong)}. Change its keys with "
            "dataclasses.replace(loaded, json=loaded.json | {KEY: VALUE}), if the family has keys for this"
        )
    kept = dtype or spec.config.param_dtype
    return table | {"torch_dtype": kept} | ({"dtype": kept} if "dtype" in table else {})


def _fields(spec: Spec) -> dict[str, Any]:
    """Returns what decides the numbers of a spec, with defaults filled in; other fields describe a run."""
    found = {"head": spec.head}
    for side, c in (("encoder.", spec.encoder), ("", spec.config)):
        if c is not None:
            resolved = {"encoding": c.encodings, "window": c.layer_windows, "windows": None, "sizes": c.sizes}
            resolved |= {"kv_heads": None, "head_dim": None}
            found |= {f"{side}{name}": x for name, x in (vars(c) | resolved).items() if name not in RUN_FIELDS}
    return found
