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
from attnjax.train import check
from attnjax.train.data import batch, sequences
from attnjax.train.evaluate import Evaluator, ngram_levels, padded_size
from attnjax.train.loop import data_sha256, make_task
from attnjax.train.model import build
from attnjax.train.step import Trainer, members
from tests.cases import slow_except
from tests.tasks import cases

ENCODINGS = ("rope", "alibi", "cope")


@pytest.fixture(scope="module", params=slow_except(ENCODINGS, "cope"))
def trained(request, tiny):
    """A model that has learned something: of its answers to four tokens about a third are right."""
    encoding = dataclasses.replace(tiny.model.encoding, name=request.param)
    model, task = dataclasses.replace(tiny.model, encoding=encoding), dataclasses.replace(tiny.task, name="bucket_sort")
    steps = dataclasses.replace(tiny.train, steps=100, learning_rate=1e-2, batch=16)
    run = dataclasses.replace(tiny, model=model, task=task, train=steps)
    trainer = Trainer(run, make_task(run))
    state, _ = trainer.advance(trainer.start(members([run])), members([run]), run.train.steps)
    return run, trainer, state.params


def test_exact_match_is_that_of_greedy_decoding(trained):
    run, trainer, params = trained
    task, length, stop = trainer.task, 4, specials(trainer.task).stop
    draw = lambda lengths: sequences(run, task, jax.random.key(9), lengths, length)
    made = jax.jit(draw)(jnp.full((32,), length, jnp.int32))
    one = jax.tree.map(lambda leaf: leaf[0], params)
    scores = jax.jit(Evaluator(run, task, trainer.model)._scores)
    found = scores(one, made=made)
    model = _decoder(trainer, one)
    answer = np.asarray(generate(model, made.tokens[:, : length + 1], length + 1, stop=stop))
    right = (answer == np.asarray(made.targets[:, length : 2 * length + 1])).all(1)
    assert 0 < right.sum() < 32, "a test in which all or nothing is right shows little"
    assert np.array_equal(found["exact_match"], right)
    given = (answer[:, :-1] == np.asarray(made.targets[:, length : 2 * length])).all(1)
    assert np.array_equal(found["exact_match_oracle_length"], given), "all but the token that ends the answer"


def _decoder(trainer, params):
    model = Decoder(trainer.model.config, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    nnx.replace_by_pure_dict(state, params)
    nnx.update(model, state)
    return model


def test_buckets_are_few_and_cover(tiny):
    sizes = buckets(tiny, tuple(range(1, 501)))
    assert all(size >= length for length, size in sizes.items())
    assert len(set(sizes.values())) <= 13, "each is a compilation"
    assert all(size < 1.5 * length + 1 for length, size in sizes.items() if length > 9)


def test_lengths_that_are_far_apart_are_not_padded(tiny):
    """`length_max` is 6."""
    assert buckets(tiny, (4, 6, 12, 24)) == {4: 6, 6: 6, 12: 12, 24: 24, 5: 6}
    assert buckets(tiny, (10, 14, 20), validation=(9,)) == {9: 10, 10: 10, 14: 20, 20: 20}
    assert buckets(tiny, (2, 3), validation=()) == {2: 3, 3: 3}


def buckets(tiny, lengths, validation=(5,)):
    """The padded size of each length."""
    asked = dataclasses.replace(tiny.evaluate, lengths=lengths, validation_lengths=validation, bucket_sizes=())
    run = dataclasses.replace(tiny, evaluate=asked)
    return {length: padded_size(run, length) for length in (*lengths, *validation)}


def test_scores_of_examples_are_those_of_the_records(trained):
    run, trainer, params = trained
    evaluator = Evaluator(run, trainer.task, trainer.model)
    for measured, records in zip(evaluator.measure(params), evaluator(params), strict=True):
        (one,), (same,) = measured, records
        assert one.records == same
        length = same[0]["length"]
        values = {(r["split"], length, r["metric"]): r["value"] for r in same}
        assert one.scores.keys() == {key for key in values if key[2] != "token_accuracy"}
        for key, scores in one.scores.items():
            assert scores.shape == (run.evaluate.count,)
            assert scores.mean() == values[key]


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


def constant(trainer):
    """The model of a trainer, made to answer the byte that is its parameter, whatever it reads."""
    answer = lambda params, made, key, numbers, **asked: jax.nn.one_hot(jnp.full(made.tokens.shape, params), 256)
    return trainer.model._replace(apply=answer)


def test_each_split_is_read_where_it_belongs(regions):
    task = make_task(regions)
    trainer = Trainer(regions, task)
    found = {"a": {}, "b": {}, "c": {}}
    for length in Evaluator(regions, task, constant(trainer))(jnp.asarray(list(b"abc"))):
        for byte, records in zip(found, length, strict=True):
            right = [record for record in records if record["metric"] == "token_accuracy"]
            found[byte] |= {(one["length"], one["split"]): one["value"] for one in right}
    # A length that was trained is labelled so, but its bytes are those of the test.
    assert found["a"] == {(6, "train"): 0, (LENGTH, "test"): 0, (9, "validation"): 0}
    assert found["b"] == {(6, "train"): 0, (LENGTH, "test"): 0, (9, "validation"): 1}
    assert found["c"] == {(6, "train"): 1, (LENGTH, "test"): 1, (9, "validation"): 0}


@pytest.mark.parametrize("short", slow_except(["validation", "test"], "test"))
def test_a_split_that_is_shorter_than_the_padded_size_is_measured(tmp_path, short):
    """A length of 14 is padded to 20, the longest of the other split, where its own split has crops of 20 or more."""
    sizes = {"train": 301, "validation": 61, "test": 61} | {short: 15}
    for split, size in sizes.items():
        name = next(name for name in (f"{n}.txt" for n in range(1000)) if place(name)[0] == split)
        (tmp_path / name).write_bytes(bytes(size))
    lengths = {"lengths": (20,), "validation_lengths": (20,), "bucket_sizes": ()}
    lengths["validation_lengths" if short == "validation" else "lengths"] = (14,)
    run = settings(tmp_path)
    run = dataclasses.replace(run, evaluate=dataclasses.replace(run.evaluate, **lengths))
    check(run)
    task = make_task(run)
    evaluator = Evaluator(run, task, constant(Trainer(run, task)))
    found = {(one["split"], one["length"]) for records in evaluator(jnp.zeros(1, jnp.int32)) for one in records[0]}
    assert found == {(split, 14 if split == short else 20) for split in ("validation", "test")}
    assert (evaluator.size(14, short), padded_size(run, 14)) == (15, 20)


def test_training_reads_the_training_split(regions):
    task = make_task(regions)
    made = jax.jit(lambda seed, *arrays: batch(regions, task.given(*arrays), seed, jnp.int32(3)))(
        jnp.uint32(0), *task.arrays
    )
    assert set(np.asarray(made.tokens)[np.asarray(made.valid)].tolist()) == set(b"a")


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


def test_the_digest_of_every_split_is_noted(regions):
    parts = {"train": b"a" * 900, "validation": b"b" * 50, "test": b"c" * 50}
    digests = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    assert data_sha256(regions, make_task(regions)) == digests
    untested = dataclasses.replace(regions, evaluate=dataclasses.replace(regions.evaluate, validation_lengths=()))
    assert set(data_sha256(untested, make_task(untested))) == {"train", "test"}
    assert data_sha256(parse({}), make_task(parse({}))) is None


@pytest.fixture(scope="module")
def model():
    """An untrained model, its parameters, and what it answers, compiled."""
    run = settings("unread")
    made = build(run, make_task(run))
    return made, cases.compiled(made.init)(jax.random.key(0)), cases.compiled(made.apply)


def losses(apply, params, window):
    """Nats of each byte of a window after its first, in float64, with nothing else in the batch."""
    example = Example(
        *(jnp.asarray(x)[None] for x in (window[:-1], len(window) - 1, window[1:], len(window) - 1)), None
    )
    example = example._replace(weight=jnp.ones_like(example.targets))
    made = next_token_form(make_task(settings("unread")), example)
    logits = np.asarray(apply(params, made), np.float64)[0]
    scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -scores[np.arange(len(window) - 1), window[1:]]


def slid(apply, params, text):
    """Nats per byte of a text from byte LENGTH - STRIDE + 1 on, each in the window that is the first to hold it."""
    found, windows = [], {}
    for b in range(LENGTH - STRIDE + 1, len(text)):
        start = STRIDE * max(0, -(-(b - LENGTH) // STRIDE))
        if start + LENGTH >= len(text):
            break
        before = b - start
        assert LENGTH - STRIDE < before <= LENGTH
        if start not in windows:
            windows[start] = losses(apply, params, text[start : start + LENGTH + 1])
        found.append(windows[start][before - 1])
    return np.mean(found), len(found)


def test_windows_one_stride_apart_give_the_sliding_loss(model):
    built, params, apply = model
    text = np.random.default_rng(0).integers(97, 123, LENGTH + 1 + 7 * STRIDE).astype(np.int32)
    expected, count = slid(apply, params, text)
    assert count == 8 * STRIDE
    windows = np.stack([text[s : s + LENGTH + 1] for s in range(0, 8 * STRIDE, STRIDE)])
    # Padded, as an evaluation in buckets pads them.
    inputs, targets = (np.pad(x, ((0, 0), (0, 3))) for x in (windows[:, :-1], windows[:, 1:]))
    n, weight = np.full(8, LENGTH, np.int32), np.pad(np.ones((8, LENGTH), np.int32), ((0, 0), (0, 3)))
    run = settings("unread")
    made = next_token_form(make_task(run), Example(*map(jnp.asarray, (inputs, n, targets, n, weight))))
    scores = cases.compiled(Evaluator(run, make_task(run), built)._scores)
    found = scores(params, made=made)
    assert float(found["loss_sliding"].mean()) == pytest.approx(expected, rel=1e-5)
    whole = np.mean([losses(apply, params, window) for window in windows])
    assert float(found["loss_nonoverlapping"].mean()) == pytest.approx(whole, rel=1e-5)
    assert abs(whole - expected) > 1e-3, "or the two would not be told apart"


def test_each_window_knows_the_document_that_its_last_byte_is_from(tmp_path):
    """Each file repeats a byte of its own, so that the last target of a window says which file it is from."""
    for byte in b"abcdefgh":
        (tmp_path / f"{chr(byte)}.txt").write_bytes(bytes([byte]) * 40)
    run = settings(tmp_path, pattern="*.txt")
    task = make_task(run)
    held_out = task.for_split("train")  # the largest split, in place of the test
    task._splits["test"] = held_out
    assert [len(set(held_out.data[held_out.documents == n].tolist()) - {0}) for n in set(held_out.documents)] == [1] * (
        held_out.documents[-1] + 1
    )
    evaluator = Evaluator(run, task, build(run, task))
    for length in (6, LENGTH):
        found = evaluator.documents(length, "test")
        crops = [made for _, made, _ in evaluator.batches(length, "test")]
        last = np.concatenate([np.asarray(crop.targets)[:, length - 1] for crop in crops])[: run.evaluate.count]
        bytes_of = {int(held_out.documents[i]): int(b) for i, b in enumerate(held_out.data) if b}
        assert found.shape == (run.evaluate.count,)
        assert all(byte in (0, bytes_of[int(document)]) for byte, document in zip(last, found, strict=True))
    assert len(set(found.tolist())) > 1


@pytest.mark.slow
def test_documents_stand_beside_the_scores_of_a_run_under_the_name_that_reports_read(regions):
    task = make_task(regions)
    model = build(regions, task)
    params = jax.tree.map(lambda leaf: leaf[None], model.init(jax.random.key(0)))
    for (member,) in Evaluator(regions, task, model).measure(params):
        (split, length, _) = next(iter(member.scores))
        np.testing.assert_array_equal(member.scores[split, length, examples.DOCUMENT], np.zeros(6))  # one file


def test_a_task_without_a_corpus_has_no_documents():
    run = parse({"task": {"name": "copy", "length_max": 4}, "evaluate": {"lengths": [4], "count": 4, "batch": 4}})
    task = make_task(run)
    assert Evaluator(run, task, build(run, task)).documents(4, "test") is None


LENGTHS = (4, 6, 12)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A text of words, in windows of 4, 6 and 12 bytes, of which the last 5 count in the sliding loss."""
    path = tmp_path_factory.mktemp("text") / "words"
    words = np.array([b"the ", b"cat ", b"sat ", b"on ", b"a ", b"mat. "])
    path.write_bytes(b"".join(words[np.random.default_rng(0).integers(0, 6, 800)].tolist()))
    return parse(
        {
            "task": {"name": "text", "options": {"path": str(path)}, "length_min": 4, "length_max": 6},
            "model": {"layers": 1, "model": 8, "heads": 2, "hidden": 8},
            "train": {"steps": 2, "batch": 4, "warmup": 0},
            "evaluate": {"lengths": list(LENGTHS), "validation_lengths": [], "count": 21, "batch": 8}
            | {"sliding_stride": 5, "bucket_sizes": [8, 12]},
        }
    )


def test_a_model_that_answers_as_a_bigram_has_its_loss(words):
    task = make_task(words)
    trainer, model = Trainer(words, task), NGrams.of(np.asarray(task.data))
    tokens, targets = np.repeat(np.arange(BYTES), BYTES)[:, None], np.tile(np.arange(BYTES), BYTES)[:, None]
    table = jnp.asarray(-model.nats(tokens, targets)["bigram"].reshape(BYTES, BYTES), jnp.float32)
    answer = lambda params, made, key, numbers, **asked: table[made.tokens] + 0 * params
    evaluator = Evaluator(words, task, trainer.model._replace(apply=answer))
    levels = ngram_levels(words, task, evaluator)
    assert levels is not None
    assert set(levels) == {str(length) for length in LENGTHS}
    for found in evaluator(jnp.zeros(1), ("test",)):
        for record in (one for one in found[0] if one["metric"].startswith("loss")):
            level = levels[str(record["length"])][record["metric"]]
            assert level["bigram"] == pytest.approx(record["value"], rel=1e-5)
            assert set(level) == set(NAMES)
            assert level["unigram"] > level["bigram"] > level["trigram"], "words have a structure that context tells"
    assert levels["12"]["loss_sliding"] != levels["12"]["loss_nonoverlapping"]
    assert levels["4"]["loss_sliding"] == levels["4"]["loss_nonoverlapping"], (
        "a window shorter than the stride counts whole"
    )


def test_other_tasks_have_none(tiny):
    task = make_task(tiny)
    assert ngram_levels(tiny, task, Evaluator(tiny, task, Trainer(tiny, task).model)) is None
