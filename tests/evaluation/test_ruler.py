"""The texts of RULER against those of its own scripts, string by string, and samples that fill a length."""

import json
import re

import pytest

from attnjax.evaluation import ruler
from attnjax.evaluation.samples import Setting, samples
from attnjax.registry import SUITES
from tests.golden_arrays import GOLDEN

TASKS = tuple(SUITES["long"])


@pytest.fixture(scope="module")
def golden():
    return json.loads((GOLDEN / "long.json").read_text(encoding="utf-8"))


def after_an_example(rng, size, nouns, shown, asked):
    """The question after the worked example that RULER puts before it; numbers of repetitions of both."""
    example = ruler.common_words(rng, shown[0], often=shown[1], seldom=shown[2], words=nouns)
    made = ruler.common_words(rng, size, often=asked[0], seldom=asked[1], words=nouns)
    text = f"{example.prompt}{example.prefix} {ruler.numbered(example.answers)}\n"
    return made._replace(prompt=text + made.prompt)


MAKERS = {
    "niah_single_1": lambda rng, size, keys, _: ruler.niah(rng, size, keys=keys),
    "niah_multikey_2": lambda rng, size, keys, _: ruler.niah(rng, size, needles=True, keys=keys),
    "niah_multikey_3": lambda rng, size, *_: ruler.niah(rng, size, needles=True, uuids=True),
    "vt": lambda rng, size, *_: ruler.variable_tracking(rng, size),
    "vt_example": lambda rng, size, *_: ruler.variable_tracking(rng, size, example=True),
    "cwe_1024": lambda rng, size, _, nouns: after_an_example(rng, size, nouns, (20, 3, 1), (6, 1)),
    "cwe_4096": lambda rng, size, _, nouns: after_an_example(rng, size, nouns, (40, 10, 3), (30, 3)),
    "fwe": lambda rng, size, *_: ruler.frequent_words(rng, size, vocabulary=20),
}


@pytest.mark.parametrize("name", MAKERS)
def test_prompts_are_those_of_the_authors(golden, name):
    keys = sorted(f"{a}-{n}" for a in golden["adjectives"] for n in golden["nouns"])
    for seed, size, prompt, answers in golden[name]:
        ours = MAKERS[name](ruler.seeded(seed), size, keys, golden["words"])
        assert ours.prompt + ours.prefix == prompt
        assert list(ours.answers) == answers
        assert len(ours.wrong) == 9 or name in ("fwe", "cwe_4096", "cwe_1024")
        assert not set(ours.wrong) & set(answers)


@pytest.mark.parametrize("name", TASKS)
def test_samples_fill_a_length_and_never_more(name):
    setting = Setting(4096, SUITES["long"][name].bytes, len, short=16_384)
    made = samples(name, setting, 20)
    lengths = [len(one.prompt + one.prefix) + setting.reserve for one in made]
    assert 3_600 < min(lengths) <= max(lengths) <= 4096
    assert len({one.prompt for one in made}) == 20
    assert samples(name, setting, 3) == made[:3]
    for one in made:
        assert all(answer in one.prompt for answer in one.answers)
        assert len(one.prompt.split("Answer: ")) == 1 + (name in ("vt", "cwe"))


@pytest.mark.parametrize("length", [2400, 4000, 9000, 60_000])
def test_no_common_word_is_a_part_of_another(length):
    """A prediction of "hotel" or "dry-cellar" does not count as one of "hot" or "cellar"; the length is filled either way."""
    for one in samples("cwe", Setting(length, 100, len, short=8_000), 3):
        found = set(re.findall(r"\d+\. ([a-z-]+)", one.prompt))
        assert {"-" in word for word in found} == {length not in (2400, 9000)}
        listed = "\n".join(found)
        assert [word for word in found if listed.count(word) > 1] == []
        assert {*one.answers, *one.wrong} <= found
        assert 0.95 * (length - 100) - 80 < len(one.prompt + one.prefix) <= length - 100


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: samples("vt", Setting(800, 64, len), 1), "vt .*64.*800"),
        (lambda: ruler.frequent_words(ruler.seeded(0), 42, vocabulary=20), "fwe: .*42 .*20"),
        (lambda: ruler.common_words(ruler.seeded(0), 10_000), "cwe: 10000 "),
        (lambda: samples("cwe", Setting(10**6, 100, len), 1), "cwe: .*1000000"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
