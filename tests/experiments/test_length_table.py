"""The table of length factors: what its words plan, hand-made runs, parts of a table, and mistakes in one sentence."""

import json
import pathlib

import numpy as np
import pytest
from scipy import stats

from attnjax.config import load as load_config
from attnjax.config import run_id
from attnjax.records import jsonl
from attnjax.registry import ENCODINGS
from attnjax.sweep import plan
from attnjax.sweep.tuning import tuning
from experiments import recorded
from experiments.length_table import baselines
from experiments.length_table.__main__ import PAGES, load, main
from experiments.length_table.figure import draw
from experiments.length_table.page import notes, table_csv, table_md
from experiments.length_table.records import SUBJECT, Kept, from_line, line, parsed
from experiments.length_table.results import compared, fits, reached, results
from tests.report.synthetic import canonical, config, lines, write_run, write_spec
from tests.report.synthetic import run_id as made_id

FOLDER = pathlib.Path(__file__).parents[2] / "experiments" / "length_table"
WORDS = ("copy", "sort", "bucket_sort", "induction", "markov", "text")
LENGTHS = (8, 16, 17, 32, 128)


def run(encoding="rope", seed=0, values=(1.0, 1.0, 1.0, 0.95, 0.5), task="copy", **fields):
    """A run on copying, trained up to 16, that holds to twice that."""
    name = f"{encoding}-{task}-{seed}"
    known = {"learning_rate": 3e-3, "longest": 16, "metric": "exact_match", "lengths": LENGTHS, "seconds": 2.0}
    return Kept(run=name, task=task, encoding=encoding, seeds=(seed, seed), values=values, **known | fields)


def made(*runs):
    """The results of these runs."""
    return results([{"kind": "protocol", "text": "Why?"}, *(json.loads(json.dumps(line(one))) for one in runs)])


def planned(word):
    """The config and the planned runs of a word."""
    found = load_config(f"length_table:{word}")
    return found, plan(found.config, found.sweep())


def test_every_task_has_all_encodings_with_positions_of_one_coordinate_and_ten_seeds():
    whole = {run_id(one.config) for one in planned("all")[1]}
    assert len(whole) == 6 * 22 * 10
    parts = []
    for word in WORDS:
        found, runs = planned(word)
        assert len(runs) == 220
        trained = {name for name, row in ENCODINGS.items() if not row.axes and not row.untrained}
        assert {one.config.model.encoding.name for one in runs} == trained
        assert {one.config.seed for one in runs} == set(range(10))
        tuned = tuning(found.config, runs, found.tune(), found.tuning_seeds())
        assert (len(tuned.families), len(tuned.runs)) == (22, 22 * 3 * 2)
        assert max(runs[0].config.evaluate.lengths) == 8 * runs[0].config.task.length_max
        parts += [run_id(one.config) for one in runs]
    assert sorted(parts) == sorted(whole)  # so that the tasks can share a folder


def test_the_pilot_looks_at_no_test_and_at_no_seed_of_the_table():
    found, runs = planned("pilot")
    assert len(runs) == 9 * 3
    assert {(one.config.seed, one.config.evaluate.lengths) for one in runs} == {(1000, ())}
    assert found.tune() == []
    assert found.config["name"] != planned("copy")[0].config["name"]


def test_an_unknown_word_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="length_table:parity: choose copy, sort, .*, text, all or pilot$"):
        load_config("length_table:parity")


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


def test_intervals_of_fit_rates_cover_at_least_as_often_as_they_say():
    """Of ten runs, exactly: the interval holds the rate with a probability of 95 % or more, at every rate."""
    bad, good = (1.0, 0.9, 0.5, 0.0, 0.0), (1.0, 1.0, 0.5, 0.0, 0.0)
    of = lambda k: (
        made(*(run(seed=i, values=good if i < k else bad) for i in range(10))).columns[0].cells["rope"].fit_rate
    )
    found = [of(k) for k in range(11)]
    low, high = (np.array([getattr(one, end) for one in found]) for end in ("low", "high"))
    rates = np.linspace(0.005, 0.995, 199)[:, None]
    covered = (stats.binom.pmf(np.arange(11), 10, rates) * ((low <= rates) & (rates <= high))).sum(axis=1)
    assert 0.95 <= covered.min() < 0.97


@pytest.mark.parametrize(
    ("fields", "fitted", "factor"),
    [
        ({"values": (1.0, 0.98, 1.0, 1.0, 0.9)}, True, 8.0),
        ({"lengths": (4, 8, 16, 24), "values": (0.99, 0.99, 0.99, 0.0)}, True, 1.0),
        ({"values": (0.95, 0.95, 0.95, 0.5, 0.0)}, False, 17 / 16),
        ({"values": (1.0, 0.5, 1.0, 1.0, 1.0)}, False, 0.0),
        ({"values": ()}, False, 0.0),
        ({"task": "markov", "metric": "loss_sliding", "values": (1.3, 1.24, 1.2, 1.28, 1.3), "bigram": 1.2}, True, 2.0),
        ({"task": "markov", "metric": "loss_sliding", "values": (1.3, 1.26, 1.2, 1.2, 1.2), "bigram": 1.2}, False, 8.0),
        ({"task": "markov", "metric": "loss_sliding", "values": (1.2, 1.2, 1.2, 1.2, 1.2)}, False, 8.0),
        (
            {"task": "text", "metric": "loss_sliding", "values": (2.9, 2.5, 2.4, 2.6, 2.5), "bigram": 2.54},
            True,
            17 / 16,
        ),
        ({"task": "text", "metric": "loss_sliding", "values": (2.9, 2.6, 2.4, 2.6, 2.5), "bigram": 2.54}, False, 8.0),
        ({"task": "induction", "metric": "loss_sliding", "values": (0.1, 0.04, 0.08, 3.0, 6.0)}, True, 17 / 16),
        ({"task": "induction", "metric": "loss_sliding", "values": (0.1, 0.06, 0.06, 0.06, 9.0)}, False, 2.0),
    ],
)
def test_fit_and_factor_of_one_run(fields, fitted, factor):
    one = run(**fields)
    assert (fits(one), reached(one)) == (fitted, factor)


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


def test_a_larger_median_is_not_best_where_its_runs_are_behind_in_the_mean():
    """ALiBi has the larger median, 2 to 1.06, and by pairs RoPE is ahead, significantly."""
    upto = lambda length: tuple(1.0 if tested <= length else 0.0 for tested in LENGTHS)
    alibi, rope = [17] * 4 + [32] * 6, [17] * 6 + [128] * 4
    pairs = list(zip(alibi, rope, strict=True))
    assert np.median(alibi) > np.median(rope)
    runs = [run(name, k, upto(pair[i])) for k, pair in enumerate(pairs) for i, name in enumerate(("alibi", "rope"))]
    column = made(*runs).columns[0]
    assert column.largest == "alibi"
    assert column.cells["alibi"].factors.mean() < column.cells["rope"].factors.mean()
    assert (column.best, column.against, column.level("rope")) == ("", {"rope": 1.0}, True)
    assert (
        compared(column.cells["alibi"], column.cells["rope"])
        == 1.0
        > compared(column.cells["rope"], column.cells["alibi"])
    )


def test_runs_are_paired_by_their_seeds():
    """Scores that follow from the seed alone: all pairs are equal, and no two of the same place in the tables."""
    of_seed = lambda k: tuple(1.0 if i <= 1 + k % 4 else 0.0 for i in range(5))
    rows = [run("rope", k, of_seed(k)) for k in range(7)] + [run("alibi", k, of_seed(k)) for k in range(1, 8)]
    cells = made(*rows).columns[0].cells
    assert [one == other for one, other in zip(cells["rope"].factors, cells["alibi"].factors, strict=True)] == [
        False
    ] * 7
    assert compared(cells["rope"], cells["alibi"]) == 1.0


def test_two_cells_of_one_encoding_are_refused():
    """Merged, each seed would count as two pairs."""
    with pytest.raises(ValueError, match="^rope on copy has several runs of one seed: give one cell of each encoding$"):
        made(run("rope", 0), run("rope", 0)._replace(run="another", learning_rate=1e-2), run("nope", 0))


def test_lengths_that_do_not_ascend_are_refused():
    table = line(run("rope", 0))
    assert from_line(table) == run("rope", 0)
    with pytest.raises(ValueError, match=f"^run {table['run']} has lengths that do not ascend$"):
        from_line({**table, "lengths": list(reversed(table["lengths"]))})


def test_unfitted_runs_are_in_no_ranking_and_no_agreement():
    order = {"alibi": 128, "nope": 32, "rope": 17, "t5": 16}
    upto = lambda length: tuple(1.0 if tested <= length else 0.0 for tested in LENGTHS)
    turned = {"alibi": 32, "nope": 128, "rope": 17, "t5": 16}
    runs = [run(name, 0, upto(length)) for name, length in order.items()]
    runs += [run(name, 0, upto(length), task="bucket_sort") for name, length in turned.items()]
    (found,) = made(*runs).agreements
    assert (found.tasks, found.encodings, found.tau) == (("copy", "bucket_sort"), 4, pytest.approx(4 / 6))
    runs[4] = runs[4]._replace(values=(0.0,) * 5)  # ALiBi on bucket_sort
    (found,) = made(*runs).agreements
    assert (found.encodings, found.tau) == (3, pytest.approx(1.0))


def test_a_part_of_the_table_is_blank_where_nothing_ran():
    found = made(
        run("rope"), run("t5"), run("rope", task="associative_recall", longest=8, lengths=(8, 16), values=(1.0, 1.0))
    )
    text = table_md(found)
    assert "| encoding | copy (to 8x) | recall (to 2x) |" in text
    assert "| T5 bias | \N{ALMOST EQUAL TO} 2.00, 1/1 |  |" in text
    assert notes(found) == [
        "Not complete: 1 of 4 cells of these tasks have no runs yet.",
        "Tasks of the protocol without runs yet: sort, bucket_sort, induction, markov, text.",
    ]
    assert [row.split(",")[:2] for row in table_csv(found).splitlines()[1:]] == [
        ["copy", "rope"],
        ["copy", "t5"],
        ["recall", "rope"],
    ]
    uneven = made(run("rope"), run("rope", 1), run("t5"))
    assert "Cells with fewer than 2 runs: T5 bias on copy (1)." in notes(uneven)


@pytest.mark.parametrize(
    "runs", [[run()], [run("t5", values=()), run("rope"), run("nope", task="text", metric="loss")]]
)
def test_the_figure_of_any_part_is_drawn_with_the_same_bytes_each_time(tmp_path, runs):
    written = [[path.read_bytes() for path in draw(made(*runs), tmp_path)] for _ in range(2)]
    assert written[0] == written[1]
    assert [data[:4] for data in written[0]] == [b"\x89PNG", b"<?xm"]


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


def test_runs_of_other_tasks_stay_in_the_records(tmp_path):
    """Tasks are run one after another, and the folder of one need not be kept until the last has run."""
    out = tmp_path / "out"
    out.mkdir()
    losses = {"metric": "loss_sliding", "values": (2.5, 2.0, 2.0, 2.1, np.inf), "bigram": 2.25}
    others = [line(run("fire", seed, task="text", **losses)) for seed in (0, 1)]
    replaced = line(run("alibi", task="copy"))
    jsonl.append(out / "records.jsonl", {"kind": "protocol", "text": "before"}, replaced, *others)
    before = (out / "records.jsonl").read_bytes().splitlines()
    assert main([str(folder_of_runs(tmp_path / "runs")), "--out", str(out)]) == 0
    after = (out / "records.jsonl").read_bytes().splitlines()
    assert after[-2:] == before[-2:]
    assert len(after) == 1 + 3 + 2, "a protocol, three runs on copying that ended, and two on text"
    assert before[1] not in after


def test_runs_of_two_texts_are_refused(tmp_path, capsys):
    """The standard library of another version of Python is another text, and the same seeds are no pairs."""
    for encoding, digest in (("rope", "a"), ("alibi", "b")):
        one = config("text", encoding, 0, 16)
        rows = [
            {"run": made_id(one), "step": 400, "metric": "loss_sliding", "length": 32, "split": "test", "value": 1.0}
        ]
        manifest = canonical({"schema": 1, "data_sha256": {"test": digest}})
        write_run(tmp_path / "runs", one, manifest=manifest, results=lines(rows))
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 2
    message = "the runs of text read 2 different texts, whose losses do not compare: keep those of one"
    assert message in capsys.readouterr().err


def test_mistakes_are_one_sentence(tmp_path, capsys):
    def told(*arguments):
        assert main([*map(str, arguments), "--out", str(tmp_path / "out")]) == 2
        return capsys.readouterr().err.removeprefix("length_table: error: ").strip()

    assert told().endswith("out holds no records.jsonl: measure first, or render another folder")
    assert told(tmp_path / "absent").endswith("absent is not a directory: give the folder that a sweep was written to")
    runs = folder_of_runs(tmp_path / "runs")
    assert told(runs, runs).endswith("give one of them")
    waiting = tmp_path / "waiting"
    write_run(waiting, config("copy", "rope", 0, 16), "pending", results="")
    assert told(waiting).endswith("waiting has ended yet")
    (tmp_path / "out").mkdir()
    jsonl.append(tmp_path / "out" / "records.jsonl", {"kind": "run", "metric": "exact_match"})
    assert "records.jsonl holds what is no record of the table of length factors" in told()
    (tmp_path / "out" / "records.jsonl").write_text("")
    assert told().endswith("records.jsonl: it has no runs")


def test_the_committed_table_is_what_the_records_say():
    found = load(FOLDER / "records.jsonl")
    for name, page in PAGES.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == page(found)


def committed():
    """The committed baselines, and the committed runs."""
    rows = [row for row in jsonl.read(FOLDER / baselines.FILE).tables if row["kind"] == "baseline"]
    return rows, recorded.read(FOLDER / recorded.RECORDS, SUBJECT, parsed)


def test_the_baselines_are_those_of_the_windows_of_the_records():
    """At the trained length they are what the runs recorded, and the page prints them, and how often a rate is at the edge."""
    rows, known = committed()
    text = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())
    for task in baselines.TASKS:
        runs = [one for one in known if one.task == task]
        assert {row["length"] for row in rows if row["task"] == task} == set(runs[0].lengths)
        assert {row["bigram"] for row in rows if (row["task"], row["length"]) == (task, runs[0].longest)} == {
            one.bigram for one in runs
        }
    best = {row["length"]: row["bigram"] for row in rows if row["task"] == "markov"}
    assert f"from {best[32]:.3f} nats at 32 symbols to {best[256]:.3f} at 256" in text
    (trigram,) = {round(row["trigram"], 9) for row in rows if row["task"] == "text" and row["length"] >= 32}
    assert f"where trigrams have {trigram:.2f}" in text
    chosen = lambda task, rate: len({one.encoding for one in known if (one.task, one.learning_rate) == (task, rate)})
    high = [chosen(task, 1e-2) for task in ("text", "markov", "induction", "bucket_sort", "copy", "sort")]
    assert high == [22, 11, 4, 1, 0, 0]
    assert [chosen(task, 1e-3) for task in ("induction", "bucket_sort", "copy", "sort", "markov")] == [2, 2, 1, 0, 0]
    assert "1e-2 for all 22 encodings on text, 11 on Markov chains, 4 on induction and 1 on bucket sort;" in text
    assert "1e-3 for 2 on induction and on bucket sort and 1 on copying." in text


def test_baselines_of_other_windows_are_refused():
    _, known = committed()
    other = {"32": {"loss_sliding": {"unigram": 1.3, "bigram": 1.25}}}
    with pytest.raises(
        ValueError, match=r"markov: the bigrams of these windows have 1.25, those of the records 1.21027"
    ):
        baselines.rows_of("markov", other, known)


@pytest.mark.slow
def test_the_baselines_come_out_again():
    levels = baselines.levels("markov")
    for row in (row for row in committed()[0] if row["task"] == "markov"):
        found = levels[str(row["length"])][row["metric"]]
        assert found == pytest.approx({name: row[name] for name in found}, rel=1e-6)
