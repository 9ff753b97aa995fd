"""The length that a published model was trained at, by its config.json, and factors of LongRoPE that are searched on a text."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

from attnjax.long.extending import Extension, Trained, trained_length
from attnjax.long.factor_search import factors_of
from attnjax.long.factors import Loss, searched
from attnjax.long.subjects import of_decoder, read_past
from attnjax.models import MODELS, Loaded
from attnjax.modules import Decoder, TransformerConfig
from attnjax.positions import ALiBi, RoPE, YaRN, compose
from attnjax.tasks import Text

ORIGINAL = "original_max_position_embeddings"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 8192}
PHI = {"type": "longrope", "short_factor": [1.05] * 48, "long_factor": [1.08] * 48}

CONFIGS = {
    "Llama-2-7b": ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096, False),
    "Meta-Llama-3-8B": ({"max_position_embeddings": 8192, "rope_theta": 500000.0}, 8192, False),
    "Llama-3.1-8B": ({"max_position_embeddings": 131072, "rope_scaling": LLAMA3}, 131072, False),
    "Llama-3.2-1B": ({"max_position_embeddings": 131072, "rope_scaling": {**LLAMA3, "factor": 32.0}}, 131072, False),
    "Llama-3.1-8B, as transformers 5 writes it": (
        {"max_position_embeddings": 131072, "rope_parameters": {**LLAMA3, "rope_theta": 500000.0}},
        131072,
        False,
    ),
    "Phi-3-mini-4k": ({"max_position_embeddings": 4096, ORIGINAL: 4096, "rope_scaling": None}, 4096, False),
    "Phi-3-mini-128k": ({"max_position_embeddings": 131072, ORIGINAL: 4096, "rope_scaling": PHI}, 131072, False),
    "Qwen2.5-7B": ({"max_position_embeddings": 32768, "sliding_window": 131072}, 32768, False),
    "Qwen2.5-7B with YaRN": (
        {"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0, ORIGINAL: 32768}},
        32768,
        True,
    ),
    "Qwen3-8B with YaRN": (
        {"max_position_embeddings": 40960, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32768}},
        32768,
        True,
    ),
    "YaRN whose original length stands outside": (
        {"max_position_embeddings": 131072, ORIGINAL: 32768, "rope_scaling": {"type": "yarn", "factor": 4.0}},
        32768,
        True,
    ),
    "Llama-2-7b with dynamic NTK": (
        {"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        4096,
        True,
    ),
    "deepseek-coder-6.7b": (
        {"max_position_embeddings": 16384, "rope_scaling": {"type": "linear", "factor": 4.0}},
        16384,
        False,
    ),
    "SmolLM3-3B": ({"max_position_embeddings": 65536, "rope_theta": 5000000.0, "rope_scaling": None}, 65536, False),
    "Mistral-7B-v0.1": ({"max_position_embeddings": 32768, "sliding_window": 4096}, 32768, False),
    "pythia-70m": ({"max_position_embeddings": 2048, "rotary_pct": 0.25}, 2048, False),
    "gpt2": ({"n_positions": 1024, "n_ctx": 1024}, 1024, False),
    "bloom-560m": ({"seq_length": 2048}, 2048, False),
}
"""What config.json of a model says of lengths, the length it was trained at, and whether a scaling was put on afterwards."""


def loaded(json):
    return Loaded(None, None, MODELS["llama"], json)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_kind_of_scaling_says_which_length_was_trained_at(name):
    json, length, after = CONFIGS[name]
    found = trained_length(loaded(json))
    assert (found.length, found.scaled_after) == (length, after)
    key = found.source.partition(" ")[0]
    tables = (json, json.get("rope_scaling") or {}, json.get("rope_parameters") or {})
    assert [table[key] for table in tables if key in table] == [length]


def test_the_source_of_a_length_says_what_becomes_of_the_scaling():
    of = lambda name, *given: trained_length(loaded(CONFIGS[name][0]), *given)
    assert of("Mistral-7B-v0.1").source == "max_position_embeddings of config.json"
    assert of("Llama-3.1-8B").source == "max_position_embeddings of config.json, with its scaling, llama3, which stays"
    after = f"{ORIGINAL} of config.json, since its scaling, yarn, was put on after training and is taken off"
    assert of("Qwen3-8B with YaRN").source == after
    stays = "max_position_embeddings of config.json, with its scaling, linear, which stays"
    assert of("deepseek-coder-6.7b") == Trained(16384, stays)
    assert of("Mistral-7B-v0.1", 8192) == Trained(8192, "--trained")
    assert of("Llama-3.1-8B", 8192) == Trained(8192, "--trained, with its scaling, llama3, which stays")
    assert of("Qwen3-8B with YaRN", 16384).scaled_after
    on = of("Qwen3-8B with YaRN", 131072)
    assert on == Trained(131072, f"--trained, which is more than its {ORIGINAL} of 32,768: its scaling, yarn, stays")


def test_a_config_that_says_no_length_is_refused():
    with pytest.raises(ValueError, match=f"has none of {ORIGINAL}, max_position_embeddings, .*length with --trained"):
        trained_length(loaded({"model_type": "t5"}))
    assert trained_length(loaded({}), 64) == Trained(64, "--trained")


# Factors -------------------------------------------------------------------------------------------------------------

TRAINED, LONGEST = Trained(16, "here"), 40
EXTENSION = Extension("longrope", LONGEST)
SIZES = {"vocab": 256, "model": 16, "layers": 2, "heads": 2, "hidden": 16, "embed_std": 1.0}


def decoder(encoding):
    return Decoder(TransformerConfig(**SIZES, encoding=encoding), rngs=nnx.Rngs(0))


def tokens(T):
    return np.random.default_rng(0).integers(97, 123, T).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "method", "trained"),
    [
        (RoPE(theta=100.0), "longrope", TRAINED),
        pytest.param(compose(ALiBi(), RoPE(theta=100.0)), "longrope+log_n", TRAINED, marks=pytest.mark.slow),
        pytest.param(
            RoPE(theta=100.0, scaling=YaRN(2.0, 16)),
            "longrope",
            TRAINED._replace(scaled_after=True),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_list_of_factors_is_judged_by_the_loss_of_the_model_that_has_it(encoding, method, trained):
    factors, rows = (1.0, 1.4, 2.0, 3.5), np.reshape(tokens(2 * LONGEST), (2, LONGEST)).astype(np.int32)
    model, extension = decoder(encoding), dataclasses.replace(EXTENSION, method=method)
    found = Loss(model, extension, trained, rows)(factors)
    given = dataclasses.replace(extension, options={"factors": factors})
    read = of_decoder("", given(model, trained), str.encode, str)
    assert found == pytest.approx(read.losses(rows).mean(), rel=1e-5)
    assert abs(found - of_decoder("", model, str.encode, str).losses(rows).mean()) > 1e-4


def test_the_search_takes_the_factors_with_the_lowest_loss():
    text, model = tokens(2 * LONGEST), decoder(RoPE(theta=100.0))
    loss = Loss(model, EXTENSION, TRAINED, np.reshape(text, (2, LONGEST)).astype(np.int32))
    starts = factors_of(RoPE(theta=100.0), 8, 2.5, 16)
    best = min(starts, key=loss)
    assert searched(model, EXTENSION, TRAINED, text, rounds=0) == pytest.approx(best, rel=1e-5)
    found = searched(model, EXTENSION, TRAINED, text, rounds=1)
    assert loss(found) < loss(best)
    assert list(found) == sorted(found)
    assert 1 <= found[0] <= found[-1] <= 1.5 * 2.5
    with pytest.raises(
        ValueError, match="--search needs a text of 40 tokens or more, the longest of --lengths, got 39"
    ):
        searched(model, EXTENSION, TRAINED, text[:39])


def test_a_model_read_past_its_trained_length_says_by_what():
    model, said = decoder(RoPE(theta=100.0)), []
    plain = of_decoder("tiny", model, str.encode, str, bytewise=True, stop=(3,))
    trained = lambda given: said.append(given) or TRAINED
    plain = dataclasses.replace(plain, trained=trained, trained_on=Text("book.txt"))
    found = read_past(plain, Extension("rerope", LONGEST, 16, {"window": 3}))
    assert said == [16]
    assert (found.name, found.bytewise, found.stop) == ("tiny (rerope)", True, (3,))
    assert found.trained_on == Text("book.txt")
    assert found.note == "Read by rerope at 2.5 times the trained length of 16 tokens (here)."
    assert found.model.config.encoding.window == 3
