"""The experiment on heads that can go: its page is what its records say, and its records are what the models do."""

import collections
import dataclasses
import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest

from attnjax.config import defaults
from attnjax.evaluation.loaded_model import load
from attnjax.positions import Learned
from attnjax.records import jsonl, status
from attnjax.sweep import plan, prepare, product, seeds, vary
from attnjax.tasks.text import SPLITS
from attnjax.train import checkpoint
from attnjax.train.loop import CHECKPOINTS, make_task
from attnjax.train.step import Trainer, members
from experiments.head_pruning import claims
from experiments.head_pruning.__main__ import main
from experiments.head_pruning.measuring import refusal, windows
from experiments.head_pruning.page import RECORDS, page, render
from experiments.head_pruning.pruning import measure
from experiments.head_pruning.results import read
from tests.evaluation import planted_models

pytestmark = pytest.mark.slow
MADE_UP = pathlib.Path(__file__).parent / "pruned"
COMMITTED = pathlib.Path(__file__).parents[2] / "experiments" / "head_pruning"
FOLDERS = [MADE_UP, *([COMMITTED] if (COMMITTED / RECORDS).exists() else [])]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_page_tables_and_figures_are_made_anew_from_the_records(folder, tmp_path):
    shutil.copy(folder / RECORDS, tmp_path)
    made = render(tmp_path)
    names = ["README.md", "table.md", "figure.png", "figure.svg", "figure_double.png", "figure_double.svg"]
    assert [path.name for path in made] == names
    first = [path.read_bytes() for path in made]
    there = [folder / name for name in names if (folder / name).exists()]
    assert {path.name for path in there} >= {"README.md", "table.md"}
    assert [path.name for path in there if path.read_bytes() != (tmp_path / path.name).read_bytes()] == []
    if folder == MADE_UP:
        assert [path.read_bytes() for path in render(tmp_path)] == first


def test_numbers_by_hand():
    """Two runs of RoPE: heads cost 0.40, 0.10, 0.02 and 0.30, and a tenth more with the other seed."""
    results = read(MADE_UP / RECORDS)
    assert results.lengths == (8, 16)
    assert results.heads == 4
    assert [cell.encoding for cell in results.cells[8]] == ["learned", "rope", "alibi"]
    assert [cell.encoding for cell in results.cells[16]] == ["rope", "alibi"]
    assert results.absent == {"learned": "Learned has rows for positions 0..7, got positions 0..15"}
    _, rope, alibi = results.cells[8]
    np.testing.assert_allclose(rope.rise("importance"), [0.02 + 0.10, 0.022 + 0.11], atol=1e-5)
    # Of the random orders one begins with heads 3 and 1, the other with 0 and 2.
    np.testing.assert_allclose(rope.rise("random"), [0.41, 0.451], atol=1e-5)
    # 1 % of 2.25 is 0.0225: head 2 can go, head 1 not; 5 % is 0.1125: the same. With 1.5 times the cost of each, none.
    assert rope.removable(0.01).tolist() == [1, 1]
    assert rope.removable(0.05).tolist() == [1, 1]
    assert results.cells[16][0].removable(0.01).tolist() == [0, 0]
    assert alibi.removable(0.05).tolist() == [3, 3]
    np.testing.assert_allclose(rope.bare(), [0.82, 0.902], atol=1e-5)
    np.testing.assert_allclose(rope.share("importance"), [0.12 / 0.82, 0.132 / 0.902], atol=1e-5)
    np.testing.assert_allclose(rope.share("random"), [0.41 / 0.82, 0.451 / 0.902], atol=1e-5)
    # Divided by its layer, head 3 is above head 0, which costs more: ranks 3 2 1 4 and 4 2 1 3, rho = 1 - 6 * 2 / (4 * 15).
    assert rope.correlation.tolist() == pytest.approx([0.8, 0.8])


def test_a_loss_that_is_not_finite_is_the_worst_and_no_head_can_go(tmp_path):
    """JSON has null for it."""
    first = lambda line: line.get("kind") == "curve" and (line["encoding"], line["length"]) == ("rope", 8)
    diverged = lambda lines: [line | {"loss": [None] * len(line["loss"])} if first(line) else line for line in lines]
    cell = read(damaged(tmp_path, diverged)).cells[8][1]
    assert cell.removable(0.05).tolist() == [0, 0]
    assert set(cell.loss["random"].ravel()) == {np.inf}
    later = lambda lines: [line | {"loss": [line["loss"][0], *[None] * 4]} if first(line) else line for line in lines]
    assert read(damaged(tmp_path, later)).cells[8][1].bare().tolist() == [np.inf, np.inf]
    assert claims.claim(read(damaged(tmp_path, later)))


def test_the_claim_is_relative_to_losing_every_head():
    """Half of the heads are said beside all of them, and few runs are said to be few."""
    said = claims.claim(read(MADE_UP / RECORDS))
    assert "can be removed" not in said
    # Learned: 0.04 of 0.34; RoPE: 0.12 of 0.82 and 0.132 of 0.902; ALiBi: 0.05 of 0.40 and 0.055 of 0.44.
    assert (
        "That is 11.8 % (no interval) (Learned) to 14.6 % (range 14.6 to 14.6) (RoPE) of what it loses without any head"
        in said
    )
    assert "At most 1 of 4 heads go, in that order, before the loss rises by more than 1%." in said
    assert "one run shows no difference" in said
    several = [cell for cell in read(MADE_UP / RECORDS).cells[8] if len(cell.correlation) == 2]
    assert claims.ground(several) == "in all 2 runs; so few runs show no more"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A sweep of two seeds that were given parameters and not trained, on a small text."""
    root = tmp_path_factory.mktemp("sweep")
    (root / "text").write_bytes(bytes(np.random.default_rng(0).integers(97, 105, 4000).tolist()))
    config = defaults()
    config.name = "small"
    config.task.update({"name": "text", "length_min": 8, "length_max": 8, "options": {"path": str(root / "text")}})
    config.model.update({"layers": 1, "model": 8, "heads": 4, "hidden": 8, "encoding": {"name": "nope"}})
    config.train.update({"steps": 3, "batch": 2, "checkpoint_every": 3})
    config.evaluate.update({"lengths": [8], "validation_lengths": [8]})
    store = prepare(root / "runs", "small", plan(config, seeds(2)))
    first = store.config(store.runs[0].run)
    trainer = Trainer(first, make_task(first))
    for entry in store.runs:
        directory = store.directory(entry.run)
        state = trainer.start(members([store.config(entry.run)]))
        checkpoint.save(directory / CHECKPOINTS, 3, jax.tree.map(lambda leaf: np.asarray(leaf)[0], state))
        for one in ("running", "done"):
            status.write(directory, status.Status(one, 3))
    return store.root


@pytest.fixture(scope="module")
def measured(runs, tmp_path_factory):
    """The records of that sweep."""
    out = tmp_path_factory.mktemp("pruned")
    assert main(["--runs", str(runs), "--out", str(out), "--documents", "4", "--orders", "3"]) == 0
    return out


def test_records_hold_every_number(runs, measured):
    found = jsonl.read(measured / RECORDS).tables
    assert [one["kind"] for one in found] == [
        "protocol",
        "made",
        *["ngrams"] * 2,
        *((["curve"] * 5 + ["heads"]) * 2 + ["run"]) * 2,
    ]
    curves = [one for one in found if one["kind"] == "curve"]
    assert {(one["encoding"], one["seed"]) for one in curves} == {("nope", 0), ("nope", 1)}
    assert {one["length"] for one in curves} == {8, 16}
    assert [one["order_seed"] for one in curves[:5]] == [None, None, 0, 1, 2]
    assert all(one["kept"] == [4, 3, 2, 1, 0] and sorted(one["removed"]) == [0, 1, 2, 3] for one in curves)
    assert not re.search(r"/(tmp|home|root|Users)/", (measured / RECORDS).read_text())

    curve = curves[-1]
    model = load(runs / curve["run"])
    test = windows(make_task(model.run).for_split("test"), 16, 4)
    assert curve["length"] == 16
    gate = np.ones(4)
    gate[curve["removed"][:3]] = 0
    again = measure(model, test, gate.reshape(1, 4), last=7)
    assert curve["loss"][3] == pytest.approx(again.loss.mean(), rel=1e-6)
    assert curve["accuracy"][3] == pytest.approx(again.accuracy.mean(), rel=1e-6)
    (short,) = [
        one
        for one in curves
        if (one["run"], one["length"], one["order"], one["order_seed"]) == (curve["run"], 8, "random", 2)
    ]
    assert short["loss"][3] == pytest.approx(measure(model, test[:, -8:], gate.reshape(1, 4)).loss.mean(), rel=1e-6)


def test_ngrams_are_of_the_training_bytes_and_of_the_bytes_that_count(runs, measured):
    """A unigram by hand: every byte of the text follows some other, so T is how many there are, and P_0 is 1 / 256."""
    found = {one["length"]: one for one in jsonl.read(measured / RECORDS).tables if one["kind"] == "ngrams"}
    task = make_task(load(next(path for path in runs.iterdir() if (path / CHECKPOINTS).is_dir())).run)
    counts = collections.Counter(np.asarray(task.data).tolist())
    share = lambda byte: (counts[byte] + len(counts) / 256) / (counts.total() + len(counts))
    test = windows(task.for_split("test"), 16, 4)[:, -7:]
    expected = np.mean([-np.log(share(byte)) for byte in test.ravel().tolist()])
    assert found[8]["unigram"] == found[16]["unigram"] == pytest.approx(expected, rel=1e-9)
    assert found[8]["bigram"] == found[16]["bigram"]
    # At 8 the first byte that counts has one before it and no trigram; at 16 it has.
    assert found[8]["trigram"] != found[16]["trigram"]


def test_the_page_says_which_models_are_worse_than_ngrams(tmp_path):
    results = read(MADE_UP / RECORDS)
    whole = {cell.encoding: cell.loss["importance"][:, 0, 0].mean() for cell in results.cells[8]}
    assert "N-grams" not in page(results)
    levels = {"unigram": 9.0, "bigram": 8.0, "trigram": min(whole.values()) - 0.5}
    text = page(dataclasses.replace(results, ngrams={8: levels, 16: levels}))
    assert f"unigram 9.000, bigram 8.000, trigram {levels['trigram']:.3f}. With all heads the loss is below" in text
    assert (
        "below that of the trigram under 0 of 3 encodings, above it under 2 of 3 encodings (RoPE, ALiBi)" in text
    )  # one run of Learned says neither
    assert "Dotted grey: n-gram models" in text


def test_what_is_measured_is_not_measured_again(runs, measured, capsys):
    before = (measured / RECORDS).read_bytes()
    assert main(["--runs", str(runs), "--out", str(measured), "--documents", "4", "--orders", "3"]) == 0
    assert (measured / RECORDS).read_bytes() == before
    assert "measured\n" not in capsys.readouterr().out
    assert main(["--runs", str(runs), "--out", str(measured), "--documents", "5", "--orders", "3"]) == 2
    assert "holds records of another protocol" in capsys.readouterr().err
    assert "4 heads" in (measured / "README.md").read_text()


def test_a_table_that_ends_is_not_read_past_its_end():
    model = planted_models.subject(encoding=Learned(length=12))
    assert "Learned has rows for positions 0..11, got positions 0..15" in refusal(model, 16)
    assert refusal(model, 12) == ""


def test_windows_come_from_their_split(runs):
    task = make_task(load(next(path for path in runs.iterdir() if (path / CHECKPOINTS).is_dir())).run)
    parts = {split: bytes(task.for_split(split).data) for split in SPLITS}
    for split, text in parts.items():
        found = [bytes(one.tolist()) for one in windows(task.for_split(split), 16, 6)]
        assert len(set(found)) > 3
        assert all(one in text for one in found)
        assert not any(one in other for one in found for name, other in parts.items() if name != split)


def folder_of(tmp_path, planned, *states):
    store = prepare(tmp_path / "runs", "small", planned)
    for entry in store.runs:
        for state in states:
            status.write(store.directory(entry.run), status.Status(state, 3))
    return store.root


def test_bad_folders(tmp_path, capsys):
    def told(*arguments):
        assert main([*map(str, arguments), "--out", str(tmp_path / "out")]) == 2
        return capsys.readouterr().err

    one = vary("seed", [0])
    assert "holds no sweep: there is no sweep.json" in told("--runs", tmp_path)
    pending = folder_of(tmp_path / "a", plan(defaults(), one))
    assert "holds no run that is done; train the 1 runs of its sweep first" in told("--runs", pending)
    config = defaults()
    config.task.update({"name": "text", "length_max": 8})
    empty = folder_of(tmp_path / "b", plan(config, one), "running", "done")
    assert "holds no checkpoint that can be read: train the run first" in told("--runs", empty)
    cells = product(vary("model.layers", [1, 2]), seeds(1))
    mixed = folder_of(tmp_path / "c", plan(config, cells), "running", "done")
    assert "runs of one encoding that differ in more than their seeds (rope)" in told("--runs", mixed)
    assert "--documents and --orders must be 1 or more, got 0 and 8" in told("--runs", mixed, "--documents", 0)
    assert f"holds no {RECORDS}: measure first" in told("--render", tmp_path)


def damaged(tmp_path, change):
    lines = [json.loads(line) for line in (MADE_UP / RECORDS).read_text().splitlines()]
    (tmp_path / RECORDS).write_text("".join(f"{json.dumps(line)}\n" for line in change(lines)))
    return tmp_path / RECORDS


def test_damaged_records(tmp_path):
    without = lambda key: lambda lines: [{k: v for k, v in line.items() if k != key} for line in lines]
    for change, message in [
        (lambda lines: lines[:5], "there is no run in these records"),
        (without("loss"), "holds what is no record of head pruning: KeyError"),
        (lambda lines: [line | ({"trained": 9} if line.get("seed") else {}) for line in lines], "one trained length"),
        (lambda lines: [line | {"kept": [4, 0]} if line.get("order_seed") else line for line in lines], "different"),
        (
            lambda lines: [line | ({"seed": 0, "data_seed": 0} if line.get("kind") == "run" else {}) for line in lines],
            r"several runs of one encoding have the same seeds \(alibi, rope\): they are of different cells",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            read(damaged(tmp_path, change))
    (tmp_path / RECORDS).write_text("no JSON\n")
    with pytest.raises(ValueError, match="is damaged: line 1"):
        read(tmp_path / RECORDS)
