"""How many steps one call of the compiled program takes: up to the next record, and about a second.

A call ends where something is due (a record, a checkpoint, an evaluation, the end), so that nothing is ever late, and takes
about `SECONDS`, so that an interruption is answered soon even where nothing is due for a million steps. The result of
training does not depend on it.
"""

from attnjax.config import RunConfig
from attnjax.train.step import LONGEST

SECONDS = 1.0
"""What a call should take at most, beyond its first step."""


class Strides:
    """The lengths of the calls of one run, from how long earlier ones took. The first takes one step: it also compiles.

    Example:
      >>> from attnjax.config import parse
      >>> strides = Strides(parse({"train": {"steps": 997, "log_every": 0, "checkpoint_every": 500}}))
      >>> strides.count(0)
      1
      >>> strides.took(count=1, seconds=0.01)
      >>> strides.count(1), strides.count(450), strides.count(990)
      (100, 50, 7)
    """

    def __init__(self, run: RunConfig):
        train = run.train
        self._last = train.steps
        self._intervals = [one for one in (train.log_every, train.checkpoint_every, run.evaluate.every) if one]
        self._affordable = 1

    def count(self, step: int) -> int:
        """Return how many steps the call that begins after `step` takes."""
        due = [self._last - step, *(interval - step % interval for interval in self._intervals)]
        return min(LONGEST, self._affordable, *due)

    def took(self, count: int, seconds: float) -> None:
        """Learn that `count` steps took so many seconds."""
        self._affordable = max(1, int(min(LONGEST, SECONDS * count / max(seconds, 1e-9))))
