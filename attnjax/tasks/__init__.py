"""Tasks: pure functions from a key and lengths to padded examples, one file per family. `base.py` is the interface.

Example:
  >>> import jax
  >>> parity = task("parity_check")
  >>> made = parity.sample(jax.random.key(0), [4], max_length=6)
  >>> made.inputs.shape, int(made.targets[0, 0]) == int(made.inputs.sum()) % 2
  ((1, 6), True)
"""

from typing import Any

from attnjax import registry
from attnjax.tasks.addition import Addition
from attnjax.tasks.base import Alphabet, Chance, Example, Task
from attnjax.tasks.card import card
from attnjax.tasks.chomsky_binary import BinaryAddition, BinaryMultiplication, ComputeSqrt
from attnjax.tasks.chomsky_deterministic import (
    ModularArithmeticBrackets,
    ReverseString,
    SolveEquation,
    StackManipulation,
)
from attnjax.tasks.chomsky_regular import CycleNavigation, EvenPairs, ModularArithmetic, ParityCheck
from attnjax.tasks.chomsky_sensitive import BucketSort, DuplicateString, MissingDuplicateString, OddsFirst
from attnjax.tasks.copying import Copy, Reverse
from attnjax.tasks.forms import (
    SequencePair,
    Sequences,
    Specials,
    decoder_form,
    encoder_decoder_form,
    encoder_form,
    next_token_form,
    specials,
)
from attnjax.tasks.huang_copying import BigEndianAddition, RepeatedCopy, Sort, UniqueCopy
from attnjax.tasks.huang_counting import BinaryMajority, InterleavedMajority, Majority, Parity
from attnjax.tasks.markov import Markov
from attnjax.tasks.mqar import MQAR
from attnjax.tasks.posgen import PosGen
from attnjax.tasks.recall import AssociativeRecall, Induction
from attnjax.tasks.state_tracking import FlipFlop, WordProblem
from attnjax.tasks.text import Text

__all__ = [
    "MQAR",
    "TASKS",
    "Addition",
    "Alphabet",
    "AssociativeRecall",
    "BigEndianAddition",
    "BinaryAddition",
    "BinaryMajority",
    "BinaryMultiplication",
    "BucketSort",
    "Chance",
    "ComputeSqrt",
    "Copy",
    "CycleNavigation",
    "DuplicateString",
    "EvenPairs",
    "Example",
    "FlipFlop",
    "Induction",
    "InterleavedMajority",
    "Majority",
    "Markov",
    "MissingDuplicateString",
    "ModularArithmetic",
    "ModularArithmeticBrackets",
    "OddsFirst",
    "Parity",
    "ParityCheck",
    "PosGen",
    "RepeatedCopy",
    "Reverse",
    "ReverseString",
    "SequencePair",
    "Sequences",
    "SolveEquation",
    "Sort",
    "Specials",
    "StackManipulation",
    "Task",
    "Text",
    "UniqueCopy",
    "WordProblem",
    "card",
    "decoder_form",
    "encoder_decoder_form",
    "encoder_form",
    "next_token_form",
    "specials",
    "task",
]


TASKS: dict[str, type[Task]] = {name: registry.load_class(path) for name, path in registry.TASKS.items()}
"""The class of each name that a config may choose, in the order of the registry."""


def task(name: str, **options: Any) -> Task:
    """Return the task of this name with these options.

    Args:
      name: a key of `TASKS`.
      options: the fields of the task; those left out have their defaults.

    Raises:
      ValueError: for an unknown name or option, with the choices, and for values that the task refuses.

    Example:
      >>> task("copy", variant="rsc")
      Copy(variant='rsc', symbols=100)
      >>> task("copy", symbol=4)
      Traceback (most recent call last):
      ValueError: task 'copy' has no option 'symbol' (did you mean 'symbols'?); it has: variant, symbols
    """
    return registry.make("task", TASKS, name, options)
