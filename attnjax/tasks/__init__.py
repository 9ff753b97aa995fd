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
from attnjax.tasks.addition import Addition as Addition
from attnjax.tasks.base import Alphabet as Alphabet, Chance as Chance, Example as Example, Task as Task
from attnjax.tasks.card import card as card
from attnjax.tasks.chomsky import (
    CycleNavigation as CycleNavigation,
    EvenPairs as EvenPairs,
    ModularArithmetic as ModularArithmetic,
    ModularArithmeticBrackets as ModularArithmeticBrackets,
    ParityCheck as ParityCheck,
    ReverseString as ReverseString,
    SolveEquation as SolveEquation,
    StackManipulation as StackManipulation,
)
from attnjax.tasks.chomsky_sensitive import (
    BinaryAddition as BinaryAddition,
    BinaryMultiplication as BinaryMultiplication,
    BucketSort as BucketSort,
    ComputeSqrt as ComputeSqrt,
    DuplicateString as DuplicateString,
    MissingDuplicateString as MissingDuplicateString,
    OddsFirst as OddsFirst,
)
from attnjax.tasks.copying import Copy as Copy, Reverse as Reverse
from attnjax.tasks.forms import (
    SequencePair as SequencePair,
    Sequences as Sequences,
    Specials as Specials,
    decoder_form as decoder_form,
    encoder_decoder_form as encoder_decoder_form,
    encoder_form as encoder_form,
    next_token_form as next_token_form,
    specials as specials,
)
from attnjax.tasks.huang import (
    BigEndianAddition as BigEndianAddition,
    BinaryMajority as BinaryMajority,
    InterleavedMajority as InterleavedMajority,
    Majority as Majority,
    Parity as Parity,
    RepeatedCopy as RepeatedCopy,
    Sort as Sort,
    UniqueCopy as UniqueCopy,
)
from attnjax.tasks.markov import Markov as Markov
from attnjax.tasks.posgen import PosGen as PosGen
from attnjax.tasks.recall import MQAR as MQAR, AssociativeRecall as AssociativeRecall, Induction as Induction
from attnjax.tasks.state_tracking import FlipFlop as FlipFlop, WordProblem as WordProblem
from attnjax.tasks.text import Text as Text

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
