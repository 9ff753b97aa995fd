"""From a run's config and its task to two pure functions: `init(key) -> params` and `apply(params, sequences) -> logits`."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from attnjax import positions
from attnjax.attention import Mask
from attnjax.config import EncodingConfig, ModelConfig, RunConfig
from attnjax.config.kinds import shown
from attnjax.config.names import is_class_path
from attnjax.config.outside import construct
from attnjax.modules import Decoder, Encoder, EncoderDecoder, TransformerConfig, replace_constants
from attnjax.modules.config import check_windows
from attnjax.modules.parameters import with_parameters
from attnjax.positions import PositionEncoding, shared_program, stacked_constants
from attnjax.positions.base import validate_encoding
from attnjax.positions.compose import parts_of
from attnjax.positions.scaling import Scaling
from attnjax.tasks.base import Task
from attnjax.tasks.forms import SequencePair, Sequences, specials
from attnjax.train import data
from attnjax.typing import Array, Float, Int, Key, PyTree

SCALINGS = {
    "position_interpolation": positions.PositionInterpolation,
    "ntk_aware": positions.NTKAware,
    "dynamic_ntk": positions.DynamicNTK,
    "yarn": positions.YaRN,
    "llama3": positions.Llama3,
    "longrope": positions.LongRoPE,
    "resonance": positions.Resonance,
}
FAMILIES = {"encoder": Encoder, "decoder": Decoder, "encoder_decoder": EncoderDecoder}


class Model(NamedTuple):
    """A model as pure functions. `init` may be mapped over keys: a population of models is one pytree with a leading axis.

    `apply(params, sequences, key, numbers, query_indices, axis_name, index)`: a key for dropout, `numbers` in place of those of
    the encoding, the indices [B, M] whose logits are asked for, and of tokens that are spread over a mesh the axis, and the
    index [T] of each where they do not follow each other; the last three not of pairs.
    `module(params)`: the same as a Flax module, for what only modules offer (attention weights, hidden states, caches).
    """

    init: Callable[[Key[Array, ""]], PyTree]
    apply: Callable[..., Float[Array, "B T V"]]
    module: Callable[..., Any]
    config: TransformerConfig


def build(run: RunConfig, task: Task, encoding: PositionEncoding | None = None) -> Model:
    """The model of a run, with another encoding of all layers where one is given: that of `shared_program`.

    Raises ValueError where config and task do not fit together.
    """
    data.check(run, task)
    config = transformer_config(run.model, vocabulary(run, task))
    config = config if encoding is None else dataclasses.replace(config, encoding=encoding)
    config = half_precision(config) if run.train.dtype_policy == "bfloat16" else config
    family, stacks = FAMILIES[run.task.form], (config,)
    if run.task.form != "decoder":
        encoder = config.for_encoder()
        stacks = (encoder,) if run.task.form == "encoder" else (encoder, config)
    config = stacks[-1]
    make = lambda key: family(*stacks, rngs=nnx.Rngs(key))

    def init(key: Key[Array, ""]) -> PyTree:
        return nnx.to_pure_dict(nnx.split(make(key), graph=False)[1])

    def module(params: PyTree, numbers: PyTree = None) -> Any:
        model = with_parameters(lambda: make(jax.random.key(0)), params)
        if jax.tree.leaves(numbers):
            replace_constants(model, {one: mine for stack in stacks for one, mine in constants_of(stack, numbers)})
        return model

    def apply(
        params: PyTree,
        batch: Sequences | SequencePair,
        key: Key[Array, ""] | None = None,
        numbers: PyTree = None,
        query_indices: Int[Array, "B M"] | None = None,
        axis_name: str | None = None,
        index: Int[Array, " T"] | None = None,
    ):
        """Return the logits of a batch, see `Model`."""
        model = module(params, numbers)
        if isinstance(batch, SequencePair):
            target = batch.target
            return model(
                batch.source,
                target.tokens,
                source_pos=batch.source_positions,
                target_pos=target.positions,
                source_mask=Mask(k_valid=batch.source_valid),
                key=key,
            )
        # Examples are padded on the right, so that the first keys beside a window are those of the lowest indices.
        mask = Mask(k_valid=batch.valid, q_index=index, k_index=index)
        options = {"pos": batch.positions, "mask": mask, "key": key, "axis_name": axis_name}
        return model(batch.tokens, **options, query_indices=query_indices)

    return Model(init, apply, module, config)


def constants_of(config: TransformerConfig, numbers: PyTree) -> Iterator[tuple[PositionEncoding, PyTree]]:
    """Yield the encodings of the input and of attention with their part of the numbers of the encoding of all layers."""
    parts = parts_of(config.encodings[0])
    by_part = dict(zip(parts, numbers if len(parts) > 1 else (numbers,), strict=True))
    for one in (*config.input_encodings, config.attention_encodings[0]):
        mine = tuple(by_part.get(part, {}) for part in parts_of(one))
        yield one, mine if len(mine) > 1 else mine[0]


def vocabulary(run: RunConfig, task: Task) -> int:
    """Tokens the model reads and answers; see `tasks.forms`."""
    if task.aligned:
        return max(task.input_vocab, task.output_vocab)
    if run.task.form == "encoder":
        return max(task.input_vocab + 1, task.output_vocab)
    return specials(task).size


def transformer_config(model: ModelConfig, vocab: int) -> TransformerConfig:
    """The modules' config of a run's model.

    Raises ValueError for an encoding that is made for a window and first keys, where the run's model has others.
    """
    options = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    encodings = tuple(map(encoding, model.encodings))
    layers = encodings if isinstance(model.encoding, tuple) else encodings * model.layers
    check_windows("model", layers, model)
    options["encoding"] = layers if isinstance(model.encoding, tuple) else encodings[0]
    return TransformerConfig(vocab=vocab, **options)


def numbers_of(runs: Sequence[RunConfig]) -> PyTree:
    """The constants that tell the encodings of a population apart, [P, ...] each; None where they are equal.

    Raises ValueError where they are different programs, see `attnjax.positions.program`.
    """
    if len({run.model.encoding for run in runs}) == 1:
        return None
    configs = [transformer_config(run.model, vocab=1) for run in runs]
    if any(isinstance(config.encoding, tuple) for config in configs):
        raise ValueError("runs whose layers have encodings of their own train together only where these are equal")
    found = stacked_constants([config.encodings[0] for config in configs], configs[0].sizes)
    return jax.tree.map(jnp.asarray, found)


def encoding_of(runs: Sequence[RunConfig]) -> PositionEncoding | None:
    """The encoding that the program of a population has in place of each run's own; None where it is theirs."""
    configs = dict.fromkeys(run.model.encodings[0] for run in runs)
    return shared_program([encoding(one) for one in configs]) if len(configs) > 1 else None


def half_precision(config: TransformerConfig) -> TransformerConfig:
    """The config with activations in bfloat16, and parameters, their gradients and so the optimizer in float32.

    Modules cast parameters to the type of their input, and compute norms, scores, softmax and logits in float32.
    Raises ValueError where the config asks for other types itself.
    """
    if (config.dtype, config.param_dtype) not in (("float32", "float32"), ("bfloat16", "float32")):
        raise ValueError(
            "train.dtype_policy='bfloat16' needs model.param_dtype='float32' and leaves model.dtype as it is by default, "
            f"got model.dtype={config.dtype!r} and model.param_dtype={config.param_dtype!r}"
        )
    return dataclasses.replace(config, dtype="bfloat16")


def encoding(config: EncodingConfig) -> PositionEncoding:
    """The encoding a config names, with a nested scaling made into its class. Raises ValueError with the choices.

    A class of another project must be imported before; a scaling of its own that is no table is left to it.
    """
    options = dict(config.options)
    scaling = options.get("scaling")
    if isinstance(scaling, Mapping) or (scaling is not None and not is_class_path(config.name)):
        options["scaling"] = _scaling(scaling, "model.encoding.options.scaling")
    if is_class_path(config.name):
        made = construct(config.name, PositionEncoding, options)
        validate_encoding(config.name, made)
        return made
    return positions.encoding(config.name, **options)


def _scaling(table: Any, path: str) -> Scaling:
    """The scaling that a table names, with the rule that it is put on. Raises ValueError for what is no such table."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{path} must be a table with a name, as {{'name': 'yarn'}}, got {shown(table)}")
    options = dict(table)
    name = options.pop("name", None)
    if name not in SCALINGS:
        raise ValueError(f"{path}.name must be one of {', '.join(SCALINGS)}, got {name!r}")
    if name == "resonance" and options.get("of") is not None:
        options["of"] = _scaling(options["of"], f"{path}.of")
    return SCALINGS[name](**options)
