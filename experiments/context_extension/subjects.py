"""A trained decoder whose RoPE can be exchanged: tokens and numbers of an encoding to the loss of every token.

The numbers are data (`methods.numbers`), so one compiled program per shape serves every method. A run of a sweep and a
published folder become the same kind of subject. Layers without RoPE stay as they are.
"""

import copy
import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import UInt8

from attnjax.evaluation.extension import extended_config
from attnjax.evaluation.loaded_model import load as load_run
from attnjax.evaluation.text_model import trained_length
from attnjax.models import Loaded, with_fields
from attnjax.modules import Decoder, TransformerConfig, replace_constants
from attnjax.modules.parameters import with_parameters
from attnjax.positions import PositionEncoding, RoPE
from attnjax.records import jsonl
from attnjax.tasks import Text
from attnjax.train.loop import make_task
from attnjax.train.mesh import compiler_options, platform_of
from attnjax.typing import Array, Float, Int, PyTree
from experiments.context_extension import methods
from experiments.context_extension.methods import Extension

CHUNK = 256
"""Most positions whose logits are in memory at once."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Program:
    """The config of a model whose positions are remapped, or whose mask is another: what is compiled anew for it."""

    config: TransformerConfig


Numbers = tuple[dict[str, Any], ...] | Program
"""Of each distinct RoPE of a model, or what stands in place of the model's config."""


class Scores(NamedTuple):
    """Of every next token: the cross-entropy in nats, and whether it is the likeliest."""

    loss: Float[Array, "B T"]
    right: Float[Array, "B T"]


class Subject:
    """A model as a function of its parameters and of the numbers of its encoding.

    `scores(params, numbers, tokens)` has the `Scores` of every token but the first; `next_losses` has the loss [B, V] that each
    token would have as the next one.

    Args:
      config: what it was built from.
      build: the model of a config, at random.
      params: its parameters, as nested dictionaries.
      trained: L, the length it was trained at.

    Raises ValueError for a model without RoPE.
    """

    def __init__(
        self,
        name: str,
        config: TransformerConfig,
        build: Callable[[TransformerConfig], Any],
        params: PyTree,
        trained: int,
        seed: int | None = None,
        run: Any = None,
        seconds: float = 0,
    ):
        self.name, self.config, self.params, self.trained = name, config, params, trained
        self.seed, self.run, self.seconds = seed, run, seconds
        self._build = build
        self.rotations = tuple(dict.fromkeys(one for one in config.encodings if isinstance(one, RoPE)))
        if not self.rotations:
            raise ValueError(f"{name} has no RoPE, whose frequencies could be changed: it has {config.encodings[0]}")
        options = compiler_options(platform_of(None))
        self.scores = jax.jit(self._scores, compiler_options=options)
        self.next_losses = jax.jit(self._next_losses, compiler_options=options)

    @property
    def base(self) -> RoPE:
        """The RoPE of the first layer that has one: factors of LongRoPE are for its pairs."""
        return self.rotations[0]

    @property
    def head(self) -> int:
        """H."""
        return self.config.sizes.head_dim

    @property
    def parameters(self) -> int:
        """How many numbers were trained."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.params))

    def training(self) -> UInt8[np.ndarray, " n"] | None:
        """The bytes that a run was trained on; None for a published model, and where the file is not there."""
        try:
            task = None if self.run is None else make_task(self.run)
            return np.asarray(task.data) if isinstance(task, Text) else None
        except ValueError:
            return None

    def sibling(self, other: Self) -> Self:
        """The other run of the same config, sharing what was compiled for this one."""
        same = copy.copy(self)
        same.name, same.params = other.name, other.params
        same.seed, same.run, same.seconds = other.seed, other.run, other.seconds
        return same

    def numbers(self, method: str, extension: Extension, length: int) -> Numbers:
        """What a method puts in place of each RoPE, for a sequence of `length`."""
        if method in methods.POSITIONS:
            name, s = methods.published_name(method), extension.factor
            after = methods.scaled_after(self.base)
            return Program(extended_config(self.config, name, trained=extension.trained, factor=s, scaled_after=after))
        return tuple(methods.numbers(method, base, self.head, extension, length) for base in self.rotations)

    def module(self, params: PyTree, numbers: Numbers) -> Any:
        """The model with these parameters and these numbers."""
        if isinstance(numbers, Program):
            return self.with_config(params, numbers.config)
        model = self.with_encodings(params, self.config.encodings)
        replace_constants(model, dict(zip(self.rotations, numbers, strict=True)))
        return model

    def with_encodings(self, params: PyTree, encodings: tuple[PositionEncoding, ...]) -> Any:
        """The model with these parameters and another encoding in each layer."""
        return self.with_config(params, dataclasses.replace(self.config, encoding=encodings))

    def with_config(self, params: PyTree, config: TransformerConfig) -> Any:
        """The model of another config, with these parameters."""
        return with_parameters(lambda: self._build(config), params)

    def loss(self, params: PyTree, numbers: Numbers, tokens: Int[Array, "B T+1"]) -> Float[Array, ""]:
        """The mean cross-entropy of all tokens but the first of each row."""
        return self._scores(params, numbers, tokens).loss.mean()

    def _scores(self, params: PyTree, numbers: Numbers, tokens: Int[Array, "B T+1"]) -> Scores:
        model = self.module(params, numbers)
        features, targets = model.features(tokens[:, :-1]), tokens[:, 1:]
        size = math.gcd(targets.shape[1], CHUNK)

        def part(x: tuple[Array, Array]) -> Scores:
            logits = model.output(x[0]).astype(jnp.float32)
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, x[1])
            right = jax.lax.argmax(logits, logits.ndim - 1, jnp.int32) == x[1]
            return Scores(loss, right.astype(jnp.float32))

        cut = lambda x: jnp.moveaxis(x.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)
        found = jax.lax.map(part, (cut(features), cut(targets)))
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(targets.shape), found)

    def _next_losses(self, params: PyTree, numbers: Numbers, tokens: Int[Array, "B T"]) -> Float[Array, "B V"]:
        model = self.module(params, numbers)
        logits = model.output(model.features(tokens)[:, -1:])[:, 0]
        return -jax.nn.log_softmax(logits.astype(jnp.float32))


def of_run(directory: pathlib.Path, task: str = "text") -> Subject:
    """A trained run of a sweep. Raises ValueError for one that is no decoder of this task, or has no RoPE."""
    found = load_run(directory)
    run = found.run
    if run is None or run.task.name != task or run.task.form != "decoder":
        raise ValueError(f"{directory} is no run of a decoder of {task}, whose context could be extended")
    params = nnx.to_pure_dict(found.params)
    build = lambda config: Decoder(config, rngs=nnx.Rngs(0))
    logged = jsonl.read(directory / jsonl.METRICS).tables
    seconds = float(logged[-1].get("seconds", 0)) if logged else 0.0
    return Subject(found.name, found.config, build, params, run.task.length_max, run.seed, run, seconds)


def of_model(loaded: Loaded, trained: int | None = None) -> Subject:
    """A published model. Raises ValueError for one that is no decoder, has no RoPE, or does not say its trained length."""
    model, spec = loaded.model, loaded.spec
    name = "the model" if loaded.folder is None else loaded.folder.name
    if not isinstance(model, Decoder):
        raise ValueError(f"{name} is no decoder, whose context could be extended, but a {type(model).__name__}")
    known = trained_length(loaded.json)
    trained = trained or (known.length if known else None)
    if trained is None:
        raise ValueError(f"config.json of {name} does not say at what length it was trained: give the trained length")
    changed = ("encoding", "window", "windows", "window_first")
    fields = lambda config: {name: getattr(config, name) for name in changed}
    build = lambda config: loaded.architecture.build(with_fields(spec, **fields(config)), nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.split(model, graph=False)[1])
    return Subject(name, spec.config, build, params, trained)
