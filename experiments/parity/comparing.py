"""Compares our output, loss and every gradient with those of transformers, for one folder and the same random tokens.

The batch is two sequences, the second padded; the same tokens also go through our KV caches in two chunks. It needs
torch and transformers, which no other module needs.
"""

import contextlib
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.attention import Mask
from attnjax.models.files import ModelError
from attnjax.models.loading import Loaded, load
from attnjax.models.matching import candidates, groups
from attnjax.models.param_paths import parameters
from attnjax.models.saving import tensors_of
from attnjax.modules import Decoder, EncoderDecoder
from experiments.parity.inputs import Inputs, by_length, draw
from experiments.parity.peer import Numbers, libraries, theirs, weights

FLOOR = 1e-3
"""The scale of a relative difference is at least this share of the largest gradient, since some gradients are exactly 0
(that of a bias of keys)."""


class Difference(NamedTuple):
    """The largest |ours - theirs| of one array, and the same divided by the largest |theirs|."""

    name: str
    absolute: float
    relative: float


def compare(folder: str | pathlib.Path, *, tokens: int = 32, seed: int = 0, dtype: str = "float32") -> list[Difference]:
    """Returns the differences of the output, the output through KV caches, the loss, and the gradient of every tensor.

    The output is the logits, or the features where the model has no logits, without padding. The loss is the
    cross-entropy of random targets (of the next token for a decoder), or the mean of features times random numbers. KV
    caches are not compared for an encoder, nor where frequencies depend on the length.

    Args:
      folder: config.json and safetensors.
      tokens: length T of the sequences.
      seed: of the tokens.
      dtype: "float32" or "float64", for both sides.

    Raises:
      ModelError: torch or transformers is not installed, or the folder cannot be loaded.
    """
    libraries()
    with jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext():
        loaded = load(folder, dtype=dtype)
        inputs = draw(loaded, tokens, seed)
        mine, through_caches = ours(loaded, inputs), cached(loaded, inputs)
    return list(differences(loaded, inputs, mine, through_caches, theirs(loaded, inputs, dtype)))


def differences(
    loaded: Loaded, inputs: Inputs, mine: Numbers, through_caches: np.ndarray | None, peer: Numbers
) -> list[Difference]:
    """Returns the rows of a comparison. Raises ModelError where transformers has no parameter of a name."""
    seen, prefix = inputs.valid, loaded.architecture.prefix
    known = {rows[0].names[0]: rows[0].names for rows in groups(loaded.architecture.weights(loaded.spec))}
    named = lambda name: candidates(known.get(name, (name,)), prefix)
    names = {name: next((one for one in named(name) if one in peer.gradients), "") for name in mine.gradients}
    missing = [name for name, other in names.items() if not other]
    if missing:
        raise ModelError(f"the model of transformers has no {', '.join(missing)}")
    largest = max(float(np.abs(peer.gradients[other]).max(initial=0.0)) for other in names.values())
    found = [difference("output", mine.output[seen], peer.output[seen])]
    if through_caches is not None:
        found.append(difference("output through caches", through_caches[seen], peer.output[seen]))
    return [
        *found,
        difference("loss", mine.loss, peer.loss),
        *(
            difference(f"gradient of {name}", mine.gradients[name], peer.gradients[other], FLOOR * largest)
            for name, other in names.items()
        ),
    ]


def difference(name: str, ours: np.ndarray, theirs: np.ndarray, floor: float = 0.0) -> Difference:
    """Returns the largest difference of two arrays, absolute and relative.

    The relative one is divided by the largest |theirs|, or by `floor` if that is larger.
    """
    if ours.shape != theirs.shape:
        raise ValueError(f"{name}: ours has shape {ours.shape}, theirs {theirs.shape}")
    absolute = float(np.abs(ours.astype(np.float64) - theirs).max(initial=0.0))
    scale = max(float(np.abs(theirs).max(initial=0.0)), floor)
    return Difference(name, absolute, absolute / scale if scale else float(absolute > 0))


def ours(loaded: Loaded, inputs: Inputs) -> Numbers:
    """Returns our output, loss and gradients, these by the published names of the tensors."""
    graph, state = nnx.split(loaded.model, graph=False)

    def forward(state: Any) -> tuple[jax.Array, jax.Array]:
        output = _output(nnx.merge(graph, state), inputs)
        return _loss(loaded, output, inputs), output

    with jax.default_matmul_precision("highest"):
        (loss, output), gradients = jax.jit(jax.value_and_grad(forward, has_aux=True))(state)
    values = parameters(nnx.merge(graph, gradients))
    return Numbers(np.asarray(output), np.asarray(loss), tensors_of(loaded, values))


def cached(loaded: Loaded, inputs: Inputs) -> np.ndarray | None:
    """Returns the output of two chunks through KV caches; None for a model whose caches are not compared."""
    model, (B, T) = loaded.model, inputs.tokens.shape
    if not isinstance(model, Decoder | EncoderDecoder) or by_length(loaded.spec) or T < 2:
        return None

    def start(model: Any) -> Any:
        if isinstance(model, Decoder):
            return model.cache(B, T)
        return model.start(inputs.source, T, mask=Mask(k_valid=inputs.source_valid))

    pos = inputs.positions if isinstance(model, Decoder) else np.tile(np.arange(T, dtype=np.int32), (B, 1))
    step = jax.jit(lambda model, state, tokens, valid, pos: model.decode(tokens, state, valid=valid, pos=pos))
    state, found = jax.jit(start)(model), []
    with jax.default_matmul_precision("highest"):
        for part in (slice(None, T // 2), slice(T // 2, None)):
            output, state = step(model, state, inputs.tokens[:, part], inputs.valid[:, part], pos[:, part])
            found.append(np.asarray(output))
    return np.concatenate(found, 1)


def _output(model: Any, inputs: Inputs) -> jax.Array:
    mask = Mask(k_valid=inputs.valid)
    if isinstance(model, EncoderDecoder):
        assert inputs.source is not None
        return model(inputs.source, inputs.tokens, source_mask=Mask(k_valid=inputs.source_valid), target_mask=mask)
    if isinstance(model, Decoder):
        return model(inputs.tokens, mask=mask, pos=inputs.positions)
    return model(inputs.tokens, mask=mask, types=inputs.types)


def _loss(loaded: Loaded, output: jax.Array, inputs: Inputs) -> jax.Array:
    if output.shape[-1] != loaded.spec.config.vocab:
        given = weights(output.shape) * inputs.valid[..., None]
        return (output * jnp.asarray(given, output.dtype)).mean()
    labels = jnp.asarray(inputs.labels)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(output), jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return -chosen.mean(where=labels >= 0)
