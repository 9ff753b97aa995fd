"""The command `attnjax generate`: continues a text with a published model."""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from attnjax.cli.compilation_cache import keep_programs

LISTED = 5
"""Largest number of names in a line about parameters or weights."""


def generate(arguments: argparse.Namespace) -> int:
    """`attnjax generate FOLDER PROMPT`: prints the text, or with --ids the tokens."""
    prompt = _ids(arguments.prompt) if arguments.ids else None
    keep_programs()
    fields = _fields(arguments.encoding, arguments.option)

    from attnjax.models import complete, load, load_tokenizer
    from attnjax.modules import EncoderDecoder

    # Before the weights, which take longer: whatever is wrong with the tokenizer or the prompt is said at once.
    tokenizer = None if prompt is not None else load_tokenizer(arguments.folder)
    given = tokenizer.encode(arguments.prompt) if tokenizer is not None else prompt
    assert given is not None
    loaded = load(arguments.folder, dtype=arguments.dtype, fields=fields)
    for line in changed(loaded.new, loaded.unused):
        print(line, file=sys.stderr)
    options = {"temperature": arguments.temperature, "top_k": arguments.top_k, "seed": arguments.seed}
    begin = time.perf_counter()
    tokens = complete(loaded, given, arguments.tokens, **options)
    seconds = time.perf_counter() - begin
    if tokenizer is None:
        print(*tokens)
    else:
        print(printable(tokenizer.decode(tokens if isinstance(loaded.model, EncoderDecoder) else [*given, *tokens])))
    print(f"{len(tokens)} tokens in {seconds:.2f} s, compilation included", file=sys.stderr)
    return 0


def changed(new: Sequence[str], unused: Sequence[str]) -> list[str]:
    """Lines about parameters that stay random, and about weights that are not used, with another encoding."""
    told = (("random parameters, which the files do not have", new), ("weights in the files that are not used", unused))
    return [f"{what}: {', '.join(names[:LISTED])}{_more(names)}" for what, names in told if names]


def printable(text: str) -> str:
    """Text without control characters, which a terminal would obey."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - LISTED} more" if len(names) > LISTED else ""


def _fields(encoding: str | None, options: Sequence[str]) -> dict[str, Any]:
    """Fields of the model's config from --encoding and --option."""
    if encoding is None:
        if options:
            raise ValueError("--option needs --encoding NAME")
        return {}
    from attnjax.config.overrides import read_value, split_override
    from attnjax.config.schema import EncodingConfig, Options
    from attnjax.train.model import encoding as made

    pairs = [split_override(text) for text in options]
    values = {key: read_value(value, Any, key) for key, value in pairs}
    return {"encoding": made(EncodingConfig(encoding, Options(values, path="--option")))}


def _ids(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    wrong = next((word for word in words if not (word.isascii() and word.isdecimal() and len(word) < 10)), None)
    if wrong is not None:
        raise ValueError(f"with --ids the prompt must be token ids such as '464 3290', got {wrong[:40]!r}")
    return [int(word) for word in words]
