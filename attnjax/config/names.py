"""Names that can be checked without importing JAX: encodings, tasks, optimizers, and what a file or a run may be called."""

import re
from collections.abc import Sequence

from attnjax.registry import ENCODINGS, EXTENSIONS, TASKS, nearest

ENCODING_NAMES = tuple(name for name, row in ENCODINGS.items() if not row.axes)
"""The encodings that a config may name, in the order of `attnjax.ENCODINGS`."""

EXTENSION_NAMES = tuple(EXTENSIONS)
"""The methods of reading past the trained length that `attnjax.evaluation.extension.extended` knows."""

TASK_NAMES = tuple(TASKS)
"""The keys of `attnjax.tasks.TASKS`, in its order."""

DECAYING = ("adadelta", "adamaxw", "adamw", "adan", "lamb", "lars", "lion", "nadamw", "novograd")
"""The functions of optax with an argument `weight_decay` that a config may name."""
_OTHERS = "adabelief adafactor adagrad adam adamax amsgrad fromage nadam radam rmsprop sgd sign_sgd signum sm3 yogi"
OPTIMIZERS = (*DECAYING, *_OTHERS.split())
"""All functions of optax that a config may name."""
BY_PARAMETER = ("adafactor", "fromage", "lamb", "lars", "novograd", "sm3")
"""Those whose update of a number depends on the other numbers of its parameter, by a norm or by its rows and columns."""

SCHEDULES = ("constant", "cosine", "linear")
"""The schedules of the learning rate after the warm-up."""

SAFE_NAME = re.compile(r"(?![-.])[A-Za-z0-9._-]{1,128}")
CLASS_PATH = re.compile(r"(?=.{3,128}$)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def safe_name(name: object, what: str) -> str:
    """Returns `name`. Raises ValueError about `what` unless it is a file name on every system, inside its folder."""
    if not isinstance(name, str) or not SAFE_NAME.fullmatch(name) or RESERVED.fullmatch(name):
        rule = "1 to 128 of A-Z a-z 0-9 . _ - and may not start with . or - or be a reserved name"
        raise ValueError(f"{what} must be {rule}, got {repr(name)[:140]}")
    return name


def check_name(path: str, name: str, names: Sequence[str], *, outside: bool = False) -> None:
    """Raises ValueError, with the nearest name, unless `name` is one of `names` or, with `outside`, of another project."""
    if name not in names and not (outside and is_class_path(name)):
        more = ", or package.module:Name" if outside else ""
        raise ValueError(f"{path} must be one of {', '.join(names)}{more}, got {name[:100]!r}{nearest(name, names)}")


def is_class_path(name: str) -> bool:
    """Returns whether this names a class or function of another project: `package.module:Name`."""
    return CLASS_PATH.fullmatch(name) is not None
