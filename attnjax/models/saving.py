"""Saves a model as a folder that Hugging Face transformers loads: config.json, safetensors and the tokenizer.

The folder appears complete or not at all. No file is ever replaced.
"""

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnjax.models.base import Spec, resolved
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
    """Returns the config.json that was read if it still describes the model, else one made from the spec.

    Raises:
      ValueError: a config.json of the family cannot say the spec; it names the fields.
    """
    family = loaded.architecture
    table = dict(loaded.json)
    if not table or differences(family.config(table), loaded.spec):
        table = _changed(loaded)
    if lost := differences(family.config(table), loaded.spec):
        raise ModelError(
            f"a config.json of {family.model_type} cannot say this: {', '.join(lost)} would be read back as something else"
        )
    kept = dtype or loaded.spec.config.param_dtype
    return table | {"torch_dtype": kept} | ({"dtype": kept} if "dtype" in table else {})


def _changed(loaded: Loaded) -> dict[str, Any]:
    """Returns a config.json of a spec, with the special tokens and the trained length of the one that was read.

    Special tokens that it does not name may be in generation_config.json. The trained length is that of the spec where the spec
    fixes it (learned positions, dynamic NTK).
    """
    family, read = loaded.architecture, loaded.json
    table = family.to_json(loaded.spec)
    if not read:
        return table
    table = {name: value for name, value in table.items() if not name.endswith(SPECIAL)}
    table |= {name: value for name, value in read.items() if name.endswith(SPECIAL) or name == "seq_length"}
    if LONGEST in table and read.get(LONGEST):
        longer = table | {LONGEST: read[LONGEST]}
        with contextlib.suppress(ValueError):
            if family.config(longer) == family.config(table):
                return longer
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
