"""A folder as the Hugging Face hub has it, config.json and safetensors, to one of our models.

    loaded = load("gpt2")                                        as it was published
    loaded = load("gpt2", fields={"encoding": ALiBi()})          with another encoding, all else as it was published

One tensor at a time goes from the file to its place, the largest first, so that hardly more memory is needed than the
parameters take. No code and no pickle is read; what the folder asks for is looked up in the table of known architectures.
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
from attnjax.models.copies import check_copies
from attnjax.models.errors import DamagedFile, UnsupportedFormat, WrongWeights
from attnjax.models.files import existing_folder, inside, read_table, shown
from attnjax.models.flat import abstract, dotted, parameters, with_parameters
from attnjax.models.matching import FLOATS, Tensor, match
from attnjax.models.safetensors_files import Entry, open_folder

CONFIG = "config.json"
LAYERS = ("n_layer", "n_layers", "num_layers", "num_hidden_layers", "num_decoder_layers")
"""What a config.json calls the number of layers."""
Sharding = jax.sharding.Sharding
Place = Sharding | Callable[[Path, tuple[int, ...]], Sharding]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A published model.

    Attributes:
      model: of `attnjax.modules`.
      spec: what it was built from.
      architecture: its family.
      json: the content of config.json.
      folder: where it was read from, None if it was not.
      new: parameters that no tensor was read for, by their dotted paths: they are random.
      unused: tensors of config.json's model that this one has no place for.
    """

    model: Any
    spec: Spec
    architecture: Architecture
    json: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    folder: pathlib.Path | None = None
    new: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def load(
    folder: str | pathlib.Path,
    *,
    dtype: str | None = None,
    sharding: Place | None = None,
    fields: Mapping[str, Any] | None = None,
    seed: int = 0,
    models: Mapping[str, Architecture] | None = None,
) -> Loaded:
    """The model in a folder.

    Args:
      dtype: of parameters and activations, "float32", "bfloat16", "float16" or "float64"; those of the files unless
        given. What an encoding learns is float32 or better.
      sharding: where parameters go: one for all, or a function of a parameter's path and shape.
      fields: of `TransformerConfig`, to be replaced. Weights are kept where they fit; parameters that only the new model
        has, or has in another shape, are random, from `seed`. `Loaded.new` and `Loaded.unused` tell which.
      models: the families that are known, by `model_type`; `attnjax.models.MODELS` unless given.

    Raises `ModelError`, a ValueError: `DamagedFile`, `UnsafePath`, `UnsupportedFormat`, or `WrongWeights`, which names
    every tensor that is missing, left over, or of a wrong shape or type.
    """
    root = existing_folder(folder)
    json = read_table(inside(root, CONFIG))
    architecture = _architecture(json, models)
    entries = open_folder(root)
    published = _spec(architecture, json, entries)
    kept = dtype or _main_type(entries)
    spec = with_fields(published, **{"dtype": kept, "param_dtype": kept, **(fields or {})})
    own = architecture.weights(published)
    rows, unused = _kept(architecture.weights(spec), own)
    tensors = match(entries, rows, own, architecture)
    _check_precision(kept)
    check_copies(tensors, entries)
    model = abstract(architecture, spec, seed)
    shapes = parameters(model)
    exact = dtype is not None or "param_dtype" in (fields or {})
    values = dict(_read(tensors, shapes, sharding, exact))
    new = [path for path in shapes if path not in values]
    values |= _made(architecture, spec, seed, new, sharding)
    model = with_parameters(model, {path: values[path] for path in shapes})
    return Loaded(model, spec, architecture, json, root, tuple(map(dotted, new)), unused)


def _architecture(json: Mapping[str, Any], models: Mapping[str, Architecture] | None) -> Architecture:
    """The family that config.json names."""
    models = MODELS if models is None else models
    name = json.get("model_type")
    if not isinstance(name, str) or name not in models:
        known = ", ".join(sorted(models))
        raise UnsupportedFormat(f"{CONFIG}: model_type must be one of {known}, got {shown(name)}")
    if json.get("quantization_config") is not None:
        raise UnsupportedFormat(f"{CONFIG} has a quantization_config; quantised weights are not read")
    return models[name]


def _spec(architecture: Architecture, json: Mapping[str, Any], entries: Mapping[str, Entry]) -> Spec:
    """What config.json describes, after a bound on the number of layers: every layer has a tensor of its own."""
    for name in LAYERS:
        layers = json.get(name)
        if isinstance(layers, int) and layers > len(entries):
            raise WrongWeights(f"{CONFIG} says {name}={shown(layers)}, and the files hold {len(entries)} tensors")
    try:
        return architecture.config(json)
    except ValueError as error:
        raise UnsupportedFormat(f"{CONFIG}: {error}") from error
    except (KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        text = f"{type(error).__name__} {str(error)[:200]}"
        raise DamagedFile(f"{CONFIG} does not describe a {architecture.model_type}: {text}") from error


def _kept(table: tuple[Weight, ...], published: tuple[Weight, ...]) -> tuple[tuple[Weight, ...], tuple[str, ...]]:
    """The rows of a table whose tensors the published model has in the same shape, and the tensors that no row takes."""
    known = {(row.names, row.shape) for row in published}
    rows = tuple(row for row in table if (row.names, row.shape) in known)
    used = {row.names for row in rows}
    return rows, tuple(dict.fromkeys(row.names[0] for row in published if row.names not in used))


def _main_type(entries: Mapping[str, Entry]) -> str:
    """The type of most bytes, of those that parameters may have."""
    found = {name: sum(entry.bytes for entry in entries.values() if entry.dtype.name == name) for name in FLOATS}
    return max(found, key=lambda name: found[name])


def _check_precision(dtype: str) -> None:
    if dtype == "float64" and jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise WrongWeights(
            "parameters of float64 need jax.config.update('jax_enable_x64', True); or say dtype='float32'"
        )


def _read(
    tensors: list[Tensor], shapes: Mapping[Path, Any], sharding: Place | None, exact: bool
) -> Iterator[tuple[Path, jax.Array]]:
    """Every parameter that the files hold, in exactly the model's type, or in that of the file where this has more digits.

    The largest come first: what is in flight beside them is then small.
    """
    for tensor in sorted(tensors, key=lambda tensor: -tensor.entry.bytes):
        parts = _parts(tensor, shapes, exact)
        while parts:
            path = parts[-1][0]
            yield path, jax.block_until_ready(_placed(parts.pop()[1], path, sharding))


def _parts(tensor: Tensor, shapes: Mapping[Path, Any], exact: bool) -> list[tuple[Path, np.ndarray]]:
    """The parameters that are made of one tensor; the tensor itself is given back before they go to their places."""
    whole = tensor.entry.read()
    parts = []
    for weight in tensor.weights:
        leaf = shapes[weight.path]
        part = weight.to_ours(whole)
        assert part.shape == leaf.shape, f"{dotted(weight.path)} is {part.shape}, the model has {leaf.shape}"
        parts.append((weight.path, _own(part, whole, leaf.dtype if exact else _wider(leaf.dtype, whole.dtype))))
    return parts


def _wider(made: Any, stored: Any) -> np.dtype:
    """The type in the file, unless the model makes this parameter with more digits."""
    made, stored = jnp.dtype(made), jnp.dtype(stored)
    return made if made.itemsize > stored.itemsize else stored


def _own(part: np.ndarray, whole: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A part as an array of this type that does not keep the whole alive."""
    if part.dtype == dtype and part.size == whole.size and part.flags.c_contiguous:
        return part
    return np.array(part, dtype, order="C")


def _placed(value: np.ndarray, path: Path, sharding: Place | None) -> jax.Array:
    if sharding is None:
        return jnp.asarray(value)
    place = sharding if isinstance(sharding, Sharding) else sharding(path, value.shape)
    return jax.make_array_from_callback(value.shape, place, lambda index: value[index])


def _made(
    architecture: Architecture, spec: Spec, seed: int, paths: list[Path], sharding: Place | None
) -> dict[Path, jax.Array]:
    """Random numbers for the parameters that no checkpoint has. XLA leaves out all others."""
    if not paths:
        return {}

    def make() -> list[jax.Array]:
        values = parameters(architecture.build(spec, nnx.Rngs(seed)))
        return [values[path] for path in paths]

    made = jax.jit(make)()
    if sharding is None:
        return dict(zip(paths, made, strict=True))
    return {path: _placed(np.asarray(value), path, sharding) for path, value in zip(paths, made, strict=True)}
