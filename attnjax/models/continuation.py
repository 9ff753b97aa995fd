"""The text that grows behind a prompt as tokens arrive: what of it is settled, and whether a stop string has come."""

from collections.abc import Sequence

from attnjax.models.errors import ModelError
from attnjax.models.tokens import Tokenizer


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
      ended: whether it ended at a stop string or an end token.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str] = (), target: bool = True):
        self.prompt = list(prompt)
        self.tokens: list[int] = []
        self.text, self.ended = "", False
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._context = self.prompt if target else []
        self.begin = tokenizer.settled(self._context)
        self._finished = False

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """Returns what the tokens add to the settled text; `last` says that an end token followed them."""
        if self._finished:
            return ""
        before = len(self.tokens)
        self.tokens += tokens
        text = self._settled()
        if self._find(text) is not None:
            self._cut(before)
        self.ended = self.ended or last
        return self._finish() if self.ended else self._pass(self._waiting(text))

    def finish(self) -> str:
        """Returns what has not been passed on, when no more tokens come."""
        return "" if self._finished else self._finish()

    def _finish(self) -> str:
        self._finished = True
        text = self._after(self._tokenizer.decode([*self._context, *self.tokens]))
        return self._pass(text[: self._find(text)])

    def _cut(self, before: int) -> None:
        """Drops the tokens behind that which completed a stop string."""
        for count in range(before + 1, len(self.tokens) + 1):
            if self._find(self._settled(count)) is not None:
                self.tokens, self.ended = self.tokens[:count], True
                return

    def _settled(self, count: int | None = None) -> str:
        return self._after(self._tokenizer.settled([*self._context, *self.tokens[:count]]))

    def _after(self, text: str) -> str:
        """Returns a text without that of the prompt, with which it begins."""
        if not text.startswith(self.begin):
            raise ModelError("the tokenizer writes the prompt differently when tokens follow: use token ids instead")
        return text[len(self.begin) :]

    def _find(self, text: str) -> int | None:
        """Returns where the first stop string begins, None where there is none."""
        return min((at for at in map(text.find, self._stops) if at >= 0), default=None)

    def _waiting(self, text: str) -> str:
        """Returns a text without its end where a stop string may have begun there."""
        sizes = (size for stop in self._stops for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size]))
        return text[: len(text) - max(sizes, default=0)]

    def _pass(self, text: str) -> str:
        """Returns what a text has more than what was passed on, and passes it on."""
        if not text.startswith(self.text):
            raise ModelError("the tokenizer changes text that was settled when tokens follow: use token ids instead")
        piece, self.text = text[len(self.text) :], text
        return piece
