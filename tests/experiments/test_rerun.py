"""Reruns of a committed cell: what is trained, what is compared, and the command from end to end on tiny runs."""

import json

import numpy as np
import pytest

from attnjax.records import jsonl
from attnjax.sweep import plan, prepare, run_here, seeds
from attnjax.train import train
from experiments import recorded
from experiments.rerun import page, results
from experiments.rerun.__main__ import main


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
