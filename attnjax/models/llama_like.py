"""What LLaMA and its descendants share: pre-norm with RMSNorm, RoPE, gated feed-forward, grouped queries.

Each family adds its own few fields in a file of its own.
"""

from collections.abc import Callable
from typing import Any

from attnjax.models import rows
from attnjax.models.base import Architecture, Json, Path, Spec, Weight
from attnjax.models.config_json import LAYERS, Reader
from attnjax.models.rotary_json import read_rope, rope_json, trained_length
from attnjax.modules import Decoder, TransformerConfig
from attnjax.modules.config import Window
from attnjax.positions import PositionEncoding, RoPE

GATES = (("silu", "swiglu"), ("gelu_pytorch_tanh", "geglu"), ("gelu_new", "geglu"))
PREFIX = "model."
OUTPUT = "lm_head.weight"
IGNORED = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
TRAINED = 2048
"""`max_position_embeddings` where a config that is written says nothing else; no number depends on it."""


def read_sizes(
    read: Reader, *, kv_heads: Any = ..., head: int | None = None, theta: float = 10_000.0, tie: bool = False
) -> dict[str, Any]:
    """The fields of `TransformerConfig` that all these families have, by the names they share.

    Args:
      read: the config.
      kv_heads: K where the config does not say; None is N, and unless given the config must say.
      head: H where the config does not say; D / N unless given.
      theta, tie: base of RoPE, and whether embeddings are tied, where the config does not say.
    """
    trained = read.integer("max_position_embeddings", default=None)
    D, N = read.integer("hidden_size"), read.integer("num_attention_heads")
    found = read.integer("head_dim", default=head)
    return {
        "vocab": read.integer("vocab_size"),
        "model": D,
        "layers": read.integer("num_hidden_layers", highest=LAYERS),
        "heads": N,
        "kv_heads": read.integer("num_key_value_heads", default=kv_heads) or N,
        "head": found if found is not None or D % N else D // N,
        "hidden": read.integer("intermediate_size"),
        "activation": read.choice("hidden_act", default="silu", choices=dict(GATES)),
        "norm": "rms",
        "norm_epsilon": read.number("rms_norm_eps", default=1e-6),
        "encoding": read_rope(read, trained, otherwise=theta),
        "tie_embeddings": read.flag("tie_word_embeddings", default=tie),
        "attention_dropout": read.number("attention_dropout", default=0.0, zero=True),
    }


def read_windows(read: Reader, layers: int, used: list[bool], *, missing: int | None = 4096) -> dict[str, Any]:
    """`window` or `windows` of a config with `use_sliding_window`.

    `used` says which layers have one where the config does not list `layer_types`; `missing` is as in `read_width`.
    Raises ValueError where a layer is to have a window, and the config says that there is none.
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
    """How far back a layer with a window sees. `sliding_window` counts the token itself; null is without limit.

    A config without the key is not the same: `missing` is what the class of the model then takes.
    """
    width = read.integer("sliding_window", default=None if "sliding_window" in read.json else missing)
    return None if width is None else width - 1


def merged(windows: list[Window | None]) -> dict[str, Any]:
    """One window where all layers have the same, and otherwise a list."""
    return {"window": windows[0]} if len(set(windows)) == 1 else {"windows": tuple(windows)}


def sizes_json(spec: Spec, architecture: str) -> dict[str, Any]:
    """The keys of `read_sizes`, and the windows."""
    c = spec.config
    encoding = rotary(c)
    trained = trained_length(encoding, TRAINED)
    return {
        "architectures": [architecture],
        "vocab_size": c.vocab,
        "hidden_size": c.model,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.sizes.kv_heads,
        "head_dim": c.sizes.head,
        "intermediate_size": c.hidden,
        "hidden_act": {ours: theirs for theirs, ours in reversed(GATES)}.get(c.activation),
        "rms_norm_eps": c.norm_epsilon,
        "max_position_embeddings": trained,
        **rope_json(encoding, trained),
        "tie_word_embeddings": c.tie_embeddings,
        "attention_dropout": c.attention_dropout,
    }


def windows_json(config: TransformerConfig) -> dict[str, Any]:
    """What `read_windows` reads. Raises ValueError for windows of more than one width."""
    windows = config.layer_windows
    widths = {window for window in windows if isinstance(window, int)}
    if len(widths) > 1 or any(isinstance(window, tuple) for window in windows):
        raise ValueError(f"a config.json of this family has one sliding_window, and no place for {windows}")
    if not widths:
        return {"use_sliding_window": False, "sliding_window": None}
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return {"use_sliding_window": True, "sliding_window": widths.pop() + 1, "layer_types": kinds}


def family(model_type: str, config: Callable[[Json], Spec], to_json: Callable[[Spec], dict[str, Any]]) -> Architecture:
    """A decoder with the names of weights of LLaMA, and its own fields of config.json."""
    build = lambda spec, rngs: Decoder(spec.config, rngs=rngs)
    return Architecture(model_type, config, to_json, weights, build, PREFIX, IGNORED)


def rotary(config: TransformerConfig) -> PositionEncoding:
    """The encoding of the layers that turn, or of the first where none does."""
    return next((e for e in config.encodings if isinstance(e, RoPE)), config.encodings[0])


def weights(spec: Spec) -> tuple[Weight, ...]:
    """The table of names."""
    c = spec.config
    table = [rows.embedding(c, "model.embed_tokens.weight", OUTPUT)]
    for i in range(c.layers):
        table += _block(c, ("stack", "blocks", i), f"model.layers.{i}")
    table += rows.norm(("stack", "norm"), c, "model.norm")
    return (*table, *rows.output_matrix(c, OUTPUT))


def _block(c: TransformerConfig, path: Path, name: str) -> list[Weight]:
    attention, turn = (*path, "attention"), f"{name}.self_attn"
    projections = (f"{turn}.q_proj", f"{turn}.k_proj", f"{turn}.v_proj", f"{turn}.o_proj")
    parts = {"gate": f"{name}.mlp.gate_proj", "in": f"{name}.mlp.up_proj", "out": f"{name}.mlp.down_proj"}
    head_norms = [(f"{letter}_norm", f"{turn}.{letter}_norm.weight") for letter in "qk"] if c.qk_norm else []
    return [
        *rows.norm((*path, "attention_norm"), c, f"{name}.input_layernorm"),
        *rows.projections(attention, c, projections),
        *(rows.same((*attention, ours, "scale"), theirs, c.sizes.head) for ours, theirs in head_norms),
        *rows.norm((*path, "feed_forward_norm"), c, f"{name}.post_attention_layernorm"),
        *rows.feed_forward((*path, "feed_forward"), c, parts),
    ]
