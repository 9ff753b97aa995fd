"""What an architecture is: a config of the modules, and a table that says where each parameter lies in a checkpoint.

    spec    = architecture.config(json)            json: the content of a published config.json
    model   = architecture.build(spec, rngs)       the modules of `attnjax.modules`, at random
    weights = architecture.weights(spec)           a row per parameter; load and save are loops over it

A `Spec` is frozen records all through, so an ablation is `with_fields(spec, encoding=ALiBi())`: parameters that the new
model does not have leave the table, and those that no checkpoint has stay as they were made.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from attnjax.modules import EncoderDecoder, TransformerConfig

Path = tuple[str | int, ...]
Json = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Weight:
    """One of our parameters, and the tensor of a checkpoint that it is, or is a part of.

    Attributes:
      path: where it is in `nnx.to_pure_dict(nnx.split(model, graph=False)[1])`; entries of lists are ints.
      names: of the tensor, the usual one first, then those of other releases.
      shape: of the whole tensor.
      to_ours: our parameter from the whole tensor; views, slices and transposes only.
      to_theirs: the whole tensor from our parameters, those of all rows with these `names` in the order of the table.
      copies: names of tensors that are this one again, where a file holds them, as the output matrix of a tied embedding.
    """

    path: Path
    names: tuple[str, ...]
    shape: tuple[int, ...]
    to_ours: Callable[[np.ndarray], np.ndarray]
    to_theirs: Callable[..., np.ndarray]
    copies: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a model is built from.

    Attributes:
      config: of the only stack, or of the decoder.
      encoder: of the encoder, where there are two stacks.
      head: what is behind the stack where an architecture has a choice, as BERT; "" otherwise.
    """

    config: TransformerConfig
    encoder: TransformerConfig | None = None
    head: str = ""


class Architecture(NamedTuple):
    """One family of published models.

    Attributes:
      model_type: its name in config.json.
      config: the spec of a config.json. Raises ValueError for what the modules cannot compute.
      to_json: the config.json of a spec, with `model_type`. Raises ValueError for a spec that the family cannot express.
      weights: the table of a spec, in the order of the model.
      build: a model of random numbers.
      prefix: at the start of most names; checkpoints of the bare model lack it.
      ignored: regular expressions (`re.fullmatch`) of names that a checkpoint may hold beside the table: buffers, and
        parts that the model does not have.
    """

    model_type: str
    config: Callable[[Json], Spec]
    to_json: Callable[[Spec], dict[str, Any]]
    weights: Callable[[Spec], tuple[Weight, ...]]
    build: Callable[[Spec, nnx.Rngs], nnx.Module]
    prefix: str = ""
    ignored: tuple[str, ...] = ()


def encoder_decoder(spec: Spec, rngs: nnx.Rngs) -> EncoderDecoder:
    """The model of a spec with two stacks. Raises ValueError for a spec with one."""
    if spec.encoder is None:
        raise ValueError("a model with encoder and decoder needs spec.encoder, got None")
    return EncoderDecoder(spec.encoder, spec.config, rngs=rngs)


def with_fields(spec: Spec, **fields: Any) -> Spec:
    """The spec with fields of its configs replaced: the encoding, the types, the implementation of attention.

    Where there are two stacks, both change. Raises ValueError for fields that do not fit.
    """
    encoder = None if spec.encoder is None else dataclasses.replace(spec.encoder, **fields)
    return dataclasses.replace(spec, config=dataclasses.replace(spec.config, **fields), encoder=encoder)
