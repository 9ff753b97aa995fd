"""LLaMA and its descendants: RMSNorm, RoPE, a gated feed-forward layer, grouped-query attention.

    llama       LLaMA 2 and 3 (Touvron et al. 2023, arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783)
    mistral     a sliding window in every layer (Jiang et al. 2023, arXiv:2310.06825)
    qwen2       bias vectors of queries, keys and values, none of the output (Yang et al. 2024, arXiv:2407.10671)
    qwen3       an RMSNorm of queries and keys in their place (2025, arXiv:2505.09388)
    smollm3     no positional encoding in every fourth layer (Hugging Face 2025, after arXiv:2501.18795)

Qwen has a sliding window in the layers from `max_window_layers` on, where `use_sliding_window` is true. Qwen 2.5 with a
context of a million tokens has the key `dual_chunk_attention_config` (arXiv:2501.15383), read as `DualChunk`; the factor by
which its inference code also scales keys in texts longer than 262,144 tokens is left out.
"""

from collections.abc import Callable
from typing import Any

from attnjax.config.architecture import Window
from attnjax.models import weight_map
from attnjax.models.base import Architecture, Json, Path, Spec, Weight
from attnjax.models.config_json import (
    COUNT,
    FLAG,
    POSITIVE,
    SHARE,
    SIZES,
    TABLE,
    Reader,
    choice,
    key,
    per_layer,
    whole,
    written,
)
from attnjax.models.rotary_json import LONGEST, read_rope, rope_json, trained_length
from attnjax.modules import TransformerConfig
from attnjax.positions import DualChunk, NoPE, PositionEncoding, RoPE

KEYS = (
    *SIZES,
    key("activation", "hidden_act", choice(silu="swiglu", gelu_pytorch_tanh="geglu", gelu_new="geglu"), "swiglu"),
    key("norm_epsilon", "rms_norm_eps", POSITIVE, 1e-6),
    key("attention_dropout", "attention_dropout", SHARE, 0.0),
)
BIAS = (key("bias", "attention_bias", FLAG, False),)
BIASES = (*BIAS, key("feed_forward_bias", "mlp_bias", FLAG, False))
DUAL_CHUNK = "dual_chunk_attention_config"
OUTPUT = "lm_head.weight"


def llama(json: Json) -> Spec:
    """Returns the spec of a config.json of LLaMA. Raises ValueError for what the modules cannot compute."""
    read = Reader("llama", json)
    read.must("rope_interleaved", False)
    kv_heads = read.get(COUNT, "num_attention_heads")  # the first release had no key of their number
    return _spec(read, **_sizes(read, kv_heads=kv_heads), **read.fields(BIASES))


def llama_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a LLaMA."""
    return _sizes_json(spec, "LlamaForCausalLM") | written(spec.config, BIASES)


def mistral(json: Json) -> Spec:
    """Returns the spec of a config.json of Mistral. Raises ValueError for what the modules cannot compute."""
    read = Reader("mistral", json)
    return _spec(read, **_sizes(read), window=_width(read), bias=False)


def mistral_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a Mistral."""
    window = {"sliding_window": _windows_json(spec.config)["sliding_window"]}
    return _sizes_json(spec, "MistralForCausalLM") | window


def qwen2(json: Json) -> Spec:
    """Returns the spec of a config.json of Qwen2 or 2.5. Raises ValueError for what the modules cannot compute."""
    read = Reader("qwen2", json)
    sizes = _sizes(read)
    if chunks := read.get(TABLE, DUAL_CHUNK, default={}):
        inner = Reader(f"qwen2: {DUAL_CHUNK}", chunks)
        inner.skip(
            "original_max_position_embeddings", *(name for name in chunks if name.startswith("sparse_attention_"))
        )
        sizes_of_chunks = {"chunk": inner.get(COUNT, "chunk_size"), "local": inner.get(COUNT, "local_size")}
        inner.finish()
        sizes["encoding"] = DualChunk.of(sizes["encoding"], **sizes_of_chunks)
    fixed = {"bias": True, "attention_output_bias": False, "feed_forward_bias": False}
    return _spec(read, **sizes, **_qwen_windows(read, sizes["layers"]), **fixed)


def qwen2_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a Qwen2."""
    found, one = _sizes_json(spec, "Qwen2ForCausalLM") | _windows_json(spec.config), spec.config.encodings[0]
    return found | (
        {DUAL_CHUNK: {"chunk_size": one.chunk, "local_size": one.local}} if isinstance(one, DualChunk) else {}
    )


def qwen3(json: Json) -> Spec:
    """Returns the spec of a config.json of Qwen3. Raises ValueError for what the modules cannot compute."""
    read = Reader("qwen3", json)
    sizes = _sizes(read, head_dim=128)
    fixed = {"feed_forward_bias": False, "qk_norm": True, "qk_norm_epsilon": sizes["norm_epsilon"]}
    return _spec(read, **sizes, **_qwen_windows(read, sizes["layers"]), **read.fields(BIAS), **fixed)


def qwen3_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a Qwen3."""
    return _sizes_json(spec, "Qwen3ForCausalLM") | _windows_json(spec.config) | written(spec.config, BIAS)


def smollm3(json: Json) -> Spec:
    """Returns the spec of a config.json of SmolLM3. Raises ValueError for what the modules cannot compute."""
    read = Reader("smollm3", json)
    read.skip("max_window_layers")  # Qwen's key; here the layers without RoPE have the window
    sizes = _sizes(read, theta=2_000_000.0, tie=True)
    layers, every = sizes["layers"], read.get(COUNT, "no_rope_layer_interval", default=4)
    listed = read.get(
        per_layer(layers, 0, 1), "no_rope_layers", default=[int((i + 1) % every != 0) for i in range(layers)]
    )
    sizes["encoding"] = tuple(sizes["encoding"] if one else NoPE() for one in listed)
    windows = _windows(read, layers, [not one for one in listed], missing=None)
    return _spec(read, **sizes, **windows, **read.fields(BIASES))


def smollm3_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a SmolLM3."""
    turned = {"no_rope_layers": [int(isinstance(one, RoPE)) for one in spec.config.encodings]}
    return _sizes_json(spec, "SmolLM3ForCausalLM") | _windows_json(spec.config) | written(spec.config, BIASES) | turned


def _spec(read: Reader, **fields: Any) -> Spec:
    made = TransformerConfig(**fields)
    read.finish()
    return Spec(made)


def _sizes(
    read: Reader, *, kv_heads: Any = ..., head_dim: int | None = None, theta: float = 10_000.0, tie: bool = False
) -> dict[str, Any]:
    """Returns the fields of `TransformerConfig` that all these families have, from the keys that they share.

    Args:
      read: the config.
      kv_heads: K of a config without the key, which must be there unless this is given. Null there stands for N.
      head_dim: default of H; D / N unless given.
      theta, tie: defaults of the base of RoPE, and of whether embeddings are tied.
    """
    fields = read.fields(KEYS)
    D, N = fields["model"], fields["heads"]
    kv_heads = N if "num_key_value_heads" in read.json else kv_heads
    found = read.get(COUNT, "head_dim", default=head_dim)
    trained = read.get(COUNT, LONGEST, default=None)
    return fields | {
        "kv_heads": read.get(COUNT, "num_key_value_heads", default=kv_heads),
        "head_dim": found if found is not None or D % N else D // N,
        "norm": "rms",
        "encoding": read_rope(read, trained, otherwise=theta),
        "tie_embeddings": read.get(FLAG, "tie_word_embeddings", default=tie),
    }


def _sizes_json(spec: Spec, architecture: str) -> dict[str, Any]:
    """Returns the keys that `_sizes` reads, for a config.json to be written."""
    c = spec.config
    encoding = rotary(c)
    trained = trained_length(encoding)
    return {
        "architectures": [architecture],
        **written(c, KEYS),
        "num_key_value_heads": c.sizes.kv_heads,
        "head_dim": c.sizes.head_dim,
        LONGEST: trained,
        **rope_json(encoding, trained),
        "tie_word_embeddings": c.tie_embeddings,
    }


def rotary(config: TransformerConfig) -> PositionEncoding:
    """Returns the RoPE of the first layer that has one, or the encoding of the first layer where none has."""
    return next((one for one in config.encodings if isinstance(one, RoPE | DualChunk)), config.encodings[0])


def _qwen_windows(read: Reader, layers: int) -> dict[str, Any]:
    read.must("use_mrope", False)
    first = read.get(whole(0), "max_window_layers", default=28)
    return _windows(read, layers, [i >= first for i in range(layers)])


def _windows(read: Reader, layers: int, used: list[bool], *, missing: int | None = 4096) -> dict[str, Any]:
    """Returns the field `window` or `windows` of a config with the key `use_sliding_window`.

    Args:
      read: the config.
      layers: number of layers.
      used: which layers have a window where the config does not list `layer_types`.
      missing: as in `_width`.

    Raises:
      ValueError: `layer_types` asks for a window, and `use_sliding_window` or `sliding_window` is off.
    """
    width = _width(read, missing) if read.get(FLAG, "use_sliding_window", default=False) else None
    read.skip("sliding_window")
    kinds = read.get(per_layer(layers, "full_attention", "sliding_attention"), "layer_types", default=None)
    used = used if kinds is None else [kind == "sliding_attention" for kind in kinds]
    if width is None and kinds is not None and any(used):
        raise ValueError(
            f"{read.owner}: layer_types has sliding_attention, but use_sliding_window or the window is off"
        )
    windows: list[Window | None] = [width if one else None for one in used]
    return {"window": windows[0]} if len(set(windows)) == 1 else {"windows": tuple(windows)}


def _width(read: Reader, missing: int | None = 4096) -> int | None:
    """Returns how many tokens back a layer with a window sees; None is unlimited.

    `sliding_window` in a config counts the token itself, and null is unlimited. A config without the key takes
    `missing`, the default of its class in transformers.
    """
    width = read.get(COUNT, "sliding_window", default=None if "sliding_window" in read.json else missing)
    return None if width is None else width - 1


def _windows_json(config: TransformerConfig) -> dict[str, Any]:
    """Returns the keys that `_windows` reads. Raises ValueError for windows of more than one width."""
    windows = config.layer_windows
    widths = {window for window in windows if isinstance(window, int)}
    if len(widths) > 1 or any(isinstance(window, tuple) for window in windows):
        raise ValueError(f"a config.json of this family has one sliding_window, and no place for {windows}")
    if not widths:
        return {"use_sliding_window": False, "sliding_window": None}
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return {"use_sliding_window": True, "sliding_window": widths.pop() + 1, "layer_types": kinds}


def weights(spec: Spec) -> tuple[Weight, ...]:
    """Returns the weight map of a spec."""
    first = [weight_map.embedding(spec.config, "model.embed_tokens.weight", OUTPUT)]
    return weight_map.decoder(spec.config, first, _block, "model.layers", "model.norm", OUTPUT)


def _block(c: TransformerConfig, path: Path, name: str) -> list[Weight]:
    attention, theirs = (*path, "attention"), f"{name}.self_attn"
    projections = (f"{theirs}.q_proj", f"{theirs}.k_proj", f"{theirs}.v_proj", f"{theirs}.o_proj")
    parts = {"gate": f"{name}.mlp.gate_proj", "in": f"{name}.mlp.up_proj", "out": f"{name}.mlp.down_proj"}
    head_norms = [(f"{letter}_norm", f"{theirs}.{letter}_norm.weight") for letter in "qk"] if c.qk_norm else []
    return [
        *weight_map.norm((*path, "attention_norm"), c, f"{name}.input_layernorm"),
        *weight_map.projections(attention, c, projections),
        *(weight_map.same((*attention, ours, "scale"), norm, c.sizes.head_dim) for ours, norm in head_norms),
        *weight_map.norm((*path, "feed_forward_norm"), c, f"{name}.post_attention_layernorm"),
        *weight_map.feed_forward((*path, "feed_forward"), c, parts),
    ]


def _family(model_type: str, config: Callable[[Json], Spec], to_json: Callable[[Spec], dict[str, Any]]) -> Architecture:
    ignored = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
    return Architecture(model_type, config, to_json, weights, prefix="model.", ignored=ignored)


LLAMA = _family("llama", llama, llama_json)
MISTRAL = _family("mistral", mistral, mistral_json)
QWEN2 = _family("qwen2", qwen2, qwen2_json)
QWEN3 = _family("qwen3", qwen3, qwen3_json)
SMOLLM3 = _family("smollm3", smollm3, smollm3_json)
