"""Rows of the tables: how our parameters lie in tensors of other libraries, whose `Linear` keeps [outputs, inputs].

Ours are w_q [D, N, H], w_o [N, H, D], w_in [D, F]; every rule here is a view of the whole tensor, and its inverse.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from attnjax.models.base import Path, Weight
from attnjax.modules import TransformerConfig
from attnjax.modules.placement import attention_encoding, input_encodings
from attnjax.positions import Learned, T5Bias

Names = str | tuple[str, ...]


def same(path: Path, names: Names, *shape: int) -> Weight:
    """A tensor that is ours as it stands: vectors, and tables with a row per token or position."""
    return view(path, names, shape, shape, tuple(range(len(shape))))


def linear(path: Path, names: Names, inputs: int, outputs: int) -> Weight:
    """[outputs, inputs] in the file."""
    return view(path, names, (outputs, inputs), (outputs, inputs), (1, 0))


def view(path: Path, names: Names, shape: tuple[int, ...], split: tuple[int, ...], axes: tuple[int, ...]) -> Weight:
    """Ours is the tensor with its axes `split` further and then in the order `axes`."""
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
    """Several of ours in one tensor: split further, they are the entries of one axis; the others are put in order."""
    inverse = tuple(np.argsort(axes))

    def whole(*parts: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(part).transpose(inverse) for part in parts], axis).reshape(shape)

    def part(i: int, path: Path) -> Weight:
        return Weight(
            path, _names(names), shape, lambda t: np.moveaxis(t.reshape(split), axis, 0)[i].transpose(axes), whole
        )

    return [part(i, path) for i, path in enumerate(paths)]


def projections(path: Path, config: TransformerConfig, names: tuple[str, str, str, str]) -> list[Weight]:
    """W_q, W_k, W_v, W_o in four tensors, and their bias vectors where the config has them."""
    D, N, K, H = config.sizes
    rows = []
    for letter, name, heads in zip("qkv", names[:3], (N, K, K), strict=True):
        rows.append(view((*path, f"w_{letter}"), f"{name}.weight", (heads * H, D), (heads, H, D), (2, 0, 1)))
        if config.bias:
            rows.append(view((*path, f"b_{letter}"), f"{name}.bias", (heads * H,), (heads, H), (0, 1)))
    return [*rows, *output_projection(path, config, names[3])]


def output_projection(path: Path, config: TransformerConfig, name: str) -> list[Weight]:
    """W_o, and its bias vector where the config has one."""
    D, N, _, H = config.sizes
    rows = [view((*path, "w_o"), f"{name}.weight", (D, N * H), (D, N, H), (1, 2, 0))]
    with_bias = config.bias if config.attention_output_bias is None else config.attention_output_bias
    return [*rows, *([same((*path, "b_o"), f"{name}.bias", D)] if with_bias else [])]


def per_head(path: Path, config: TransformerConfig, name: str) -> list[Weight]:
    """W_q, W_k, W_v in one tensor that has, head after head, the rows of q, of k and of v (GPT-NeoX, BLOOM)."""
    D, N, _, H = config.sizes
    weights = [(*path, f"w_{letter}") for letter in "qkv"]
    rows = fused(weights, f"{name}.weight", (3 * N * H, D), (N, 3, H, D), 1, (2, 0, 1))
    if config.bias:
        vectors = [(*path, f"b_{letter}") for letter in "qkv"]
        rows += fused(vectors, f"{name}.bias", (3 * N * H,), (N, 3, H), 1, (0, 1))
    return rows


def feed_forward(path: Path, config: TransformerConfig, names: dict[str, str]) -> list[Weight]:
    """W_in, W_out and W_gate by the names given to "in", "out" and "gate", and their bias vectors if the config has them."""
    D, F = config.model, config.hidden
    with_bias = config.bias if config.feed_forward_bias is None else config.feed_forward_bias
    rows = []
    for part, name in names.items():
        inputs, outputs = (F, D) if part == "out" else (D, F)
        rows.append(linear((*path, f"w_{part}"), f"{name}.weight", inputs, outputs))
        if with_bias:
            rows.append(same((*path, f"b_{part}"), f"{name}.bias", outputs))
    return rows


def norm(path: Path, config: TransformerConfig, name: str, *, size: int | None = None) -> list[Weight]:
    """The scale of a norm, and the shift of a LayerNorm; some releases of BERT call them gamma and beta."""
    size = config.model if size is None else size
    rows = [same((*path, "scale"), (f"{name}.weight", f"{name}.gamma"), size)]
    if config.norm == "layer":
        rows.append(same((*path, "bias"), (f"{name}.bias", f"{name}.beta"), size))
    return rows


def learned_positions(config: TransformerConfig, path: Path, names: Names) -> list[Weight]:
    """The table of `Learned`, if the encoding is that, or has it as a part."""
    found = ((i, e) for i, e in enumerate(input_encodings(config)) if isinstance(e, Learned))
    return [same((*path, "inputs", i, "shared", "table"), names, e.length, config.model) for i, e in found]


def t5_bias(config: TransformerConfig, path: Path, names: Names) -> list[Weight]:
    """The table of `T5Bias` in the first layer, [buckets, N] in the file, if that is the encoding."""
    encoding = attention_encoding(config, 0)
    if not isinstance(encoding, T5Bias):
        return []
    shape, place = (encoding.buckets, config.heads), ("blocks", 0, "attention", "position", "head", "table")
    return [view((*path, *place), names, shape, shape, (1, 0))]


def embedding(config: TransformerConfig, names: Names, output: Names) -> Weight:
    """The table of tokens [V, D]; where it is the output matrix too, a file may hold it again by the names `output`."""
    row = same(("embedding", "table"), names, config.vocab, config.model)
    return dataclasses.replace(row, copies=_names(output) if config.tie_embeddings else ())


def output_matrix(config: TransformerConfig, names: Names) -> list[Weight]:
    """W_out [V, D] in the file, if it is not the table of the embedding."""
    return [] if config.tie_embeddings else [linear(("embedding", "w_out"), names, config.model, config.vocab)]


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names
