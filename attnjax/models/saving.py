"""Saves a model as a folder that Hugging Face transformers loads: config.json, safetensors and the tokenizer.

The folder appears complete or not at all: it is written under a temporary name and renamed. No file is ever replaced.
"""

import contextlib
import json
import math
import os
import pathlib
import secrets
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnjax import safety
from attnjax.models.base import Spec, Weight
from attnjax.models.config_json import differences
from attnjax.models.files import ModelError, read_bytes
from attnjax.models.loading import CONFIG, Loaded
from attnjax.models.matching import groups
from attnjax.models.param_paths import abstract, dotted, parameters
from attnjax.models.rotary_json import LONGEST
from attnjax.models.tensors import write_folder

SHARD = 5 * 10**9
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
SPECIAL = "_token_id"
"""The end of every key of config.json that names a special token."""


def save(
    loaded: Loaded,
    folder: str | pathlib.Path,
    *,
    dtype: str | None = None,
    shard_bytes: int = SHARD,
) -> pathlib.Path:
    """Writes a model to a folder, and returns the absolute path of the folder. After an error nothing is left behind.

    Args:
      loaded: the result of `load`, `dataclasses.replace(loaded, model=trained)`, or a `Loaded` made by hand.
      folder: a new or empty folder.
      dtype: of all tensors in the files; that of the parameters unless given.
      shard_bytes: the largest size of the data of one file, which is also what writing takes in memory; a larger model is
        written as several files and an index.

    Raises:
      ModelError: a folder that holds files.
      ValueError: a model that its family cannot express.
      OSError: a file that cannot be written.

    Example:
      >>> import tempfile
      >>> from attnjax.models import MODELS
      >>> from flax import nnx
      >>> sizes = {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
      >>> spec = MODELS["gpt2"].config(sizes)
      >>> made = Loaded(MODELS["gpt2"].build(spec, nnx.Rngs(0)), spec, MODELS["gpt2"])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     sorted(path.name for path in save(made, folder + "/tiny").iterdir())
      ['config.json', 'model.safetensors']
    """
    target = pathlib.Path(os.path.abspath(folder))
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise ModelError(f"{target} must be a new or an empty folder; no model is written over files")
    table = described(loaded, dtype)
    tensors = _pending(loaded, dtype)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        temporary.mkdir()
        write_folder(temporary, tensors, shard_bytes)
        safety.write(temporary / CONFIG, (json.dumps(table, indent=2, sort_keys=True) + "\n").encode())
        _copy_companions(loaded.folder, temporary)
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def tensors_of(loaded: Loaded, values: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    """Returns whole tensors by their published names, from arrays by path: parameters, or their gradients."""
    table = loaded.architecture.weights(loaded.spec)
    return {rows[0].names[0]: _whole(rows, values) for rows in groups(table)}


def _pending(loaded: Loaded, dtype: str | None) -> dict[str, tuple[int, Callable[[], np.ndarray]]]:
    """Returns the size in bytes of every tensor, and the function that makes it."""
    values = parameters(loaded.model)
    table = loaded.architecture.weights(loaded.spec)
    unknown = [dotted(path) for path in values if path not in {weight.path for weight in table}]
    if unknown:
        family = loaded.architecture.model_type
        raise ModelError(f"checkpoints of a {family} have no place for the parameters {', '.join(unknown)}")
    made = parameters(abstract(loaded.architecture, loaded.spec))

    def one(rows: tuple[Weight, ...]) -> tuple[int, Callable[[], np.ndarray]]:
        kind = jnp.dtype(dtype or _stored(rows[0], values, made, loaded.spec))
        return math.prod(rows[0].shape) * kind.itemsize, lambda: _whole(rows, values).astype(kind, copy=False)

    return {rows[0].names[0]: one(rows) for rows in groups(table)}


def _stored(weight: Weight, values: Mapping[Any, Any], made: Mapping[Any, Any], spec: Spec) -> str:
    """Returns the dtype of a tensor in the file: that of its parameter, or `param_dtype` where the model widens it."""
    wide = made[weight.path].dtype.name != spec.config.param_dtype
    return spec.config.param_dtype if wide else values[weight.path].dtype.name


def _whole(rows: tuple[Weight, ...], values: Mapping[Any, Any]) -> np.ndarray:
    return rows[0].to_theirs(*(np.asarray(values[weight.path]) for weight in rows))


def described(loaded: Loaded, dtype: str | None = None) -> dict[str, Any]:
    """Returns the config.json that was read if it still describes the model, else one made from the spec.

    The one made from the spec keeps the special tokens and the trained length of the one that was read.

    Raises:
      ValueError: a config.json of the family cannot say the spec; it names the fields.
    """
    read, family = loaded.architecture.config, loaded.architecture.model_type
    table = dict(loaded.json)
    if not table or differences(read(table), loaded.spec):
        table = _changed(loaded)
    if lost := differences(read(table), loaded.spec):
        raise ModelError(
            f"a config.json of {family} cannot say this: {', '.join(lost)} would be read back as something else"
        )
    for name in ("dtype", "torch_dtype"):
        if name in table or name == "torch_dtype":
            table[name] = dtype or loaded.spec.config.param_dtype
    return table


def _changed(loaded: Loaded) -> dict[str, Any]:
    """Returns the config.json of a spec that is another than that of the config.json that was read.

    Special tokens are those of the one that was read, where there is one; those that it does not name may be in
    generation_config.json. So is the trained length, unless the spec fixes it (learned positions, dynamic NTK).
    """
    family, kept = loaded.architecture, {}
    table = {"model_type": family.model_type, **family.to_json(loaded.spec)}
    if loaded.json:
        table = {name: value for name, value in table.items() if not name.endswith(SPECIAL)}
        kept = {name: value for name, value in loaded.json.items() if name.endswith(SPECIAL) or name == "seq_length"}
    table |= kept
    longer = table | {name: loaded.json[name] for name in (LONGEST,) if name in table and loaded.json.get(name)}
    with contextlib.suppress(ValueError):
        if family.config(longer) == family.config(table):
            return longer
    return table


def _copy_companions(source: pathlib.Path | None, target: pathlib.Path) -> None:
    if source is None:
        return
    for name in COMPANIONS:
        if (source / name).exists():
            safety.write(target / name, read_bytes(source, name, TEXT))
