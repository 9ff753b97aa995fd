"""What compiles for devices that are not here: the same programs on virtual CPU devices, and the committed record."""

import json
import pathlib

import jax
import pytest

from attnjax.aot import Topology
from attnjax.config.mesh import MeshShape
from attnjax.records import lines
from experiments import recorded
from experiments.devices import __main__ as command
from experiments.devices import attention, cases, checking, compiling, page, runs
from experiments.devices.cases import ATTENTION, DEVICES, EMBEDDINGS, EVALUATIONS, KERNEL, TARGETS, TRAINING, Case

HERE = pathlib.Path(page.__file__).parent
QUICK = {Case("data", "t5", 512)}
WIDENED = ("transformer_xl", "cope", "path")
"""Encodings with products in float32 before any compiler: `tests/attention/test_sixteen_bit_products.py` counts them."""
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


def test_every_encoding_that_acts_inside_attention_has_its_cases():
    from attnjax import ENCODINGS

    assert {case.name for case in ATTENTION} == ENCODINGS.keys() - {*EMBEDDINGS}
    assert {case.kind for case in ATTENTION} == {"data", "ring"}


def test_every_config_has_a_program_for_every_target_and_some_all_of_them_for_one():
    found = [one for one in cases.every_case() if one[1].kind == "config"]
    configs = {path.stem for path in cases.CONFIGS.glob("*.py")}
    for target in TARGETS:
        assert {case.name for there, case in found if there == target} == configs
    count = lambda name: len(cases.groups_of(name)) if name in cases.FULLY else 1
    assert sum(there == "h100:8" for there, _ in found) == sum(map(count, configs))
    assert len(set(cases.every_case())) == len([*cases.every_case()])


def test_a_config_whose_batches_do_not_divide_is_spread_by_its_runs():
    by_name = {case.name: runs._of_config(case)[1] for case in cases.of_configs()}
    assert by_name["theta"] == MeshShape(data=8)
    assert by_name["kazemnejad"] == by_name["huang"] == MeshShape(population=8)


def test_the_selection_is_among_the_cases_and_has_every_kind_that_is_compiled_in_minutes():
    selection = [*cases.selection()]
    assert set(selection) < set(cases.every_case())
    assert {case.kind for _, case in selection} == {"data", "kernel", "ring", "train", "config"}
    assert {case.name for _, case in selection if case.kind == "train"} == {"decoder", "encoder", "encoder_decoder"}
    assert {target for target, _ in selection} == {*TARGETS}
    rows = page.read(HERE / recorded.RECORDS).rows
    assert [one for one in selection if one not in rows] == []
    assert sum(rows[one]["seconds"] for one in selection) < 270, "half a minute is left of five for the start"


def test_the_committed_page_is_made_from_its_records():
    found = page.read(HERE / recorded.RECORDS)
    assert page.readme(found) == (HERE / "README.md").read_text(encoding="utf-8")
    assert {case for _, case in found.rows} >= {*TRAINING, *EVALUATIONS}


def test_the_committed_records_have_every_encoding_and_show_what_is_promised_of_each():
    """On H100, v5e and v6e: a batch over devices has no collective but sums of learned gradients, nothing is gathered anywhere,
    and no product has a 16-bit operand that was made float32, but for the encodings that are known to have some."""
    rows = page.read(HERE / recorded.RECORDS).rows
    wanted = {(target, case) for target in TARGETS for case in ATTENTION}
    wanted |= {(target, case) for target in TARGETS if target != "h100:8" for case in KERNEL}
    assert wanted - rows.keys() == set()
    refused = [str(case) for (_, case), row in rows.items() if "error" in row and not case.refused]
    assert refused == []
    for (target, case), row in rows.items():
        kinds = {kind for kind, *_ in row.get("collectives", ())}
        learns = case.kind in ("data", "kernel") and bool(attention.learned(case.name))
        if case.kind in ("data", "kernel"):
            assert kinds == ({"all-reduce"} if learns else set()), (target, case)
        assert kinds <= {"all-reduce"} | ({"collective-permute"} if case.ring else set()), (target, case)
        assert not row.get("widened") or case.name in WIDENED, (target, case)
    # The present reader has read all attention for H100, and finds there what the compiler was given in float32.
    read = {case.name for (target, case), row in rows.items() if target == "h100:8" and row.get("widened")}
    assert read == {*WIDENED}
    on_gpu = [row for (target, case), row in rows.items() if target == "h100:8" and case.kind in ("data", "ring")]
    assert {row["reader"] for row in on_gpu} == {compiling.READER}


def test_the_committed_records_add_up_what_is_learned_with_named_exceptions():
    """Over devices, in bytes, on H100, v5e, v6e and v5p; and the exceptions are some, or they would be none to name."""
    rows = page.read(HERE / recorded.RECORDS).rows
    sums = {one: compiling.total(row) for one, row in rows.items() if one[1].kind in ("data", "kernel")}
    assert [one for one, found in sums.items() if found > attention.summed(one[1])] == []
    learned = {case.name: attention.learned(case.name) for _, case in sums}
    more, less = set(), set()
    for (_, case), found in sums.items():
        if (case.kind, case.length) == ("data", 4096) and found != learned[case.name]:
            (more if found > learned[case.name] else less).add(case.name)
    assert more == {*attention.DISTANCES, *attention.POSITIONS}
    # Their matrices meet 16-bit tokens: 2 bytes of each number of these are added.
    assert less == {"fox", "cable", "repo", "selective_rope", "path"}
    for (_, case), found in sums.items():
        assert 2 * found >= learned[case.name], case


def test_the_faults_of_the_committed_records_are_the_known_ones():
    """PaTH in a ring needs more than its budget on all three, and on v5p FoX and a step of training, by 1 %; nothing else."""
    found = page.read(HERE / recorded.RECORDS).rows
    assert {one for one, row in found.items() if any(compiling.faults(row))} == {
        *((target, Case("ring", "path", 8192)) for target in TARGETS),
        ("v5p:2x2x2", Case("ring", "fox", 8192)),
        ("v5p:2x2x2", cases.TRAINING[3]),
    }
    wrong = [fault for row in found.values() for fault in compiling.faults(row)]
    assert len(wrong) == 5
    of_attention = [fault for fault in wrong if ", train, " not in fault]
    assert all(" bytes of temporary memory are over the budget of 67108864" in fault for fault in of_attention)
    assert len(of_attention) == 4
    assert all(" bytes of temporary memory are over the budget of " in fault for fault in wrong)
    step = found["v5p:2x2x2", cases.TRAINING[3]]
    assert 1 < step["temporary"] / step["budget"] < 1.01


def test_every_case_has_a_committed_record():
    """Of a config some program for each of H100, v5e and v6e: those of one that was changed since may be of before."""
    rows = page.read(HERE / recorded.RECORDS).rows
    assert {one for one in cases.every_case() if one[1].kind != "config"} <= rows.keys()
    configs = {path.stem for path in cases.CONFIGS.glob("*.py")}
    for target in TARGETS:
        compiled = {case.name for (there, case) in rows if there == target and case.kind == "config"}
        assert configs <= compiled, target


def test_what_is_recorded_is_compiled_again_only_where_sources_changed(virtual, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(compiling, "told", lambda *case: calls.append(case) or {"budget": 1, "error": "too much"})
    wanted, path = cases.chosen(["data"], ["rope"], ["v5e:2x4"]), tmp_path / recorded.RECORDS
    refused = [f"v5e:2x4, data, rope, T = {length}: refused: too much" for length in ("512", "4,096")]
    assert compiling.compile_all(path, wanted) == refused
    assert compiling.compile_all(path, wanted) == compiling.compile_all(path, wanted, again=True) == []
    assert len(calls) == len(page.read(path).rows) == 2
    monkeypatch.setattr(compiling, "source", lambda: "other")
    assert compiling.compile_all(path, wanted) == []
    assert compiling.compile_all(path, wanted, again=True) == refused
    assert {row["source"] for row in page.read(path).rows.values()} == {"other"}


def test_a_config_whose_text_is_not_here_is_told_and_the_others_are_compiled(virtual, tmp_path, monkeypatch):
    def told(there, case):
        if case.name == "t5":
            raise ValueError("no file")
        return {"budget": 1, "error": "too much"}

    monkeypatch.setattr(compiling, "told", told)
    wanted = [("v5e:2x4", Case("data", name, 512)) for name in ("t5", "rope")]
    assert compiling.compile_all(tmp_path / recorded.RECORDS, wanted) == [
        "v5e:2x4, data, t5, T = 512: not compiled: no file",
        "v5e:2x4, data, rope, T = 512: refused: too much",
    ]


@pytest.mark.parametrize(
    ("kinds", "names", "targets", "error"),
    [
        (["rign"], None, None, "no case has the kind 'rign'; choose from train, evaluate, ring, data, kernel, config"),
        (
            None,
            None,
            ["v5e:2x2"],
            "no case has the topology 'v5e:2x2'; choose from h100:8, v5e:2x4, v6e:2x4, v5p:2x2x2",
        ),
    ],
)
def test_cases_that_do_not_exist_are_named(kinds, names, targets, error):
    with pytest.raises(ValueError, match=f"^{error}$"):
        cases.chosen(kinds, names, targets)


def test_a_mistake_on_the_command_line_is_a_sentence(capsys):
    assert command.main(["--names", "rop", "--check"]) == 2
    assert capsys.readouterr().err.startswith(
        "devices: error: no case has the name 'rop'; choose from decoder, encoder, "
    )


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


def test_what_the_record_had_is_no_news_and_what_it_lacks_is():
    over = ROW | {"temporary": 2**26}
    assert [*checking.compared(over, over)] == []
    assert [*checking.compared(ROW, None)] == ["v5e:2x4, data, t5, T = 512: there is no record to compare with"]
    assert [*checking.compared(ROW, ROW | {"error": "too much"})] == [
        "v5e:2x4, data, t5, T = 512: compiles now; record it"
    ]


def test_the_check_fails_where_a_program_got_worse(virtual, tmp_path, monkeypatch, capsys):
    (tmp_path / recorded.RECORDS).write_text("".join(lines.text(row) for row in ({"kind": "protocol"}, ROW)))
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
