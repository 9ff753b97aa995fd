"""The command `attnjax generate`: continues texts with a published model."""

import argparse
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from attnjax.cli.compilation_cache import keep_programs

LISTED = 5
"""Largest number of names in a line about parameters or weights."""
MOST_BYTES = 2**24
"""A file of prompts with more bytes than this is refused."""


def generate(arguments: argparse.Namespace) -> int:
    """`attnjax generate FOLDER PROMPT...`: prints the texts, or with --ids the tokens."""
    prompts = _prompts(arguments)
    ids = [_ids(text) for text in prompts] if arguments.ids else []
    keep_programs()
    fields = _fields(arguments.encoding, arguments.option)

    from attnjax.models import complete_batch, load, load_tokenizer
    from attnjax.models.text_completion import start

    # Before the weights, which take longer: whatever is wrong with the tokenizer is said at once.
    tokenizer = None if arguments.ids else load_tokenizer(arguments.folder)
    loaded = load(arguments.folder, dtype=arguments.dtype, fields=fields)
    for line in changed(loaded.new, loaded.unused):
        print(line, file=sys.stderr)
    rule = {name: getattr(arguments, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    begin = time.perf_counter()
    if tokenizer is None:
        found = complete_batch(loaded, ids, arguments.tokens, **rule, seed=arguments.seed)
        for tokens in found:
            print(*tokens)
        made = sum(map(len, found))
    else:
        rows = start(loaded, tokenizer, prompts, arguments.stop)
        _print_texts(loaded, rows, arguments, rule)
        made = sum(len(row.tokens) for row in rows)
    print(f"{made} tokens in {time.perf_counter() - begin:.2f} s, compilation included", file=sys.stderr)
    return 0


def _print_texts(loaded: Any, rows: Sequence[Any], arguments: argparse.Namespace, rule: dict[str, Any]) -> None:
    """Print each text after its prompt, at once or as it is made; several have a line with their number before each."""
    from attnjax.models.text_completion import pieces

    parts = pieces(loaded, rows, arguments.tokens, rule, arguments.seed)
    if arguments.stream:
        shown = ""
        for _ in parts:
            text = printable(rows[0].begin + rows[0].text)
            print(text[len(shown) :], end="", flush=True)
            shown = text
        print()
        return
    for _ in parts:
        pass
    for number, row in enumerate(rows, 1):
        if len(rows) > 1:
            print(f"--- {number} ---")
        print(printable(row.begin + row.text))


def changed(new: Sequence[str], unused: Sequence[str]) -> list[str]:
    """Lines about parameters that stay random, and about weights that are not used, with another encoding."""
    told = (("random parameters, which the files do not have", new), ("weights in the files that are not used", unused))
    return [f"{what}: {', '.join(names[:LISTED])}{_more(names)}" for what, names in told if names]


def printable(text: str) -> str:
    """Text without control characters, which a terminal would obey."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - LISTED} more" if len(names) > LISTED else ""


def _prompts(arguments: argparse.Namespace) -> list[str]:
    """The prompts of the command line, or of the files that it names, after a check of options that exclude each other."""
    prompts = list(arguments.prompt)
    if arguments.from_file:
        prompts = [line for name in arguments.prompt for line in _lines(pathlib.Path(name))]
    if arguments.stream and len(prompts) > 1:
        raise ValueError(f"--stream shows one text, got {len(prompts)} prompts")
    for option, chosen in (("--stream", arguments.stream), ("--stop", arguments.stop)):
        if chosen and arguments.ids:
            raise ValueError(f"{option} is about text, and --ids needs no tokenizer: leave one of them out")
    return prompts


def _lines(path: pathlib.Path) -> list[str]:
    """The lines of a file. Raises ValueError where it cannot be read, is no UTF-8, or has an empty line."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"{path} has more than {MOST_BYTES} bytes, the most that a file of prompts may have")
        lines = data.decode("utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: byte {error.start} is no part of a character") from None
    lines = [line.removesuffix("\r") for line in lines]
    if "" in lines:
        raise ValueError(f"line {lines.index('') + 1} of {path} is empty: each line must be a prompt")
    return lines


def _fields(encoding: str | None, options: Sequence[str]) -> dict[str, Any]:
    """Fields of the model's config from --encoding and --option, and the window that the encoding is made for."""
    if encoding is None:
        if options:
            raise ValueError("--option needs --encoding NAME")
        return {}
    from attnjax.config.overrides import read_value, split_override
    from attnjax.config.schema import EncodingConfig, Options
    from attnjax.modules.config import visible_fields
    from attnjax.train.model import encoding as made

    pairs = [split_override(text) for text in options]
    values = {key: read_value(value, Any) for key, value in pairs}
    found = made(EncodingConfig(encoding, Options(values, path="--option")))
    return {"encoding": found, **visible_fields(found)}


def _ids(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    wrong = next((word for word in words if not (word.isascii() and word.isdecimal() and len(word) < 10)), None)
    if wrong is not None:
        raise ValueError(f"with --ids the prompt must be token ids such as '464 3290', got {wrong[:40]!r}")
    return [int(word) for word in words]
