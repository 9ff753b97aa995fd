"""Names that can be checked without importing JAX: encodings, tasks, and what a file or a run may be called."""

import difflib
import re
from collections.abc import Iterable, Sequence

from attnjax.registry import ENCODINGS, TASKS

ENCODING_NAMES = tuple(name for name, row in ENCODINGS.items() if not row.axes)
"""The encodings that a config may name, in the order of `attnjax.ENCODINGS`."""

TASK_NAMES = tuple(TASKS)
"""The keys of `attnjax.tasks.TASKS`, in its order."""

DECAYING = ("adadelta", "adamaxw", "adamw", "adan", "lamb", "lars", "lion", "nadamw", "novograd")
"""The functions of optax with an argument `weight_decay` that a config may name."""
OPTIMIZERS = (
    *DECAYING,
    *[
        "adabelief",
        "adafactor",
        "adagrad",
        "adam",
        "adamax",
        "amsgrad",
        "fromage",
        "nadam",
        "radam",
        "rmsprop",
        "sgd",
        "sign_sgd",
        "signum",
        "sm3",
        "yogi",
    ],
)
"""All functions of optax that a config may name."""
BY_PARAMETER = ("adafactor", "fromage", "lamb", "lars", "novograd", "sm3")
"""Those whose update of a number depends on the other numbers of its parameter, by a norm or by its rows and columns."""

SCHEDULES = ("constant", "cosine", "linear")
"""What the learning rate does after the warm-up."""

SAFE_NAME = re.compile(r"(?![-.])[A-Za-z0-9._-]{1,128}")
CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def safe_name(name: object, what: str) -> str:
    """`name` if it can be a file name on every system and cannot leave its folder; else a ValueError about `what`."""
    if not isinstance(name, str) or not SAFE_NAME.fullmatch(name) or RESERVED.fullmatch(name):
        shown = repr(name)[:140]
        rule = "1 to 128 of A-Z a-z 0-9 . _ - and may not start with . or - or be a reserved name"
        raise ValueError(f"{what} must be {rule}, got {shown}")
    return name


def check_name(path: str, name: str, names: Sequence[str], *, classes: bool = False) -> None:
    """Raise ValueError, with the nearest name, unless `name` is one of `names`, or a class path where those are taken."""
    if name not in names and not (classes and is_class_path(name)):
        more = ", or package.module:Class" if classes else ""
        raise ValueError(f"{path} must be one of {', '.join(names)}{more}, got {name[:100]!r}{nearest(name, names)}")


def is_class_path(name: str) -> bool:
    """Whether this names a class or function of another project: `package.module:Name`."""
    return len(name) <= 128 and CLASS_PATH.fullmatch(name) is not None


def check_function(path: str, name: str, names: Sequence[str]) -> None:
    """Raise ValueError, with the nearest name, unless `name` is one of `names` or reads as `package.module:function`."""
    if ":" not in name:
        check_name(path, name, names)
    elif not is_class_path(name):
        raise ValueError(f"{path} must be a name or package.module:function, got {name[:100]!r}")


def nearest(word: object, choices: Iterable[str]) -> str:
    """` (did you mean 'rope'?)` for the choice nearest to a misspelt word, "" where none is near."""
    choices = list(choices)
    word = str(word)[:100]
    close = _initials(word, choices) or difflib.get_close_matches(word, choices, n=1) or _abbreviated(word, choices)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _initials(word: str, choices: list[str]) -> list[str]:
    """lr for learning_rate."""
    return [choice for choice in choices if "_" in choice and word == "".join(part[:1] for part in choice.split("_"))]


def _abbreviated(word: str, choices: list[str]) -> list[str]:
    """Choices of which `word` leaves letters out: ckpt_every for checkpoint_every."""
    if len(word) < 2:
        return []
    pattern = re.compile(".*".join(map(re.escape, word[:40])))
    return [choice for choice in choices if pattern.match(choice)]
