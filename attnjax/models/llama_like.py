"""The common part of LLaMA and its descendants: RMSNorm, RoPE, gated feed-forward, grouped-query attention.

Each family has a file of its own for the few keys that only it has.
"""

from collections.abc import Callable
from typing import Any

from attnjax.config.architecture import Window
from attnjax.models import weight_map
from attnjax.models.base import Architecture, Json, Path, Spec, Weight
from attnjax.models.config_json import LAYERS, Reader
from attnjax.models.rotary_json import read_rope, rope_json, trained_length
from attnjax.modules import Decoder, TransformerConfig
from attnjax.positions import PositionEncoding, RoPE

GATES = (("silu", "swiglu"), ("gelu_pytorch_tanh", "geglu"), ("gelu_new", "geglu"))
PREFIX = "model."
OUTPUT = "lm_head.weight"
IGNORED = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)


def read_sizes(
    read: Reader, *, kv_heads: Any = ..., head_dim: int | None = None, theta: float = 10_000.0, tie: bool = False
) -> dict[str, Any]:
    """Returns the fields of `TransformerConfig` that all these families have, from the keys that they share.

    Args:
      read: the config.
      kv_heads: K of a config without the key, which must be there unless this is given; None stands for N, and so does null.
      head_dim: default of H; D / N unless given.
      theta, tie: defaults of the base of RoPE, and of whether embeddings are tied.
    """
    trained = read.integer("max_position_embeddings", default=None)
    D, N = read.integer("hidden_size"), read.integer("num_attention_heads")
    found = read.integer("head_dim", default=head_dim)
    kv_heads = None if "num_key_value_heads" in read.json else kv_heads
    return {
        "vocab": read.integer("vocab_size"),
        "model": D,
        "layers": read.integer("num_hidden_layers", highest=LAYERS),
        "heads": N,
        "kv_heads": read.integer("num_key_value_heads", default=kv_heads) or N,
        "head_dim": found if found is not None or D % N else D // N,
        "hidden": read.integer("intermediate_size"),
        "activation": read.choice("hidden_act", default="silu", choices=dict(GATES)),
        "norm": "rms",
        "norm_epsilon": read.number("rms_norm_eps", default=1e-6),
        "encoding": read_rope(read, trained, otherwise=theta),
        "tie_embeddings": read.flag("tie_word_embeddings", default=tie),
        "attention_dropout": read.number("attention_dropout", default=0.0, zero=True),
    }


def read_windows(read: Reader, layers: int, used: list[bool], *, missing: int | None = 4096) -> dict[str, Any]:
    """Returns the field `window` or `windows` of a config with the key `use_sliding_window`.

    Args:
      read: the config.
      layers: number of layers.
      used: which layers have a window where the config does not list `layer_types`.
      missing: as in `read_width`.

    Raises:
      ValueError: `layer_types` asks for a window, and `use_sliding_window` or `sliding_window` is off.
    """
    wanted = read.flag("use_sliding_window", default=False)
    width = read_width(read, missing) if wanted else None
    read.skip("sliding_window")
    kinds = read.per_layer("layer_types", layers, "full_attention", "sliding_attention")
    used = used if kinds is None else [kind == "sliding_attention" for kind in kinds]
    if width is None and kinds is not None and any(used):
        raise ValueError(
            f"{read.owner}: layer_types has sliding_attention, but use_sliding_window or the window is off"
        )
    return merged([width if one else None for one in used])


def read_width(read: Reader, missing: int | None = 4096) -> int | None:
    """Returns how many tokens back a layer with a window sees; None is unlimited.

    `sliding_window` in a config counts the token itself, and null is unlimited. A config without the key takes
    `missing`, the default of its class in transformers.
    """
    width = read.integer("sliding_window", default=None if "sliding_window" in read.json else missing)
    return None if width is None else width - 1


def merged(windows: list[Window | None]) -> dict[str, Any]:
    """Returns the field `window` where all layers have the same window, and otherwise `windows`."""
    return {"window": windows[0]} if len(set(windows)) == 1 else {"windows": tuple(windows)}


def sizes_json(spec: Spec, architecture: str) -> dict[str, Any]:
    """Returns the keys that `read_sizes` reads, for a config.json to be written."""
    c = spec.config
    encoding = rotary(c)
    trained = trained_length(encoding)
    return {
        "architectures": [architecture],
        "vocab_size": c.vocab,
        "hidden_size": c.model,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.sizes.kv_heads,
        "head_dim": c.sizes.head_dim,
        "intermediate_size": c.hidden,
        "hidden_act": {ours: theirs for theirs, ours in reversed(GATES)}.get(c.activation),
        "rms_norm_eps": c.norm_epsilon,
        "max_position_embeddings": trained,
        **rope_json(encoding, trained),
        "tie_word_embeddings": c.tie_embeddings,
        "attention_dropout": c.attention_dropout,
    }


def windows_json(config: TransformerConfig) -> dict[str, Any]:
    """Returns the keys that `read_windows` reads. Raises ValueError for windows of more than one width."""
    windows = config.layer_windows
    widths = {window for window in windows if isinstance(window, int)}
    if len(widths) > 1 or any(isinstance(window, tuple) for window in windows):
        raise ValueError(f"a config.json of this family has one sliding_window, and no place for {windows}")
    if not widths:
        return {"use_sliding_window": False, "sliding_window": None}
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return {"use_sliding_window": True, "sliding_window": widths.pop() + 1, "layer_types": kinds}


def family(model_type: str, config: Callable[[Json], Spec], to_json: Callable[[Spec], dict[str, Any]]) -> Architecture:
    """Returns the architecture of a decoder with the weight map of LLaMA and its own keys of config.json."""
    build = lambda spec, rngs: Decoder(spec.config, rngs=rngs)
    return Architecture(model_type, config, to_json, weights, build, PREFIX, IGNORED)


def rotary(config: TransformerConfig) -> PositionEncoding:
    """Returns the RoPE of the first layer that has one, or the encoding of the first layer where none has."""
    return next((e for e in config.encodings if isinstance(e, RoPE)), config.encodings[0])


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
