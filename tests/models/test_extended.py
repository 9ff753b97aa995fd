"""Published architectures read past their trained length by every method: with a cache as without."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.evaluation.extension import extended, extended_config
from attnjax.models import MODELS, with_fields
from attnjax.modules import generate
from attnjax.positions import NoPE, RoPE
from attnjax.registry import EXTENSIONS
from tests.evaluation.test_extension import BY_LENGTH, again

TRAINED = 16
SIZES = {"vocab_size": 13, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
GROUPED = {**SIZES, "num_key_value_heads": 1, "max_position_embeddings": TRAINED}
FAMILIES = {
    "llama": ("llama", GROUPED),
    "mistral": ("mistral", {**GROUPED, "sliding_window": 7}),
    "qwen2": ("qwen2", {**GROUPED, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("qwen3", {**GROUPED, "head_dim": 8, "tie_word_embeddings": False}),
    "smollm3": ("smollm3", {**GROUPED, "no_rope_layer_interval": 2, "tie_word_embeddings": False}),
    "gpt_neox": ("gpt_neox", {**SIZES, "rotary_pct": 0.5, "max_position_embeddings": TRAINED}),
}
METHODS = (*EXTENSIONS, "rerope+log_n")


def model(family: str, layers: int = 2):
    """A model at random, with matrices so large that what it says depends on what came before."""
    model_type, json = FAMILIES[family]
    spec = with_fields(MODELS[model_type].config({**json, "num_hidden_layers": layers}), embed_std=1.0)
    graph, params = nnx.split(MODELS[model_type].build(spec, nnx.Rngs(0)), graph=False)
    return nnx.merge(graph, jax.tree.map(lambda x: 4 * x if x.ndim > 2 else x, params))


PAIRS = [(list(FAMILIES)[i % len(FAMILIES)], method) for i, method in enumerate(METHODS)]
"""Every method once, on one family after the other."""


@pytest.mark.slow
@pytest.mark.parametrize(("family", "method"), PAIRS)
def test_generating_equals_running_the_model_again(family, method):
    """From within the trained length to past it, with a prompt that is padded where padding does not count as length."""
    long = extended(model(family, **BY_LENGTH.get(method, {})), method, trained=TRAINED, factor=4.0)
    length, steps, padding = TRAINED - 3, 8, 0 if method in BY_LENGTH else 2
    prompt = np.random.default_rng(3).integers(0, 13, (2, length)).astype(np.int32)
    expected = again(long, prompt, steps)
    assert max(len(np.unique(row)) for row in expected) > 1, "a model that says one word could not tell"
    padded, valid = np.pad(prompt, ((0, 0), (padding, 0))), np.arange(length + padding) >= padding
    found = generate(long, padded, steps, valid=jnp.broadcast_to(valid, padded.shape))
    np.testing.assert_array_equal(found, expected)


def test_windows_and_layers_without_rope_stay_as_they_were_trained():
    def changed(family, method):
        model_type, json = FAMILIES[family]
        return extended_config(MODELS[model_type].config(json).config, method, trained=TRAINED, factor=4.0)

    windows = lambda *case: changed(*case).layer_windows
    assert windows("mistral", "streaming_llm") == windows("mistral", "rerope") == (6, 6)
    assert windows("qwen2", "lm_infinite") == ((TRAINED - 1, 0), 5)
    assert windows("llama", "streaming_llm") == ((TRAINED - 5, 0),) * 2
    encodings = changed("smollm3", "rerope").encoding
    assert encodings[1] == NoPE()
    assert encodings[0].theta == RoPE(theta=2_000_000.0).theta
