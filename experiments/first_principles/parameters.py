"""Heads are a way to cut the channels, not more of them: parameters and products do not depend on their number.

    W^Q, W^K, W^V: 3 * D * (D / N) * N = 3 D^2,    W^O: D^2,    products: 8 T D^2 + 4 T^2 D FLOPs

for one example of T tokens. What grows with the number of heads N are the N T^2 exponentials of the softmax.

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2, last paragraph.
"""

import math
from typing import Any

import jax.numpy as jnp
from flax import nnx

from attnjax.modules import AttentionOptions, MultiHeadAttention
from attnjax.report.formatting import markdown_table
from experiments.first_principles.arrays import parameters
from experiments.first_principles.words import thousands

TITLE = "Heads and parameters"
CAPTION = ""

WIDTHS, COUNTS = (64, 512), (1, 2, 4, 8, 16)
TOKENS = 10
draw = None


def numbers() -> dict[str, Any]:
    """Parameters of attention by width and number of heads, FLOPs, and the shapes of a call."""
    module = MultiHeadAttention(64, 8, options=AttentionOptions(bias=False), rngs=nnx.Rngs(0))
    x = jnp.zeros((1, TOKENS, 64), jnp.float32)
    rows = [count(model, heads) for model in WIDTHS for heads in COUNTS]
    shapes = {"input": list(x.shape), "output": list(module(x).shape), "weights": list(module.weights(x).shape)}
    return {"tokens": TOKENS, "rows": rows, "shapes": shapes}


def count(model: int, heads: int) -> dict[str, int]:
    """Parameters of one module, from its shapes alone, and the work of one call."""
    made = nnx.eval_shape(
        lambda: MultiHeadAttention(model, heads, options=AttentionOptions(bias=False), rngs=nnx.Rngs(0))
    )
    T = TOKENS
    return {
        "model": model,
        "heads": heads,
        "d_k": made.sizes.head_dim,
        "qkv": math.prod(made.w_q.shape) + math.prod(made.w_k.shape) + math.prod(made.w_v.shape),
        "all": parameters(made),
        "flops": 8 * T * model**2 + 4 * T**2 * model,
        "exponentials": heads * T**2,
    }


def text(numbers: dict[str, Any]) -> str:
    """The table and the shapes."""
    header = ["d_model", "heads", "d_k", "W_Q, W_K, W_V", "with W_O", "FLOPs of products", "exponentials"]
    names = ("model", "heads", "d_k", "qkv", "all", "flops", "exponentials")
    rows = [[thousands(found[name]) for name in names] for found in numbers["rows"]]
    shapes = numbers["shapes"]
    return "\n\n".join(
        [
            "Every head reads all channels of the token and works in d_model / heads of its own, so the number of heads "
            f"changes neither the parameters nor the products (here of {numbers['tokens']} tokens):",
            markdown_table(header, rows).rstrip(),
            f"With 8 heads an input {shapes['input']} gives an output {shapes['output']} and weights {shapes['weights']}: "
            "a table of tokens by tokens for each head.",
        ]
    )
