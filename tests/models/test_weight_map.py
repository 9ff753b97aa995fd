"""Tables of weights have the sizes of published models, from their config.json."""

import math

import pytest

from attnjax.models import MODELS
from attnjax.models.matching import groups
from tests.models.test_config_json import RELEASED

BERT = {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
BERT |= {"intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2}
PYTHIA = {"vocab_size": 50304, "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8}
PYTHIA |= {"intermediate_size": 2048, "rotary_pct": 0.25}
T5 = {"vocab_size": 32128, "d_model": 512, "d_kv": 64}
GATED = {"d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
GPT2 = {"vocab_size": 50257, "n_positions": 1024}
BLOOM = {"vocab_size": 250880, "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16}
LLAMA2 = {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA2 |= {"intermediate_size": 11008}
GROUPED = LLAMA2 | {"num_key_value_heads": 8, "intermediate_size": 14336}
QWEN3 = {"vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "head_dim": 128}
QWEN3 |= {"num_key_value_heads": 8, "intermediate_size": 3072, "tie_word_embeddings": True}

PUBLISHED = {
    # The paper says 65M. Ours: 37,000 tokens, attention without bias vectors.
    "transformer-base": ("transformer", {"vocab_size": 37000}, 63_045_632),
    "bert-base-uncased": ("bert", BERT | {"architectures": ["BertModel"]}, 109_482_240),
    # In place of the pooler (590,592): a dense layer of the same size, a norm (1,536), a bias per token (30,522).
    "bert-base-uncased, masked LM": ("bert", BERT, 109_514_298),
    "gpt2": ("gpt2", GPT2 | {"n_embd": 768, "n_layer": 12, "n_head": 12}, 124_439_808),
    "gpt2-xl": ("gpt2", GPT2 | {"n_embd": 1600, "n_layer": 48, "n_head": 25}, 1_557_611_200),
    "t5-small": ("t5", T5 | {"d_ff": 2048, "num_layers": 6, "num_heads": 8}, 60_506_624),
    "t5-v1_1-small": ("t5", T5 | GATED, 76_961_152),
    "bloom-560m": ("bloom", BLOOM, 559_214_592),
    "pythia-70m": ("gpt_neox", PYTHIA, 70_426_624),
    "Llama-2-7b": ("llama", LLAMA2, 6_738_415_616),
    "Meta-Llama-3-8B": ("llama", GROUPED | {"vocab_size": 128256, "rope_theta": 500000.0}, 8_030_261_248),
    "Mistral-7B-v0.1": ("mistral", GROUPED | {"sliding_window": 4096}, 7_241_732_096),
    "Qwen2.5-0.5B": ("qwen2", RELEASED["Qwen2.5-0.5B"], 494_032_768),
    "Qwen3-0.6B": ("qwen3", QWEN3, 596_049_920),
    "SmolLM3-3B": ("smollm3", RELEASED["SmolLM3-3B"], 3_075_098_624),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_of_published_models(name):
    """Those that the releases state, or sums of the shapes of their tensors; tied matrices count once."""
    model_type, json, total = PUBLISHED[name]
    spec = MODELS[model_type].config(json)
    tensors = [rows[0].shape for rows in groups(MODELS[model_type].weights(spec))]
    assert sum(map(math.prod, tensors)) == total
