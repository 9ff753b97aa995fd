"""What is compared: a small random model of transformers for every architecture, and for every scaling of RoPE it uses.

Sequences are longer than the length that rotary models claim to be trained at, so that a scaling has something to do.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
POSITIONS = ("wpe", "relative")
TABLES = ("embed", "wte", "wpe", "shared", "relative")
VOCAB, TRAINED, ROOM = 97, 16, 80
"""Tokens; positions that rotary models are trained at; rows of learned tables."""

WIDE = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**WIDE, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": TRAINED}
ONE = {**LLAMA, "num_hidden_layers": 1}
NEOX = {**WIDE, "intermediate_size": 48, "max_position_embeddings": TRAINED}
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": ROOM}
BERT = {**WIDE, "intermediate_size": 48, "max_position_embeddings": ROOM}
T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0}
ORIGINAL = {"original_max_position_embeddings": TRAINED}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5, **ORIGINAL}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}
LONG = {"rope_type": "longrope", "factor": 4.0, **ORIGINAL}
LONG |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.7, 2.5, 3.9]}


class Case(NamedTuple):
    """A model: the class of transformers without its ending, its ending, fields of the config, and the length T."""

    name: str
    family: str
    head: str
    fields: Mapping[str, Any]
    tokens: int = 40


def causal(name: str, family: str, fields: Mapping[str, Any], **rotary: Any) -> Case:
    """A decoder; `rotary` are rotary parameters beside a small base, which lets slow pairs move."""
    turning = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, **rotary}} if rotary else {}
    return Case(name, family, {"GPT2": "LMHeadModel"}.get(family, "ForCausalLM"), {**fields, **turning})


PLAIN = {"rope_type": "default"}
SLIDING = {"use_sliding_window": True, "sliding_window": 7}
CASES = (
    Case("BERT, masked LM", "Bert", "ForMaskedLM", BERT),
    Case("BERT, features", "Bert", "Model", BERT),
    causal("GPT-2", "GPT2", GPT2),
    Case("T5 v1.0 (ReLU, tied)", "T5", "ForConditionalGeneration", T5),
    Case("T5 v1.1 (gated GELU)", "T5", "ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu"}),
    causal("BLOOM (ALiBi)", "Bloom", {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    causal("GPT-NeoX, Pythia", "GPTNeoX", NEOX, **PLAIN, partial_rotary_factor=0.25),
    causal(
        "GPT-NeoX, sublayers in turn, linear",
        "GPTNeoX",
        NEOX | {"use_parallel_residual": False, "attention_bias": False},
        **{"rope_type": "linear", "factor": 3.0, "partial_rotary_factor": 0.5},
    ),
    causal(
        "GPT-NeoX, dynamic",
        "GPTNeoX",
        NEOX | {"num_hidden_layers": 1},
        **{"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.5},
    ),
    causal("LLaMA 2", "Llama", LLAMA, **PLAIN),
    causal("LLaMA, linear", "Llama", LLAMA, rope_type="linear", factor=3.0),
    causal("LLaMA, dynamic", "Llama", ONE, rope_type="dynamic", factor=2.0),
    causal("LLaMA, YaRN", "Llama", LLAMA | {"attention_bias": True, "mlp_bias": True}, **YARN),
    causal("LLaMA 3", "Llama", LLAMA | {"tie_word_embeddings": True}, **LLAMA3),
    causal("LLaMA, LongRoPE", "Llama", ONE | {"max_position_embeddings": 4 * TRAINED}, **LONG),
    causal("Mistral (window)", "Mistral", LLAMA | {"sliding_window": 7}, **PLAIN),
    causal("Mistral, YaRN", "Mistral", LLAMA | {"sliding_window": None}, **YARN),
    causal("Qwen2 (window in one layer)", "Qwen2", LLAMA | SLIDING | {"max_window_layers": 1}, **PLAIN),
    causal("Qwen2, YaRN", "Qwen2", LLAMA | {"tie_word_embeddings": True}, **YARN),
    causal("Qwen3 (QK-norm)", "Qwen3", LLAMA | {"head_dim": 16, "tie_word_embeddings": True}, **PLAIN),
    causal("Qwen3, YaRN", "Qwen3", LLAMA | {"head_dim": 8}, **YARN),
    causal(
        "SmolLM3 (NoPE every fourth layer)", "SmolLM3", LLAMA | {"num_hidden_layers": 4, "pad_token_id": 0}, **PLAIN
    ),
    causal("SmolLM3, YaRN", "SmolLM3", LLAMA | {"num_hidden_layers": 4, "pad_token_id": 0}, **YARN),
)


def model(torch: Any, transformers: Any, case: Case) -> Any:
    """The model with random weights that make every part count: wide matrices, no vector of 0 or 1."""
    config = getattr(transformers, f"{case.family}Config")(**case.fields)
    made = getattr(transformers, f"{case.family}{case.head}")._from_config(config, attn_implementation="eager")
    if case.fields.get("feed_forward_proj"):
        # transformers 5 ties the embeddings of every new T5; the files of v1.1 have two matrices.
        config.tie_word_embeddings = made.config.tie_word_embeddings = False
        config.scale_decoder_outputs = made.config.scale_decoder_outputs = False
        made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight.detach().clone())
    # Where the output is the table of tokens, a model with a wide one says its last token again and again.
    table = 0.1 if made.config.tie_word_embeddings and case.head in GENERATING else 0.7
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            _fill(name, parameter, table)
    return made.eval()


def _fill(name: str, parameter: Any, table: float) -> None:
    if any(word in name for word in TABLES) and parameter.ndim > 1:
        parameter.normal_(0, 0.7 if any(word in name for word in POSITIONS) else table)
    elif parameter.ndim > 1:
        parameter.normal_(0, parameter.shape[-1] ** -0.5)
    elif name.endswith("word_embeddings_layernorm.weight"):
        parameter.normal_(3 * table, 0.02)
    else:
        parameter.normal_(1.0 if name.endswith("weight") else 0.0, 0.2)
