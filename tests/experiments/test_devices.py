"""What compiles for devices that are not here: the same programs on virtual CPU devices, and the committed record."""

import json
import pathlib

import jax
import pytest

from attnjax.aot import Topology
from attnjax.records import jsonl
from experiments import recorded
from experiments.devices import __main__ as command, attention, cases, checking, compiling, page, runs
from experiments.devices.cases import ATTENTION, DEVICES, TRAINING, Case

HERE = pathlib.Path(page.__file__).parent
QUICK = {Case("data", "t5", 512)}
ROW = {
    "kind": "compiled",
    "target": "v5e:2x4",
    "jax": "1",
    "case": ["data", "t5", 512],
    "memory": 2**21,
    "temporary": 2**20,
    "collectives": [["all-reduce", 2, 64, False]],
    "widened": [],
    "seconds": 0.1,
}


@pytest.fixture
def virtual(monkeypatch):
    """Eight CPU devices in the place of every topology."""
    there = Topology("virtual:8", "cpu", tuple(jax.devices()[:DEVICES]), 2**40)
    monkeypatch.setattr("experiments.devices.compiling.topology", lambda name: there._replace(name=name))
    return there


def marked():
    """Every encoding; one case is quick."""
    for case in ATTENTION:
        marks = () if case in QUICK else pytest.mark.slow
        if case.kind == "data":
            yield pytest.param(case, marks=marks, id="-".join(map(str, case[:3])))


@pytest.mark.parametrize("case", [*marked()])
def test_a_batch_over_devices_is_computed_by_each_for_itself(case, virtual):
    """No collective but the sums of learned gradients, and of these no more bytes than are known: eight devices do not do the
    work of one eight times."""
    found = compiling.told(virtual, case)
    assert {kind for kind, *_ in found["collectives"]} <= {"all-reduce"}
    assert compiling.total(found) <= attention.summed(case)


@pytest.mark.slow
@pytest.mark.parametrize("mask", cases.MASKS)
@pytest.mark.parametrize("name", ["t5", "fox"])
def test_a_ring_gathers_nothing_under_any_mask(name, mask, virtual):
    found = compiling.told(virtual, Case("ring", name, 512, mask))
    # In zigzag order the positions of FoX are an argument, so that nothing is learned there.
    learned = () if (name, mask) == ("fox", "zigzag") else ("all-reduce",)
    assert {kind for kind, *_ in found["collectives"]} == {*learned, "collective-permute"}


@pytest.mark.slow
@pytest.mark.parametrize("case", [TRAINING[0], TRAINING[3]], ids=["data", "sequence"])
def test_a_training_step_is_within_its_budget_and_a_table_of_scores_is_not(case, virtual, monkeypatch):
    """Also on a CPU, at a quarter of the length, where one layer's table of scores takes more than all else."""
    small = case._replace(length=case.length // 4)
    monkeypatch.setattr(runs, "MODEL", runs.MODEL | {"model": 64, "hidden": 256})
    found = compiling.told(virtual, small)
    assert [*compiling.faults(ROW | found | {"case": list(small)})] == []
    if case.variant == "data=8":
        monkeypatch.setattr(runs, "MODEL", runs.MODEL | {"implementation": "dense"})
        found = compiling.told(virtual, small)
        [fault] = compiling.faults(ROW | found | {"case": list(small)})
        assert fault.endswith(f"are over the budget of {found['budget']}")


def test_what_is_wrong_with_a_program_alone():
    assert [*compiling.faults(ROW)] == []
    over = ROW | {"temporary": 2**25 + 1}
    assert [*compiling.faults(over)] == [
        "v5e:2x4, data, t5, T = 512: 33554433 bytes of temporary memory are over the budget of 33554432"
    ]
    gathered = ROW | {"collectives": [["all-gather", 1, 4, False]]}
    assert [*compiling.faults(gathered)] == ["v5e:2x4, data, t5, T = 512: all-gather among the collectives"]
    early = {
        "case": ["data", "fire", 512],
        "collectives": [["all-reduce", 1, 1320, False], ["all-reduce", 1, 4, False]],
    }
    assert [*compiling.faults(ROW | early)] == [
        "v5e:2x4, data, fire, T = 512: 1324 bytes are added over devices, and learned gradients have 1320"
    ]
    ring = {"case": ["ring", "fire", 8192], "collectives": [["all-reduce", 9, 9999, False]]}
    assert [*compiling.faults(ROW | ring)] == []
    alone = {"case": ["evaluate", "rope", 8, "population=8"], "target": "v5e:2x4"}
    assert [*compiling.faults(alone | {"error": "too much", "budget": 1})] == []
    assert [*compiling.faults(ROW | alone | {"budget": 2**30})] == [
        "v5e:2x4, evaluate, rope, population=8, T = 8: one device holds what only a ring should"
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, []),
        ({"seconds": 9.0, "memory": 2**22}, []),
        ({"temporary": 2**22}, ["temporary memory was 1048576 bytes and is 4194304"]),
        ({"collectives": [["all-reduce", 3, 64, False]]}, ["collectives were 2 all-reduce and are 3 all-reduce"]),
        ({"collectives": [["all-reduce", 3, 64, False]], "jax": "2"}, []),
        ({"collectives": [], "jax": "2"}, ["collectives were all-reduce and are none"]),
        ({"widened": ["dot"]}, ["16-bit operands are made float32 before a product: dot"]),
        ({"error": "too much"}, ["refused: too much"]),
    ],
    ids=["same", "time", "memory", "count", "other-jax", "kinds", "widened", "refused"],
)
def test_what_is_worse_than_its_record_is_told(change, told):
    assert [*checking.compared(ROW | change, ROW)] == [f"v5e:2x4, data, t5, T = 512: {one}" for one in told]


@pytest.mark.slow
def test_the_check_fails_where_a_program_got_worse(virtual, tmp_path, monkeypatch, capsys):
    jsonl.append(tmp_path / recorded.RECORDS, {"kind": "protocol"}, ROW)
    monkeypatch.setattr(command, "HERE", tmp_path)
    answer = {name: ROW[name] for name in ("memory", "temporary", "collectives", "widened", "seconds")}
    worse = answer | {"temporary": 2**24}
    arguments = ["--check", "--kinds", "data", "--names", "t5", "--targets", "v5e:2x4"]
    for found, status in ((answer, 1), (worse, 1)):
        monkeypatch.setattr(compiling, "told", lambda *case, found=found: found)
        assert command.main(arguments) == status
    told = capsys.readouterr().out
    assert told.count("T = 4,096: there is no record to compare with") == 2
    assert "v5e:2x4, data, t5, T = 512: temporary memory was 1048576 bytes and is 16777216" in told
    assert json.loads((tmp_path / recorded.RECORDS).read_text().splitlines()[1])["temporary"] == 2**20
