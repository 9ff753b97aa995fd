"""Whole models against Hugging Face transformers: the same weights, the same numbers (`scripts/golden/models.py`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.attention import Mask
from attnjax.models.param_paths import parameters
from attnjax.modules import EncoderDecoder
from tests.models import published

pytestmark = pytest.mark.slow
PRECISIONS = {"float64": 1e-9, "float32": 1e-4}
WITH_LOSS = [name for name in published.CASES if name != "bert_pooler"]
WITH_CACHE = [name for name in WITH_LOSS if name != "bert"]
BY_LENGTH = ("llama_dynamic", "llama_longrope", "gpt_neox_dynamic")
"""Frequencies that the length decides: what a chunk sees is the length up to its end."""


def loss_and_logits(model, arrays):
    logits = published.logits(model, arrays)
    labels, predicted = arrays["labels"], logits
    if "pos" in arrays:
        labels, predicted = labels[:, 1:], logits[:, :-1]
    probability = jax.nn.log_softmax(predicted)
    chosen = jnp.take_along_axis(probability, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return -chosen.mean(where=labels >= 0), logits


SINGLE = ("gpt2", "llama", "t5")
"""In float32 in the quick run; all of them in `experiments/parity`."""
TYPED = [
    pytest.param(name, dtype, marks=() if dtype == "float64" or name in SINGLE else pytest.mark.slow)
    for name in WITH_LOSS
    for dtype in PRECISIONS
]


@pytest.mark.parametrize(("name", "dtype"), TYPED)
def test_logits_loss_and_gradients(name, dtype, x64):
    case, tolerance = published.case(name, dtype), PRECISIONS[dtype]
    arrays, seen = case.arrays, published.visible(case.arrays)
    run = jax.jit(jax.value_and_grad(lambda model: loss_and_logits(model, arrays), has_aux=True))
    (loss, logits), gradients = run(published.model(case))
    close = lambda found, expected, scale, what: np.testing.assert_allclose(
        found, expected, rtol=tolerance, atol=tolerance * scale, err_msg=what
    )
    assert logits.dtype == dtype
    close(logits[seen], arrays["logits"][seen], np.abs(arrays["logits"][seen]).max(), "logits")
    close(loss, arrays["loss"], 0.0, "loss")
    expected = {key.removeprefix("grad "): value for key, value in arrays.items() if key.startswith("grad ")}
    largest = max(np.abs(value).max() for value in expected.values())
    found = as_published(case, parameters(gradients))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        close(found[key], value, largest, key)


def as_published(case, gradients):
    """Our gradients as tensors of the checkpoint: through the table, backwards."""
    parts, rows = {}, {}
    for weight in case.table():
        parts.setdefault(case.name(weight), []).append(np.asarray(gradients[weight.path]))
        rows[case.name(weight)] = weight
    return {name: rows[name].to_theirs(*parts[name]) for name in parts}


@pytest.mark.parametrize("name", WITH_CACHE)
def test_two_chunks_through_caches(name, x64):
    case = published.case(name, "float64")
    arrays, seen = case.arrays, published.visible(case.arrays)
    model = published.model(case)
    first, second = decoded(model, arrays)
    found = np.concatenate([first, second], 1)
    if name in BY_LENGTH:
        found, seen, expected = second, seen[:, 5:], arrays["logits"][:, 5:]
    else:
        expected = arrays["logits"]
    scale = np.abs(expected[seen]).max()
    np.testing.assert_allclose(found[seen], expected[seen], rtol=1e-9, atol=1e-9 * scale)


def decoded(model, arrays):
    """Logits of the first half, and of the second that remembers it."""
    halves = lambda x: (x[:, :5], x[:, 5:])
    step = jax.jit(lambda model, tokens, state, **options: model.decode(tokens, state, **options))
    if isinstance(model, EncoderDecoder):
        state = jax.jit(lambda m: m.start(arrays["source"], 10, mask=Mask(k_valid=arrays["mask"])))(model)
        tokens, valid = arrays["target"], arrays["target_mask"]
        positions = np.broadcast_to(np.arange(10, dtype=np.int32), tokens.shape)
    else:
        tokens, valid, positions, state = arrays["tokens"], arrays["mask"], published.positions(arrays), None
        window = model.config.window
        state = model.cache(2, 10 if window is None else window + 5, window=window)
    found = []
    for part, kept, pos in zip(halves(tokens), halves(valid), halves(positions)):
        logits, state = step(model, part, state, valid=kept, pos=pos)
        found.append(np.asarray(logits))
    return found


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_features_and_pooled_vector_of_bert(dtype, x64):
    case, tolerance = published.case("bert_pooler", dtype), PRECISIONS[dtype]
    arrays, model = case.arrays, published.model(case)
    pooled = lambda model: model.pooled(arrays["tokens"], mask=Mask(k_valid=arrays["mask"]), types=arrays["types"])
    features = jax.jit(lambda model: published.logits(model, arrays))(model)[arrays["mask"]]
    np.testing.assert_allclose(features, arrays["features"][arrays["mask"]], rtol=tolerance, atol=4 * tolerance)
    np.testing.assert_allclose(jax.jit(pooled)(model), arrays["pooled"], rtol=tolerance, atol=tolerance)


def test_there_is_a_file_for_every_case():
    assert {published.case(name).spec.config.layers for name in published.CASES} == {1, 2, 4}
    assert {published.case(name).architecture.model_type for name in published.CASES} == set(published.MODELS)
