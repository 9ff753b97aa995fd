"""Entries of weight maps: how tensors of other libraries, whose `Linear` stores [outputs, inputs], hold our parameters.

Ours are w_q [D, N, H], w_o [N, H, D] and w_in [D, F]. Every entry is a view of the whole tensor, and its inverse.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from attnjax.models.base import Path, Weight
from attnjax.modules import TransformerConfig
from attnjax.positions import Learned, T5Bias

Names = str | tuple[str, ...]
Block = Callable[[TransformerConfig, Path, str], list[Weight]]


def same(path: Path, names: Names, *shape: int) -> Weight:
    """Maps a tensor to a parameter of the same shape: a vector, or a table with a row per token or position."""
    return view(path, names, shape, shape, tuple(range(len(shape))))


def linear(path: Path, names: Names, inputs: int, outputs: int) -> Weight:
    """Maps a tensor [outputs, inputs] to a parameter [inputs, outputs]."""
    return view(path, names, (outputs, inputs), (outputs, inputs), (1, 0))


def view(path: Path, names: Names, shape: tuple[int, ...], split: tuple[int, ...], axes: tuple[int, ...]) -> Weight:
    """Maps a tensor to a parameter by reshaping it to `split` and transposing it to the order `axes`."""
    inverse = tuple(np.argsort(axes))
    return Weight(
        path,
        _names(names),
        shape,
        lambda tensor: tensor.reshape(split).transpose(axes),
        lambda ours: np.asarray(ours).transpose(inverse).reshape(shape),
    )


def fused(
    paths: Sequence[Path],
    names: Names,
    shape: tuple[int, ...],
    split: tuple[int, ...],
    axis: int,
    axes: tuple[int, ...],
) -> list[Weight]:
    """Maps one tensor to several parameters: reshaped to `split`, they lie along `axis`; `axes` orders the others."""
    inverse = tuple(np.argsort(axes))

    def whole(*parts: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(part).transpose(inverse) for part in parts], axis).reshape(shape)

    def part(i: int, path: Path) -> Weight:
        return Weight(
            path, _names(names), shape, lambda t: np.moveaxis(t.reshape(split), axis, 0)[i].transpose(axes), whole
        )

    return [part(i, path) for i, path in enumerate(paths)]


def projections(path: Path, config: TransformerConfig, names: tuple[str, str, str, str]) -> list[Weight]:
    """Maps four tensors to W_q, W_k, W_v and W_o, and four more to their bias vectors where the config has them."""
    D, N, K, H = config.sizes
    rows = []
    for letter, name, heads in zip("qkv", names[:3], (N, K, K), strict=True):
        rows.append(view((*path, f"w_{letter}"), f"{name}.weight", (heads * H, D), (heads, H, D), (2, 0, 1)))
        if config.bias:
            rows.append(view((*path, f"b_{letter}"), f"{name}.bias", (heads * H,), (heads, H), (0, 1)))
    return [*rows, *output_projection(path, config, names[3])]


def output_projection(path: Path, config: TransformerConfig, name: str) -> list[Weight]:
    """Maps a tensor to W_o, and another to its bias vector where the config has one."""
    D, N, _, H = config.sizes
    rows = [view((*path, "w_o"), f"{name}.weight", (D, N * H), (D, N, H), (1, 2, 0))]
    return [*rows, *([same((*path, "b_o"), f"{name}.bias", D)] if config.output_bias_of_attention else [])]


def per_head(path: Path, config: TransformerConfig, name: str) -> list[Weight]:
    """Maps one tensor to W_q, W_k and W_v; it holds q, k and v of one head after another (GPT-NeoX, BLOOM)."""
    D, N, _, H = config.sizes
    weights = [(*path, f"w_{letter}") for letter in "qkv"]
    rows = fused(weights, f"{name}.weight", (3 * N * H, D), (N, 3, H, D), 1, (2, 0, 1))
    if config.bias:
        vectors = [(*path, f"b_{letter}") for letter in "qkv"]
        rows += fused(vectors, f"{name}.bias", (3 * N * H,), (N, 3, H), 1, (0, 1))
    return rows


def feed_forward(path: Path, config: TransformerConfig, names: dict[str, str]) -> list[Weight]:
    """Maps the tensors named "in", "out" and "gate" to W_in, W_out, W_gate and their bias vectors, if there are any."""
    D, F = config.model, config.hidden
    rows = []
    for part, name in names.items():
        inputs, outputs = (F, D) if part == "out" else (D, F)
        rows.append(linear((*path, f"w_{part}"), f"{name}.weight", inputs, outputs))
        if config.bias_of_feed_forward:
            rows.append(same((*path, f"b_{part}"), f"{name}.bias", outputs))
    return rows


def norm(path: Path, config: TransformerConfig, name: str, *, size: int | None = None) -> list[Weight]:
    """Maps tensors to the scale of a norm and the bias of a LayerNorm, called gamma and beta in some files of BERT."""
    size = config.model if size is None else size
    rows = [same((*path, "scale"), (f"{name}.weight", f"{name}.gamma"), size)]
    if config.norm == "layer":
        rows.append(same((*path, "bias"), (f"{name}.bias", f"{name}.beta"), size))
    return rows


def learned_positions(config: TransformerConfig, path: Path, names: Names) -> list[Weight]:
    """Maps a tensor to the table of `Learned`, if the encoding is that or a composition with it."""
    found = ((i, e) for i, e in enumerate(config.input_encodings) if isinstance(e, Learned))
    return [same((*path, "inputs", i, "table"), names, e.length, config.model) for i, e in found]


def t5_bias(config: TransformerConfig, path: Path, names: Names) -> list[Weight]:
    """Maps a tensor [buckets, N] to the table of `T5Bias` in the first layer, if that is the encoding."""
    encoding = config.attention_encodings[0]
    if not isinstance(encoding, T5Bias):
        return []
    shape, place = (encoding.buckets, config.heads), ("blocks", 0, "attention", "position", "table")
    return [view((*path, *place), names, shape, shape, (1, 0))]


def embedding(config: TransformerConfig, names: Names, output: Names) -> Weight:
    """Maps a tensor to the token embedding [V, D], which a file may repeat under the names `output` if it is tied."""
    row = same(("embedding", "table"), names, config.vocab, config.model)
    return dataclasses.replace(row, copies=_names(output) if config.tie_embeddings else ())


def output_matrix(config: TransformerConfig, names: Names) -> list[Weight]:
    """Maps a tensor [V, D] to W_out [D, V], if the output matrix is not tied to the embedding."""
    return [] if config.tie_embeddings else [linear(("embedding", "w_out"), names, config.model, config.vocab)]


def decoder(
    config: TransformerConfig, first: Sequence[Weight], block: Block, layers: str, last_norm: str, output: Names
) -> tuple[Weight, ...]:
    """The weight map of a decoder: its `first` entries, `block` of every layer, the last norm and the output matrix.

    `layers` is the name of the layers, which their number follows: `transformer.h` for the tensors of `transformer.h.0`.
    """
    table = [row for i in range(config.layers) for row in block(config, ("stack", "blocks", i), f"{layers}.{i}")]
    return (*first, *table, *norm(("stack", "norm"), config, last_norm), *output_matrix(config, output))


def fused_block(config: TransformerConfig, path: Path, name: str, attention: str) -> list[Weight]:
    """Maps the tensors of a layer of GPT-NeoX and of BLOOM, which differ in the name of attention."""
    ours, theirs = (*path, "attention"), f"{name}.{attention}"
    parts = {"in": f"{name}.mlp.dense_h_to_4h", "out": f"{name}.mlp.dense_4h_to_h"}
    return [
        *norm((*path, "attention_norm"), config, f"{name}.input_layernorm"),
        *per_head(ours, config, f"{theirs}.query_key_value"),
        *output_projection(ours, config, f"{theirs}.dense"),
        *norm((*path, "feed_forward_norm"), config, f"{name}.post_attention_layernorm"),
        *feed_forward((*path, "feed_forward"), config, parts),
    ]


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names
