"""The levels of n-gram models are losses on the windows of the evaluation: those of a model that answers as they do."""

import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.config import parse
from attnjax.tasks.ngrams import BYTES, NAMES, NGrams
from attnjax.train.evaluate import Evaluator, ngram_levels
from attnjax.train.loop import make_task, train
from attnjax.train.step import Trainer
from tests.train.conftest import SETTINGS, Recorder

LENGTHS = (4, 6, 12)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
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


def test_a_model_that_answers_as_a_bigram_has_its_loss(run):
    task = make_task(run)
    trainer, model = Trainer(run, task), NGrams.of(np.asarray(task.data))
    tokens, targets = np.repeat(np.arange(BYTES), BYTES)[:, None], np.tile(np.arange(BYTES), BYTES)[:, None]
    table = jnp.asarray(-model.nats(tokens, targets)["bigram"].reshape(BYTES, BYTES), jnp.float32)
    answer = lambda params, made, key, numbers, **asked: table[made.tokens] + 0 * params
    evaluator = Evaluator(run, task, trainer.model._replace(apply=answer))
    levels = ngram_levels(run, task, evaluator)
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


@pytest.mark.slow
def test_the_manifest_of_a_run_has_them(run, tmp_path):
    context = Recorder()
    (tmp_path / "0").mkdir()
    train([run], [tmp_path / "0"], context)
    found = context.notes["0"]["baselines"]
    assert found == ngram_levels(
        run, make_task(run), Evaluator(run, make_task(run), Trainer(run, make_task(run)).model)
    )


def test_other_tasks_have_none():
    run = parse(SETTINGS)
    assert ngram_levels(run, make_task(run), Evaluator(run, make_task(run), Trainer(run, make_task(run)).model)) is None
