"""Completes texts with a published model: greedy or sampled decoding, up to the end tokens that the folder declares.

`complete` and `complete_batch` take and return token ids, in one compiled program; `text_completion.py` completes texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.models.errors import DamagedFile, ModelError
from attnjax.models.files import inside, read_table, shown
from attnjax.models.folder import Loaded
from attnjax.modules import Decoder, EncoderDecoder, generate
from attnjax.typing import Bool, Int

GENERATION = "generation_config.json"
SEEDS = 2**32


class Inputs(NamedTuple):
    """Prompts as arguments of `generate`: right-padded, and where they are valid if their lengths differ."""

    prompt: Int[np.ndarray, "B T"]
    valid: Bool[np.ndarray, "B T"] | None = None
    source: Int[np.ndarray, "B S"] | None = None
    source_valid: Bool[np.ndarray, "B S"] | None = None


def complete_batch(
    loaded: Loaded,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    stop: Sequence[int] = (),
    seed: int = 0,
) -> list[list[int]]:
    """Returns, for each prompt, at most `tokens` token ids that follow it, without the end token, from one compiled program.

    A decoder continues the prompts; an encoder-decoder takes them as its sources. They may differ in length.

    Args:
      loaded: a decoder or an encoder-decoder.
      prompts: token ids.
      tokens: the largest number of tokens to generate.
      temperature, top_k, top_p, min_p: as in `attnjax.modules.generate`.
      stop: tokens that end a prompt's row, besides those that the folder declares.
      seed: of the draws at a temperature above 0. Prompt i draws with seed + i (modulo 2^32), whatever the other prompts are.

    Raises:
      ValueError: no prompts, an empty one, tokens outside the vocabulary, more tokens than the model has positions, an
        encoder, or logits that are NaN.

    Example:
      >>> from attnjax.models import MODELS
      >>> from flax import nnx
      >>> sizes = {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
      >>> spec = MODELS["gpt2"].config(sizes)
      >>> loaded = Loaded(MODELS["gpt2"].build(spec, nnx.Rngs(0)), spec, MODELS["gpt2"])
      >>> both = complete_batch(loaded, [[3, 1, 4], [5]], 4)
      >>> both == [complete(loaded, [3, 1, 4], 4), complete(loaded, [5], 4)]
      True
    """
    given = inputs(loaded, prompts)
    ends = [*stop_tokens(loaded), *stop]
    rule: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    found = generate(
        loaded.model,
        given.prompt,
        tokens,
        valid=given.valid,
        source=given.source,
        source_valid=given.source_valid,
        **rule,
        stop=ends,
        key=row_keys(seed, len(prompts)),
    )
    return [until(row, ends) for row in np.asarray(found).tolist()]


def complete(
    loaded: Loaded,
    prompt: Sequence[int],
    tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    stop: Sequence[int] = (),
    seed: int = 0,
) -> list[int]:
    """Returns what `complete_batch` does for a prompt alone; it says what the arguments are, and what it raises.

    Example:
      >>> from attnjax.models import MODELS
      >>> from flax import nnx
      >>> spec = MODELS["gpt2"].config({"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16})
      >>> loaded = Loaded(MODELS["gpt2"].build(spec, nnx.Rngs(0)), spec, MODELS["gpt2"])
      >>> len(complete(loaded, [3, 1, 4], 5))
      5
    """
    rule: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    return complete_batch(loaded, [prompt], tokens, **rule, stop=stop, seed=seed)[0]


def inputs(loaded: Loaded, prompts: Sequence[Sequence[int]]) -> Inputs:
    """Returns prompts as arrays: the beginning of the target, or the source of an encoder-decoder.

    Raises:
      ModelError: an encoder, no prompts, an empty one, or tokens outside the vocabulary.
    """
    model = loaded.model
    if not isinstance(model, Decoder | EncoderDecoder):
        raise ModelError(f"a {loaded.architecture.model_type} reads text and does not go on with it")
    if len(prompts) == 0:
        raise ModelError("there must be at least one prompt, got none")
    for number, prompt in enumerate(prompts, 1):
        if len(prompt) == 0:
            raise ModelError("the prompt has no tokens" if len(prompts) == 1 else f"prompt {number} has no tokens")
    tokens, valid = _batch(prompts, model.config.vocab)
    if isinstance(model, Decoder):
        return Inputs(tokens, valid)
    first, _ = _batch([[_first(loaded)]] * len(prompts), model.config.vocab)
    return Inputs(first, None, tokens, valid)


def row_keys(seed: int, rows: int) -> jax.Array:
    """Returns a key for each row, of the seeds seed, seed + 1, ... modulo 2^32."""
    return jnp.stack([jax.random.key((seed + row) % SEEDS) for row in range(rows)])


def stop_tokens(loaded: Loaded) -> list[int]:
    """Returns the end tokens that generation_config.json declares, else config.json; none where neither does."""
    found = [table.get("eos_token_id") for table in (_generation(loaded), loaded.json)]
    value = next((value for value in found if value is not None), [])
    values = value if isinstance(value, list) else [value]
    if not all(type(one) is int and one >= 0 for one in values):
        raise DamagedFile(f"eos_token_id must be a token or a list of tokens, got {shown(value)}")
    return [one for one in values if one < loaded.spec.config.vocab]


def until(tokens: Sequence[int], stops: Sequence[int], before: int = 0) -> list[int]:
    """Returns the tokens before the first end token.

    Raises:
      ModelError: -1, which marks logits that are NaN; it says after how many tokens, with the `before` that came earlier.
    """
    found = list(tokens[: next((i for i, token in enumerate(tokens) if token in stops), len(tokens))])
    if any(token < 0 for token in found):
        raise ModelError(
            f"logits are NaN after {before + found.index(-1)} tokens; a wider dtype, such as float32, may help"
        )
    return found


def _generation(loaded: Loaded) -> Mapping[str, Any]:
    if loaded.folder is None or not (loaded.folder / GENERATION).exists():
        return {}
    return read_table(inside(loaded.folder, GENERATION))


def _first(loaded: Loaded) -> int:
    """Returns the first token of the target of an encoder-decoder."""
    found = [table.get("decoder_start_token_id") for table in (loaded.json, _generation(loaded))]
    value = next((value for value in found if value is not None), None)
    if type(value) is not int:
        raise DamagedFile(f"config.json must say decoder_start_token_id, a token, got {shown(value)}")
    return value


def _batch(prompts: Sequence[Sequence[int]], vocab: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns tokens with zeros behind the shorter prompts, and where they are no padding, None if there is none."""
    wrong = next((token for prompt in prompts for token in prompt if not 0 <= token < vocab), None)
    if wrong is not None:
        raise ModelError(f"token {shown(wrong)} is not in the model's vocabulary, 0..{vocab - 1}")
    lengths = np.array([len(prompt) for prompt in prompts])
    valid = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.zeros(valid.shape, np.int32)
    tokens[valid] = np.concatenate([np.asarray(prompt, np.int32) for prompt in prompts])
    return tokens, None if valid.all() else valid
