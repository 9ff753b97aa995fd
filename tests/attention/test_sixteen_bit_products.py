"""Gradients of attention in bfloat16 under every encoding: no product has an operand that was widened to float32.

The programs are those that `experiments/devices` compiles, in which a batch has tiles of 128 queries and keys. They are read as
JAX traced them, so that no compiler may hide a widened operand, and none is needed; and once more as text for the compiler, by
the reader that looks at compiled programs.
"""

import jax
import pytest

import attnjax as aj
from attnjax.aot import Topology, hlo
from experiments.devices.attention import gradient
from experiments.devices.cases import EMBEDDINGS, Case
from tests.cases import slow_except
from tests.widened import products, widened_products

OF_FLOAT32 = {"transformer_xl": 3, "cope": 4, "path": 9}
"""Scores that multiply queries or keys by other numbers: a `Tile` has them in float32, as the logits that they add to."""
CARRIED = {"path": 2}
"""More of them, which the reader of text alone follows through a loop: the query before the first key has changed it."""


@pytest.mark.parametrize("name", slow_except([name for name in aj.ENCODINGS if name not in EMBEDDINGS], "t5", "fox"))
def test_no_product_is_widened(name):
    program = gradient(Topology("virtual:8", "cpu", tuple(jax.devices()), 2**30), Case("data", name, 64))
    traced = jax.jit(program.function).trace(*program.arguments)
    jaxpr, known = traced.jaxpr, OF_FLOAT32.get(name, 0)
    assert len(widened_products(jaxpr)) == known
    text = traced.lower(lowering_platforms=("tpu",)).as_text("hlo")
    assert len(hlo.widened_products(text)) == known + CARRIED.get(name, 0)
    # Scores and weighted values, twice over in the gradient but for the output, and both factors of each.
    assert products(jaxpr)["bfloat16", "bfloat16"] >= 7
