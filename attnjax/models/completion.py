"""Continues prompts with a published model: token ids, and texts.

Decoding is greedy or draws tokens, and ends at the end tokens that the folder declares. Prompts of any lengths are one batch,
and each has the result that it has alone.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.models.files import ModelError, read_table
from attnjax.models.loading import Loaded
from attnjax.models.tokens import Tokenizer
from attnjax.modules import Decoder, EncoderDecoder, generate

GENERATION = "generation_config.json"
SEEDS = 2**32


class Drawing(TypedDict, total=False):
    """How tokens are drawn: the options of `attnjax.modules.generate`, and a seed.

    At a temperature above 0, prompt i draws with seed + i (modulo 2^32), whatever the other prompts are; the seed is 0 unless
    given.

    Example:
      >>> Drawing(temperature=0.8, top_k=40, seed=1)
      {'temperature': 0.8, 'top_k': 40, 'seed': 1}
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int


def complete_batch(
    loaded: Loaded,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    *,
    stop: Sequence[int] = (),
    **drawing: Unpack[Drawing],
) -> list[list[int]]:
    """Returns, for each prompt, at most `tokens` token ids that follow it, without the end token, from one compiled program.

    Args:
      loaded: a decoder, which continues the prompts, or an encoder-decoder, whose sources they are.
      prompts: token ids.
      tokens: the largest number of tokens to generate.
      stop: tokens that end a prompt's row, besides those that the folder declares.
      drawing: temperature, top_k, top_p, min_p and seed, see `Drawing`.

    Raises:
      ValueError: no prompts, an empty one, tokens outside the vocabulary, more tokens than the model has positions, an
        encoder, or logits that are NaN.

    Example:
      >>> from attnjax.models import MODELS
      >>> from flax import nnx
      >>> sizes = {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
      >>> spec = MODELS["gpt2"].config(sizes)
      >>> loaded = Loaded(MODELS["gpt2"].build(spec, nnx.Rngs(0)), spec, MODELS["gpt2"], sizes)
      >>> both = complete_batch(loaded, [[3, 1, 4], [5]], 4)
      >>> both == complete_batch(loaded, [[3, 1, 4]], 4) + complete_batch(loaded, [[5]], 4)
      True
    """
    ends, (key, rule) = [*stop_tokens(loaded), *stop], _keys_and_rule(drawing, len(prompts))
    found = generate(loaded.model, steps=tokens, key=key, stop=ends, **_inputs(loaded, prompts), **rule)
    return [_until(row, ends) for row in np.asarray(found).tolist()]


def complete_texts(
    loaded: Loaded,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    tokens: int,
    *,
    stop_strings: str | Sequence[str] = (),
    **drawing: Unpack[Drawing],
) -> list[str]:
    """Returns the text that follows each prompt; a string is one prompt.

    The tokens are those of `complete_batch`. They are decoded with those of the prompt before them, because some tokenizers
    decode the first token differently (without the space before it).

    Args:
      loaded, tokenizer: as from `load` and `load_tokenizer`.
      prompts: texts that a decoder continues, or an encoder-decoder reads.
      tokens: the largest number of tokens to generate.
      stop_strings: the text ends before the first of them, also where it begins or ends within a token. A stop string that
        begins in the prompt does not count.
      drawing: temperature, top_k, top_p, min_p and seed, see `Drawing`.

    Raises:
      ValueError: as `complete_batch`, and for a stop string that is empty.

    Example, for a folder with weights (skipped as a test, which has none):
      >>> loaded, tokenizer = load("models/gpt2"), load_tokenizer("models/gpt2")  # doctest: +SKIP
      >>> complete_texts(loaded, tokenizer, ["The cat", "Once upon"], 4)  # doctest: +SKIP
      [' sat on the mat', ' a time there was']
    """
    prompts, stops = ([one] if isinstance(one, str) else list(one) for one in (prompts, stop_strings))
    if "" in stops:
        raise ModelError("a stop string must have at least one character, got ''")
    target = isinstance(loaded.model, Decoder)
    sources = [tokenizer.encode(one, continued=target) for one in prompts]
    found = complete_batch(loaded, sources, tokens, **drawing)
    return [_text(tokenizer, ids if target else [], more, stops) for ids, more in zip(sources, found, strict=True)]


def _text(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int], stops: Sequence[str]) -> str:
    """Returns the text of tokens behind others, up to the first stop string."""
    whole = tokenizer.decode([*before, *tokens])
    # Bytes that follow may change the last characters before them, which then belong to the text.
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(tokenizer.decode(before), whole, strict=False))
    text = whole[len(list(same)) :]
    return text[: min((at for at in map(text.find, stops) if at >= 0), default=None)]


def stop_tokens(loaded: Loaded) -> list[int]:
    """Returns the end tokens that generation_config.json declares, else config.json; none where neither does."""
    value = _declared("eos_token_id", _generation(loaded), loaded.json)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(one) is int and one >= 0 for one in values):
        raise ModelError(f"eos_token_id must be a token or a list of tokens, got {value!r:.100}")
    return [one for one in values if one < loaded.spec.config.vocab]


def _declared(name: str, *tables: Mapping[str, Any]) -> Any:
    return next((table[name] for table in tables if table.get(name) is not None), None)


def _generation(loaded: Loaded) -> Mapping[str, Any]:
    if loaded.folder is None or not (loaded.folder / GENERATION).exists():
        return {}
    return read_table(loaded.folder, GENERATION)


def _inputs(loaded: Loaded, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Returns prompts as arguments of `generate`: the beginning of the target, or the source of an encoder-decoder.

    Raises:
      ModelError: an encoder, no prompts, an empty one, or tokens outside the vocabulary.
    """
    model = loaded.model
    if not isinstance(model, Decoder | EncoderDecoder):
        raise ModelError(f"a {loaded.architecture.model_type} reads text and does not go on with it")
    tokens, valid = _padded(prompts, model.config.vocab)
    if isinstance(model, Decoder):
        return {"prompt": tokens, "valid": valid}
    first = _declared("decoder_start_token_id", loaded.json, _generation(loaded))
    if type(first) is not int:
        raise ModelError(f"config.json must say decoder_start_token_id, a token, got {first!r:.100}")
    return {"prompt": _padded([[first]] * len(prompts), model.config.vocab)[0], "source": tokens, "source_valid": valid}


def _padded(prompts: Sequence[Sequence[int]], vocab: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns tokens [B, T] with zeros behind the shorter prompts, and where they are no padding, None if there is none."""
    if len(prompts) == 0:
        raise ModelError("there must be at least one prompt, got none")
    for number, prompt in enumerate(prompts, 1):
        if len(prompt) == 0:
            raise ModelError(f"prompt {number} has no tokens")
        for token in prompt:
            if not 0 <= token < vocab:
                raise ModelError(f"token {token!r:.100} is not in the model's vocabulary, 0..{vocab - 1}")
    lengths = np.array([len(prompt) for prompt in prompts])
    valid = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.zeros(valid.shape, np.int32)
    tokens[valid] = np.concatenate([np.asarray(prompt, np.int32) for prompt in prompts])
    return tokens, None if valid.all() else valid


def _keys_and_rule(drawing: Mapping[str, Any], rows: int) -> tuple[jax.Array | None, dict[str, Any]]:
    """Returns a key for each row, of the seeds seed, seed + 1, ... modulo 2^32, and the other options."""
    rule = dict(drawing)
    seed = rule.pop("seed", 0)
    return jnp.stack([jax.random.key((seed + row) % SEEDS) for row in range(rows)]) if rows else None, rule


def _until(tokens: Sequence[int], stops: Sequence[int]) -> list[int]:
    """Returns the tokens before the first end token. Raises ModelError for -1, which marks logits that are NaN."""
    found = list(tokens[: next((i for i, token in enumerate(tokens) if token in stops), len(tokens))])
    if any(token < 0 for token in found):
        raise ModelError("logits are NaN; a wider dtype, such as float32, may help")
    return found
