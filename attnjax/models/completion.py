"""Completes a text with a published model: greedy or sampled decoding, up to the end token that the folder declares."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from attnjax.models.errors import DamagedFile, ModelError
from attnjax.models.files import inside, read_table, shown
from attnjax.models.folder import Loaded
from attnjax.modules import Decoder, EncoderDecoder, generate

GENERATION = "generation_config.json"


def complete(
    loaded: Loaded,
    prompt: Sequence[int],
    tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
) -> list[int]:
    """Returns at most `tokens` token ids that follow the prompt, without the end token.

    A decoder continues the prompt; an encoder-decoder takes it as its source.

    Args:
      loaded: a decoder or an encoder-decoder.
      prompt: token ids.
      tokens: the largest number of tokens to generate.
      temperature, top_k: as in `attnjax.modules.generate`.
      seed: of the draws at a temperature above 0.

    Raises:
      ValueError: an empty prompt, tokens outside the vocabulary, more tokens than the model has positions, an encoder,
        or logits that are NaN.

    Example:
      >>> from attnjax.models import MODELS
      >>> from flax import nnx
      >>> sizes = {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
      >>> spec = MODELS["gpt2"].config(sizes)
      >>> loaded = Loaded(MODELS["gpt2"].build(spec, nnx.Rngs(0)), spec, MODELS["gpt2"])
      >>> len(complete(loaded, [3, 1, 4], 5))
      5
    """
    model, stops = loaded.model, stop_tokens(loaded)
    if not isinstance(model, Decoder | EncoderDecoder):
        raise ModelError(f"a {loaded.architecture.model_type} reads text and does not go on with it")
    if len(prompt) == 0:
        raise ModelError("the prompt has no tokens")
    given = _batch(prompt, model.config.vocab)
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "stop": stops[0] if stops else None}
    options["key"] = jax.random.key(seed)
    if isinstance(model, EncoderDecoder):
        options["source"], given = given, _batch([_first(loaded)], model.config.vocab)
    out = np.asarray(generate(model, given, tokens, **options))[0].tolist()
    return _until(out, stops)


def stop_tokens(loaded: Loaded) -> list[int]:
    """Returns the end tokens that generation_config.json declares, else config.json; none where neither does."""
    found = [table.get("eos_token_id") for table in (_generation(loaded), loaded.json)]
    value = next((value for value in found if value is not None), [])
    values = value if isinstance(value, list) else [value]
    if not all(type(one) is int and one >= 0 for one in values):
        raise DamagedFile(f"eos_token_id must be a token or a list of tokens, got {shown(value)}")
    return [one for one in values if one < loaded.spec.config.vocab]


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


def _batch(tokens: Sequence[int], vocab: int) -> np.ndarray:
    wrong = next((token for token in tokens if not 0 <= token < vocab), None)
    if wrong is not None:
        raise ModelError(f"token {shown(wrong)} is not in the model's vocabulary, 0..{vocab - 1}")
    return np.array([tokens], np.int32)


def _until(tokens: list[int], stops: list[int]) -> list[int]:
    """Returns the tokens before the first end token. Raises ModelError for -1, which marks logits that are NaN."""
    found = tokens[: next((i for i, token in enumerate(tokens) if token in stops), len(tokens))]
    if any(token < 0 for token in found):
        raise ModelError(f"logits are NaN after {found.index(-1)} tokens; a wider dtype, such as float32, may help")
    return found
