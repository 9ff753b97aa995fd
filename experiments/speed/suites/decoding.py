"""Decoding 2,048 tokens from one, every encoding: `generate`, one compiled loop, against Flax Linen's cache.

The peer is a decoder without positional encoding of the same sizes (Flax has none that acts in attention), run in both ways:
a jitted step per token called from Python, and one compiled loop as in Flax's own examples. With our NoPE and the same
weights, both must give the logits that Flax gives before anything is timed.
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.modules import Decoder, TransformerConfig, generate
from attnjax.modules.config import visible_fields
from attnjax.positions import ENCODINGS, encoding
from attnjax.typing import Array, Int, PyTree
from experiments.speed.harness import Settings, agree, random_parameters
from experiments.speed.peers import linen
from experiments.speed.suites import ONE_LOOP, STEP_BY_STEP
from experiments.speed.timing import cold, timed


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the model and of what it decodes."""

    slots: int = 2048
    layers: int = 2
    model: int = 256
    heads: int = 4
    batch: int = 1
    vocab: int = 128
    checked: int = 32
    encodings: tuple[str, ...] = tuple(ENCODINGS)


FULL = Size()
SMOKE = Size(slots=8, layers=1, model=16, heads=2, batch=2, vocab=16, checked=4, encodings=("nope", "alibi"))


def decoding(settings: Settings) -> None:
    """Rows of every encoding against both ways to run the peer."""
    size = SMOKE if settings.smoke else FULL
    prompt = jnp.ones((size.batch, 1), jnp.int32)
    with cold(quick=settings.smoke):
        decoders = {name: decoder(name, size) for name in size.encodings}
        model, params = peer(size), linen.from_ours(parameters(decoders["nope"]))
        error = same_logits(size, decoders["nope"], model, params)
        peers = {
            STEP_BY_STEP: linen.token_by_token(model, params, prompt, size.slots),
            ONE_LOOP: linen.in_one_loop(model, params, prompt, size.slots),
        }
        runs = {name: functools.partial(generate, one, prompt, size.slots) for name, one in decoders.items()}
        taken = settings.race({name: timed(run) for name, run in (runs | peers).items()})
    per_token = {name: [seconds / (size.batch * size.slots) for seconds in taken[name]] for name in taken}
    measured = {name: getattr(size, name) for name in ("layers", "model", "heads", "batch", "vocab", "slots")}
    for theirs, name in itertools.product(peers, runs):
        fields: dict[str, Any] = {"case": f"S = {size.slots:,}, {name}, per token", "ours": f"generate, {name}"}
        fields |= {"sizes": measured, "goal": 2.0, "error": error if name == "nope" else None}
        settings.row(per_token[name], per_token[theirs], suite="decoding", peer=theirs, **fields)


def decoder(name: str, size: Size) -> Decoder:
    """Our decoder with an encoding, and the window that it is made for; learned positions are as many as the cache has."""
    made = encoding(name, **({"length": size.slots} if name == "learned" else {}))
    sizes = {"vocab": size.vocab, "model": size.model, "layers": size.layers, "heads": size.heads}
    config = TransformerConfig(**sizes, hidden=4 * size.model, encoding=made, **visible_fields(made))
    return random_parameters(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))


def parameters(model: Decoder) -> PyTree:
    """The arrays of a decoder."""
    return nnx.to_pure_dict(nnx.split(model, graph=False)[1])


def peer(size: Size) -> linen.Transformer:
    """The decoder of Flax Linen, without positional encoding."""
    sizes = {"vocab": size.vocab, "model": size.model, "layers": size.layers, "heads": size.heads}
    return linen.Transformer(**sizes, hidden=4 * size.model, rotary=False, decode=True)


def same_logits(size: Size, mine: Decoder, model: linen.Transformer, params: PyTree) -> float:
    """The largest relative difference of logits between the two caches, with the same tokens and weights.

    Raises ValueError where it is too large.
    """
    drawn = np.random.default_rng(0).integers(0, size.vocab, (size.checked, size.batch, 1), dtype=np.int32)
    tokens = jnp.asarray(drawn)

    def ours(caches: PyTree, token: Int[Array, "B 1"]) -> tuple[PyTree, Array]:
        logits, caches = mine.decode(token, caches)
        return caches, logits

    def theirs(cache: PyTree, token: Int[Array, "B 1"]) -> tuple[PyTree, Array]:
        logits, changed = model.apply({**params, "cache": cache}, token, mutable=["cache"])
        return changed["cache"], logits

    empty = linen.empty_cache(model, size.batch, size.slots)
    found = jax.jit(lambda: jax.lax.scan(ours, mine.cache(size.batch, size.slots), tokens)[1])()
    return agree("decoding", found, jax.jit(lambda: jax.lax.scan(theirs, empty(), tokens)[1])())
