"""Whole models against Hugging Face transformers: the same weights, the same numbers (`scripts/golden/models.py`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.attention import Mask
from attnjax.models import Loaded, load, save, with_fields
from attnjax.models.param_paths import parameters
from attnjax.modules import EncoderDecoder
from tests.cases import slow_except
from tests.models import published

WITH_LOSS = [name for name in published.CASES if name != "bert_pooler"]
WITH_CACHE = [name for name in WITH_LOSS if name != "bert"]
BY_LENGTH = ("llama_dynamic", "llama_longrope", "gpt_neox_dynamic")
"""Frequencies that the length decides: what a chunk sees is the length up to its end."""
QUICK = ("transformer", "bert", "gpt2", "t5_v1_1", "bloom", "gpt_neox", "llama_yarn", "smollm3")


@pytest.mark.parametrize("name", slow_except(WITH_LOSS, *QUICK))
def test_logits_after_saving_and_loading(tmp_path, name):
    """In float32."""
    case = published.case(name)
    found = load(save(Loaded(published.model(case), case.spec, case.architecture, case.json), tmp_path / "model"))
    assert (found.new, found.unused) == ((), ())
    assert with_fields(found.spec) == case.spec
    logits = np.asarray(jax.jit(lambda model: published.logits(model, case.arrays))(found.model))
    assert logits.dtype == np.float32
    close(logits, case.arrays["logits"], published.visible(case.arrays), 1e-4)


def close(found, expected, seen, tolerance):
    scale = np.abs(expected[seen]).max()
    np.testing.assert_allclose(found[seen], expected[seen], rtol=tolerance, atol=tolerance * scale)


def loss_and_logits(model, arrays):
    logits = published.logits(model, arrays)
    labels, predicted = arrays["labels"], logits
    if "pos" in arrays:
        labels, predicted = labels[:, 1:], logits[:, :-1]
    probability = jax.nn.log_softmax(predicted)
    chosen = jnp.take_along_axis(probability, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return -chosen.mean(where=labels >= 0), logits


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_LOSS)
def test_logits_loss_and_gradients(name, x64):
    case = published.case(name, "float64")
    arrays = case.arrays
    run = jax.jit(jax.value_and_grad(lambda model: loss_and_logits(model, arrays), has_aux=True))
    (loss, logits), gradients = run(published.model(case))
    assert logits.dtype == np.float64
    close(np.asarray(logits), arrays["logits"], published.visible(arrays), 1e-9)
    np.testing.assert_allclose(loss, arrays["loss"], rtol=1e-9)
    expected = {key.removeprefix("grad "): value for key, value in arrays.items() if key.startswith("grad ")}
    largest = max(np.abs(value).max() for value in expected.values())
    found = as_published(case, parameters(gradients))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-9 * largest, err_msg=key)


def as_published(case, gradients):
    """Our gradients as tensors of the checkpoint: through the table, backwards."""
    parts, rows = {}, {}
    for weight in case.table():
        parts.setdefault(case.name(weight), []).append(np.asarray(gradients[weight.path]))
        rows[case.name(weight)] = weight
    return {name: rows[name].to_theirs(*parts[name]) for name in parts}


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_CACHE)
def test_two_chunks_through_caches(name, x64):
    case = published.case(name, "float64")
    arrays, seen = case.arrays, published.visible(case.arrays)
    first, second = decoded(published.model(case), arrays)
    if name in BY_LENGTH:
        close(second, arrays["logits"][:, 5:], seen[:, 5:], 1e-9)
    else:
        close(np.concatenate([first, second], 1), arrays["logits"], seen, 1e-9)


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


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_features_and_pooled_vector_of_bert(dtype, tolerance, x64):
    case = published.case("bert_pooler", dtype)
    arrays, model = case.arrays, published.model(case)
    pooled = lambda model: model.pooled(arrays["tokens"], mask=Mask(k_valid=arrays["mask"]), types=arrays["types"])
    features = jax.jit(lambda model: published.logits(model, arrays))(model)[arrays["mask"]]
    np.testing.assert_allclose(features, arrays["features"][arrays["mask"]], rtol=tolerance, atol=4 * tolerance)
    np.testing.assert_allclose(jax.jit(pooled)(model), arrays["pooled"], rtol=tolerance, atol=tolerance)
