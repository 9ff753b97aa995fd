"""Runs that ended when they had fitted their task count with what they measured there, and reports say where that was."""

import csv
import io
import json
import re
from pathlib import Path

from attnjax.report.csv_tables import runs
from attnjax.report.markdown_tables import ON_THE_PAGE, table_md
from attnjax.report.page import page
from attnjax.report.records import read
from attnjax.report.summarise import summarise
from attnjax.report.summary import Summary
from tests.report.synthetic import lines, write_sweep


def swept(root: Path) -> Summary:
    """Two runs of one cell, of which the first ended at step 40, and the second learned to the last step, 80."""
    early, late = write_sweep(root, ("copy",), ("rope",), 2)
    folders = {run.config["seed"]: root / run.id for run in read(root).runs}
    results = [{"length": 40, "metric": "exact_match", "count": 9}]
    for config, last, value in ((early, 40, 1.0), (late, 80, 0.5)):
        folder = folders[config["seed"]]
        losses = [{"step": step, "loss": 80.0 - step} for step in range(20, last + 1, 20)]
        (folder / "metrics.jsonl").write_text(lines(losses))
        rows = [{**row, "step": last, "value": value, "split": "test"} for row in results]
        if last == 40:  # it was also validated before
            rows = [{**rows[0], "step": 20, "value": 0.1, "split": "validation"}, *rows]
        (folder / "results.jsonl").write_text(lines(rows))
        manifest = json.loads((folder / "manifest.json").read_text())
        stopped = {"stopped_at": last if last == 40 else None}
        (folder / "manifest.json").write_text(json.dumps({**manifest, **stopped}))
    return summarise(read(root))


def test_an_early_end_is_an_end(tmp_path: Path):
    summary = swept(tmp_path)
    (task,) = summary.tasks
    assert task.counts[0].done == 2
    (row,) = task.rows["exact_match"]
    assert sorted(row.scored.past) == [0.5, 1.0]
    assert (
        "Ended when they had fitted their task (train.until): 1 of 2 runs, at steps 40 to 40 (see Runs). They count with what "
        "they measured there."
    ) in summary.notes
    table = list(csv.DictReader(io.StringIO(runs(summary))))
    assert sorted(one["reason"] for one in table) == ["", "fitted at step 40 of 400"]
    assert "fitted at step 40 of 400" in page(summary, {})


def test_notes_of_the_markdown_tables_link_to_sections_that_only_the_page_has(tmp_path: Path):
    summary = swept(tmp_path)
    table = table_md(summary)
    assert "(see [Runs](report.html#runs))" in table
    assert "(see [Method](report.html#method))" in table
    sections = re.findall(r'<section id="([\w-]+)"><h2>([^<]+)</h2>', page(summary, {}))
    assert {(anchor, title) for title, anchor in ON_THE_PAGE} <= set(sections)


def test_its_learning_curve_goes_on_at_its_last_loss(tmp_path: Path):
    """Losses 60, 40 of the one and 60, 40, 20, 0 of the other: the mean falls to 20 at the end, and not to 0."""
    (curve,) = swept(tmp_path).tasks[0].learning
    assert curve.x.tolist() == [20, 40, 60, 80]
    assert curve.value.tolist() == [60, 40, 30, 20]
    assert curve.count.tolist() == [2, 2, 2, 2]
