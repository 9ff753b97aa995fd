"""Methods that extend a context without training, against arrays of their authors' code and distances of the papers' rules."""

import numpy as np
import pytest

import attnjax as aj
from tests.cases import slow_except
from tests.positions.hooks import CAUSAL, close, constants, golden, run, tile, with_gradients


def beside(first: int, window: int) -> aj.Mask:
    """The first keys, and a window to the left."""
    return aj.Mask(causal=True, window=(window, 0), first=first)


LOG_N = aj.LogN(length=11)
METHODS = {
    "self_extend": (aj.SelfExtend(group=4, window=8), CAUSAL, "out"),
    "rerope": (aj.compose(LOG_N, aj.ReRoPE(window=7)), CAUSAL, "out"),
    "leaky_rerope": (aj.compose(LOG_N, aj.LeakyReRoPE(window=6, factor=4)), CAUSAL, "out"),
    "lm_infinite": (aj.LMInfinite(first=3, window=8), beside(3, 8), "out_9"),
    "lm_infinite, farther": (aj.LMInfinite(first=3, window=8, limit=14), beside(3, 8), "out_14"),
    "dual_chunk": (aj.DualChunk(chunk=12, local=3), CAUSAL, "out"),
    "streaming_llm": (aj.StreamingLLM(first=2, window=6), beside(2, 6), "out"),
}
"""Method, mask, and the stored output that it must give."""


@pytest.mark.parametrize("name", slow_except(METHODS, "self_extend", "dual_chunk", "streaming_llm"))
def test_attention_and_gradients_are_those_of_the_authors(name, x64):
    (encoding, mask, output), arrays = METHODS[name], golden(f"untrained_{name.split(',')[0]}")
    call = lambda q, k, v: aj.attend(q, k, v, encoding=encoding, mask=mask, implementation="dense")
    out, gradients = with_gradients(call, arrays.get("w", 1.0), *(arrays[key] for key in "qkv"))
    close(out, arrays[output])
    if name not in ("dual_chunk", "lm_infinite"):  # which have no gradients of this output
        for key, gradient in zip("qkv", gradients, strict=True):
            close(gradient, arrays[f"grad_{key}"], 1e-11)


@pytest.mark.parametrize(
    "rope", [aj.RoPE(500.0, "interleaved", 0.5), aj.RoPE(scaling=aj.YaRN(4.0, 8), keep=0.75)], ids=str
)
def test_a_method_takes_over_all_options_of_a_rope(rope):
    """Within its window it is RoPE."""
    one = tile(np.arange(9), np.arange(9), head_dim=8)
    method = aj.SelfExtend.of(rope, group=2, window=64)
    assert (method.group, method.window) == (2, 64)
    p = constants(rope, 8)
    turned = lambda x: rope.map_q(p, x, one.q_pos)
    found, expected = run(lambda one: (method.score(p, one), one.scale * turned(one.q) @ turned(one.k).T), one)
    close(found, expected, 2e-5)
