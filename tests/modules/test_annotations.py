"""Annotations tell the truth: methods run under a type checker that also checks axis sizes.

Every axis has a size of its own, so that a letter in the wrong place cannot pass.
"""

import beartype
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from attnjax.modules import Decoder, EncoderDecoder, Gates, Memory, TransformerConfig, generate
from attnjax.positions import Learned, T5Bias, compose

B, T, S, D, N, L = 2, 7, 5, 16, 4, 3
CONFIG = TransformerConfig(11, D, L, N, 24, kv_heads=1, encoding=compose(Learned(9), T5Bias()), qk_norm=True)
TOKENS, SOURCE, POS = np.zeros((B, T), int), np.zeros((B, S), int), np.arange(T)
X, MEMORY, GATE = jnp.ones((B, T, D)), jnp.ones((B, S, D)), jnp.ones((L, N))
SOME = jnp.zeros((B, 6), int)

OF_DECODER = {
    "logits": lambda m: (m, "__call__", {"tokens": TOKENS, "pos": POS, "gate": GATE}),
    "features": lambda m: (m, "features", {"tokens": TOKENS, "gate": jnp.ones((L, B, N))}),
    "states": lambda m: (m, "hidden_states", {"tokens": TOKENS}),
    "weights": lambda m: (m, "weights", {"tokens": TOKENS}),
    "logits of some": lambda m: (m, "__call__", {"tokens": TOKENS, "query_indices": SOME}),
    "features of some": lambda m: (m, "features", {"tokens": TOKENS, "query_indices": SOME}),
    "stack of some": lambda m: (m.stack, "__call__", {"x": X, "pos": POS, "query_indices": SOME}),
    "block of some": lambda m: (m.stack.blocks[0], "__call__", {"x": X, "pos": POS, "query_indices": SOME}),
    "decode": lambda m: (m, "decode", {"tokens": TOKENS, "caches": m.cache(B, T)}),
    "embed tokens": lambda m: (m.embedding, "__call__", {"tokens": TOKENS}),
    "embed positions": lambda m: (m.stack, "embed", {"x": X, "pos": POS}),
    "attend": lambda m: (m.stack.blocks[0].attention, "__call__", {"x": X, "memory": MEMORY, "gate": GATE[0]}),
    "project": lambda m: (m.stack.blocks[0].attention, "keys_values", {"memory": MEMORY}),
    "feed forward": lambda m: (m.stack.blocks[0].feed_forward, "__call__", {"x": X}),
}
OF_BOTH = {
    "logits": lambda m: (m, "__call__", {"source": SOURCE, "target": TOKENS, "gates": Gates(GATE, GATE, GATE)}),
    "encode": lambda m: (m, "encode", {"source": SOURCE}),
    "weights": lambda m: (m, "weights", {"source": SOURCE, "target": TOKENS}),
    "start": lambda m: (m, "start", {"source": SOURCE, "capacity": T}),
    "block": lambda m: (m.decoder.blocks[0], "__call__", {"x": X, "memory": Memory(MEMORY), "cross_gate": GATE[0]}),
}


def checked(function):
    return jaxtyping.jaxtyped(typechecker=beartype.beartype)(function)


@pytest.mark.quick("logits", "weights", "decode", "attend", "feed forward", "both: logits", "both: start")
@pytest.mark.parametrize(
    ("kind", "of"),
    [*((Decoder, of) for of in OF_DECODER.values()), *((EncoderDecoder, of) for of in OF_BOTH.values())],
    ids=[*OF_DECODER, *(f"both: {name}" for name in OF_BOTH)],
)
def test_methods_are_what_their_annotations_say(build, kind, of):
    module, name, arguments = of(build(kind, CONFIG))
    method = checked(getattr(type(module), name))
    # Shapes and types are known without computing anything.
    jax.eval_shape(lambda: method(module, **arguments))


def test_generate_is_what_its_annotations_say(build):
    jax.eval_shape(lambda: checked(generate)(build(Decoder, CONFIG), TOKENS[:, :3], 2))


def test_the_checker_notices_a_wrong_axis(build):
    with pytest.raises(jaxtyping.TypeCheckError):
        checked(Decoder.__call__)(build(Decoder, CONFIG), TOKENS[0])
