"""What compiles for devices that are not here: the same programs on virtual CPU devices, and the committed record."""

import pathlib

import jax
import pytest

from attnjax.aot import Topology
from experiments import recorded
from experiments.devices import page
from experiments.devices.cases import DEVICES, EMBEDDINGS, Case, cases
from experiments.devices.compiling import compile_all, told

HERE = pathlib.Path(page.__file__).parent
QUICK = {Case("data", "t5", 512)}
BY_CI = {Case("data", name, length) for name in ("rope", "fire", "fox") for length in (512, 4096)}


def marked():
    """Every encoding, a few of them by day and in CI."""
    for case in cases():
        marks = () if case in QUICK else pytest.mark.slow if case in BY_CI else pytest.mark.nightly
        if case.kind == "data":
            yield pytest.param(case, marks=marks, id="-".join(map(str, case)))


@pytest.mark.parametrize("case", [*marked()])
def test_a_batch_over_devices_is_computed_by_each_for_itself(case):
    """No collective but the sums of learned gradients: eight devices do not do the work of one eight times."""
    found = told(Topology("virtual:8", "cpu", tuple(jax.devices()[:DEVICES]), 2**40), case)
    assert {kind for kind, *_ in found["collectives"]} <= {"all-reduce"}


def test_every_encoding_that_acts_inside_attention_has_its_cases():
    from attnjax import ENCODINGS

    assert {case.encoding for case in cases()} == ENCODINGS.keys() - {*EMBEDDINGS}
    assert {case.kind for case in cases()} == {"data", "ring"}


def test_the_committed_page_is_made_from_its_records():
    found = page.read(HERE / recorded.RECORDS)
    assert page.readme(found) == (HERE / "README.md").read_text(encoding="utf-8")
    kinds = {kind for row in found.rows.values() for kind, *_ in row.get("collectives", ())}
    assert kinds <= {"all-reduce", "collective-permute"}


def test_what_is_recorded_is_not_compiled_again(tmp_path, monkeypatch, capsys):
    virtual = Topology("virtual:8", "cpu", tuple(jax.devices()[:DEVICES]), 2**40)
    monkeypatch.setattr("experiments.devices.compiling.topology", lambda name: virtual)
    calls = []
    answer = {"memory": 2, "temporary": 1, "collectives": [], "widened": [], "seconds": 0.1}
    monkeypatch.setattr("experiments.devices.compiling.told", lambda *case: calls.append(case) or answer)
    for _ in range(2):
        compile_all(tmp_path / recorded.RECORDS, ["rope"], ["v5e:2x4"])
    assert len(calls) == 3
    assert len(page.read(tmp_path / recorded.RECORDS).rows) == 3
    with pytest.raises(ValueError, match=r"^no encoding that acts inside attention is called rop$"):
        compile_all(tmp_path / recorded.RECORDS, ["rop"], ["v5e:2x4"])
