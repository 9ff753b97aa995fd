"""The block: attention and feed-forward, each added to its input, with a norm behind (2017) or before.

    post-norm   x = LN(x + MHA(x));  x = LN(x + FFN(x))
    pre-norm    x = x + MHA(LN(x));  x = x + FFN(LN(x))
    FFN(x) = max(0, x W_1 + b_1) W_2 + b_2,  d_ff = 4 d_model

A branch that outputs zero leaves the block the identity, up to its norms: the worst that a residual layer can do.

Reference: Vaswani et al. 2017 (arXiv:1706.03762), sections 3.1 and 3.3; Xiong et al. 2020 (arXiv:2002.04745).
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.modules import EncoderDecoder, FeedForward, TransformerBlock, TransformerConfig
from attnjax.report.drawing import new_figure
from attnjax.report.formatting import decimal, markdown_table
from attnjax.typing import Array, Float
from experiments.first_principles.arrays import parameters, plain
from experiments.first_principles.drawing import BLACK, BLUE, RED, WIDTH
from experiments.first_principles.words import code, row, small, thousands

TITLE = "The block"
CAPTION = "Root mean square of the residual stream through six blocks at initialisation, from an input of 0.5."

TO_NORM = (1.0, 2.0, 3.0, 4.0)
FFN_X = (1.0, -1.0)
W_1, B_1 = ((1.0, -1.0, 0.5, 2.0), (1.0, 1.0, -0.5, 0.0)), (0.0, 0.5, 0.0, -1.0)
W_2, B_2 = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, -0.5)), (0.1, -0.1)
DEPTH = 6


def numbers() -> dict[str, Any]:
    """Norm and feed-forward by hand, both formulas, zero branches, sizes by depth, and the parameters of 2017."""
    norm = nnx.LayerNorm(len(TO_NORM), epsilon=1e-6, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (1, 3, 8))
    post, pre = (block("post", 8), block("pre", 8))
    return {
        "to_norm": list(TO_NORM),
        "normed": plain(norm(jnp.asarray([TO_NORM], jnp.float32))[0]),
        "ffn": feed_forward(),
        "post_error": gap(post(x), by_formula_post(post, x)),
        "pre_error": gap(pre(x), by_formula_pre(pre, x)),
        "pre_zero_change": gap(silenced(block("pre", 8))(x), x),
        "post_zero_change": gap(silenced(zero := block("post", 8))(x), zero.feed_forward_norm(zero.attention_norm(x))),
        "depth": by_depth(),
        "original": original(),
        "shapes": shapes(),
    }


def feed_forward() -> dict[str, Any]:
    """The feed-forward layer of two channels and four hidden numbers, and what is inside it."""
    ffn = FeedForward(2, 4, activation="relu", rngs=nnx.Rngs(0))
    for name, value in (("w_in", W_1), ("b_in", B_1), ("w_out", W_2), ("b_out", B_2)):
        getattr(ffn, name)[...] = jnp.asarray(value, jnp.float32)
    before = np.array(FFN_X) @ np.array(W_1) + np.array(B_1)
    out = ffn(jnp.asarray([[FFN_X]], jnp.float32))[0, 0]
    return {"x": list(FFN_X), "before": before.tolist(), "after": np.maximum(before, 0).tolist(), "out": plain(out)}


def block(norm_position: Literal["pre", "post"], model: int) -> TransformerBlock:
    """A block of two heads with d_ff = 4 d_model, ReLU."""
    config = TransformerConfig(
        vocab=1, model=model, layers=1, heads=2, hidden=4 * model, activation="relu", norm_position=norm_position
    )
    return TransformerBlock(config, rngs=nnx.Rngs(0))


def by_formula_post(block: TransformerBlock, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """LN(x + MHA(x)), then LN(x + FFN(x)), written out."""
    x = block.attention_norm(x + block.attention(x))
    return block.feed_forward_norm(x + block.feed_forward(x))


def by_formula_pre(block: TransformerBlock, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """x + MHA(LN(x)), then x + FFN(LN(x)), written out."""
    x = x + block.attention(block.attention_norm(x))
    return x + block.feed_forward(block.feed_forward_norm(x))


def silenced(block: TransformerBlock) -> TransformerBlock:
    """The block with the last matrix of both branches set to zero, in place."""
    for param in (block.attention.w_o, block.feed_forward.w_out):
        param[...] = jnp.zeros(param.shape, jnp.float32)
    return block


def gap(a: Float[Array, "*axes"], b: Float[Array, "*axes"]) -> float:
    """The largest difference."""
    return float(jnp.abs(a - b).max())


def by_depth() -> dict[str, list[float]]:
    """Root mean square behind 0 .. 6 blocks: post-norm, pre-norm, and pre-norm with silenced branches."""
    x = jax.random.normal(jax.random.key(2), (1, 32, 64))
    x = x / (2 * size(x))
    found = {"post-norm": [plain(size(x))], "pre-norm": [plain(size(x))], "pre-norm, branches zero": [plain(size(x))]}
    for name in found:
        config = TransformerConfig(
            vocab=1,
            model=64,
            layers=DEPTH,
            heads=4,
            hidden=256,
            activation="relu",
            norm_position="post" if name == "post-norm" else "pre",
        )
        y, rngs = x, nnx.Rngs(0)
        for layer in range(DEPTH):
            made = TransformerBlock(config, layer, rngs=rngs)
            y = (silenced(made) if name.endswith("zero") else made)(y)
            found[name].append(plain(size(y)))
    return found


def size(x: Float[Array, "*axes"]) -> Float[Array, ""]:
    """Root mean square."""
    return jnp.sqrt(jnp.square(x).mean())


def original() -> dict[str, int]:
    """Parameters of the base model of 2017, from shapes alone."""
    config = TransformerConfig.original_base()
    made = nnx.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)))
    first = made.encoder.blocks[0]
    return {
        "d_model": config.model,
        "d_ff": config.hidden,
        "blocks": config.layers,
        "attention": parameters(first.attention),
        "feed_forward": parameters(first.feed_forward),
        "encoder_block": parameters(first),
        "decoder_block": parameters(made.decoder.blocks[0]),
        "embedding": parameters(made.embedding),
        "all": parameters(made),
    }


def shapes() -> dict[str, list[int]]:
    """Shapes of the three kinds of attention of a small encoder and decoder: 5 source tokens, 3 target tokens."""
    config = TransformerConfig(vocab=8, model=8, layers=1, heads=2, hidden=32)
    model = EncoderDecoder(config, rngs=nnx.Rngs(0))
    found = jax.eval_shape(model.weights, jnp.zeros((1, 5), jnp.int32), jnp.zeros((1, 3), jnp.int32))
    return {name: list(value.shape[1:]) for name, value in found._asdict().items()}


def text(numbers: dict[str, Any]) -> str:
    """Norm, feed-forward, residuals, sizes."""
    ffn, counts, shapes = numbers["ffn"], numbers["original"], numbers["shapes"]
    parts = [
        ("attention", "attention"),
        ("feed-forward", "feed_forward"),
        ("encoder block", "encoder_block"),
        ("decoder block, with cross-attention", "decoder_block"),
        ("embedding of 37,000 tokens, also the output", "embedding"),
        ("all", "all"),
    ]
    return "\n\n".join(
        [
            "Both parts by hand:",
            code(
                f"LN({row(numbers['to_norm'], 0)}) = {row(numbers['normed'], 4)}",
                f"x W_1 + b_1 = {row(ffn['before'], 1)} for x = {row(ffn['x'], 0)}",
                f"max(0, .)   = {row(ffn['after'], 1)}",
                f". W_2 + b_2 = {row(ffn['out'], 1)}",
            ),
            f"`TransformerBlock` differs by at most {small(numbers['post_error'])} from LN(x + f(x)), post-norm, and "
            f"{small(numbers['pre_error'])} from x + f(LN(x)), pre-norm, written out for attention and then for the "
            "feed-forward. With both branches "
            f"set to zero a pre-norm block changes its input by {small(numbers['pre_zero_change'])}: it is the identity. A "
            "post-norm block is then its two norms, to within "
            f"{small(numbers['post_zero_change'])}.",
            f"The base model of 2017 has {counts['blocks']} blocks on either side, d_model = {counts['d_model']}, d_ff = "
            f"{counts['d_ff']}. A block of the decoder has causal self-attention, cross-attention (queries from the decoder, "
            "keys and values from the encoder) and the feed-forward layer; of 5 source and 3 target tokens with 2 heads "
            f"the weights are {shapes['encoder']}, {shapes['decoder']} and, across, {shapes['cross']}.",
            markdown_table(
                ["part", "parameters"], [[label, thousands(counts[name])] for label, name in parts]
            ).rstrip(),
        ]
    )


def draw(numbers: dict[str, Any]) -> Any:
    """Size against depth."""
    figure, (axis,) = new_figure(WIDTH, 3.2)
    looks = ((RED, "s", (None, None)), (BLUE, "o", (None, None)), (BLACK, "X", (5, 2)))
    for (name, values), (color, marker, dashes) in zip(numbers["depth"].items(), looks, strict=True):
        axis.plot(values, color=color, marker=marker, dashes=dashes, linewidth=1.9, markersize=5.5)
        spot = (len(values) - 1, values[-1])
        label = f"{name}: {decimal(values[-1], 2)}"
        axis.annotate(label, spot, (8, 0), textcoords="offset points", va="center", color=color)
    axis.set_xlim(-0.2, DEPTH + 2.7)
    axis.set_ylim(bottom=0)
    axis.set_xticks(range(DEPTH + 1))
    axis.set_xlabel("blocks passed")
    axis.set_ylabel("root mean square")
    return figure
