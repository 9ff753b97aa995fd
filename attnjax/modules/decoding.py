"""The decoding loop, to be compiled: one pass over the prompt, then a step per token through KV caches.

`start` reads the prompt and picks the first token; `run` goes on, for a number of steps or until every example has ended. So
`generate` is one program of both, and `generate_chunks` a program of each, of which the second is called again and again.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention import Mask
from attnjax.modules.decoder import Decoder
from attnjax.modules.encoder_decoder import EncoderDecoder
from attnjax.modules.sampling import Sampling, at_step
from attnjax.typing import Array, ArrayLike, Bool, Int, Key, PyTree


class Prompt(NamedTuple):
    """A left-padded batch of prompts: the last column holds the last token of every example."""

    tokens: Int[Array, "B T"]
    valid: Bool[Array, "B T"] | None
    pos: Int[ArrayLike, "*B T"]
    length: Int[ArrayLike, "*B"]


class Source(NamedTuple):
    """What an encoder-decoder reads, and where it is not padding; nothing for a decoder."""

    tokens: Int[ArrayLike, "B S"] | None = None
    valid: Bool[ArrayLike, "B S"] | None = None


class State(NamedTuple):
    """The state of decoding: tokens made so far, the last one, which examples have ended, prompts' lengths, KV caches."""

    step: Int[Array, ""]
    token: Int[Array, " B"]
    done: Bool[Array, " B"]
    length: Int[Array, "*B"]
    caches: PyTree


def start(
    model: Decoder | EncoderDecoder,
    tokens: Int[Array, "B T"],
    valid: Bool[Array, "B T"] | None,
    source: Source,
    key: Key[Array, "*B"],
    steps: int,
    sampling: Sampling,
) -> State:
    """Returns the state after the first token; its caches have room for `steps` tokens."""
    prompt = _left_padded(tokens, valid)
    caches = _empty_caches(model, prompt, source, steps)
    B, T = tokens.shape
    last = jnp.full((B, 1), T - 1, jnp.int32)  # the logits of the whole prompt may need more memory than the model
    logits, caches = model.decode(prompt.tokens, caches, pos=prompt.pos, valid=prompt.valid, query_indices=last)
    first = sampling.pick(at_step(key, jnp.int32(0)), logits[:, -1])
    return State(jnp.int32(1), first, sampling.ends(first), jnp.asarray(prompt.length), caches)


def run(
    model: Decoder | EncoderDecoder,
    state: State,
    key: Key[Array, "*B"],
    size: int,
    steps: Int[ArrayLike, ""] | int,
    sampling: Sampling,
) -> tuple[State, Int[Array, "B size"]]:
    """Returns the state after the next tokens, at most `size` and `steps` in all, and these tokens.

    An example that has ended repeats its last token. The loop ends when every example has; columns that it did not reach
    repeat the last token too.
    """
    begin = state.step
    end = jnp.minimum(begin + size, steps)

    def more(carry: tuple[State, Array]) -> Bool[Array, ""]:
        return (carry[0].step < end) & ~carry[0].done.all()

    def advance(carry: tuple[State, Array]) -> tuple[State, Array]:
        state, out = carry
        pos = jnp.broadcast_to(state.length + state.step - 1, state.token.shape)[:, None]
        logits, caches = model.decode(state.token[:, None], state.caches, pos=pos)
        token = sampling.pick(at_step(key, state.step), logits[:, -1])
        token = jnp.where(state.done, state.token, token)
        out = out.at[:, state.step - begin].set(token)
        return State(state.step + 1, token, state.done | sampling.ends(token), state.length, caches), out

    out = jnp.zeros((state.token.shape[0], size), jnp.int32)
    if size == 0:
        return state, out
    state, out = jax.lax.while_loop(more, advance, (state, out))
    reached = np.arange(size, dtype=np.int32)[None] < state.step - begin
    return state, jnp.where(reached, out, state.token[:, None])


def _left_padded(tokens: Int[Array, "B T"], valid: Bool[Array, "B T"] | None) -> Prompt:
    """Moves padding to the left, so that the next token follows the last column in every row."""
    T = tokens.shape[1]
    if valid is None:
        return Prompt(tokens, None, np.arange(T, dtype=np.int32), np.array([T], np.int32))
    order = jnp.argsort(valid, axis=1, stable=True)
    tokens, valid = (jnp.take_along_axis(x, order, axis=1) for x in (tokens, valid))
    return Prompt(tokens, valid, _positions(valid), valid.sum(1, dtype=jnp.int32))


def _positions(valid: Bool[ArrayLike, "B T"]) -> Int[Array, "B T"]:
    """Returns the positions of tokens, of which padding takes none."""
    return jnp.maximum(jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1, 0)


def _empty_caches(model: Decoder | EncoderDecoder, prompt: Prompt, source: Source, steps: int) -> PyTree:
    """Returns empty KV caches for all tokens, or ring buffers where the window makes these smaller."""
    (B, T), window = prompt.tokens.shape, model.config.window
    left, capacity = Mask(window=window).span.left, T + steps - 1
    # A ring would forget the first keys, which stay visible beside the window.
    if left is None or capacity <= T + left or model.config.window_first:
        window = None
    else:
        capacity = T + left
    if isinstance(model, Decoder):
        return model.cache(B, capacity, window=window)
    tokens, valid = source
    assert tokens is not None
    pos = None if valid is None else _positions(valid)
    return model.start(tokens, capacity, pos=pos, mask=Mask(k_valid=valid), window=window)
