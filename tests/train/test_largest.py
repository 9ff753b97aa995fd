"""Sizes at their largest are described and checked by shapes alone, in seconds, or refused with a sentence."""

import contextlib
import random
import signal
from collections.abc import Iterator

import pytest

from attnjax.config import ENCODING_NAMES, override, parse
from attnjax.train import check, describe
from tests.test_limits import LARGEST

SIZES = ("task.length_max", "model.layers", "model.head", "model.hidden", "train.batch", "evaluate.batch")
LISTS = ("evaluate.lengths", "evaluate.validation_lengths", "evaluate.bucket_sizes")
FORMS = ("decoder", "encoder", "encoder_decoder")
HANG = 60
"""Seconds that neither may take."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Fails after `HANG` seconds."""

    def fail(*_: object) -> None:
        pytest.fail(f"not answered in {HANG} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(HANG)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def answered(changes: dict[str, object]) -> int:
    """How many of `describe` and `check` take a config with these changes; the others must refuse it."""
    taken = 0
    for function in (describe, check):
        with limited(), contextlib.suppress(ValueError):
            function(parse(override({}, changes)))
            taken += 1
    return taken


def largest(names: list[str]) -> dict[str, object]:
    """These fields at the largest that each allows."""
    return {name: [LARGEST[name]] if name in LISTS else LARGEST[name] for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_size_at_its_largest_is_described_and_checked(name):
    assert answered(largest([name])) == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_a_few_fields_at_their_largest_are_answered(seed):
    draw = random.Random(seed)
    encoding = draw.choice([name for name in ENCODING_NAMES if name != "learned"])
    some = largest(draw.sample(sorted(LARGEST), draw.choice([1, 2, 3])))
    answered({**some, "model.encoding": encoding, "task.form": draw.choice(FORMS)})


@pytest.mark.slow
def test_as_many_different_layers_as_are_allowed_are_answered():
    layers = [{"name": "rope", "options": {"theta": 1000.0 + i}} for i in range(32)]
    assert answered({"model.layers": 32, "model.encoding": layers}) == 2
