"""The table of length factors: what its words plan, hand-made runs, parts of a table, and mistakes in one sentence."""

import json

import numpy as np

from experiments.length_table.__main__ import PAGES, load, main
from experiments.length_table.page import table_md
from experiments.length_table.records import Kept, line
from experiments.length_table.results import results
from tests.report.synthetic import canonical, config, lines, run_id as made_id, write_run, write_spec

LENGTHS = (8, 16, 17, 32, 128)


def run(encoding="rope", seed=0, values=(1.0, 1.0, 1.0, 0.95, 0.5), task="copy", **fields):
    """A run on copying, trained up to 16, that holds to twice that."""
    name = f"{encoding}-{task}-{seed}"
    known = {"learning_rate": 3e-3, "longest": 16, "metric": "exact_match", "lengths": LENGTHS, "seconds": 2.0}
    return Kept(run=name, task=task, encoding=encoding, seeds=(seed, seed), values=values, **known | fields)


def made(*runs):
    """The results of these runs."""
    return results([{"kind": "protocol", "text": "Why?"}, *(json.loads(json.dumps(line(one))) for one in runs)])


def test_factor_fit_rate_and_their_intervals_are_those_by_hand():
    """Seven of ten runs hold to 32, three to 17: the median is 2, and the interval of order statistics reaches to 17 / 16."""
    low = (1.0, 1.0, 0.92, 0.6, 0.1)
    cell = (
        made(*(run(seed=k, values=low if k < 3 else (1.0, 1.0, 1.0, 0.95, 0.5)) for k in range(10)))
        .columns[0]
        .cells["rope"]
    )
    assert cell.factors.tolist() == [17 / 16] * 3 + [2.0] * 7
    assert (cell.factor.value, cell.factor.high) == (2.0, 2.0)
    assert 17 / 16 <= cell.factor.low < 2.0
    few = (
        made(*(run(seed=k, values=(1.0, 0.9 if k < 4 else 1.0, 0.5, 0.0, 0.0)) for k in range(10)))
        .columns[0]
        .cells["rope"]
    )
    assert few.fits == (False,) * 4 + (True,) * 6
    # Clopper and Pearson: beta quantiles (0.025; 6, 5) and (0.975; 7, 4).
    np.testing.assert_allclose(
        [few.fit_rate.value, few.fit_rate.low, few.fit_rate.high], [0.6, 0.2624, 0.8784], atol=1e-4
    )


def test_best_is_only_who_can_be_told_from_all_others():
    """Ten pairs that all differ alike have p = 2 / 1024, times two comparisons; two seeds have 2 / 4."""
    far, near, bad = (1.0,) * 5, (1.0, 1.0, 1.0, 0.2, 0.0), (0.2,) * 5
    rows = lambda count: [
        run(name, k, values)
        for name, values in (("alibi", far), ("rope", near), ("nope", near), ("t5", bad))
        for k in range(count)
    ]
    column = made(*rows(10)).columns[0]
    assert column.best == column.largest == "alibi"
    assert column.against == {"rope": 4 / 1024, "nope": 4 / 1024}
    assert column.ranks == {"alibi": 1.0, "nope": 2.5, "rope": 2.5}
    assert [column.level(name) for name in ("alibi", "rope")] == [True, False]
    few = made(*rows(2)).columns[0]
    assert (few.best, few.largest, few.level("rope")) == ("", "alibi", True)
    text = table_md(made(*rows(10)))
    assert "| ALiBi | **8.00, 10/10** |" in text
    assert "| RoPE | 1.06, 10/10 |" in text
    assert "| T5 bias | *not fitted, 0/10* |" in text
    assert "| ALiBi | \N{ALMOST EQUAL TO} 8.00, 2/2 |" in table_md(made(*rows(2)))


def folder_of_runs(root):
    """A sweep as training writes it: two runs that ended, one that failed, one that has not begun."""
    fields = [config("copy", name, seed, 16) for name, seed in (("rope", 0), ("rope", 1), ("t5", 0), ("t5", 1))]
    for one, state in zip(fields, ("done", "done", "failed", "pending"), strict=True):
        row = {"run": made_id(one), "step": 400, "count": 512, "metric": "exact_match"}
        splits = {8: "train", 16: "train", 32: "test"}
        rows = [{**row, "length": n, "split": split, "value": 1.0} for n, split in splits.items()]
        rows += [{**row, "length": n, "split": "validation", "value": 0.25} for n in (12, 16)]
        manifest = canonical({"schema": 1, "wall_seconds": 30.0, "population_size": 10})
        write_run(root, one, state, manifest=manifest, results=lines(rows) if state == "done" else "")
    write_spec(root, fields)
    return root


def test_the_command_keeps_what_has_ended_and_makes_the_table(tmp_path, capsys):
    runs, out = folder_of_runs(tmp_path / "runs"), tmp_path / "out"
    assert main([str(runs), "--out", str(out)]) == 0
    assert (
        capsys.readouterr().out.splitlines()[0] == "copy: 1 of 2 encodings fit; largest: rope (p 1.000 to the nearest)"
    )
    cells = load(out / "records.jsonl").columns[0].cells
    assert (cells["rope"].factors.tolist(), cells["rope"].fits) == ([2.0, 2.0], (True, True))
    assert (cells["t5"].factors.tolist(), cells["t5"].fits) == ([0.0], (False,))
    assert cells["rope"].runs[0].seconds == 3.0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert main(["--out", str(out)]) == 0
    assert main([str(runs), "--out", str(out)]) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert {*PAGES, "records.jsonl"} <= set(before)
    capsys.readouterr()
    assert main(["--pilot", str(runs)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "copy, rope: exact_match 0.250"
