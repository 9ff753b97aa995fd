"""Reruns of a committed cell: what is trained, what is compared, and the command from end to end on tiny runs."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from attnjax.config import canonical_json, parse, run_id
from attnjax.records import jsonl
from attnjax.report.records import read as read_sweep
from attnjax.sweep import plan, prepare, run_here, seeds
from attnjax.train import train
from experiments import recorded
from experiments.rerun import elsewhere, page, planning, results
from experiments.rerun.__main__ import main
from experiments.rerun.results import measured

COMMITTED = pathlib.Path(__file__).parents[2] / "experiments" / "rope_vs_sinusoidal" / "records"


def test_the_first_rerun_is_the_committed_runs_and_the_others_differ_in_the_last_bits_of_the_rate():
    configs = planning.cell(COMMITTED, "copy", "alibi")
    assert [config.seed for config in configs] == [0, 1, 2]
    planned = planning.reruns(configs, 20)
    assert len({run_id(one.config) for one in planned}) == 60
    assert [run_id(one.config) for one in planned[:3]] == [run_id(config) for config in configs]
    assert all((COMMITTED / run_id(config)).is_dir() for config in configs)
    rates = np.array([one.config.train.learning_rate for one in planned[3:]])
    assert len(set(rates.astype(np.float32))) == 19
    assert np.abs(rates / 0.003 - 1).max() < 1e-6
    assert 0.003 not in rates


def test_a_cell_that_is_not_there_is_refused(tmp_path, capsys):
    told = lambda *arguments: (main([*arguments, "--out", str(tmp_path)]), capsys.readouterr().err)
    status, text = told("--task", "sort")
    assert status == 2
    assert "has no run of sort under alibi; it has: copy alibi, copy nope" in text
    assert told("--reruns", "0") == (2, "rerun: error: --reruns must be 1 .. 200, got 0\n")
    assert main(["--render", str(tmp_path)]) == 2
    assert "holds no records.jsonl" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def records(path, reruns):
    """Three committed runs with scores 0.2, 0.4 and 0.5, and reruns that move them."""
    first = [0.2, 0.4, 0.5]
    run = lambda values, place, **more: {
        "kind": "run",
        "run": f"{place}",
        "seed": place,
        "data_seed": place,
        "rate": 0.5,
        "metric": "exact_match",
        "values": {"past training": values[place], "within": 1.0},
        **more,
    }
    about = {"kind": "protocol", "records": "experiments/x/records", "task": "copy", "encoding": "alibi", "cell": "c"}
    made = {"kind": "made", "processor": "none", "date": "2026-01-01", "python": "3", "jax": "0", "flax": "0"}
    rows = [
        about | {"reruns": len(reruns), "most": 1},
        made,
        *(run(first, place, of="committed") for place in range(3)),
    ]
    for unit, moves in enumerate(reruns):
        values = [value + move for value, move in zip(first, moves, strict=True)]
        rows += [run(values, place, of="rerun", nudge=unit) for place in range(3)]
    jsonl.append(path / recorded.RECORDS, *rows)
    return path


def test_numbers_by_hand(tmp_path):
    """Medians 0.4, 0.6 and 0.1 against the range 0.2 to 0.5: one is inside."""
    found = results.read(records(tmp_path, [[0, 0, 0], [0.4, 0.3, 0.0], [-0.1, -0.3, -0.3]]) / recorded.RECORDS)
    past, within = found.quantities
    np.testing.assert_allclose(past.medians, [0.4, 0.6, 0.1])
    assert (past.inside, within.inside, found.reruns) == (1, 3, 3)
    # Of the seeds: 0.2 0.6 0.1, 0.4 0.7 0.1 and 0.5 0.5 0.2, with variances 0.07, 0.09 and 0.03; means 0.3, 0.4, 0.4.
    assert past.by_rounding == pytest.approx(np.sqrt(0.19 / 3))
    assert past.by_seed == pytest.approx(0.1 / np.sqrt(3))
    text = page.page(found)
    assert "Past training 1 of 3 reruns lie within the committed range (0.400 (range 0.200 to 0.500))" in text
    assert "larger than its seed does (0.058)" in text
    assert "\nexact match, free running; median of the 3 runs:" in text
    assert "| past training | 0.400 (range 0.200 to 0.500) | 0.100 | 0.600 | 1 of 3 | 0.252 | 0.058 |" in text


def test_records_without_a_rerun_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no complete rerun in these records"):
        results.read(records(tmp_path, []) / recorded.RECORDS)


def test_a_rerun_that_lacks_a_seed_is_not_compared():
    """The seeds of data count too: two runs here have the same seed of parameters."""
    one = lambda seed, rate: {"seed": 0, "data_seed": seed, "rate": rate, "run": f"{seed}"}
    first = [one(0, 0.5), one(1, 0.5)]
    again = [*first, one(0, planning.nudged(0.5, 1))]
    found = results.tables(first, again, [0, 1])
    assert [(row["of"], row["data_seed"], row.get("nudge")) for row in found] == [
        ("committed", 0, None),
        ("committed", 1, None),
        ("rerun", 0, 0),
        ("rerun", 1, 0),
    ]


def test_an_infinite_loss_is_the_worst_and_a_lost_number_is_an_error():
    """Medians 1.3 of 1.0 to 1.5 and an infinite loss, which JSON has as null."""
    values = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, None]
    runs = [{"run": str(k), "metric": "loss", "values": {"past training": x}} for k, x in enumerate(values)]
    (one,) = results.quantities(runs, [runs])
    assert (one.estimate.value, one.estimate.high, one.medians.tolist(), one.inside) == (1.3, np.inf, [1.3], 1)
    with pytest.raises(ValueError, match="^run x was not measured at what the others were: 16$"):
        results.quantities(
            runs, [[*runs[1:], {"run": "x", "metric": "loss", "values": {"past training": 1.0, "16": 1.0}}]]
        )


def test_a_cell_that_measured_nothing_is_refused_before_it_is_trained_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(results, "measured", lambda *rest, **more: [])
    monkeypatch.setattr("experiments.rerun.__main__.prepare", lambda *rest, **more: pytest.fail("it would be trained"))
    assert main(["--out", str(tmp_path)]) == 2
    words = "rerun: error: the runs of copy under alibi have measured nothing that could be compared\n"
    assert capsys.readouterr().err == words


def test_a_folder_in_place_of_the_page_is_one_sentence(tmp_path, capsys):
    records(tmp_path, [[0, 0, 0]])
    (tmp_path / "README.md").mkdir()
    assert main(["--render", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("rerun: error: ")


@pytest.mark.slow
def test_from_committed_runs_to_the_page_and_again(tmp_path):
    config = {
        "name": "tiny",
        "task": {"name": "copy", "options": {"variant": "rsc"}, "length_min": 1, "length_max": 3},
        "model": {"layers": 1, "model": 8, "heads": 2, "hidden": 8, "encoding": {"name": "alibi"}},
        "train": {"steps": 3, "batch": 2, "learning_rate": 3e-3, "log_every": 0, "checkpoint_every": 0},
        "evaluate": {"lengths": [3, 6], "validation_lengths": [], "count": 4, "batch": 4, "bucket_sizes": [6]},
    }
    store = prepare(tmp_path / "first", "tiny", plan(config, seeds(2)))
    run_here(store, train)
    command = ["--records", str(store.root), "--reruns", "3", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    folder = tmp_path / "out" / "copy_alibi"
    first = (folder / recorded.RECORDS).read_bytes()
    rows = [json.loads(line) for line in first.splitlines()]
    assert [row["kind"] for row in rows] == ["protocol", "made", *["run"] * 8]
    same = [(row["seed"], row["values"]) for row in rows if row.get("of") == "committed" or row.get("nudge") == 0]
    assert {seed for seed, _ in same} == {0, 1}
    assert "3 reruns lie within the committed range" in (folder / "README.md").read_text()
    assert main(command) == 0
    assert (folder / recorded.RECORDS).read_bytes() == first
    assert main([*command[:3], "4", *command[4:]]) == 2


def test_the_committed_page_is_made_from_its_records_of_committed_runs():
    folder = pathlib.Path(page.__file__).parent / "copy_alibi"
    found = results.read(folder / recorded.RECORDS)
    assert (folder / "README.md").read_text(encoding="utf-8") == page.page(found)
    rows = [row for row in jsonl.read(folder / recorded.RECORDS).tables if row["kind"] == "run"]
    committed = {row["run"] for row in rows if row["of"] == "committed"}
    assert committed == {run_id(config) for config in planning.cell(COMMITTED, "copy", "alibi")}
    assert len([row for row in rows if row["of"] == "rerun"]) == 3 * 20


def both_sweeps(path, again):
    """A cell with committed scores 0.2, 0.4 and 0.5 past training and 0.5 at length 8, and the scores of its runs again."""
    machine = lambda of: {"kind": "machine", "of": of, "processor": f"that of {of}", "version_jax": "0"}
    run = lambda of, seed, past: {
        "kind": "run",
        "of": of,
        "run": f"{seed}",
        "task": "copy",
        "variant": "RoPE",
        "seed": seed,
        "metric": "exact_match",
        "values": {"past training": past, "within": 1.0, "8": past + 0.1},
    }
    protocol = {"kind": "protocol", "records": "experiments/x/records", "name": "x", "committed": 4, "both": 3}
    runs = [run("committed", seed, past) for seed, past in enumerate([0.2, 0.4, 0.5])]
    runs += [run("rerun", seed, past) for seed, past in enumerate(again)]
    path.mkdir()
    jsonl.append(path / recorded.RECORDS, protocol, machine("committed"), machine("rerun"), *runs)
    return path / recorded.RECORDS


def test_a_whole_sweep_by_hand(tmp_path):
    """Medians 0.45 and 0.55 against the ranges 0.2 to 0.5 and 0.3 to 0.6, then 0.1 and 0.2, which are outside."""
    text = elsewhere.page(elsewhere.read(both_sweeps(tmp_path / "a", [0.3, 0.45, 0.9])))
    assert "Of 1 medians past training 1 lie within the committed range, of 1 medians at single lengths 1." in text
    assert "| copy | RoPE | exact match, free running | 0.400 (range 0.200 to 0.500) | 0.450 | 1 of 1 |" in text
    assert "No median is outside." in text
    assert "1 of 4 committed runs are of cells that were not trained again to the end." in text
    assert "| processor | that of committed | that of rerun |" in text
    text = elsewhere.page(elsewhere.read(both_sweeps(tmp_path / "b", [0.0, 0.1, 0.3])))
    assert "Of 1 medians past training 0 lie within the committed range, of 1 medians at single lengths 0." in text
    assert "* copy under RoPE, past training: 0.100 beside 0.400 (range 0.200 to 0.500)\n" in text
    assert "* copy under RoPE, 8: 0.200 beside 0.500 (range 0.300 to 0.600)\n" in text


def test_the_committed_sweep_beside_itself_is_inside_everywhere(tmp_path, capsys):
    assert main(["--compare", str(COMMITTED), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'records' / 'README.md'}\n"
    found = elsewhere.read(tmp_path / "records" / recorded.RECORDS)
    assert (len(found.cells), found.about["both"]) == (8, 24)
    assert all(one.inside == 1 for cell in found.cells for one in cell.quantities)
    assert all((one.reruns == one.committed).all() for cell in found.cells for one in cell.quantities)


def test_what_else_is_in_a_sweep_does_not_change_what_is_compared(tmp_path):
    """With runs at another learning rate beside them, the same runs are those of "RoPE learning_rate=0.003"."""
    again = tmp_path / "again"
    shutil.copytree(COMMITTED, again)
    first = next(path for path in again.glob("*/config.json") if json.loads(path.read_text())["seed"] == 0)
    config = json.loads(first.read_text())
    config["train"]["learning_rate"] = 1e-4
    other = again / run_id(parse(config))
    shutil.copytree(first.parent, other)
    (other / "config.json").write_text(canonical_json(parse(config)))
    rows = [{**row, "run": other.name} for row in jsonl.read(other / jsonl.RESULTS).tables]
    jsonl.replace(other / jsonl.RESULTS, [{key: x for key, x in row.items() if key != "schema"} for row in rows])
    labels = {one["variant"] for one in measured(read_sweep(again))}
    assert any("learning_rate" in label for label in labels)
    beside, alone = (elsewhere.compare(COMMITTED, folder) for folder in (again, COMMITTED))
    assert beside[3:] == alone[3:]


def test_a_failed_run_is_compared_as_the_worst_and_a_cell_without_a_run_is_not(tmp_path):
    """Exact match of a cell of three runs, of which one fails again; and loses one run of another cell."""
    again = tmp_path / "again"
    shutil.copytree(COMMITTED, again)
    alone = elsewhere.compare(COMMITTED, COMMITTED)
    of = lambda rows, name: [row for row in rows if row["kind"] == "run" and row["of"] == name]
    cells = {(row["task"], row["variant"]): row["run"] for row in of(alone, "committed")}
    failed, lost = cells["copy", "NoPE"], cells["markov", "RoPE"]
    status = {**json.loads((again / failed / "status.json").read_text()), "state": "failed", "reason": "nan at step 3"}
    (again / failed / "status.json").write_text(json.dumps(status))
    shutil.rmtree(again / lost)
    found = elsewhere.compare(COMMITTED, again)
    assert len(of(found, "committed")) == len(of(found, "rerun")) == 21
    (row,) = [row for row in of(found, "rerun") if row["run"] == failed]
    assert set(row["values"].values()) == {0.0}
    assert ("markov", "RoPE") not in {(row["task"], row["variant"]) for row in found if row["kind"] == "run"}
    assert (found[0]["committed"], found[0]["both"]) == (24, 21)


def test_a_sweep_without_a_common_run_is_refused(tmp_path, capsys):
    other = COMMITTED.parents[1] / "theta" / "records"
    assert main(["--compare", str(other), "--out", str(tmp_path)]) == 2
    assert "no cell of" in (text := capsys.readouterr().err)
    assert "too: 0 of 24 runs are there; is it another sweep, one of other versions, or not trained to its end?" in text
    assert not list(tmp_path.iterdir())


def test_the_committed_page_of_the_whole_sweep_is_made_from_its_records():
    folder = pathlib.Path(page.__file__).parent / "rope_vs_sinusoidal"
    found = elsewhere.read(folder / recorded.RECORDS)
    assert (folder / "README.md").read_text(encoding="utf-8") == elsewhere.page(found)
    runs = {row["run"] for row in jsonl.read(folder / recorded.RECORDS).tables if row["kind"] == "run"}
    assert runs == {folder.name for folder in COMMITTED.iterdir() if folder.is_dir()}
