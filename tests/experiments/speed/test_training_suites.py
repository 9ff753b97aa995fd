"""The suites that train, test, decode and start, at their smallest: rows that can be read, programs as claimed, agreement."""

import math
import re

import jax
import numpy as np
import pytest

from attnjax.positions import ENCODINGS
from experiments.speed import suites as table
from experiments.speed.harness import Settings
from experiments.speed.records import Record, read
from experiments.speed.suites import decoding, evaluation, generation, population, start, training


def programs_of_training(ours, theirs):
    """Ours: the start, the steps, and the numbers of a member; theirs: a sampler and an update per length, two starts."""
    assert ours <= 5
    assert theirs >= 2 * training.SMOKE[0].lengths + 2


def programs_of_evaluation(ours, theirs):
    """Ours: drawing and measuring for each padded size; theirs for each length."""
    lengths = evaluation.SMOKE.lengths
    assert 2 * 3 <= ours <= 2 * 3 + 2
    assert theirs == 2 * lengths


PROGRAMS = {"training": programs_of_training, "evaluation": programs_of_evaluation}
SUITES = {
    "training": (training.training, 4),
    "population": (population.population, 2),
    "evaluation": (evaluation.evaluation, 2),
    "decoding": (decoding.decoding, 4),
}


@pytest.fixture(autouse=True)
def as_jax_is_by_default():
    """Flax and optax are called as in their own examples."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def smoke(suite):
    rows = []
    suite(Settings(emit=rows.append, smoke=True, rounds=3, seconds=1))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_rows_of_a_smoke_run_can_be_read(name, tmp_path):
    suite, count = SUITES[name]
    rows = smoke(suite)
    assert len(rows) == count
    record = Record(tmp_path / "rows.jsonl", {"smoke": True})
    for row in rows:
        record.add(row)
        assert row.suite == name
        assert row.peer in table.SUITES[name].peers
        assert all(math.isfinite(x) and x > 0 for x in (*row.our_figure, *row.peer_figure, *row.ratio))
        # Losses of padded and of whole rows may be equal to the last bit, and so may a run alone and beside others; Flax and
        # optax as in their own examples compute in another order.
        assert row.error is None or 0 < row.error < 1e-5 or (name in ("evaluation", "population") and row.error == 0)
    assert read(record.path)[1] == rows
    assert any(row.goal for row in rows)
    assert any(row.error is not None for row in rows)
    for row in rows:
        if row.unit == "programs":
            PROGRAMS[name](row.our_figure.median, row.peer_figure.median)
    assert any(row.unit == "programs" for row in rows) == (name in PROGRAMS)
    losses = [map(float, pair) for row in rows for pair in re.findall(r"from ([\d.]+) to ([\d.]+)", row.note)]
    assert len(losses) == (4 if name == "training" else 0)
    assert all(after < 0.7 * before for before, after in losses)


def test_the_whole_time_is_the_first_block_and_the_others():
    assert training.whole(10.0, [1.0, 2.0], steps=100, block=20) == [14.0, 18.0]


def test_a_population_is_its_runs():
    runs = population.grid(population.Size())
    assert len(runs) == 32
    assert len({(run.seed, run.data_seed, run.train.learning_rate) for run in runs}) == 32
    assert {run.seed for run in runs} == {run.data_seed for run in runs} == set(range(8))


def test_sampled_lengths_are_the_middles_of_equal_parts():
    assert evaluation.sampled(evaluation.Size(lengths=12, sample=3)) == [3, 7, 11]
    full = evaluation.sampled(evaluation.FULL)
    assert len(full) == 12
    np.testing.assert_allclose(np.mean(full), 250.5, atol=1)
    assert 1 <= min(full) <= max(full) <= 500


def test_every_encoding_decodes_in_the_full_suite():
    assert decoding.FULL.encodings == tuple(ENCODINGS)
    assert decoding.FULL.slots == 2048


@pytest.mark.slow
def test_a_second_start_finds_every_program_and_trains_the_same():
    (row,) = smoke(start.start)
    assert row.suite == "start"
    assert row.error == 0
    assert row.goal == 4
    assert row.rounds == 1
    made, found, again = (int(word) for word in row.note.split() if word.isdigit())
    # The first start also checks the runs, which takes small programs of its own.
    assert made >= found > 3
    assert again == 0


@pytest.mark.slow
def test_a_start_that_fails_says_why(tmp_path):
    with pytest.raises(
        ValueError,
        match="ended with status 1: ValueError: entry 0 of the sweep: model.layers must be a whole number of at least 1",
    ):
        start.once(str(tmp_path), 0, 16)


def test_the_full_sizes_are_those_of_the_table():
    lengths = {name: tuple(suite.lengths) for name, suite in table.SUITES.items()}
    small = {name: tuple(suite.smoke) for name, suite in table.SUITES.items()}
    for sizes, known in ((training.FULL, lengths), (training.SMOKE, small)):
        assert {(size.lengths + training.LINKS, size.tokens) for size in sizes} == {known["training"]}
    for size, known in ((population.Size(), lengths), (population.SMOKE, small)):
        assert (2 * size.lengths + 1,) == known["population"]
    for size, known in ((evaluation.FULL, lengths), (evaluation.SMOKE, small)):
        assert evaluation.config(size).evaluate.lengths == known["evaluation"]
    for size, known in ((decoding.FULL, lengths), (decoding.SMOKE, small)):
        assert (size.slots,) == known["decoding"]
    for size, known in ((generation.FULL, lengths), (generation.SMOKE, small)):
        assert {sum(case) for case in size.cases} == set(known["generation"])
    assert (start.sweep(1, 16)[0].config.task.length_max + 2,) == lengths["start"] == small["start"]
