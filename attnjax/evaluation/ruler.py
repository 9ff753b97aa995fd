"""The six tasks of RULER that need no corpus, as texts: a prompt, the beginning of the answer, the answers, and wrong ones.

    niah_single_1     a needle, "One of the special magic numbers for quiet-river is: 4071823.", in sentences of noise
    niah_multikey_2   the same among needles with other keys
    niah_multikey_3   keys and values are UUIDs
    vt                variable tracking: VAR A = 12345, VAR B = VAR A, ...: which variables have the value?
    cwe               common words extraction: ten words occur more often than all others
    fwe               frequent words extraction: the three most frequent of words with frequencies in proportion to 1 / rank^2

A text is a pure function of a generator of Python's `random` and of `size`, the number of sentences, words or repetitions, and
consumes random numbers in the order of the authors' scripts; `samples.py` finds the size for a number of tokens. What differs:
our list of words in place of those of wonderwords, a key occurs once, and wrong answers, which RULER does not have.

Reference: Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?", arXiv:2404.06654, and
its code, NVIDIA/RULER.
"""

import itertools
import random
import string
import uuid
from collections.abc import Sequence
from typing import NamedTuple

# Words --------------------------------------------------------------------------------------------------------------------

_ADJECTIVES = """
    able acid aged alert amber ancient arctic aware azure basic blue bold brave brief bright broad bronze busy calm
    careful cheap chief civil classic clean clear clever close cloudy coarse cold common cool copper crisp curious daily dark
    dear deep dense direct distant double dry dull eager early eastern easy elder empty entire equal exact extra fair famous
    fancy far fast final fine firm first flat fluent fond formal free fresh full funny gentle giant glad global golden good
    grand grateful gray great green handy happy hard heavy hidden high hollow honest hot huge humble icy ideal inner"""
_NOUNS = """
    acorn actor anchor apple arrow autumn bakery balcony bamboo banner barn basket beach beacon bell bicycle blanket boat
    bottle bridge brook broom bucket button cabin camera candle canvas canyon carpet castle cave cellar chapel cherry circle
    clock cloud coast coffee comet compass coral corner cotton cradle creek crown curtain daisy desert diamond dinner dragon
    drawer drum eagle elbow engine falcon farmer feather fence ferry fiddle flame flower forest fountain fox garden gate glacier
    glove guitar hammer harbor hat hedge helmet hill honey horizon horse hotel island jacket jewel jungle kettle
    kitchen"""
ADJECTIVES, NOUNS = tuple(_ADJECTIVES.split()), tuple(_NOUNS.split())
_WORDS = (*NOUNS, *ADJECTIVES)
BARE = tuple(word for word in _WORDS if not any(word in other for other in _WORDS if other != word))
"""Words of which none is a part of another, as "hot" is of "hotel": a prediction holds one only where it says it."""
KEYS = tuple(f"{adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS)
"""Keys of needles, such as "quiet-river". None is a part of another."""

# Texts --------------------------------------------------------------------------------------------------------------------

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {kind}s for {key} is: {value}."
WRONG = 9
"""Wrong answers of a sample."""
SHUFFLE = 42
"""The seed of RULER, with which it puts words into the same order in every sample."""


class Sample(NamedTuple):
    """A question about a long text. A model reads `prompt` and `prefix`, and is to go on with all `answers`.

    `wrong` are answers of the same kind, to compare likelihoods with.
    """

    prompt: str
    prefix: str
    answers: tuple[str, ...]
    wrong: tuple[str, ...]


def niah(
    rng: random.Random,
    size: int,
    *,
    needles: bool = False,
    uuids: bool = False,
    keys: Sequence[str] = KEYS,
) -> Sample:
    """Returns a needle among `size` sentences.

    Args:
      rng: the source of all random numbers.
      size: the number of sentences, at least 1.
      needles: whether these are needles with other keys; otherwise they are noise.
      uuids: whether keys and values are UUIDs; otherwise keys are `keys` and values numbers of 7 digits.
      keys: words to draw keys from.

    Example:
      >>> sample = niah(seeded(0), 2)
      >>> print(sample.prompt.splitlines()[1])
      One of the special magic numbers for free-cellar is: 8056020.
    """
    kind = "uuid" if uuids else "number"
    draw_value = lambda: _uuid(rng) if uuids else str(rng.randint(10**6, 10**7 - 1))
    draw_key = lambda: _uuid(rng) if uuids else rng.choice(keys)
    needle = lambda key, value: NEEDLE.format(kind=kind, key=key, value=value)
    key, value, others = draw_key(), draw_value(), []
    if needles:
        while len(others) < size:
            if (other := (draw_key(), draw_value()))[0] != key:
                others.append(other)
        lines = [needle(*other) for other in others]
    else:
        lines = [NOISE] * size
    lines.insert(rng.sample(range(size), 1)[0], needle(key, value))
    rng.sample(range(1), 1)  # RULER draws which of its keys to ask for
    prompt = (
        f"A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the "
        f"{kind} afterwards.\n{chr(10).join(lines)}\nWhat is the special magic {kind} for {key} "
        "mentioned in the provided text?"
    )
    prefix = f" The special magic {kind} for {key} mentioned in the provided text is"
    told = dict.fromkeys(one for _, one in others if one != value)
    wrong = rng.sample(list(told), min(WRONG, len(told)))
    while len(wrong) < WRONG:
        wrong += [one for one in (draw_value(),) if one != value]
    return Sample(prompt, prefix, (value,), tuple(wrong))


def variable_tracking(rng: random.Random, size: int, *, hops: int = 4, example: bool = False) -> Sample:
    """Returns a chain of hops + 1 assignments among `size` sentences of noise.

    `example` makes the shorter names and the value 12345 of RULER's worked example.
    """
    letters, count = (3 if example else 5), hops + 1
    names: list[str] = []
    while len(set(names)) < count:
        names = [_letters(rng, string.ascii_uppercase, letters) for _ in range(count)]
    value = "12345" if example else str(rng.randint(10_000, 99_998))
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {new} = VAR {old} " for old, new in itertools.pairwise(names)]
    lines = [NOISE] * size
    places = sorted(rng.sample(range(size), count))
    for i, (place, line) in enumerate(zip(places, chain, strict=True)):
        lines.insert(place + i, line)
    context = "\n".join(lines).replace(". \n", ".\n")
    prompt = (
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
        f"{context}\nQuestion: Find all variables that are assigned the value {value} in the text above."
    )
    prefix = (
        f" Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
        f"value {value}, they are: "
    )
    wrong: list[str] = []
    while len(wrong) < WRONG:
        wrong += [one for one in (_letters(rng, string.ascii_uppercase, letters),) if one not in (*names, *wrong)]
    return Sample(prompt, prefix, tuple(names), tuple(wrong))


def common_words(
    rng: random.Random, size: int, *, often: int = 30, seldom: int = 3, words: Sequence[str] = KEYS
) -> Sample:
    """Returns a list of `size` words, of which ten are written `often` times and the others `seldom`.

    `words` are those to draw from, of which none is a part of another: a prediction of "dry-cellar" counts as one of "cellar".

    Raises:
      ValueError: for more words than there are.
    """
    if size > len(words):
        raise ValueError(f"cwe: {size} different words are needed, and there are {len(words)}")
    chosen = [words[i] for i in rng.sample(range(len(words)), size)]
    answers, others = chosen[:10], chosen[10:]
    listed = answers * often + others * seldom
    seeded(SHUFFLE).shuffle(listed)
    prompt = (
        "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear "
        f"most often.\n{numbered(listed)}\nQuestion: What are the 10 most common words in the above list?"
    )
    prefix = " Answer: The top 10 words that appear most often in the list are:"
    return Sample(prompt, prefix, tuple(answers), tuple(others[:WRONG]))


def frequent_words(rng: random.Random, size: int, *, vocabulary: int) -> Sample:
    """Returns about `size` coded words, word k occurring floor(6 size / (pi k)^2) times; the first of them is "...", noise.

    Raises:
      ValueError: where the third and the fourth of the other words are equally frequent, so that no answer is right.
    """
    names = [_letters(rng, string.ascii_lowercase, 6) for _ in range(vocabulary)]
    while len(set(names)) < vocabulary:
        names.append(_letters(rng, string.ascii_lowercase, 6))
    names = sorted(set(names))
    seeded(SHUFFLE).shuffle(names)
    names[0] = "..."
    zeta = 1.6449340668482264
    counts = [int(size * (rank**-2.0) / zeta) for rank in range(1, vocabulary + 1)]
    if vocabulary < 5 or counts[3] == counts[4]:
        raise ValueError(f"fwe: with {size} words of {vocabulary} the third and the fourth are equally frequent")
    text = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    seeded(SHUFFLE).shuffle(text)
    prompt = (
        "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
        f"coded words. {' '.join(text)}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
        "three most frequently appeared words in the above coded text?"
    )
    prefix = " Answer: According to the coded text above, the three most frequently appeared words are:"
    return Sample(prompt, prefix, tuple(names[1:4]), tuple(names[4 : 4 + WRONG]))


def seeded(seed: int | str) -> random.Random:
    """Returns a generator of this seed.

    Example:
      >>> seeded("a").random() == seeded("a").random()
      True
    """
    return random.Random(seed)  # noqa: S311 (data, and no secrets)


def numbered(words: Sequence[str]) -> str:
    """Returns words as "1. one 2. two".

    Example:
      >>> numbered(["one", "two"])
      '1. one 2. two'
    """
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, start=1))


def _letters(rng: random.Random, alphabet: str, count: int) -> str:
    return "".join(rng.choices(alphabet, k=count))


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
