"""Sizes at their largest are described and checked by shapes alone, in seconds, or refused with a sentence."""

import contextlib
import signal
from collections.abc import Iterator

import pytest

from attnjax.config import override, parse
from attnjax.train import check, describe

SIZES = {
    "task.length_max": 2**20,
    "model.layers": 1000,
    "model.head": 2**16,
    "model.hidden": 2**20,
    "train.batch": 2**20,
    "evaluate.batch": 2**20,
}
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


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_size_at_its_largest_is_described_and_checked(name):
    assert answered({name: SIZES[name]}) == 2
    with pytest.raises(ValueError, match=name):
        parse(override({}, {name: SIZES[name] + 1}))
