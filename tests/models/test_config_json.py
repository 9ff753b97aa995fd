"""What a config.json may say: both styles of rotary parameters, and what is refused."""

import json
import pathlib

import pytest

from attnjax.models import MODELS
from attnjax.positions import (
    DualChunk,
    DynamicNTK,
    Learned,
    Llama3,
    LongRoPE,
    NoPE,
    PositionInterpolation,
    RoPE,
    YaRN,
)

NEOX = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
NEOX |= {"intermediate_size": 24, "max_position_embeddings": 64}
SIZES = {**NEOX, "num_key_value_heads": 1}
GPT2 = {"vocab_size": 11, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12}
BERT = {**NEOX, "type_vocab_size": 2}
T5 = {"vocab_size": 11, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
BLOOM = {"vocab_size": 11, "hidden_size": 16, "n_layer": 2, "n_head": 2}
SMALL = {"gpt2": GPT2, "bert": BERT, "t5": T5, "bloom": BLOOM, "gpt_neox": NEOX, "transformer": {"vocab_size": 11}}
ORIGINAL = "original_max_position_embeddings"


def spec(model_type, **fields):
    return MODELS[model_type].config(SMALL.get(model_type, SIZES) | fields)


def encoding(model_type="llama", **fields):
    return spec(model_type, **fields).config.encoding


FACTORS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LISTS = {"short_factor": [1, 1.5], "long_factor": [2, 3.5]}
SCALINGS = {
    "linear": ({"factor": 4.0}, PositionInterpolation(4.0)),
    "linear beside a length": ({"factor": 4.0, ORIGINAL: 16}, PositionInterpolation(4.0)),
    "dynamic": ({"factor": 2.0}, DynamicNTK(2.0, 64)),
    "yarn": ({"factor": 4.0, ORIGINAL: 16}, YaRN(4.0, 16)),
    "llama3": ({"factor": 8.0, ORIGINAL: 32, **FACTORS}, Llama3(8.0, 32, 1.0, 4.0)),
    "longrope": ({**LISTS, ORIGINAL: 32}, LongRoPE((1.0, 1.5), (2.0, 3.5), 32, None, 2.0)),
    "longrope given": (
        {**LISTS, ORIGINAL: 64, "factor": 3.0, "attention_factor": 1.25},
        LongRoPE((1.0, 1.5), (2.0, 3.5), 64, 1.25, 3.0),
    ),
}


@pytest.mark.parametrize("kind", SCALINGS)
def test_both_styles_of_rotary_parameters(kind):
    rule, scaling = SCALINGS[kind]
    expected, kind = RoPE(theta=500.0, scaling=scaling), kind.split()[0]
    old = {"rope_theta": 500.0, "rope_scaling": {"rope_type": kind, **rule}}
    older = {"rope_theta": 500.0, "rope_scaling": {"type": kind, **rule}}
    new = {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **rule}}
    assert [encoding(**fields) for fields in (old, older, new)] == [expected] * 3


def test_rotary_parameters_of_gpt_neox():
    old, new = {"rotary_emb_base": 500, "rotary_pct": 0.5}, {"partial_rotary_factor": 0.5, "rope_theta": 500}
    # Releases of transformers 4 save the new keys beside the old ones.
    for fields in (old, {"rope_parameters": {"rope_type": "default", **new}}, {**old, **new}):
        assert encoding("gpt_neox", **fields) == RoPE(theta=500.0, fraction=0.5)
    with pytest.raises(ValueError, match="rotary_pct and partial_rotary_factor are one thing"):
        encoding("gpt_neox", rotary_pct=0.25, partial_rotary_factor=0.5)
    assert encoding("gpt_neox") == RoPE(fraction=0.25)


def test_windows_count_the_token_itself():
    assert spec("mistral", sliding_window=4).config.window == 3
    assert spec("mistral", sliding_window=None).config.window is None
    assert spec("mistral").config.window == 4095
    assert spec("qwen2", sliding_window=4, use_sliding_window=False).config.layer_windows == (None, None)
    window = {"sliding_window": 4, "use_sliding_window": True}
    assert spec("qwen2", **window, max_window_layers=1).config.windows == (None, 3)
    assert spec("qwen3", **window, max_window_layers=0).config.window == 3
    kinds = ["sliding_attention", "full_attention"]
    assert spec("qwen3", **window, layer_types=kinds).config.windows == (3, None)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_null_key_heads_are_as_many_as_heads(model_type):
    """As in transformers, where a config without the key has the default of its class, which is another number in each."""
    found = spec(model_type, num_key_value_heads=None)
    assert found.config.sizes.kv_heads == 2
    if model_type != "llama":  # whose first release had no such key
        with pytest.raises(ValueError, match=f"{model_type}: config.json lacks num_key_value_heads"):
            MODELS[model_type].config(NEOX)


def test_smollm3_has_no_encoding_in_every_fourth_layer():
    turning = RoPE(theta=2_000_000.0)
    assert spec("smollm3", num_hidden_layers=5).config.encoding == (turning, turning, turning, NoPE(), turning)
    assert spec("smollm3", no_rope_layers=[0, 1]).config.encoding == (NoPE(), turning)
    window = {"sliding_window": 4, "use_sliding_window": True}
    assert spec("smollm3", **window, no_rope_layers=[0, 1]).config.windows == (3, None)


def test_the_first_t5_scales_its_logits():
    assert spec("t5").config.logits_scale == 0.25
    assert spec("t5", tie_word_embeddings=False).config.logits_scale == 1.0
    assert spec("t5", tie_word_embeddings=True, scale_decoder_outputs=True) == spec("t5")
    assert spec("t5", tie_word_embeddings=False, scale_decoder_outputs=True).config.logits_scale == 0.25
    assert spec("t5", num_decoder_layers=3).encoder.layers == 2


REFUSED = [
    ("llama", {"rope_scaling": {"rope_type": "su"}}, "rope_type .*'su'"),
    ("llama", {"rope_scaling": {"type": "yarn"}}, "lacks rope_scaling.factor"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "what": 1}}, "not known here.*: rope_scaling.what"),
    ("llama", {"rope_scaling": {"type": "linear", "rope_type": "yarn"}}, "rope_type and rope_scaling.type"),
    ("llama", {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5.0}}, r"\[10000.0, 5.0\]"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2, ORIGINAL: 8}}, "64, got 8"),
    ("llama", {"hidden_act": "relu"}, "hidden_act .*silu.*'relu'"),
    ("llama", {"hidden_size": "16"}, r"hidden_size .* 1\.\.2147483647, config.json has '16'"),
    ("llama", {"num_hidden_layers": 10**6}, r"num_hidden_layers .* 1\.\.1000"),
    ("llama", {"rms_norm_eps": 10**400}, "rms_norm_eps"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps .* nan"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("llama", {"vocab_size": None}, "lacks vocab_size"),
    ("llama", {"new_key": 1, "other": 2}, "might change the numbers: new_key, other"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "sliding_attention, but use_sliding_window"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers .* 2"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"n_embd": 16, "hidden_size": 8}, r"n_embd and hidden_size .*\[16, 8\]"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type .* 'absolute'"),
    ("bert", {"architectures": ["BertForTokenClassification"]}, "architectures .* BertForMaskedLM"),
    ("bloom", {"n_inner": 5}, "n_inner .* 64, .* 5"),
    ("gpt_neox", {"rotary_pct": 0.4}, "rotary_pct=0.4 of a head of 8"),
    ("t5", {"feed_forward_proj": "gated-relu"}, "feed_forward_proj .* gated-gelu"),
    ("t5", {"tie_word_embeddings": True, "scale_decoder_outputs": False}, "write tie_word_embeddings=false"),
    ("transformer", {"norm_first": True}, "norm_first .* False"),
]


@pytest.mark.parametrize(("model_type", "fields", "message"), REFUSED)
def test_what_would_change_the_numbers_is_refused(model_type, fields, message):
    with pytest.raises(ValueError, match=message):
        spec(model_type, **fields)


@pytest.mark.parametrize("model_type", MODELS)
def test_keys_of_released_files_that_change_no_number_are_ignored(model_type):
    harmless = {"_flash_attn_2_enabled": True, "_commit_hash": "0a1b", "unsloth_fixed": True}
    harmless |= {"model_max_length": 4096, "image_token_id": 7, "tf_legacy_loss": False}
    assert spec(model_type, **harmless) == spec(model_type)


def test_dual_chunks_of_qwen_are_read():
    """As in Qwen2.5-7B-Instruct-1M, whose chunks are 262,144 long, and 8,192 of them local."""
    chunks = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    found = spec("qwen2", rope_theta=1e7, dual_chunk_attention_config=chunks)
    assert found.config.encoding == DualChunk(theta=1e7, chunk=262144, local=8192)
    with pytest.raises(ValueError, match="keys that are not known here.* dual_chunk_attention_config.what"):
        spec("qwen2", dual_chunk_attention_config={**chunks, "what": 1})
    with pytest.raises(ValueError, match="keys that are not known here.* dual_chunk_attention_config"):
        spec("qwen3", dual_chunk_attention_config=chunks)


# Released files ------------------------------------------------------------------------------------------------------

FOLDER = pathlib.Path(__file__).with_name("released")
RELEASED = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
"""Whole files, as they are downloaded: name -> config.json."""
OF_RELEASED = {
    "bert-base-chinese": (12, 768, 12, 12, 3072, Learned(512)),
    "Qwen2.5-0.5B": (24, 896, 14, 2, 4864, RoPE(theta=1_000_000.0)),
    "SmolLM3-3B": (36, 2048, 16, 4, 11008, (*(RoPE(theta=5_000_000.0),) * 3, NoPE()) * 9),
}
"""Layers, D, N, K, the width of the feed-forward part, and the encoding."""


@pytest.mark.parametrize("name", RELEASED)
def test_released_files_are_read_as_downloaded(name):
    read = MODELS[RELEASED[name]["model_type"]].config(RELEASED[name]).config
    found = (read.layers, read.model, read.heads, read.sizes.kv_heads, read.hidden, read.encoding)
    assert found == OF_RELEASED[name]
    assert read.layer_windows == (None,) * read.layers
    assert read.tie_embeddings == RELEASED[name].get("tie_word_embeddings", True)
