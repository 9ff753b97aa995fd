"""Continues prompts with a published model: token ids and texts as one batch, and a text in pieces as tokens are made.

    for piece in stream(loaded, tokenizer, "Once upon a time", 100):
        print(piece, end="", flush=True)

Decoding is greedy or draws tokens, and ends at the end tokens that the folder declares. Prompts of any lengths are one batch,
and each has the result that it has alone. For texts, tokens come from the compiled loop a few at a time; between its calls
the text so far is decoded, and rows that contain a stop string end.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.models.files import ModelError, read_table
from attnjax.models.loading import Loaded
from attnjax.models.tokens import Tokenizer
from attnjax.modules import Decoder, EncoderDecoder, generate
from attnjax.modules.generate import generate_chunks, sampling
from attnjax.positions.checks import validate_integer

GENERATION = "generation_config.json"
SEEDS = 2**32
CHUNK = 8
"""Tokens between two looks at the text."""


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
      >>> loaded = Loaded(MODELS["gpt2"].build(spec, nnx.Rngs(0)), spec, MODELS["gpt2"])
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
    """Returns the text that follows each prompt; a string is one prompt. Args and Raises are those of `stream`.

    Example, for a folder with weights (skipped as a test, which has none):
      >>> loaded, tokenizer = load("models/gpt2"), load_tokenizer("models/gpt2")  # doctest: +SKIP
      >>> complete_texts(loaded, tokenizer, ["The cat", "Once upon"], 4)  # doctest: +SKIP
      [' sat on the mat', ' a time there was']
    """
    rows = start(loaded, tokenizer, prompts, stop_strings)
    for _ in pieces(loaded, rows, tokens, **drawing):
        pass
    return [row.text for row in rows]


def stream(
    loaded: Loaded,
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int,
    *,
    stop_strings: str | Sequence[str] = (),
    **drawing: Unpack[Drawing],
) -> Iterator[str]:
    """Yields the text that follows a prompt in pieces, eight tokens or fewer at a time, all by one compiled program.

    A piece never ends within a character: bytes of an unfinished one wait for the rest. What may be the beginning of a stop
    string waits as well. The pieces together are the text of `complete_texts`.

    Args:
      loaded, tokenizer: as from `load` and `load_tokenizer`.
      prompt: what a decoder continues, or an encoder-decoder reads.
      tokens: the largest number of tokens to generate.
      stop_strings: the text ends before the first of them, also where it begins or ends within a token. A stop string that
        begins in the prompt does not count.
      drawing: temperature, top_k, top_p, min_p and seed, see `Drawing`.

    Raises:
      ValueError: as `complete_batch`, and for a stop string that is empty. Errors come with the first piece.

    Example, for a folder with weights (skipped as a test, which has none):
      >>> loaded, tokenizer = load("models/gpt2"), load_tokenizer("models/gpt2")  # doctest: +SKIP
      >>> "".join(stream(loaded, tokenizer, "The cat", 8, stop_strings=["."]))  # doctest: +SKIP
      ' sat on the mat'
    """
    (row,) = start(loaded, tokenizer, prompt, stop_strings)
    for (piece,) in pieces(loaded, [row], tokens, **drawing):
        if piece:
            yield piece


class Continuation:
    """A text behind a prompt. It has no arrays, and is changed by `add` and `finish` alone.

    The text is decoded with the tokens of the prompt before it, because some tokenizers decode the first token differently
    (without the space before it). Its settled part, which no later token can change, grows only.

    Args:
      tokenizer: decodes tokens.
      prompt: token ids.
      stops: the text ends before the first of these strings, as soon as a token completes one.
      target: whether the text continues the prompt; that of an encoder-decoder does not.

    Attributes:
      prompt, tokens: the ids of the prompt, and of what follows, without an end token. With a stop string, the last token is
        the one that completed it.
      begin: the text of the prompt.
      text: what has been passed on so far.
      ended: whether no more tokens are needed.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str] = (), target: bool = True):
        self.prompt = list(prompt)
        self.tokens: list[int] = []
        self.text, self.ended = "", False
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._context = self.prompt if target else []
        self.begin = tokenizer.settled(self._context)

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """Returns what the tokens add to the settled text; `last` says that an end token followed them."""
        if self.ended:
            return ""
        for token in tokens:  # one at a time, so that the text does not depend on how many come together
            self.tokens.append(token)
            if self._find(self._settled()) is not None:
                return self.finish()
        if last:
            return self.finish()
        # The end of the text waits where a stop string may have begun.
        text = self._settled()
        begun = (size for stop in self._stops for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size]))
        return self._pass(text[: len(text) - max(begun, default=0)])

    def finish(self) -> str:
        """Returns what has not been passed on, when no more tokens come."""
        if self.ended:
            return ""
        self.ended = True
        text = self._after(self._tokenizer.decode([*self._context, *self.tokens]))
        return self._pass(text[: self._find(text)])

    def _settled(self) -> str:
        return self._after(self._tokenizer.settled([*self._context, *self.tokens]))

    def _after(self, text: str) -> str:
        """Returns a text without that of the prompt, with which it begins."""
        if not text.startswith(self.begin):
            raise ModelError("the tokenizer writes the prompt differently when tokens follow: use token ids instead")
        return text[len(self.begin) :]

    def _find(self, text: str) -> int | None:
        """Returns where the first stop string begins, None where there is none."""
        return min((at for at in map(text.find, self._stops) if at >= 0), default=None)

    def _pass(self, text: str) -> str:
        """Returns what a text has more than what was passed on, and passes it on."""
        if not text.startswith(self.text):
            raise ModelError("the tokenizer changes text that was settled when tokens follow: use token ids instead")
        piece, self.text = text[len(self.text) :], text
        return piece


def start(
    loaded: Loaded, tokenizer: Tokenizer, prompts: str | Sequence[str], stop_strings: str | Sequence[str] = ()
) -> list[Continuation]:
    """Returns a text that has not grown yet for each prompt. Raises ValueError for a stop string that is empty."""
    prompts, stops = ([one] if isinstance(one, str) else list(one) for one in (prompts, stop_strings))
    if "" in stops:
        raise ModelError("a stop string must have at least one character, got ''")
    target = isinstance(loaded.model, Decoder)
    return [Continuation(tokenizer, tokenizer.encode(one, continued=target), stops, target) for one in prompts]


def pieces(
    loaded: Loaded, rows: Sequence[Continuation], tokens: int, **drawing: Unpack[Drawing]
) -> Iterator[list[str]]:
    """Yields what each row has got more, after every chunk of tokens; the rows grow meanwhile."""
    validate_integer("stream", tokens=tokens)
    ends, (key, rule) = stop_tokens(loaded), _keys_and_rule(drawing, len(rows))
    parts = generate_chunks(
        loaded.model,
        steps=tokens,
        rule=sampling(loaded.spec.config.vocab, stop=ends, **rule),
        size=CHUNK,
        ended=lambda: [row.ended for row in rows],
        key=key,
        **_inputs(loaded, [row.prompt for row in rows]),
    )
    for part in parts:
        found = [_until(new, ends) for new in part.tolist()]
        yield [row.add(new, last=len(new) < part.shape[1]) for row, new in zip(rows, found, strict=True)]
    yield [row.finish() for row in rows]


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
