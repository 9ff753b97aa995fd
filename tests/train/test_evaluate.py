"""Accuracy and loss by length: exact match is that of decoding, and texts are tested on bytes that training never reads."""

import dataclasses
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.config import parse
from attnjax.modules import Decoder, generate
from attnjax.records import examples
from attnjax.tasks.base import Example
from attnjax.tasks.forms import next_token_form, specials
from attnjax.tasks.ngrams import BYTES, NAMES, NGrams
from attnjax.tasks.text import place
from attnjax.train import checkpoint
from attnjax.train.data import batch
from attnjax.train.evaluate import Evaluator, ngram_levels, padded_size
from attnjax.train.loop import CHECKPOINTS, data_sha256, make_task
from attnjax.train.model import build
from attnjax.train.step import Trainer, members
from tests.tasks import cases
from tests.train.conftest import population


def test_exact_match_is_that_of_greedy_decoding(whole):
    """Of two tokens, which a trained run of the shared population reverses in some of the 24 examples."""
    run, length, (_, scores) = population()[1], 2, whole.context.single["1"]
    task = make_task(run)
    trainer = Trainer(run, task)
    params = checkpoint.restore(whole.folders[1] / CHECKPOINTS, trainer.shapes()).state.params
    model = Decoder(trainer.model.config, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, params))
    nnx.update(model, state)
    right, given = [], []
    for _, made, counted in Evaluator(run, task, trainer.model).batches(length, "validation"):
        prompt, targets = made.tokens[:, : length + 1], np.asarray(made.targets[:, length : 2 * length + 1])
        same = np.asarray(generate(model, prompt, length + 1, stop=specials(task).stop)) == targets
        right += same.all(1)[counted].tolist()
        given += same[:, :-1].all(1)[counted].tolist()  # all but the token that ends the answer
    assert 0 < sum(right) < 24, "a test in which all or nothing is right shows little"
    np.testing.assert_array_equal(scores["validation", length, "exact_match"], right)
    np.testing.assert_array_equal(scores["validation", length, "exact_match_oracle_length"], given)


def test_scores_of_examples_are_those_of_the_records(whole):
    for name, rows in whole.context.found.items():
        values = {(row["split"], row["length"], row["metric"]): row for row in rows if row["step"] == 32}
        scores = whole.context.single[name][1]
        assert scores.keys() == {key for key in values if key[2] != "token_accuracy"}
        for key, mine in scores.items():
            assert mine.shape == (24,)
            assert (mine.mean(), 24) == (values[key]["value"], values[key]["count"])
        assert "baselines" not in whole.context.notes[name], "n-gram models are of texts and Markov chains"


def buckets(tiny, lengths, validation=(5,)):
    """The padded size of each length."""
    asked = dataclasses.replace(tiny.evaluate, lengths=lengths, validation_lengths=validation, bucket_sizes=())
    run = dataclasses.replace(tiny, evaluate=asked, task=dataclasses.replace(tiny.task, length_max=6))
    return {length: padded_size(run, length) for length in (*lengths, *validation)}


def test_buckets_are_few_and_cover_and_pad_no_length_to_a_distant_one(tiny):
    sizes = buckets(tiny, tuple(range(1, 501)))
    assert all(size >= length for length, size in sizes.items())
    assert len(set(sizes.values())) <= 13, "each is a compilation"
    assert all(size < 1.5 * length + 1 for length, size in sizes.items() if length > 9)
    assert buckets(tiny, (4, 6, 12, 24)) == {4: 6, 6: 6, 12: 12, 24: 24, 5: 6}
    assert buckets(tiny, (10, 14, 20), validation=(9,)) == {9: 10, 10: 10, 14: 20, 20: 20}
    assert buckets(tiny, (2, 3), validation=()) == {2: 3, 3: 3}


# Texts


LENGTH, STRIDE = 12, 4


def settings(path, **options):
    return parse(
        {
            "task": {"name": "text", "options": {"path": str(path), **options}, "length_min": 6, "length_max": 8},
            "model": {"layers": 1, "model": 16, "heads": 2, "hidden": 32},
            "train": {"batch": 4},
            "evaluate": {"lengths": [6, LENGTH], "validation_lengths": [9], "count": 6, "batch": 4}
            | {"sliding_stride": STRIDE, "bucket_sizes": [LENGTH]},
        }
    )


@pytest.fixture
def regions(tmp_path):
    """A file whose splits are an `a`, a `b` and a `c` over and over."""
    path = tmp_path / "regions"
    path.write_bytes(b"a" * 900 + b"b" * 50 + b"c" * 50)
    return settings(path)


def constant(run, task):
    """The evaluator of a model that answers the byte that is its parameter, whatever it reads; logits of -1 are NaN."""
    hot = lambda params, made: jax.nn.one_hot(jnp.full(made.tokens.shape, params), 256)
    answer = lambda params, made, key, numbers, **asked: jnp.where(params < 0, jnp.nan, hot(params, made))
    return Evaluator(run, task, build(run, task)._replace(apply=answer))


def test_each_split_is_read_where_it_belongs(regions):
    task = make_task(regions)
    draw = lambda *arrays: batch(regions, task.given(*arrays), jnp.uint32(0), jnp.int32(3))
    made = jax.jit(draw)(*task.arrays)
    assert set(np.asarray(made.tokens)[np.asarray(made.valid)].tolist()) == set(b"a"), "training reads its own split"
    found = {"a": {}, "b": {}, "c": {}}
    for measured in constant(regions, task).measure(jnp.asarray(list(b"abc"))):
        for byte, one in zip(found, measured, strict=True):
            right = [record for record in one.records if record["metric"] == "token_accuracy"]
            found[byte] |= {(record["length"], record["split"]): record["value"] for record in right}
            (split, length, _) = next(iter(one.scores))
            np.testing.assert_array_equal(one.scores[split, length, examples.DOCUMENT], np.zeros(6))  # one file
    # A length that was trained is labelled so, but its bytes are those of the test.
    assert found["a"] == {(6, "train"): 0, (LENGTH, "test"): 0, (9, "validation"): 0}
    assert found["b"] == {(6, "train"): 0, (LENGTH, "test"): 0, (9, "validation"): 1}
    assert found["c"] == {(6, "train"): 1, (LENGTH, "test"): 1, (9, "validation"): 0}


def test_the_digest_of_every_split_is_noted(regions, tiny):
    parts = {"train": b"a" * 900, "validation": b"b" * 50, "test": b"c" * 50}
    digests = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    assert data_sha256(regions, make_task(regions)) == digests
    untested = dataclasses.replace(regions, evaluate=dataclasses.replace(regions.evaluate, validation_lengths=()))
    assert set(data_sha256(untested, make_task(untested))) == {"train", "test"}
    assert data_sha256(tiny, make_task(tiny)) is None


def test_a_split_that_is_shorter_than_the_padded_size_is_measured(tmp_path):
    """A length of 14 is padded to 20, the longest of the test, where its own split has crops of 15."""
    for split, size in {"train": 301, "validation": 15, "test": 61}.items():
        name = next(name for name in (f"{n}.txt" for n in range(1000)) if place(name)[0] == split)
        (tmp_path / name).write_bytes(bytes(size))
    run = settings(tmp_path)
    lengths = {"lengths": (20,), "validation_lengths": (14,), "bucket_sizes": ()}
    run = dataclasses.replace(run, evaluate=dataclasses.replace(run.evaluate, **lengths))
    evaluator = constant(run, make_task(run))
    found = [
        [next(row for row in one.records if row["metric"] == "token_accuracy") for one in measured]
        for measured in evaluator.measure(jnp.asarray([0, -1], jnp.int32))
    ]
    assert {(one["split"], one["length"]) for one, _ in found} == {("validation", 14), ("test", 20)}
    # All bytes are 0, which is also the largest of logits that are NaN.
    assert [(right["value"], broken["value"]) for right, broken in found] == [(1, 0)] * 2
    assert (evaluator.size(14, "validation"), padded_size(run, 14)) == (15, 20)


@pytest.mark.slow
def test_no_program_carries_the_corpus(tmp_path):
    """The program of a step is no longer for a longer text: the bytes are its argument."""
    sizes = []
    for count in (2_000, 200_000):
        path = tmp_path / str(count)
        path.write_bytes(bytes(count))
        run = settings(path)
        trainer, member = Trainer(run, make_task(run)), members([run])
        state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), trainer.shapes())
        sizes.append(len(trainer._compiled.lower(state, member, trainer._arrays, count=1).as_text()))
    assert abs(sizes[1] - sizes[0]) < 1_000


def test_windows_one_stride_apart_give_the_sliding_loss():
    """Each byte counts once, in the window in which it is among the last; the windows are padded, as in a bucket."""
    run = settings("unread")
    task = make_task(run)
    built = build(run, task)
    text = np.random.default_rng(0).integers(97, 123, LENGTH + 1 + 7 * STRIDE).astype(np.int32)
    windows = np.stack([text[start : start + LENGTH + 1] for start in range(0, 8 * STRIDE, STRIDE)])

    def form(padding):
        inputs, targets = (np.pad(x, ((0, 0), (0, padding))) for x in (windows[:, :-1], windows[:, 1:]))
        weight = np.pad(np.ones_like(windows[:, 1:]), ((0, 0), (0, padding)))
        n = np.full(len(windows), LENGTH, np.int32)
        return next_token_form(task, Example(*map(jnp.asarray, (inputs, n, targets, n, weight))))

    @cases.compiled
    def measured():
        params = built.init(jax.random.key(0))
        each = Evaluator(run, task, built)._each
        return built.apply(params, form(0)), each(params, None, form(3), key=None, max_targets=None)

    logits, found = measured()
    logits = np.asarray(logits, np.float64)
    nats = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, windows[:, 1:, None], 2)[..., 0]
    sliding, whole = nats[:, -STRIDE:].mean(), nats.mean()
    assert float(found["loss_sliding"].mean()) == pytest.approx(sliding, rel=1e-5)
    assert float(found["loss_nonoverlapping"].mean()) == pytest.approx(whole, rel=1e-5)
    assert abs(whole - sliding) > 1e-3, "or the two would not be told apart"


def test_each_window_knows_the_document_that_its_last_byte_is_from(tmp_path, tiny):
    """Each file repeats a byte of its own, so that the last target of a window says which file it is from."""
    for byte in b"abcdefgh":
        (tmp_path / f"{chr(byte)}.txt").write_bytes(bytes([byte]) * 40)
    run = settings(tmp_path, pattern="*.txt")
    task = make_task(run)
    held_out = task.for_split("train")  # the largest split, in place of the test
    task._splits["test"] = held_out
    byte_of = {int(held_out.documents[i]): int(byte) for i, byte in enumerate(held_out.data) if byte}
    assert len(set(byte_of.values())) == len(byte_of) > 1
    evaluator = Evaluator(run, task, build(run, task))
    for length in (6, LENGTH):
        found = evaluator.documents(length, "test")
        crops = [made for _, made, _ in evaluator.batches(length, "test")]
        last = np.concatenate([np.asarray(crop.targets)[:, length - 1] for crop in crops])[: run.evaluate.count]
        assert found.shape == (run.evaluate.count,)
        assert all(byte in (0, byte_of[int(document)]) for byte, document in zip(last, found, strict=True))
    assert len(set(found.tolist())) > 1
    assert Evaluator(tiny, make_task(tiny), build(tiny, make_task(tiny))).documents(4, "test") is None


def test_a_model_that_answers_as_a_bigram_has_its_loss(tmp_path):
    """A text of words, in windows of 4, 6 and 12 bytes; the last 5 of them count in the sliding loss."""
    words = np.array([b"the ", b"cat ", b"sat ", b"on ", b"a ", b"mat. "])
    (tmp_path / "words").write_bytes(b"".join(words[np.random.default_rng(0).integers(0, 6, 800)].tolist()))
    evaluate = {"lengths": (4, 6, 12), "validation_lengths": (), "count": 21, "batch": 8, "sliding_stride": 5}
    run = settings(tmp_path / "words")
    run = dataclasses.replace(run, evaluate=dataclasses.replace(run.evaluate, **evaluate))
    task = make_task(run)
    model = NGrams.of(np.asarray(task.data))
    tokens, targets = np.repeat(np.arange(BYTES), BYTES)[:, None], np.tile(np.arange(BYTES), BYTES)[:, None]
    table = jnp.asarray(-model.nats(tokens, targets)["bigram"].reshape(BYTES, BYTES), jnp.float32)
    answer = lambda params, made, key, numbers, **asked: table[made.tokens] + 0 * params
    evaluator = Evaluator(run, task, build(run, task)._replace(apply=answer))
    levels = ngram_levels(run, task, evaluator)
    assert set(levels) == {"4", "6", "12"}
    for (one,) in evaluator.measure(jnp.zeros(1), ("test",)):
        for record in (one for one in one.records if one["metric"].startswith("loss")):
            level = levels[str(record["length"])][record["metric"]]
            assert level["bigram"] == pytest.approx(record["value"], rel=1e-5)
            assert set(level) == set(NAMES)
            assert level["unigram"] > level["bigram"] > level["trigram"], "words have a structure that context tells"
    assert levels["12"]["loss_sliding"] != levels["12"]["loss_nonoverlapping"]
    assert levels["4"]["loss_sliding"] == levels["4"]["loss_nonoverlapping"], "a window shorter than the stride"
