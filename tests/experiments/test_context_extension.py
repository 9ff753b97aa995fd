"""Context extension: methods are the encodings they are named after, and what is measured is what the texts say."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from attnjax.models import architecture, save
from attnjax.models.loading import Loaded
from attnjax.modules import Decoder, TransformerConfig
from attnjax.positions import NoPE, RoPE
from experiments.context_extension import methods
from experiments.context_extension.__main__ import main
from experiments.context_extension.methods import FREQUENCIES, POSITIONS, Extension
from experiments.context_extension.page import RECORDS
from experiments.context_extension.results import read
from experiments.context_extension.subjects import Subject

pytestmark = pytest.mark.slow

L, FACTOR, HEAD = 8, 4, 8
BASE = RoPE(theta=100.0)
EXTENSION = Extension(L, FACTOR, factors=(1.0, 1.5, 2.5, 4.0))
CONFIG = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=16, encoding=(NoPE(), BASE))


def subject_of(config=CONFIG):
    build = lambda config: Decoder(config, rngs=nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.split(build(config), graph=False)[1])
    # Scores that matter: at random they are so small that no encoding would be seen.
    params = jax.tree.map(lambda x: 3 * x if x.ndim > 1 else x, params)
    return Subject("planted", config, build, params, L, seed=0)


@pytest.fixture(scope="module")
def subject():
    return subject_of()


def radians(method, length):
    found = methods.numbers(method, BASE, HEAD, EXTENSION, length)
    return np.asarray(found["frequencies"].radians), float(found["gain"])


def test_frequencies_by_hand():
    """d = 8 and theta = 100: f_k = 100^(-k/4). With s = 4 NTK has the base 100 * 4^(8/6)."""
    plain = 100.0 ** (-np.arange(4) / 4)
    growth = 4.0 ** (-np.arange(4) / 3)
    long = FACTOR * L
    for method, wanted in {
        "none": plain,
        "pi": plain / 4,
        "ntk": plain * growth,
        "dynamic_ntk": plain * growth,
        "p_rope": plain * [1, 1, 1, 0],
        "drope": 0 * plain,
        "longrope": plain / [1, 1.5, 2.5, 4],
    }.items():
        np.testing.assert_allclose(radians(method, long)[0], wanted, rtol=1e-6, err_msg=method)
    for method in ("dynamic_ntk", "longrope"):
        np.testing.assert_allclose(radians(method, L)[0], plain, rtol=1e-6)
    assert radians("yarn", long)[1] == pytest.approx(0.1 * np.log(4) + 1)
    assert radians("longrope", long)[1] == pytest.approx(np.sqrt(1 + np.log(4) / np.log(8)))
    scaled = methods.numbers("drope", BASE, HEAD, Extension(L, FACTOR, logit_scale=0.4), long)
    assert float(scaled["gain"]) ** 2 == pytest.approx(1 + 0.4 * np.log(4))


def test_positions_are_remapped_as_by_the_library(subject):
    """And within the trained length the model is what it was, where no window is as short as that."""
    tokens = np.random.default_rng(4).integers(0, 11, (2, FACTOR * L + 1)).astype(np.int32)
    for method in POSITIONS:
        found = subject.scores(subject.params, subject.numbers(method, EXTENSION, FACTOR * L), tokens)
        encoding = methods.encoding(method, BASE, EXTENSION)
        parts = getattr(encoding, "parts", (encoding,))
        beside = [part for part in parts if hasattr(part, "first")]
        seen = {"window": (beside[0].window, 0), "window_first": beside[0].first} if beside else {}
        config = dataclasses.replace(subject.config, encoding=(NoPE(), encoding), **seen)
        logits = subject.with_config(subject.params, config)(tokens[:, :-1])
        expected = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        np.testing.assert_allclose(found.loss, expected, rtol=2e-5, atol=2e-5, err_msg=method)


@pytest.mark.parametrize(("length", "names"), [(L, ("dynamic_ntk", "longrope")), (FACTOR * L, FREQUENCIES)])
def test_numbers_as_data_are_the_encoding_itself(subject, length, names):
    """Against the model built with the encoding, whose length-dependent rules see the length themselves."""
    tokens = np.random.default_rng(0).integers(0, 11, (2, length + 1)).astype(np.int32)
    different = set()
    for method in names:
        encodings = (NoPE(), methods.encoding(method, BASE, EXTENSION))
        logits = jax.jit(lambda p, x, e=encodings: subject.with_encodings(p, e)(x))(subject.params, tokens[:, :-1])
        wanted = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        found = subject.scores(subject.params, subject.numbers(method, EXTENSION, length), tokens)
        np.testing.assert_allclose(found.loss, wanted, atol=2e-5, err_msg=method)
        np.testing.assert_array_equal(found.right > 0, np.argmax(logits, -1) == tokens[:, 1:])
        different.add(np.round(np.asarray(found.loss), 3).tobytes())
    # With a = 1 and a sequence s times as long, dynamic NTK is NTK.
    assert len(different) == (len(names) if length == L else len(names) - 1)


def test_a_published_folder_from_end_to_end(tmp_path, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    json_config = {
        "model_type": "llama", "vocab_size": 300, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
    }  # fmt: skip
    family = architecture("llama")
    spec = family.config(json_config)
    save(Loaded(family.build(spec, nnx.Rngs(0)), spec, family, json_config), tmp_path / "model")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({one: i for i, one in enumerate(alphabet)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["[S]"])
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[S] $A", special_tokens=[("[S]", 256)])
    made.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "text").write_text("a text of some words, again and again. " * 200)
    options = [
        "--model",
        str(tmp_path / "model"),
        "--text",
        str(tmp_path / "text"),
        "--factor",
        "2",
        "--trained",
        "128",
    ]
    options += ["--documents", "6", "--needles", "6", "--out", str(tmp_path / "out")]
    factors = tmp_path / "factors.json"
    factors.write_text(json.dumps({"rope_scaling": {"long_factor": [1.0, 2]}}))
    assert main([*options, "--methods", "yarn,longrope", "--factors", str(factors)]) == 0
    found = read(tmp_path / "out" / RECORDS)
    assert found.about["unit"] == "token"
    assert found.runs[0]["factors"] == [1.0, 2.0]
    assert found.lengths == (128, 256)
    # An untrained model knows nothing: about ln 300 nats.
    assert found.cells["zero-shot"]["yarn"].estimate("windows", 256).value == pytest.approx(np.log(300), abs=0.5)
    assert main([*options, "--documents", "9"]) == 2
    told = "has 1950 tokens, 7 windows of 256 that do not overlap: give a longer text, or --documents of at most 7"
    assert told in capsys.readouterr().err
    assert main([*options, "--methods", "pie"]) == 2
    assert "methods must be some of none, pi, ntk" in capsys.readouterr().err
