"""Generates tokens after a prompt in one compiled program: one pass over the prompt, then a loop through KV caches.

Decoding is greedy, or samples at a temperature from the tokens that top k, top p and min p leave. The tokens equal those of
running the model again on the whole sequence after every token, at a cost of O(T) per token; under encodings that depend on
the length (`DynamicNTK`, `LongRoPE`) that is the length of prompt and steps together.

Compiled anew are another shape of the prompt, another number of steps or of stop tokens, another `top_k`, and a rule that
leaves out one that another call had. Temperature, top p, min p, the ids of stop tokens and keys are data.

Filters of logits [B, V] set all tokens that may not be drawn to -inf. Each keeps one token at least, and equals the function of
that purpose in Hugging Face transformers:

    keep_top_k   the k likeliest tokens, and those that tie with the last of them
    keep_top_p   the smallest set of likeliest tokens whose probability exceeds p (nucleus sampling)
    keep_min_p   tokens at least m times as likely as the likeliest

References: Fan et al. 2018, arXiv:1805.04833 (top k); Holtzman et al. 2020, arXiv:1904.09751 (top p); Nguyen et al. 2024,
arXiv:2407.01082 (min p).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention import Mask
from attnjax.config.kinds import NonNegative, Range, coerce
from attnjax.modules.embedding import check_tokens
from attnjax.modules.models import Decoder, EncoderDecoder
from attnjax.modules.stack import Stack
from attnjax.positions.checks import concrete, described, validate_array, validate_integer, validate_key
from attnjax.positions.compose import parts_of
from attnjax.typing import Array, ArrayLike, Bool, Float, Int, Key, PyTree, compute_dtype

NOT_A_TOKEN = -1
NO_STOPS = np.zeros(0, np.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """The rule that picks the next token, and the tokens that end an example; made by `sampling`.

    Logits are divided by the temperature, then filtered by top k, top p and min p, in this order (that of transformers). The
    numbers and the ids are data: other ones compile nothing anew, but another `top_k`, another number of ends, or a number
    in place of None does.

    Attributes:
      vocab: number V of tokens.
      top_k: restricts the draw to the k likeliest tokens; all unless given.
      temperature: tokens are drawn from softmax(logits / temperature); None picks the likeliest token.
      top_p, min_p: as in `keep_top_p` and `keep_min_p`; None leaves the step out.
      stops: the tokens that end an example.
    """

    vocab: int = dataclasses.field(metadata={"static": True})
    top_k: int | None = dataclasses.field(default=None, metadata={"static": True})
    temperature: Float[ArrayLike, ""] | None = None
    top_p: Float[ArrayLike, ""] | None = None
    min_p: Float[ArrayLike, ""] | None = None
    stops: Int[ArrayLike, " E"] = dataclasses.field(default_factory=lambda: NO_STOPS)

    def pick(self, key: Key[Array, "*B"], logits: Float[Array, "B V"]) -> Int[Array, " B"]:
        """Returns the next token of every example, -1 where its logits hold NaN.

        With one key for all, the draw of an example depends on its row; with a key for each, on that key alone.
        """
        chex.assert_shape(logits, (None, self.vocab))
        draw = jax.random.categorical if key.ndim == 0 else jax.vmap(jax.random.categorical)
        if self.temperature is None:
            token = jnp.argmax(logits, axis=-1)
        elif self.top_k is None:
            token = draw(key, self.kept(logits))
        else:
            # Of tokens that tie with the k-th, those with the smaller ids.
            best, tokens = jax.lax.top_k(self.kept(logits), self.top_k)
            token = jnp.take_along_axis(tokens, draw(key, best)[:, None], axis=-1)[:, 0]
        return jnp.where(jnp.isnan(logits).any(-1), NOT_A_TOKEN, token.astype(jnp.int32))

    def kept(self, logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
        """Returns logits / temperature, and -inf for tokens that are not to be drawn."""
        chex.assert_shape(logits, (None, self.vocab))
        logits = logits if self.temperature is None else logits / jnp.asarray(self.temperature, logits.dtype)
        logits = logits if self.top_k is None else keep_top_k(logits, self.top_k)
        logits = logits if self.top_p is None else keep_top_p(logits, self.top_p)
        return logits if self.min_p is None else keep_min_p(logits, self.min_p)

    def ends(self, token: Int[Array, " B"]) -> Bool[Array, " B"]:
        """Returns whether each token ends its example."""
        chex.assert_rank(token, 1)
        return (token[:, None] == jnp.asarray(self.stops)[None]).any(-1)


def sampling(
    vocab: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    stop: int | Sequence[int] | None = None,
) -> Sampling:
    """Returns the rule for numbers of a user; temperature 0 picks the likeliest token.

    Raises:
      ValueError: a negative temperature, `top_k`, `top_p` or `min_p` at temperature 0, or numbers out of range.

    Example:
      >>> sampling(11, temperature=0.7, top_p=0.9, stop=[0, 1]).stops.tolist()
      [0, 1]
    """
    coerce(NonNegative, temperature, "generate: temperature")
    stops = [] if stop is None else list(stop) if isinstance(stop, Sequence) else [stop]
    for one in stops:
        coerce(Annotated[int, Range(0, vocab - 1)], one, "generate: stop")
    share = Annotated[float, Range(0, 1, open_low=True)]
    rules = {"top_k": (Annotated[int, Range(1, vocab)], top_k), "top_p": (share, top_p), "min_p": (share, min_p)}
    for name, (kind, value) in rules.items():
        coerce(kind | None, value, f"generate: {name}")
        if value is not None and temperature == 0:
            raise ValueError(f"generate: {name}={value} needs a temperature above 0, got temperature=0")
    number = lambda value: None if value is None else np.asarray(value, np.float64)
    numbers = {"temperature": number(temperature or None), "top_p": number(top_p), "min_p": number(min_p)}
    return Sampling(vocab=vocab, top_k=top_k, **numbers, stops=np.array(sorted(set(stops)), np.int32))


def keep_top_k(logits: Float[Array, "B V"], k: int) -> Float[Array, "B V"]:
    """Returns the logits that are at least the k-th largest of their row, and -inf for the others; all V if k > V.

    Example:
      >>> keep_top_k(jnp.array([[1.0, 3.0, 2.0, 2.0]]), 2).tolist()
      [[-inf, 3.0, 2.0, 2.0]]
    """
    chex.assert_rank(logits, 2)
    best, _ = jax.lax.top_k(logits, min(k, logits.shape[-1]))
    return _keep(logits, logits >= best[:, -1:])


def keep_top_p(logits: Float[Array, "B V"], p: Float[ArrayLike, ""] | float) -> Float[Array, "B V"]:
    """Returns the logits of the tokens without which the likelier ones would not reach probability p; -inf for the others.

    Tokens are dropped from the least likely on, as long as the dropped ones have probability 1 - p at most together; among
    equally likely ones, that with the smallest id first. p may be traced; probabilities are computed in float32 or float64.

    Example:
      >>> keep_top_p(jnp.log(jnp.array([[0.5, 0.125, 0.375]])), 0.75).tolist()[0][1]
      -inf
    """
    chex.assert_rank(logits, 2)
    order = jnp.argsort(logits, axis=-1, stable=True)
    ascending = jnp.take_along_axis(_probabilities(logits), order, axis=-1)
    kept = jnp.cumsum(ascending, axis=-1) > jnp.asarray(1 - p, ascending.dtype)
    kept = kept.at[:, -1].set(True)
    return _keep(logits, jnp.take_along_axis(kept, jnp.argsort(order, axis=-1), axis=-1))


def keep_min_p(logits: Float[Array, "B V"], m: Float[ArrayLike, ""] | float) -> Float[Array, "B V"]:
    """Returns the logits of tokens whose probability is at least m times the largest, and -inf for the others.

    Example:
      >>> keep_min_p(jnp.log(jnp.array([[0.5, 0.125, 0.375]])), 0.5).tolist()[0][1]
      -inf
    """
    chex.assert_rank(logits, 2)
    probabilities = _probabilities(logits)
    largest = probabilities.max(-1, keepdims=True)
    # The likeliest token stays even if rounding makes m a little more than 1.
    return _keep(logits, (probabilities >= jnp.asarray(m, largest.dtype) * largest) | (probabilities == largest))


def _probabilities(logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
    return jax.nn.softmax(logits.astype(compute_dtype(logits)), axis=-1)


def _keep(logits: Float[Array, "B V"], kept: Bool[Array, "B V"]) -> Float[Array, "B V"]:
    return jnp.where(kept, logits, jnp.asarray(-jnp.inf, logits.dtype))


class Prompt(NamedTuple):
    """Tokens [B, T] with a flag for each that is no padding, or None; the source of an encoder-decoder, None for a decoder."""

    tokens: Int[ArrayLike, "B T"]
    valid: Bool[ArrayLike, "B T"] | None
    source: Int[ArrayLike, "B S"] | None
    source_valid: Bool[ArrayLike, "B S"] | None


class State(NamedTuple):
    """The state of decoding: tokens made so far, the last one, which examples have ended, prompts' lengths, KV caches."""

    step: Int[Array, ""]
    token: Int[Array, " B"]
    done: Bool[Array, " B"]
    length: Int[Array, "*B"]
    caches: PyTree


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
    top_p: float | None = None,
    min_p: float | None = None,
    stop: int | Sequence[int] | None = None,
    key: Key[Array, "*B"] | None = None,
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
      top_p: then restricts it to the likeliest tokens that together have this probability (`keep_top_p`).
      min_p: then restricts it to tokens with this share of the largest probability (`keep_min_p`).
      stop: the token that ends an example, or several; the rest of its row repeats it. The loop ends when every example
        has ended.
      key: a typed key for the draws; step i uses `jax.random.fold_in(key, i)`. With one key per example, [B], the draws of
        an example do not depend on the others.

    Raises:
      ValueError: a temperature without key, an empty prompt, a source that does not fit, or more positions than the
        encoding has.

    Example:
      >>> from attnjax.modules import TransformerConfig
      >>> from flax import nnx
      >>> config = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=32)
      >>> decoder = Decoder(config, rngs=nnx.Rngs(0))
      >>> generate(decoder, np.array([[1, 2, 3]]), 4).shape
      (1, 4)
    """
    rule = sampling(model.config.vocab, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, stop=stop)
    given = Prompt(prompt, valid, source, source_valid)
    _check(model, given, steps)
    return _generate(model, given, _checked_key(key, rule, prompt.shape[0]), steps, rule)


def start(model: Decoder | EncoderDecoder, prompt: Prompt, key: Key[Array, "*B"], steps: int, rule: Sampling) -> State:
    """Returns the state after the first token; its caches have room for `steps` tokens."""
    (B, T), tokens, valid = prompt.tokens.shape, prompt.tokens, prompt.valid
    pos, length = np.arange(T, dtype=np.int32), np.array([T], np.int32)
    if valid is not None:
        # Padding goes to the left, so that the next token follows the last column in every row.
        order = jnp.argsort(valid, axis=1, stable=True)
        tokens, valid = (jnp.take_along_axis(x, order, axis=1) for x in (tokens, valid))
        pos, length = _without_padding(valid), valid.sum(1, dtype=jnp.int32)
    caches = _empty_caches(model, prompt, T + steps - 1)
    last = jnp.full((B, 1), T - 1, jnp.int32)  # the logits of the whole prompt may need more memory than the model
    logits, caches = model.decode(tokens, caches, pos=pos, valid=valid, query_indices=last)
    first = rule.pick(_at_step(key, jnp.int32(0)), logits[:, -1])
    return State(jnp.int32(1), first, rule.ends(first), jnp.asarray(length), caches)


@functools.partial(jax.jit, static_argnames="steps")
def _generate(
    model: Decoder | EncoderDecoder, prompt: Prompt, key: Key[Array, "*B"], steps: int, rule: Sampling
) -> Int[Array, "B steps"]:
    """Returns the tokens; an example that has ended repeats its last one, and the loop ends when every example has."""

    def more(carry: tuple[State, Array]) -> Bool[Array, ""]:
        return (carry[0].step < steps) & ~carry[0].done.all()

    def advance(carry: tuple[State, Array]) -> tuple[State, Array]:
        state, out = carry
        pos = jnp.broadcast_to(state.length + state.step - 1, state.token.shape)[:, None]
        logits, caches = model.decode(state.token[:, None], state.caches, pos=pos)
        token = rule.pick(_at_step(key, state.step), logits[:, -1])
        token = jnp.where(state.done, state.token, token)
        out = out.at[:, state.step].set(token)
        return State(state.step + 1, token, state.done | rule.ends(token), state.length, caches), out

    state = start(model, prompt, key, steps, rule)
    if steps == 1:
        return state.token[:, None]
    state, out = jax.lax.while_loop(more, advance, (state, jnp.tile(state.token[:, None], steps)))
    reached = np.arange(steps, dtype=np.int32)[None] < state.step
    return jnp.where(reached, out, state.token[:, None])


def _at_step(key: Key[Array, "*B"], step: Int[ArrayLike, ""]) -> Key[Array, "*B"]:
    return jax.random.fold_in(key, step) if key.ndim == 0 else jax.vmap(lambda one: jax.random.fold_in(one, step))(key)


def _without_padding(valid: Bool[ArrayLike, "B T"]) -> Int[Array, "B T"]:
    """Returns the positions of tokens; padding takes none."""
    return jnp.maximum(jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1, 0)


def _empty_caches(model: Decoder | EncoderDecoder, prompt: Prompt, length: int) -> PyTree:
    """Returns empty KV caches for all tokens, or ring buffers where the window makes these smaller."""
    (B, T), window, capacity = prompt.tokens.shape, model.config.window, length
    left = Mask(window=window).span.left
    whole = any(part.whole_table for one in model.config.encodings for part in parts_of(one))
    # A ring keeps neither the first tokens, which stay visible beside a window, nor the order of the keys.
    if left is None or length <= T + left or model.config.window_first or whole:
        window = None
    else:
        capacity = T + left
    if isinstance(model, Decoder):
        return model.cache(B, capacity, window=window, length=length)
    assert prompt.source is not None
    pos = None if prompt.source_valid is None else _without_padding(prompt.source_valid)
    mask = Mask(k_valid=prompt.source_valid)
    return model.start(prompt.source, capacity, pos=pos, mask=mask, window=window, length=length)


def _checked_key(key: Key[Array, "*B"] | None, rule: Sampling, rows: int) -> Key[Array, "*B"]:
    """Returns one key, or a key per row; any key where nothing is drawn."""
    if key is None:
        if rule.temperature is not None:
            raise ValueError(
                f"generate: temperature={rule.temperature} draws tokens and needs key=jax.random.key(seed)"
            )
        return jax.random.key(0)
    if isinstance(key, jax.Array) and key.ndim == 1 and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.shape[0] != rows:
            raise ValueError(f"generate: key must be one key or one per example, {rows}, got {key.shape[0]}")
        return key
    return validate_key("generate", key)


def _check(model: Decoder | EncoderDecoder, prompt: Prompt, steps: int) -> None:
    """Raises ValueError for mistakes that could only become NaN while tracing."""
    validate_integer("generate", steps=steps)
    tokens, source = prompt.tokens, prompt.source
    if (source is not None) != isinstance(model, EncoderDecoder):
        came = f"{type(model).__name__} {'without' if source is None else 'with'} source"
        raise ValueError(f"generate: an EncoderDecoder needs a source, a Decoder takes none; got {came}")
    check_tokens("prompt", tokens, model.config.vocab)
    if tokens.shape[1] == 0:
        raise ValueError("generate: the prompt must have at least one token per example")
    counts = _counts("valid", tokens, prompt.valid)
    if counts is not None and not counts.all():
        raise ValueError(f"generate: every prompt needs a token that is valid, got none in row {counts.argmin()}")
    _check_positions(model.stack if isinstance(model, Decoder) else model.decoder, counts, steps - 1)
    if isinstance(model, EncoderDecoder) and source is not None:
        check_tokens("source", source, model.encoder.config.vocab)
        if source.shape[0] != tokens.shape[0] or source.shape[1] == 0:
            came = f"got {described(source)} for {tokens.shape[0]} prompts"
            raise ValueError(f"generate: the source must have a row per prompt, of at least one token, {came}")
        _check_positions(model.encoder, _counts("source_valid", source, prompt.source_valid), 0)


def _counts(name: str, tokens: ArrayLike, valid: ArrayLike | None) -> np.ndarray | None:
    """Returns how many tokens of each row are no padding, [B], or None where that is traced."""
    if valid is None:
        return np.full(tokens.shape[0], tokens.shape[1])
    known = concrete(validate_array(f"generate: {name}", valid, np.bool_, tokens.shape))
    return None if known is None else known.sum(1)


def _check_positions(stack: Stack, counts: np.ndarray | None, more: int) -> None:
    """Lets encodings refuse the positions of the longest row and of `more` tokens after it."""
    if counts is not None and counts.size:
        for part in (part for one in dict.fromkeys(stack.config.encodings) for part in parts_of(one)):
            part.check(np.arange(counts.max() + more)[None])
