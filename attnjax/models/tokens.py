"""Converts text to tokens and back, with the tokenizer.json of a folder and the library `tokenizers`.

Special tokens around a text are those of tokenizer.json, changed by `add_bos_token` and `add_eos_token` of
tokenizer_config.json where these are given, as `AutoTokenizer` of transformers does. A text that begins with them already
does not get them twice, and a text that is to be continued has none behind it.
"""

import importlib
import pathlib
from collections.abc import Sequence
from typing import Any

from attnjax.models.files import ModelError, read_bytes, read_table

TOKENIZER = "tokenizer.json"
CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
SIZE = 64 * 2**20
"""The largest tokenizer.json that is read, in bytes; one with 256,000 tokens has 33 MB."""


class Tokenizer:
    """A tokenizer as its folder describes it, without the truncation and padding that the file may ask for.

    Attributes:
      before, after: the special tokens that belong in front of a text and behind it.

    Example, for a folder with tokenizer.json (skipped as a test, which has no such file):
      >>> tokenizer = load_tokenizer("models/gpt2")  # doctest: +SKIP
      >>> tokenizer.decode(tokenizer.encode("The cat sat"))  # doctest: +SKIP
      'The cat sat'
    """

    def __init__(self, tokenizer: Any, before: Sequence[int] = (), after: Sequence[int] = ()):
        self._tokenizer = tokenizer
        self.before, self.after = list(before), list(after)

    def encode(self, text: str, *, continued: bool = False) -> list[int]:
        """Returns token ids, with the special tokens before and behind a text that does not begin or end with them.

        `continued` says that the text goes on: nothing is put behind it, because a model that has read its end token says
        something new.
        """
        ids = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        before = self.before if ids[:1] != self.before[:1] else []
        after = self.after if not continued and ids[-1:] != self.after[-1:] else []
        return [*before, *ids, *after]

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns text, without special tokens."""
        return self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=True)


def load_tokenizer(folder: str | pathlib.Path) -> Tokenizer:
    """Returns the tokenizer of a folder.

    Raises:
      ModelError: the library `tokenizers` is not installed; tokenizer.json is missing, too large, or no tokenizer.

    Example, for a folder with tokenizer.json (skipped as a test, which has no such file):
      >>> load_tokenizer("models/gpt2").encode("The cat sat")  # doctest: +SKIP
      [464, 3797, 3332]
    """
    root = pathlib.Path(folder).resolve()
    path = root / TOKENIZER
    if not path.exists():
        raise ModelError(
            f"{root} has no {TOKENIZER}. Where transformers is installed, "
            "transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes one"
        )
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        text = "text needs the library tokenizers: pip install 'attnjax[models]'; token ids work without it"
        raise ModelError(text) from None
    data = read_bytes(root, TOKENIZER, SIZE)
    try:
        tokenizer = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises bare Exception, and panics of Rust are no Exception
        raise ModelError(f"{path} is no tokenizer: {type(error).__name__} {str(error)[:200]}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Tokenizer(tokenizer, *_around(tokenizer, root))


def _around(tokenizer: Any, root: pathlib.Path) -> tuple[list[int], list[int]]:
    """Returns the special tokens in front of a text and behind it."""
    probe = tokenizer.encode("a")
    own = [i for i, part in enumerate(probe.sequence_ids) if part is not None] or [len(probe.ids)]
    before, after = probe.ids[: own[0]], probe.ids[own[-1] + 1 :]
    tables = [read_table(root, name) for name in CONFIGS if (root / name).exists()]
    for name, ids in (("bos", before), ("eos", after)):
        wanted = next((table[f"add_{name}_token"] for table in tables if f"add_{name}_token" in table), None)
        if wanted is None:
            continue
        word = next((table[f"{name}_token"] for table in tables if table.get(f"{name}_token")), None)
        token = tokenizer.token_to_id(str(word["content"] if isinstance(word, dict) else word))
        if wanted and token is None:
            raise ModelError(
                f"{root / CONFIGS[0]} says add_{name}_token, and its {name}_token {word!r:.100} is no token"
            )
        ids[:] = [one for one in ids if one != token]
        if wanted:
            ids.insert(0 if name == "bos" else len(ids), token)
    return before, after
