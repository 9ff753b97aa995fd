"""Converts text to tokens and back, with the tokenizer.json of a folder and the library `tokenizers`."""

import importlib
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnjax.models.errors import DamagedFile, MissingPackage
from attnjax.models.files import existing_folder, inside, read_bytes

TOKENIZER = "tokenizer.json"
SIZE = 64 * 2**20
"""The largest tokenizer.json that is read, in bytes; one with 256,000 tokens has 33 MB."""
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
"""Tokens of tokenizers with byte fallback."""


class Tokenizer:
    """A tokenizer as tokenizer.json describes it, without the truncation and padding that the file may ask for.

    Example, for a folder with tokenizer.json (skipped as a test, which has no such file):
      >>> tokenizer = load_tokenizer("models/gpt2")  # doctest: +SKIP
      >>> tokenizer.decode(tokenizer.encode("The cat sat"))  # doctest: +SKIP
      'The cat sat'
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer

    @property
    def size(self) -> int:
        """The number of tokens, added ones included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, specials: bool = True) -> list[int]:
        """Returns token ids; with `specials` also those that the model expects at the start or the end of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=specials).ids)

    def decode(self, tokens: Sequence[int], *, specials: bool = False) -> str:
        """Returns text, without special tokens unless `specials`. Raises ValueError for negative ids."""
        if any(token < 0 for token in tokens):
            raise ValueError(f"a token must be at least 0, got {min(tokens)}")
        return self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=not specials)

    def settled(self, tokens: Sequence[int]) -> str:
        """Returns the beginning of `decode(tokens)` that stays whatever tokens follow.

        Left out are the bytes of an unfinished character at the end, and all tokens of single bytes there (`<0xE4>`), because
        such a run is decoded as a whole.
        """
        count = len(tokens)
        while count and BYTE.fullmatch(self._tokenizer.id_to_token(int(tokens[count - 1])) or ""):
            count -= 1
        return self.decode(tokens[:count]).rstrip("\N{REPLACEMENT CHARACTER}")

    def starts(self, text: str) -> list[int]:
        """Returns how many bytes of the text, in UTF-8, come before the characters of each token of `encode(text)`."""
        sizes = np.cumsum([0, *(len(one.encode()) for one in text)])
        return [int(sizes[begin]) for begin, _ in self._tokenizer.encode(text, add_special_tokens=True).offsets]


def load_tokenizer(folder: str | pathlib.Path) -> Tokenizer:
    """Returns the tokenizer of a folder.

    Raises:
      MissingPackage: the library `tokenizers` is not installed.
      DamagedFile: tokenizer.json is missing, too large, or no tokenizer.

    Example, for a folder with tokenizer.json (skipped as a test, which has no such file):
      >>> load_tokenizer("models/gpt2").encode("The cat sat")  # doctest: +SKIP
      [464, 3797, 3332]
    """
    root = existing_folder(folder)
    path = root / TOKENIZER
    if not path.exists():
        raise DamagedFile(
            f"{root} has no {TOKENIZER}. Where transformers is installed, "
            "transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes one"
        )
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        text = "text needs the library tokenizers: pip install 'attnjax[models]'; token ids work without it"
        raise MissingPackage(text) from None
    data = read_bytes(inside(root, TOKENIZER), SIZE)
    try:
        tokenizer = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises bare Exception, and panics of Rust are no Exception
        raise DamagedFile(f"{path} is no tokenizer: {type(error).__name__} {str(error)[:200]}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Tokenizer(tokenizer)
