"""The interface of an architecture: how its config.json is read, and its weight map, which loading and saving follow.

    spec    = architecture.config(json)            json: the content of a published config.json
    model   = architecture.build(spec, rngs)       modules of `attnjax.modules` with random parameters
    weights = architecture.weights(spec)           the weight map: one `Weight` per parameter of the model

A `Spec` consists of frozen records, so an ablation is `with_fields(spec, encoding=ALiBi())`: parameters that the new
model lacks leave the weight map, and parameters that no checkpoint holds keep their random values.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flax import nnx

from attnjax.models.config_json import Fields, Json, Part, Reader
from attnjax.modules import Decoder, EncoderDecoder, TransformerConfig

Path = tuple[str | int, ...]


@dataclasses.dataclass(frozen=True)
class Weight:
    """One entry of a weight map: a parameter of a model, and the tensor of a checkpoint that holds it.

    A tensor may hold several parameters, as a fused projection of queries, keys and values; each has an entry of its
    own with the same `names`.

    Attributes:
      path: path in `nnx.to_pure_dict(nnx.split(model, graph=False)[1])`; entries of lists are ints.
      names: names of the tensor: the usual one first, then those in other releases.
      shape: shape of the whole tensor.
      to_ours: maps the whole tensor to the parameter, by views, slices and transposes only.
      to_theirs: maps the parameters of all entries with these `names`, in the order of the map, to the whole tensor.
      copies: names under which a checkpoint may hold the same tensor again, as the output matrix of a tied embedding.

    Example:
      >>> transpose = lambda tensor: tensor.T
      >>> weight = Weight(("w_in",), ("mlp.up.weight",), (32, 8), transpose, transpose)
      >>> weight.to_ours(np.zeros((32, 8))).shape
      (8, 32)
    """

    path: Path
    names: tuple[str, ...]
    shape: tuple[int, ...]
    to_ours: Callable[[np.ndarray], np.ndarray]
    to_theirs: Callable[..., np.ndarray]
    copies: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Spec:
    """The configs from which one model is built.

    Attributes:
      config: config of the only stack, or of the decoder.
      encoder: config of the encoder, where there are two stacks.
      head: the output layer where an architecture has several, as BERT; "" otherwise.
      bidirectional: whether the only stack is an encoder, whose queries see the keys behind them.

    Example:
      >>> spec = Spec(TransformerConfig(vocab=11, model=8, layers=1, heads=2, hidden=16))
      >>> spec.encoder is None, spec.head
      (True, '')
    """

    config: TransformerConfig
    encoder: TransformerConfig | None = None
    head: str = ""
    bidirectional: bool = False


def decoder(spec: Spec, rngs: nnx.Rngs) -> Decoder:
    """Returns the random model of a spec with one stack."""
    return Decoder(spec.config, rngs=rngs)


def encoder_decoder(spec: Spec, rngs: nnx.Rngs) -> EncoderDecoder:
    """Returns the random model of a spec with two stacks. Raises ValueError for a spec with one."""
    if spec.encoder is None:
        raise ValueError("a model with encoder and decoder needs spec.encoder, got None")
    return EncoderDecoder(spec.encoder, spec.config, rngs=rngs)


def one_stack(fields: Fields) -> Spec:
    """Returns the spec of a model with one stack."""
    return Spec(TransformerConfig(**fields))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """One family of published models: how its config.json is read, and its weights are read and written.

    Attributes:
      model_type: its name in config.json.
      keys: the parts of config.json, read in this order.
      weights: returns the weight map of a spec, in the order of the model.
      fixed: fields that have one value in the family.
      unused: keys of config.json that change no number of the family.
      spec: returns the spec of fields. Raises ValueError for what the modules cannot compute.
      build: returns a model with random parameters; a decoder unless given.
      prefix: first part of most names of tensors; checkpoints of the model without output layer lack it.
      ignored: regular expressions (`re.fullmatch`) of tensors that a checkpoint may hold beside the weight map:
        buffers, and parts that the model does not have.

    Example:
      >>> from attnjax.models import MODELS
      >>> sizes = {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
      >>> spec = MODELS["gpt2"].config(sizes)
      >>> MODELS["gpt2"].weights(spec)[0].names
      ('transformer.wte.weight',)
    """

    model_type: str
    keys: tuple[Part, ...]
    weights: Callable[[Spec], tuple[Weight, ...]]
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unused: tuple[str, ...] = ()
    spec: Callable[[Fields], Spec] = one_stack
    build: Callable[[Spec, nnx.Rngs], nnx.Module] = decoder
    prefix: str = ""
    ignored: tuple[str, ...] = ()

    def config(self, json: Json) -> Spec:
        """Returns the spec of a config.json. Raises ValueError, naming the key, for what the modules cannot compute."""
        reader, fields = Reader(self.model_type, json), {}
        for part in self.keys:
            fields |= part.read(reader, fields)
        spec = self.spec({**fields, **self.fixed})
        reader.finish(self.unused)
        return spec


def with_fields(spec: Spec, **fields: Any) -> Spec:
    """Returns the spec with fields of its configs replaced, in both stacks where there are two.

    The encoding of an encoder is that of `TransformerConfig.for_encoder`, since it also sees the tokens behind a token.

    Raises:
      ValueError: fields that do not fit together, and an encoding for causal masks alone in an encoder.

    Example:
      >>> from attnjax.positions import ALiBi
      >>> spec = Spec(TransformerConfig(vocab=11, model=8, layers=1, heads=2, hidden=16))
      >>> with_fields(spec, encoding=ALiBi()).config.encoding == ALiBi()
      True
    """
    config = dataclasses.replace(spec.config, **fields)
    encoder = spec.encoder and dataclasses.replace(spec.encoder, **fields).for_encoder()
    return dataclasses.replace(spec, config=config.for_encoder() if spec.bidirectional else config, encoder=encoder)
