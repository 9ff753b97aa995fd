"""The table beside published numbers: each cell once, what differs, the order of encodings, and the committed files."""

import csv
import io
import pathlib

import pytest

from experiments.published.cells import cells
from experiments.published.collecting import Source, collect
from experiments.published.page import files, in_markdown
from tests.report.synthetic import config, lines, run_id, write_run


def sweep(folder: pathlib.Path, scores: dict[str, tuple[float, float]], seeds: int = 1, **changes) -> pathlib.Path:
    """Records of copying, trained on up to 20 tokens: of each encoding exact match at 20 and at 30."""
    task = {"name": "copy", "options": {"variant": "rsc"}, "form": "decoder", "length_min": 1, "length_max": 20}
    for name, (within, past) in scores.items():
        for seed in range(seeds):
            fields = config("copy", name, seed, **({"task": task} | changes))
            row = {"run": run_id(fields), "step": 4, "metric": "exact_match"}
            rows = [row | {"length": 20, "value": within, "split": "train"}]
            rows += [row | {"length": 30, "value": past, "split": "test"}]
            write_run(folder, fields, results=lines(rows))
    return folder


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def two(tmp_path: pathlib.Path) -> pathlib.Path:
    """A first sweep with four encodings, one of which did not fit, and a second with three, one of them new."""
    sweep(
        tmp_path / "first" / "records", {"nope": (1.0, 0.9), "alibi": (1.0, 0.1), "t5": (0.5, 0.4), "rope": (1.0, 0.2)}
    )
    sweep(tmp_path / "second" / "records", {"nope": (1.0, 0.3), "alibi": (1.0, 0.3), "sinusoidal": (1.0, 0.6)})
    return tmp_path


ASKED = (Source("first", "make first"), Source("second", "make second"), Source("third", "make third"))


def test_every_published_number_stands_once_and_the_first_sweep_comes_first(two: pathlib.Path):
    found = collect(two, ASKED)
    assert [(one.source.name, len(one.pairs)) for one in found.found] == [("first", 4), ("second", 1)]
    assert len({pair.cell for pair in found.pairs}) == len(found.pairs) == 5
    assert found.repeated == 2
    assert [one.name for one in found.absent] == ["third"]
    assert len(found.missing) + 5 == sum(cell.low > cell.trained for cell in cells())
    told = in_markdown(found)
    assert "- third: `make third`" in told
    assert "| published numbers with one of ours beside them | 5, of 1 papers |" in told
    rows = read_csv(files(found)["table.csv"])
    assert [row["sweep"] for row in rows] == ["first"] * 4 + ["second"]
    assert {row["encoding"]: row["value"] for row in rows}["nope"] == "0.9"


def test_the_order_of_encodings_by_hand(two: pathlib.Path):
    """First sweep, without T5, which has not fitted: NoPE .9, RoPE .2, ALiBi .1; published .986, 0, .289.

    NoPE before both is as published, RoPE before ALiBi is not: (2 - 1) / 3. One encoding alone has no order.
    """
    found = collect(two, ASKED)
    (row,) = read_csv(files(found)["agreement.csv"])
    assert (row["sweep"], row["pairs"], row["concordant"], row["discordant"]) == ("first", "3", "2", "1")
    assert float(row["tau_b"]) == pytest.approx(1 / 3)
    assert "T5" not in row["encodings"]
    assert "3: 2 in the published order, 1 the other way round, 0 tied" in in_markdown(found)
    assert "| not fitted; " in in_markdown(found)
    assert {row["encoding"]: row["fitted"] for row in read_csv(files(found)["table.csv"])}["t5"] == "0"
