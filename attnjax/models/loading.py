"""Loads a folder as the Hugging Face hub has it, config.json and safetensors, into a model of `attnjax.modules`.

    loaded = load("gpt2")                                        as it was published
    loaded = load("gpt2", fields={"encoding": ALiBi()})          with another encoding, all else as it was published

Tensors are read one at a time, the largest first, so that hardly more memory is needed than the parameters take. Names and
shapes are compared with those that config.json implies before any is read. No code and no pickle is read: config.json names
an architecture, which is looked up in the table of known ones.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.models.architectures import MODELS
from attnjax.models.base import Architecture, Path, Spec, Weight, with_fields
from attnjax.models.files import ModelError, read_table
from attnjax.models.matching import Tensor, check_tied_weights, groups, match
from attnjax.models.param_paths import abstract, dotted, parameters, with_parameters
from attnjax.models.tensors import FLOATS, Entry, open_folder

CONFIG = "config.json"
Sharding = jax.sharding.Sharding
Placement = Sharding | Callable[[Path, tuple[int, ...]], Sharding]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model of a published architecture, with what is needed to save it again.

    Attributes:
      model: a module of `attnjax.modules`.
      spec: the configs from which it was built.
      architecture: its family.
      json: the content of config.json, from which `spec` was read.
      folder: the folder from which it was read, None for a model made otherwise.
      new: dotted paths of parameters that no tensor holds; they are random.
      unused: names of tensors of the published model that this model has no parameter for.

    Example:
      >>> from attnjax.models import MODELS
      >>> sizes = {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
      >>> spec = MODELS["gpt2"].config(sizes)
      >>> made = Loaded(MODELS["gpt2"].build(spec, nnx.Rngs(0)), spec, MODELS["gpt2"], sizes)
      >>> made.model(jnp.array([[3, 1, 4]])).shape
      (1, 3, 11)
    """

    model: Any
    spec: Spec
    architecture: Architecture
    json: Mapping[str, Any]
    folder: pathlib.Path | None = None
    new: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def load(
    folder: str | pathlib.Path,
    *,
    dtype: str | None = None,
    sharding: Placement | None = None,
    fields: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Loaded:
    """Returns the model in a folder of config.json and safetensors.

    Args:
      folder: as downloaded from the Hugging Face hub, or written by `save`.
      dtype: of parameters and activations, "float32", "bfloat16", "float16" or "float64"; that of the files unless
        given. Parameters of encodings are float32 or wider.
      sharding: one sharding for all parameters, or a function of a parameter's path and shape that returns one.
      fields: fields of `TransformerConfig` to replace, for an ablation. Weights are kept where they fit; parameters
        that only the new model has, or has in another shape, are random, also where one tensor holds several
        parameters and the others fit. `Loaded.new` and `Loaded.unused` list them.
      seed: of the random parameters.

    Raises:
      ModelError: a folder that is damaged or not supported; one error names every tensor that is missing, left over, or of
        a wrong shape or dtype.
      OSError: a file that is not there, or cannot be read.

    Example:
      >>> import tempfile
      >>> from attnjax.models import MODELS, save
      >>> sizes = {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
      >>> spec = MODELS["gpt2"].config(sizes)
      >>> made = Loaded(MODELS["gpt2"].build(spec, nnx.Rngs(0)), spec, MODELS["gpt2"], sizes)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     loaded = load(save(made, folder + "/tiny"), dtype="bfloat16")
      >>> loaded.model.embedding.table.dtype.name, loaded.new
      ('bfloat16', ())
    """
    root = pathlib.Path(folder).resolve()
    json = read_table(root, CONFIG)
    architecture = _architecture(json)
    entries = open_folder(root)
    try:
        published = architecture.config(json)
    except ValueError as error:
        raise ModelError(f"{CONFIG} does not describe a {architecture.model_type}: {error!s:.2000}") from error
    kept = dtype or _main_type(entries)
    spec = with_fields(published, **{"dtype": kept, "param_dtype": kept, **(fields or {})})
    tensors = match(entries, architecture.weights(published), architecture)
    if kept == "float64" and not jax.config.read("jax_enable_x64"):
        raise ModelError("parameters of float64 need jax.config.update('jax_enable_x64', True); or say dtype='float32'")
    check_tied_weights(tensors, entries)
    model = abstract(architecture, spec, seed)
    shapes = parameters(model)
    used = _fitting(tensors, architecture.weights(spec), shapes)
    exact = dtype is not None or "param_dtype" in (fields or {})
    values = dict(_read(used, shapes, sharding, exact))
    new = [path for path in shapes if path not in values]
    values |= _random_parameters(architecture, spec, seed, new, sharding)
    unused = {one.name for one in tensors} - {one.name for one in used}
    return Loaded(
        model=with_parameters(model, values),
        spec=spec,
        architecture=architecture,
        json=json,
        folder=root,
        new=tuple(map(dotted, new)),
        unused=tuple(one.weights[0].names[0] for one in tensors if one.name in unused),
    )


def _architecture(json: Mapping[str, Any]) -> Architecture:
    """Returns the architecture that config.json names."""
    name = json.get("model_type")
    if not isinstance(name, str) or name not in MODELS:
        raise ModelError(f"{CONFIG}: model_type must be one of {', '.join(sorted(MODELS))}, got {name!r:.100}")
    return MODELS[name]


def _fitting(tensors: list[Tensor], table: tuple[Weight, ...], shapes: Mapping[Path, Any]) -> list[Tensor]:
    """Returns the tensors that hold parameters of a model, with these parameters, in the shapes that the model has."""

    def fits(row: Weight) -> bool:
        part = row.to_ours(np.broadcast_to(np.False_, row.shape))  # which takes no memory
        return row.path in shapes and part.shape == shapes[row.path].shape

    rows = {(group[0].names, group[0].shape): group for group in groups(table)}
    of = lambda tensor: rows.get((tensor.weights[0].names, tensor.weights[0].shape), ())
    found = [tensor._replace(weights=tuple(filter(fits, of(tensor)))) for tensor in tensors]
    return [tensor for tensor in found if tensor.weights]


def _main_type(entries: Mapping[str, Entry]) -> str:
    """Returns the dtype, of those that parameters may have, to which most bytes of the files belong."""
    bytes_of = lambda name: sum(entry.bytes for entry in entries.values() if entry.dtype == name)
    return max(FLOATS.values(), key=bytes_of)


def _read(
    tensors: list[Tensor], shapes: Mapping[Path, Any], sharding: Placement | None, exact: bool
) -> Iterator[tuple[Path, jax.Array]]:
    """Yields the parameters that the files hold, in the dtype of the model if `exact`, else in the wider of both.

    The largest tensors come first, one at a time, each freed before its parts are placed on devices: then hardly more
    memory is needed than the parameters take.
    """
    for tensor in sorted(tensors, key=lambda tensor: -tensor.entry.bytes):
        parts = _parts(tensor, shapes, exact)
        for path in list(parts):
            yield path, jax.block_until_ready(_on_devices(parts.pop(path), path, sharding))


def _parts(tensor: Tensor, shapes: Mapping[Path, Any], exact: bool) -> dict[Path, np.ndarray]:
    """Returns the parameters that one tensor holds."""
    whole = tensor.entry.read()
    wide = lambda path: shapes[path].dtype if exact else _wider(shapes[path].dtype, whole.dtype)
    return {one.path: _detached(one.to_ours(whole), whole, wide(one.path)) for one in tensor.weights}


def _wider(made: Any, stored: Any) -> np.dtype:
    """Returns the wider of the dtype that the model gives a parameter and the dtype in the file."""
    made, stored = jnp.dtype(made), jnp.dtype(stored)
    return made if made.itemsize > stored.itemsize else stored


def _detached(part: np.ndarray, whole: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns a part as an array of this dtype that does not keep the whole tensor in memory."""
    if part.dtype == dtype and part.size == whole.size and part.flags.c_contiguous:
        return part
    return np.array(part, dtype, order="C")


def _on_devices(value: np.ndarray, path: Path, sharding: Placement | None) -> jax.Array:
    if sharding is None:
        return jnp.asarray(value)
    place = sharding if isinstance(sharding, Sharding) else sharding(path, value.shape)
    return jax.make_array_from_callback(value.shape, place, lambda index: value[index])


def _random_parameters(
    architecture: Architecture, spec: Spec, seed: int, paths: list[Path], sharding: Placement | None
) -> dict[Path, jax.Array]:
    """Returns random values of the parameters at these paths; XLA removes the computation of all others."""
    if not paths:
        return {}

    def make() -> list[jax.Array]:
        values = parameters(architecture.build(spec, nnx.Rngs(seed)))
        return [values[path] for path in paths]

    made = jax.jit(make)()
    return {path: _on_devices(np.asarray(value), path, sharding) for path, value in zip(paths, made, strict=True)}
