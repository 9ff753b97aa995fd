"""Samples of RULER's tasks that fill a number of tokens, and never more: nothing is cut off, and what cannot fit is refused.

The size of a haystack is found by bisection on one draw. A sample that comes out longer gets a haystack that is smaller by its
share of tokens too many, and by at least twice as much each time: tokenizers take most of the time, and one draw may have half
as many tokens again as another. Of all tokens `reserve` are left for the answer. As in RULER, `vt` and `cwe` begin with a
worked example.
"""

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence

from attnjax import registry
from attnjax.evaluation import ruler
from attnjax.evaluation.ruler import BARE, KEYS, Sample
from attnjax.tasks.checks import check_choice

EXAMPLE = 500
"""Tokens of the worked example of variable tracking, unless its five lines of noise have more."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """How samples of a task are made.

    Attributes:
      length: tokens of prompt, prefix and answer together.
      reserve: of those, tokens that are left for the answer.
      count: the number of tokens of a text.
      words: those of `cwe`; `samples` chooses them.
      short: below this length, words of `cwe` are repeated less often; RULER has 4,096 tokens, about 16,384 bytes.
    """

    length: int
    reserve: int
    count: Callable[[str], int]
    words: Sequence[str] = BARE
    short: int = 4096

    def tokens(self, made: Sample) -> int:
        """Returns the number of tokens of a sample, without its answer."""
        return self.count(made.prompt + made.prefix)

    @functools.cached_property
    def lines_of_example(self) -> int:
        """Lines of noise of the worked example of variable tracking."""
        example = lambda lines: ruler.variable_tracking(ruler.seeded(0), lines, example=True)
        return largest(lambda lines: self.tokens(example(lines)) <= EXAMPLE, 5, EXAMPLE)


def samples(name: str, setting: Setting, number: int, seed: int = 0) -> list[Sample]:
    """Returns samples of a task that have at most setting.length tokens with their answers.

    Sample i depends on the name, the setting, the seed and i alone.

    Raises:
      ValueError: for an unknown name, and for a length that is too small for the task, or that all words of `cwe` do not fill.

    Example:
      >>> made = samples("niah_single_1", Setting(1024, 32, len), 2)
      >>> [900 < len(sample.prompt + sample.prefix) <= 1024 - 32 for sample in made]
      [True, True]
    """
    check_choice("samples", "name", name, tuple(TASKS))
    smallest, budget = registry.SUITES["long"][name].smallest, setting.length - setting.reserve

    def drawn(i: int, size: int) -> tuple[Sample, int]:
        """Returns sample i of a size, and its tokens."""
        made = TASKS[name](ruler.seeded(f"{name} {setting.length} {seed} {i}"), size, setting)
        return made, setting.tokens(made)

    def shortened(i: int, size: int) -> Sample:
        """Returns sample i with at most `size` units, fewer where it would be too long."""
        step = 1
        made, read = drawn(i, size)
        while read > budget:
            if size <= smallest:
                raise ValueError(
                    f"{name} has {read + setting.reserve} tokens with its smallest haystack, "
                    f"{setting.reserve} of them for the answer: a length of {setting.length} is too small"
                )
            size, step = max(smallest, size - max(step, size * (read - budget) // read)), 2 * step
            made, read = drawn(i, size)
        return made

    fits = lambda size: drawn(0, size)[1] <= budget
    if name != "cwe":
        size = largest(fits, smallest)
        return [shortened(i, size) for i in range(number)]
    for words in (BARE, KEYS):  # the shorter ones that fill the length; both kinds at once would be parts of each other
        setting = dataclasses.replace(setting, words=words)
        size = largest(fits, smallest, len(words))
        if size < len(words):
            return [shortened(i, size) for i in range(number)]
    raise ValueError(f"cwe: all {len(KEYS)} words that there are do not fill a length of {setting.length}")


def _variable_tracking(rng: random.Random, size: int, setting: Setting) -> Sample:
    """Returns a sample of vt, after a worked example in noise."""
    shown = ruler.variable_tracking(rng, setting.lines_of_example, example=True)
    text = f"{shown.prompt}{shown.prefix} {' '.join(shown.answers)}\n\n"
    text = text.replace("12345", str(rng.randint(10_000, 99_998)))
    made = ruler.variable_tracking(rng, size)
    return made._replace(prompt=text + made.prompt)


def _common_words(rng: random.Random, size: int, setting: Setting) -> Sample:
    """Returns a sample of cwe, after a worked example; a word is repeated less often in short texts."""
    short = setting.length < setting.short
    often, seldom = (3, 1) if short else (10, 3)
    shown = ruler.common_words(rng, 20 if short else 40, often=often, seldom=seldom, words=setting.words)
    text = f"{shown.prompt}{shown.prefix} {ruler.numbered(shown.answers)}\n"
    often, seldom = (6, 1) if short else (30, 3)
    made = ruler.common_words(rng, size, often=often, seldom=seldom, words=setting.words)
    return made._replace(prompt=text + made.prompt)


def _frequent_words(rng: random.Random, size: int, setting: Setting) -> Sample:
    """Returns a sample of fwe, of as many different words as RULER takes for the length."""
    return ruler.frequent_words(rng, size, vocabulary=max(8, (setting.length - setting.reserve) // 50))


TASKS: dict[str, Callable[[random.Random, int, Setting], Sample]] = {
    "niah_single_1": lambda rng, size, setting: ruler.niah(rng, size),
    "niah_multikey_2": lambda rng, size, setting: ruler.niah(rng, size, needles=True),
    "niah_multikey_3": lambda rng, size, setting: ruler.niah(rng, size, needles=True, uuids=True),
    "vt": _variable_tracking,
    "cwe": _common_words,
    "fwe": _frequent_words,
}
"""From random numbers, the size of a haystack and a setting to a sample, by the name of the task."""


def largest(fits: Callable[[int], bool], smallest: int, highest: int | None = None) -> int:
    """Returns the largest size that fits, if sizes that fit come first; `smallest` where none does.

    A size above `highest`, which is at least `smallest`, does not fit, and is not tried.

    Example:
      >>> largest(lambda size: size**2 < 50, smallest=1)
      7
    """
    within = lambda size: (highest is None or size <= highest) and fits(size)
    low, high = smallest, 2 * smallest
    while within(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low
