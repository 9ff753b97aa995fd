"""Names of tokens: from typed text to token ids, and from token ids to the text on the page."""

from attnjax.config import RunConfig
from attnjax.config.names import nearest
from attnjax.tasks import Text, specials
from attnjax.tasks.base import Task

BYTES = ((9, "⇥"), (10, "⏎"), (32, "␣"))
SHOWN_CHOICES = 40


def token_names(run: RunConfig, task: Task) -> tuple[str, ...]:
    """The name of every token that a run reads, by its id. Special tokens of the form have angle brackets: <separator>."""
    if isinstance(task, Text):
        return tuple(byte_name(i) for i in range(256))
    alphabet = task.alphabet()
    shared = alphabet.inputs + alphabet.outputs[len(alphabet.inputs) :]
    if task.aligned:
        return shared
    if run.task.form == "encoder":
        return (*alphabet.inputs, "<slot>")
    special = specials(task)._asdict()
    return (*shared, *(f"<{name}>" for name in sorted(special, key=special.__getitem__)))


def byte_name(byte: int) -> str:
    """The name of a byte: a printable ASCII character, a visible sign for white space, or x and two hexadecimal digits."""
    return dict(BYTES).get(byte) or (chr(byte) if 32 < byte < 127 else f"x{byte:02x}")


def read_tokens(run: RunConfig, task: Task, text: bytes) -> list[int]:
    """The token ids of a typed text: its bytes for a text task, otherwise names of tokens separated by white space.

    Raises ValueError for a name that the run's task does not have.
    """
    if isinstance(task, Text):
        return list(text)
    names = token_names(run, task)
    found = []
    for word in text.decode("utf-8", "replace").split():
        if word not in names:
            choices = ", ".join(names[:SHOWN_CHOICES]) + (", ..." if len(names) > SHOWN_CHOICES else "")
            raise ValueError(
                f"the text has the token {word[:40]!r}, which task {run.task.name!r} does not have"
                f"{nearest(word, names)}; separate the names of tokens by white space: {choices}"
            )
        found.append(names.index(word))
    return found
