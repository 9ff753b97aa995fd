"""Names of tokens: from typed text to token ids, and from token ids to the text on the page."""

from collections.abc import Iterable

from attnjax.config import RunConfig
from attnjax.config.names import nearest
from attnjax.tasks import Text, specials
from attnjax.tasks.base import Task

BYTES = ((9, "⇥"), (10, "⏎"), (32, "␣"))
SHOWN_CHOICES = 40
SEPARATOR = "<separator>"


def token_names(run: RunConfig, task: Task, tokens: Iterable[int]) -> tuple[str, ...]:
    """The name of each token of a sequence: behind the separator of a decoder's sequence, that of a token of the answer.

    Special tokens of the form have angle brackets: <separator>.
    """
    inputs, answers = vocabularies(run, task)
    found: list[str] = []
    for token in tokens:
        found.append((answers if SEPARATOR in found else inputs)[token])
    return tuple(found)


def vocabularies(run: RunConfig, task: Task) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the tokens of an input, by id, and those of an answer, which have the same ids."""
    if isinstance(task, Text):
        names = tuple(byte_name(i) for i in range(256))
        return names, names
    inputs, outputs = task.alphabet()
    if run.task.form == "encoder" and not task.aligned:
        return (*inputs, "<slot>"), outputs
    special = specials(task)._asdict()
    ends = () if task.aligned else tuple(f"<{name}>" for name in sorted(special, key=special.__getitem__))
    return (*inputs, *outputs[len(inputs) :], *ends), (*outputs, *inputs[len(outputs) :], *ends)


def byte_name(byte: int) -> str:
    """The name of a byte: a printable ASCII character, a visible sign for white space, or x and two hexadecimal digits."""
    return dict(BYTES).get(byte) or (chr(byte) if 32 < byte < 127 else f"x{byte:02x}")


def read_tokens(run: RunConfig, task: Task, text: bytes) -> list[int]:
    """The token ids of a typed text: its bytes for a text task, otherwise names of tokens separated by white space.

    Raises ValueError for a name that the run's task does not have.
    """
    if isinstance(task, Text):
        return list(text)
    inputs, answers = vocabularies(run, task)
    words, found = text.decode("utf-8", "replace").split(), []
    for i, word in enumerate(words):
        names = answers if SEPARATOR in words[:i] else inputs
        if word not in names:
            choices = ", ".join(names[:SHOWN_CHOICES]) + (", ..." if len(names) > SHOWN_CHOICES else "")
            raise ValueError(
                f"the text has the token {word[:40]!r}, which task {run.task.name!r} does not have"
                f"{nearest(word, names)}; separate the names of tokens by white space: {choices}"
            )
        found.append(names.index(word))
    return found
