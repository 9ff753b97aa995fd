"""Completes texts, as pieces while tokens are made or as a whole, up to a stop string, an end token or a number of tokens.

    for piece in stream(loaded, tokenizer, "Once upon a time", 100):
        print(piece, end="", flush=True)

Tokens come from the compiled loop a few at a time (`generate_chunks`). Between its calls the text so far is decoded here, its
settled part is passed on, and rows that contain a stop string end. `complete_texts` joins the pieces that `stream` yields.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from attnjax.models.completion import inputs, row_keys, stop_tokens, until
from attnjax.models.continuation import Continuation
from attnjax.models.errors import ModelError
from attnjax.models.folder import Loaded
from attnjax.models.tokens import Tokenizer
from attnjax.modules import Decoder
from attnjax.modules.generate import generate_chunks, sampling
from attnjax.positions.checks import validate_integer

CHUNK = 8
"""Tokens between two looks at the text."""


def stream(
    loaded: Loaded,
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int,
    *,
    stop_strings: Sequence[str] = (),
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int = 0,
    chunk: int = CHUNK,
) -> Iterator[str]:
    """Yields the text that follows a prompt in pieces, `chunk` tokens or fewer at a time.

    A piece never ends within a character: bytes of an unfinished one wait for the rest. What may be the beginning of a stop
    string waits as well. The pieces together are the text of `complete_texts`.

    Args:
      loaded, tokenizer: as from `load` and `load_tokenizer`.
      prompt: what a decoder continues, or an encoder-decoder reads.
      tokens: the largest number of tokens to generate.
      stop_strings: the text ends before the first of them, also where it begins or ends within a token. A stop string that
        begins in the prompt does not count.
      temperature, top_k, top_p, min_p, seed: as in `complete_batch`.
      chunk: the largest number of tokens between pieces. All chunks share one compiled program.

    Raises:
      ValueError: as `complete_batch`, and for a stop string that is empty. Errors come with the first piece.

    Example, for a folder with weights (skipped as a test, which has none):
      >>> loaded, tokenizer = load("models/gpt2"), load_tokenizer("models/gpt2")  # doctest: +SKIP
      >>> "".join(stream(loaded, tokenizer, "The cat", 8, stop_strings=["."]))  # doctest: +SKIP
      ' sat on the mat'
    """
    rule: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    (row,) = start(loaded, tokenizer, [prompt], stop_strings)
    for (piece,) in pieces(loaded, [row], tokens, rule, seed, chunk):
        if piece:
            yield piece


def complete_texts(
    loaded: Loaded,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    tokens: int,
    *,
    stop_strings: Sequence[str] = (),
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int = 0,
) -> list[str]:
    """Returns the text that follows each prompt; prompts of any lengths are one batch.

    Args and Raises are those of `stream`. Prompt i draws with seed + i, as in `complete_batch`.

    Example, for a folder with weights (skipped as a test, which has none):
      >>> loaded, tokenizer = load("models/gpt2"), load_tokenizer("models/gpt2")  # doctest: +SKIP
      >>> complete_texts(loaded, tokenizer, ["The cat", "Once upon"], 4)  # doctest: +SKIP
      [' sat on the mat', ' a time there was']
    """
    rule: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    rows = start(loaded, tokenizer, prompts, stop_strings)
    for _ in pieces(loaded, rows, tokens, rule, seed):
        pass
    return [row.text for row in rows]


def start(
    loaded: Loaded, tokenizer: Tokenizer, prompts: Sequence[str], stop_strings: Sequence[str]
) -> list[Continuation]:
    """Returns a text that has not grown yet for each prompt."""
    for one in stop_strings:
        if not isinstance(one, str) or not one:
            raise ModelError(f"a stop string must be a text with at least one character, got {one!r}")
    target = isinstance(loaded.model, Decoder)
    return [Continuation(tokenizer, tokenizer.encode(text), tuple(stop_strings), target) for text in prompts]


def pieces(
    loaded: Loaded, rows: Sequence[Continuation], tokens: int, rule: dict[str, Any], seed: int, chunk: int = CHUNK
) -> Iterator[list[str]]:
    """Yields what each row has got more, after every chunk of tokens; the rows grow meanwhile."""
    validate_integer("stream", tokens=tokens, chunk=chunk)
    given, ends = inputs(loaded, [row.prompt for row in rows]), stop_tokens(loaded)
    parts = generate_chunks(
        loaded.model,
        given.prompt,
        tokens,
        sampling(loaded.spec.config.vocab, **rule, stop=ends),
        size=chunk,
        ended=lambda: [row.ended for row in rows],
        valid=given.valid,
        source=given.source,
        source_valid=given.source_valid,
        key=row_keys(seed, len(rows)),
    )
    for part in parts:
        found = [until(new, ends, len(row.tokens)) for row, new in zip(rows, part.tolist(), strict=True)]
        yield [row.add(new, last=len(new) < part.shape[1]) for row, new in zip(rows, found, strict=True)]
    yield [row.finish() for row in rows]
