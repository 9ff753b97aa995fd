"""Sizes that no machine holds, and sweeps without end, are refused by arithmetic; all that is allowed is answered."""

import dataclasses
import itertools
import random
import typing
from typing import Annotated

import pytest

import attnjax
from attnjax import registry
from attnjax.cli import main
from attnjax.config import EncodingConfig, RunConfig, limits, override, parse
from attnjax.config.kinds import Range, key_of
from attnjax.sweep import chain, plan, product, seeds, subsample, vary, zipped
from attnjax.tasks import TASKS, task as make_task
from attnjax.train.model import encoding as make_encoding

LARGE = 2**31 - 1


def largest(kind):
    """The largest whole number that a field's kind allows; None where it holds none."""
    if typing.get_origin(kind) is Annotated:
        base, limit = typing.get_args(kind)
        return int(limit.high) if base is int and isinstance(limit, Range) else None
    found = [largest(one) for one in typing.get_args(kind) if typing.get_origin(kind) is not tuple]
    return next((one for one in found if one is not None), None)


def numeric(record, path=""):
    """Dotted names of all fields that hold a whole number, and the largest that each may hold."""
    for field in dataclasses.fields(record):
        value, name = getattr(record, field.name), f"{path}.{key_of(field)}".lstrip(".")
        if dataclasses.is_dataclass(value) and not isinstance(value, EncodingConfig):
            yield from numeric(value, name)
        elif (high := largest(field.type)) is not None:
            yield name, high


LARGEST = dict(numeric(RunConfig()))


def test_every_size_has_a_bound():
    assert len(LARGEST) > 20
    assert LARGEST["model.layers"] == limits.LAYERS
    assert "model.head" in LARGEST
    assert LARGEST["seed"] == 2**32 - 1
    assert all(high <= 2**32 - 1 for high in LARGEST.values())


def refused_or_planned(changes):
    """Whether a config with these changes is taken."""
    try:
        plan(override({}, changes))
    except ValueError as error:
        assert len(str(error)) < 500
        return False
    return True


@pytest.mark.parametrize("name", LARGEST)
def test_one_field_at_its_largest_is_planned_or_refused(name):
    refused_or_planned({name: LARGEST[name]})
    with pytest.raises(ValueError, match=name):
        parse(override({}, {name: LARGEST[name] + 1}))


def test_two_fields_at_their_largest_are_planned_or_refused():
    draw, taken = random.Random(0), 0
    for _ in range(300):
        names = draw.sample(sorted(LARGEST), 2)
        taken += refused_or_planned({name: LARGEST[name] for name in names})
    assert 30 < taken < 300


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.layers": 10**8}, "model.layers must be .* at most 1000, got 100000000"),
        (
            {"model.model": 2**16, "model.hidden": 2**20, "model.layers": 8},
            "the parameters would be .* model.layers 8 x rows",
        ),
        ({"train.batch": 2**20, "task.length_max": 2**20}, "activations of a layer would be .* train.batch 1048576"),
        ({"evaluate.batch": 2**20, "evaluate.lengths": [2**20]}, "evaluate.batch 1048576 x length 1048576"),
        (
            {"positions.policy": "randomized", "positions.maximum": LARGE, "train.batch": 2**10},
            "the drawn positions would be .* positions.maximum 2147483647",
        ),
        ({"evaluate.lengths": list(range(1, 2002))}, "evaluate.lengths may have at most 2000 entries, got 2001"),
        (
            {"model.layers": 33, "model.encoding": [{"name": "rope", "options": {"theta": n}} for n in range(1, 34)]},
            "at most 32 different entries, got 33",
        ),
    ],
)
def test_what_no_machine_holds_is_refused_with_its_factors(changes, message):
    with pytest.raises(ValueError, match=message):
        parse(override({}, changes))


ENDLESS = "def get_config(): return {}\ndef sweep():\n    import itertools\n    for n in itertools.count(): yield {'seed': n}\n"


@pytest.mark.parametrize("command", [["show", "--no-model"], ["sweep", "--dry-run"]], ids=lambda words: words[0])
def test_a_sweep_without_end_is_refused(tmp_path, capsys, command):
    (tmp_path / "endless.py").write_text(ENDLESS)
    assert main([command[0], str(tmp_path / "endless.py"), *command[1:]]) == 2
    assert "a sweep may have at most 100000 runs, and this one has more" in capsys.readouterr().err


def test_too_many_seeds_are_refused(tmp_path, capsys):
    (tmp_path / "one.json").write_text("{}")
    assert main(["sweep", str(tmp_path / "one.json"), "--seeds", "999999999", "--dry-run"]) == 2
    assert "at most 100000 runs" in capsys.readouterr().err


def endless():
    return ({"seed": number} for number in itertools.count())


@pytest.mark.parametrize(
    "make",
    [
        lambda: vary("seed", itertools.count()),
        lambda: seeds(10**9),
        lambda: product(endless(), seeds(2)),
        lambda: product(*(vary(f"x{key}", range(1000)) for key in range(9))),
        lambda: zipped(endless(), endless()),
        lambda: chain(endless()),
        lambda: chain(seeds(60_000), seeds(60_000)),
        lambda: subsample(endless(), 3),
        lambda: plan({}, endless()),
    ],
    ids=["vary", "seeds", "product", "large product", "zipped", "chain", "long chain", "subsample", "plan"],
)
def test_factors_without_end_are_refused(make):
    with pytest.raises(ValueError, match="a sweep may have at most 100000 runs"):
        make()


def options_of(kinds):
    return [
        (name, field.name)
        for name, kind in kinds.items()
        for field in dataclasses.fields(kind)
        if field.type in (int, "int", int | None, "int | None")
    ]


IN_CONFIGS = {name: kind for name, kind in attnjax.ENCODINGS.items() if not registry.ENCODINGS[name].axes}


@pytest.mark.parametrize(("name", "option"), options_of(IN_CONFIGS))
def test_an_option_of_an_encoding_is_bounded(name, option):
    with pytest.raises(ValueError, match=option):
        make_encoding(EncodingConfig(name, {option: 2**40}))


@pytest.mark.parametrize(("name", "option"), options_of(TASKS))
def test_an_option_of_a_task_is_bounded(name, option):
    with pytest.raises(ValueError, match=option):
        make_task(name, **{option: 2**50})


@pytest.mark.parametrize(
    ("name", "option"),
    [("learned", "length"), ("cope", "max_position"), ("t5", "buckets"), ("t5", "max_distance"), ("fire", "hidden")],
)
def test_a_table_that_no_machine_holds_is_refused(name, option):
    with pytest.raises(ValueError, match=rf"{option} must be .* at most \d+, got {LARGE}"):
        make_encoding(EncodingConfig(name, {option: LARGE}))
