"""Saves a model as a folder that Hugging Face transformers loads: config.json, safetensors and the tokenizer.

The folder appears complete or not at all: it is written under a temporary name and renamed. No file is ever replaced.
"""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnjax import safety
from attnjax.models.base import Spec, Weight, resolved
from attnjax.models.encodings_json import LONGEST
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
SPECIAL = "_token_id"
"""The end of every key of config.json that names a special token."""


def save(
    loaded: Loaded,
    folder: str | pathlib.Path,
    *,
    dtype: str | None = None,
) -> pathlib.Path:
    """Writes a model to a folder, and returns the absolute path of the folder. After an error nothing is left behind.

    Args:
      loaded: the result of `load`, `dataclasses.replace(loaded, model=trained)`, or a `Loaded` made by hand.
      folder: a new or empty folder.
      dtype: of all tensors in the files; that of the parameters unless given.

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
    tensors = _tensors(loaded, dtype)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        temporary.mkdir()
        write_file(temporary / SINGLE, tensors)
        safety.write(temporary / CONFIG, (json.dumps(table, indent=2, sort_keys=True) + "\n").encode())
        _copy_companions(loaded.folder, temporary)
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def tensors_of(loaded: Loaded, values: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    """Returns whole tensors by their published names, from arrays by path: parameters, or their gradients."""
    table = loaded.architecture.weights(loaded.spec)
    whole = lambda rows: rows[0].to_theirs(*(np.asarray(values[weight.path]) for weight in rows))
    return {rows[0].names[0]: whole(rows) for rows in groups(table)}


def _tensors(loaded: Loaded, dtype: str | None) -> dict[str, np.ndarray]:
    """Returns every tensor in the dtype that its file shall have. Raises ModelError for parameters that have no place there."""
    values = parameters(loaded.model)
    table = loaded.architecture.weights(loaded.spec)
    unknown = [dotted(path) for path in values if path not in {weight.path for weight in table}]
    if unknown:
        family = loaded.architecture.model_type
        raise ModelError(f"checkpoints of a {family} have no place for the parameters {', '.join(unknown)}")
    made = parameters(abstract(loaded.architecture, loaded.spec))
    kinds = {rows[0].names[0]: dtype or _stored(rows[0], values, made, loaded.spec) for rows in groups(table)}
    return {name: one.astype(jnp.dtype(kinds[name]), copy=False) for name, one in tensors_of(loaded, values).items()}


def _stored(weight: Weight, values: Mapping[Any, Any], made: Mapping[Any, Any], spec: Spec) -> str:
    """Returns the dtype of a tensor in the file: that of its parameter, or `param_dtype` where the model widens it."""
    wide = made[weight.path].dtype.name != spec.config.param_dtype
    return spec.config.param_dtype if wide else values[weight.path].dtype.name


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


def differences(one: Spec, other: Spec) -> list[str]:
    """Returns the fields by which the numbers of two specs differ; dtypes, dropout and the like describe a run, not a model."""
    found = [] if one.head == other.head else ["head"]
    for mine, theirs in ((one, other), (_encoder(one), _encoder(other))):
        fields, others = resolved(mine), resolved(theirs)
        found += [name for name in fields if name not in RUN_FIELDS and fields[name] != others[name]]
    return list(dict.fromkeys(found))


def _encoder(spec: Spec) -> Spec:
    return spec if spec.encoder is None else Spec(spec.encoder)


def _changed(loaded: Loaded) -> dict[str, Any]:
    """Returns the config.json of a spec that is another than that of the config.json that was read.

    Special tokens are those of the one that was read, where there is one; those that it does not name may be in
    generation_config.json. So is the trained length, unless the spec fixes it (learned positions, dynamic NTK).
    """
    family, kept = loaded.architecture, {}
    table = family.to_json(loaded.spec)
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
