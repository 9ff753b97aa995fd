"""Generates tokens after a prompt in one compiled program: one pass over the prompt, then a loop through KV caches.

Decoding is greedy, or samples at a temperature from the tokens that top k, top p and min p leave. The tokens equal those of
running the model again on the whole sequence after every token (but see `Decoder` on encodings that depend on the length), at
a cost of O(T) per token. `generate_chunks` yields the same tokens in parts.

What compiles anew: another shape of the prompt, another number of steps or of stop tokens, another `top_k`, and a rule that
leaves out what another had. Temperature, top p, min p, the ids of stop tokens and keys are data.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.modules.decoder import Decoder
from attnjax.modules.decoding import Source, run, start
from attnjax.modules.embedding import check_tokens
from attnjax.modules.encoder_decoder import EncoderDecoder
from attnjax.modules.sampling import Sampling, sampling
from attnjax.modules.stack import Stack
from attnjax.positions.checks import described, is_array, validate_integer, validate_key
from attnjax.positions.concrete import concrete
from attnjax.typing import Array, ArrayLike, Bool, Int, Key


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
    given = Source(source, source_valid)
    _check(model, prompt, given, valid, steps)
    return _generate(model, prompt, valid, given, _checked_key(key, rule, prompt.shape[0]), steps, rule)


def generate_chunks(
    model: Decoder | EncoderDecoder,
    prompt: Int[ArrayLike, "B T"],
    steps: int,
    rule: Sampling,
    *,
    size: int = 16,
    ended: Callable[[], Sequence[bool]] | None = None,
    source: Int[ArrayLike, "B S"] | None = None,
    source_valid: Bool[ArrayLike, "B S"] | None = None,
    valid: Bool[ArrayLike, "B T"] | None = None,
    key: Key[Array, "*B"] | None = None,
) -> Iterator[Int[np.ndarray, "B n"]]:
    """Yields the tokens of `generate` in parts: first one column, then `size` at a time, the last time what is left.

    The first part compiles one program, all others together a second one, between whose calls the KV caches stay on the
    device. After all rows have ended nothing more comes.

    Args:
      model, prompt, steps, source, source_valid, valid, key: as in `generate`.
      rule: from `attnjax.modules.sampling.sampling`.
      size: largest number of tokens of a part.
      ended: asked before every part but the first, which rows [B] need no more tokens; they repeat their last token.

    Raises:
      ValueError: as `generate`, at the first part.

    Example:
      >>> from attnjax.modules import TransformerConfig
      >>> from flax import nnx
      >>> config = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=32)
      >>> decoder = Decoder(config, rngs=nnx.Rngs(0))
      >>> [part.shape for part in generate_chunks(decoder, np.array([[1, 2, 3]]), 6, sampling(11), size=3)]
      [(1, 1), (1, 3), (1, 2)]
    """
    validate_integer("generate", size=size)
    given = Source(source, source_valid)
    _check(model, prompt, given, valid, steps)
    key = _checked_key(key, rule, prompt.shape[0])
    state = _start(model, prompt, valid, given, key, steps, rule)
    yield np.asarray(state.token)[:, None]
    made = 1
    while made < steps:
        if ended is not None:
            state = state._replace(done=state.done | np.asarray(ended(), bool))
        if np.asarray(state.done).all():
            return
        state, out = _run(model, state, key, size, np.int32(steps), rule)
        yield np.asarray(out)[:, : steps - made]
        made += size


@functools.partial(jax.jit, static_argnames="steps")
def _generate(model, tokens, valid, source, key, steps: int, sampling: Sampling) -> Int[Array, "B steps"]:
    state = start(model, tokens, valid, source, key, steps, sampling)
    _, rest = run(model, state, key, steps - 1, steps, sampling)
    return jnp.concatenate([state.token[:, None], rest], axis=1)


_start = jax.jit(start, static_argnames="steps")
_run = jax.jit(run, static_argnames="size", donate_argnames="state")


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


def _check(
    model: Decoder | EncoderDecoder, prompt: ArrayLike, source: Source, valid: ArrayLike | None, steps: int
) -> None:
    validate_integer("generate", steps=steps)
    if (source.tokens is not None) != isinstance(model, EncoderDecoder):
        came = f"{type(model).__name__} {'without' if source.tokens is None else 'with'} source"
        raise ValueError(f"generate: an EncoderDecoder needs a source, a Decoder takes none; got {came}")
    check_tokens("prompt", prompt, model.config.vocab)
    if prompt.shape[1] == 0:
        raise ValueError("generate: the prompt must have at least one token per example")
    counts = _counts("valid", prompt, valid)
    if counts is not None and not counts.all():
        raise ValueError(f"generate: every prompt needs a token that is valid, got none in row {counts.argmin()}")
    stack = model.decoder if isinstance(model, EncoderDecoder) else model.stack
    _refuse_positions(stack, None if counts is None else int(counts.max(initial=0)) + steps - 1)
    if isinstance(model, EncoderDecoder):
        _check_source(model, source, prompt.shape[0])


def _check_source(model: EncoderDecoder, source: Source, rows: int) -> None:
    """Checks what the encoder reads: while tracing, a token or a position without a row could only become NaN."""
    tokens, valid = source
    assert tokens is not None
    check_tokens("source", tokens, model.encoder.config.vocab)
    if tokens.shape[0] != rows or tokens.shape[1] == 0:
        came = f"got {described(tokens)} for {rows} prompts"
        raise ValueError(f"generate: the source must have a row per prompt, of at least one token, {came}")
    counts = _counts("source_valid", tokens, valid)
    _refuse_positions(model.encoder, None if counts is None else int(counts.max(initial=0)))


def _counts(name: str, tokens: ArrayLike, valid: ArrayLike | None) -> np.ndarray | None:
    """Returns how many tokens of each row are no padding, [B], or None where that is traced."""
    if valid is None:
        return np.full(tokens.shape[0], tokens.shape[1])
    came = f"{valid.dtype}{valid.shape}" if is_array(valid) else type(valid).__name__
    if not is_array(valid) or valid.shape != tokens.shape or valid.dtype != bool:
        raise ValueError(f"generate: {name} must be booleans {tokens.shape}, got {came}")
    known = concrete(valid)
    return None if known is None else known.sum(1)


def _refuse_positions(stack: Stack, length: int | None) -> None:
    """Lets encodings refuse positions that will be reached: while tracing, their rows could only become NaN."""
    if not length:
        return
    x = jax.ShapeDtypeStruct((1, length, stack.config.model), jnp.float32)
    jax.eval_shape(lambda x: stack.embed(x, np.arange(length, dtype=np.int32)), x)
