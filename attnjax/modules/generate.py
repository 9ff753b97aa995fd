"""Generates tokens after a prompt in one compiled program: one pass over the prompt, then a loop through KV caches.

Decoding is greedy, or samples at a temperature from all tokens or the k likeliest. The tokens equal those of running
the model again on the whole sequence after every token (but see `Decoder` on encodings that depend on the length), at a
cost of O(T) per token.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention import Mask
from attnjax.modules.decoder import Decoder
from attnjax.modules.dropout import check_key
from attnjax.modules.embedding import check_tokens
from attnjax.modules.encoder_decoder import EncoderDecoder
from attnjax.modules.sampling import NOT_A_TOKEN, Sampling
from attnjax.modules.stack import Stack
from attnjax.positions.checks import validate_integer
from attnjax.positions.concrete import concrete
from attnjax.typing import Array, ArrayLike, Bool, Int, Key, PyTree


class Prompt(NamedTuple):
    """A left-padded batch of prompts: the last column holds the last token of every example."""

    tokens: Int[Array, "B T"]
    valid: Bool[Array, "B T"] | None
    pos: Int[ArrayLike, "*B T"]
    length: Int[ArrayLike, "*B"]


class State(NamedTuple):
    """The carry of the decoding loop: the last token, which examples have ended, KV caches, and the tokens so far."""

    step: Int[Array, ""]
    token: Int[Array, " B"]
    done: Bool[Array, " B"]
    caches: PyTree
    out: Int[Array, "B steps"]


def generate(
    model: Decoder | EncoderDecoder,
    prompt: Int[ArrayLike, "B T"],
    steps: int,
    *,
    source: Int[ArrayLike, "B S"] | None = None,
    source_valid: Bool[ArrayLike, "B S"] | None = None,
    valid: Bool[ArrayLike, "B T"] | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    stop: int | None = None,
    key: Key[Array, ""] | None = None,
) -> Int[Array, "B steps"]:
    """Returns the `steps` tokens that follow the prompt, [B, steps].

    Where logits are NaN (a traced position past a learned table), the token is -1, and so are those after it.

    Args:
      model: a `Decoder`, or an `EncoderDecoder` with its `source`; the prompt is then the beginning of the target.
      prompt: token ids [B, T], at least one per example.
      steps: number of tokens to generate.
      source: token ids [B, S] for an `EncoderDecoder`.
      valid, source_valid: False where prompt or source are padding, on either side. Padding takes no position: the
        first token of each example that is no padding is at 0.
      temperature: 0 takes the likeliest token; otherwise tokens are drawn from softmax(logits / temperature).
      top_k: restricts the draw to the k likeliest tokens.
      stop: the token that ends an example; the rest of its row repeats it. The loop ends when every example has ended.
      key: a typed key for the draws; step i uses `jax.random.fold_in(key, i)`.

    Raises:
      ValueError: a temperature without key, an empty prompt, or more positions than the encoding has.

    Example:
      >>> from attnjax.modules import TransformerConfig
      >>> from flax import nnx
      >>> config = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=32)
      >>> decoder = Decoder(config, rngs=nnx.Rngs(0))
      >>> generate(decoder, np.array([[1, 2, 3]]), 4).shape
      (1, 4)
    """
    sampling = Sampling(model.config.vocab, temperature, top_k, stop)
    validate_integer("generate", steps=steps)
    if temperature != 0 and key is None:
        raise ValueError(f"generate: temperature={temperature} draws tokens and needs key=jax.random.key(seed)")
    if (source is not None) != isinstance(model, EncoderDecoder):
        came = f"{type(model).__name__} {'without' if source is None else 'with'} source"
        raise ValueError(f"generate: an EncoderDecoder needs a source, a Decoder takes none; got {came}")
    _check(model, prompt, valid, steps)
    key = jax.random.key(0) if key is None else check_key(key)
    return _generate(model, prompt, valid, (source, source_valid), key, steps, sampling)


@functools.partial(jax.jit, static_argnames=("steps", "sampling"))
def _generate(model, tokens, valid, source, key, steps: int, sampling: Sampling) -> Int[Array, "B steps"]:
    prompt = _left_padded(tokens, valid)
    caches = _empty_caches(model, prompt, source, steps)
    logits, caches = model.decode(prompt.tokens, caches, pos=prompt.pos, valid=prompt.valid)
    pick = lambda logits, step: sampling.pick(jax.random.fold_in(key, step), logits[:, -1])

    def more(state: State) -> Bool[Array, ""]:
        return (state.step < steps) & ~state.done.all()

    def advance(state: State) -> State:
        pos = jnp.broadcast_to(prompt.length + state.step - 1, state.token.shape)[:, None]
        logits, caches = model.decode(state.token[:, None], state.caches, pos=pos)
        token = pick(logits, state.step)
        out = state.out.at[:, state.step].set(jnp.where(state.done, state.out[:, state.step], token))
        return State(state.step + 1, token, state.done | sampling.ends(token), caches, out)

    first = pick(logits, jnp.int32(0))
    fill = NOT_A_TOKEN if sampling.stop is None else sampling.stop
    out = jnp.full((first.shape[0], steps), fill, jnp.int32).at[:, 0].set(first)
    return jax.lax.while_loop(more, advance, State(jnp.int32(1), first, sampling.ends(first), caches, out)).out


def _left_padded(tokens: Int[Array, "B T"], valid: Bool[Array, "B T"] | None) -> Prompt:
    """Moves padding to the left, so that the next token follows the last column in every row."""
    T = tokens.shape[1]
    if valid is None:
        return Prompt(tokens, None, np.arange(T, dtype=np.int32), np.array([T], np.int32))
    order = jnp.argsort(valid, axis=1, stable=True)
    tokens, valid = (jnp.take_along_axis(x, order, axis=1) for x in (tokens, valid))
    return Prompt(tokens, valid, _positions(valid), valid.sum(1, dtype=jnp.int32))


def _positions(valid: Bool[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns the positions of tokens, of which padding takes none."""
    return jnp.maximum(jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1, 0)


def _empty_caches(model: Decoder | EncoderDecoder, prompt: Prompt, source: tuple, steps: int) -> PyTree:
    """Returns empty KV caches for all tokens, or ring buffers where the window makes these smaller."""
    (B, T), window = prompt.tokens.shape, model.config.window
    left, _, first = Mask(window=window, first=model.config.window_first).span
    capacity = T + steps - 1
    # A ring that keeps the first tokens would keep padding.
    if left is None or capacity <= first + T + left or (first and prompt.valid is not None):
        window = None
    else:
        capacity = first + T + left
    if isinstance(model, Decoder):
        return model.cache(B, capacity, window=window, first=first)
    tokens, valid = source
    pos = None if valid is None else _positions(valid)
    return model.start(tokens, capacity, pos=pos, mask=Mask(k_valid=valid), window=window, first=first)


def _check(model: Decoder | EncoderDecoder, prompt: ArrayLike, valid: ArrayLike | None, steps: int) -> None:
    check_tokens("prompt", prompt, model.config.vocab)
    if prompt.shape[1] == 0:
        raise ValueError("generate: the prompt must have at least one token per example")
    longest = prompt.shape[1] if valid is None else _longest(prompt, valid)
    if longest is not None:
        _refuse_positions(model.decoder if isinstance(model, EncoderDecoder) else model.stack, longest + steps - 1)


def _longest(prompt: ArrayLike, valid: ArrayLike) -> int | None:
    if valid.shape != prompt.shape or valid.dtype != bool:
        raise ValueError(f"generate: valid must be booleans {prompt.shape}, got {valid.dtype}{valid.shape}")
    known = concrete(valid)
    if known is None:
        return None
    if not known.any(1).all():
        raise ValueError(f"generate: every prompt needs a token that is valid, got none in row {known.any(1).argmin()}")
    return int(known.sum(1).max())


def _refuse_positions(stack: Stack, length: int) -> None:
    """Lets encodings refuse positions that decoding will reach: while tracing, their rows could only become NaN."""
    x = jax.ShapeDtypeStruct((1, length, stack.config.model), jnp.float32)
    jax.eval_shape(lambda x: stack.embed(x, np.arange(length, dtype=np.int32)), x)
