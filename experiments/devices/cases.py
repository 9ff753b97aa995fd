"""What is compiled: gradients of attention under every encoding, data parallel and in a ring of eight devices."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import attnjax as aj
from attnjax.typing import PyTree

P = jax.sharding.PartitionSpec
DEVICES = 8
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 128
SIZES = aj.Sizes(HEADS * HEAD_DIM, HEADS, KV_HEADS, HEAD_DIM)
EMBEDDINGS = ("sinusoidal", "learned")
"""They act before attention."""
TARGETS = ("h100:8", "v5e:2x4", "v6e:2x4")


class Case(NamedTuple):
    """A gradient of causal attention in bfloat16. `kind`: "data" (an example on each device) or "ring" (a piece of one)."""

    kind: str
    encoding: str
    length: int

    @property
    def axis(self) -> str:
        """The one axis of the mesh."""
        return "data" if self.kind == "data" else "sequence"

    @property
    def budget(self) -> int:
        """Bytes of temporary memory that a device may need: 64 KiB for each of its tokens, 32 times its queries."""
        return 2**16 * (self.length if self.kind == "data" else self.length // DEVICES)


def cases() -> Iterator[Case]:
    """Every encoding that acts inside attention."""
    for name in aj.ENCODINGS:
        if name not in EMBEDDINGS:
            yield from (Case("data", name, length) for length in (512, 4096))
            yield Case("ring", name, 8192)


def program(case: Case) -> tuple[Callable[..., Any], tuple[PyTree, ...], tuple[PyTree, ...]]:
    """The gradient to compile, shapes of its arguments (params, x, q, k, v), and how these are spread."""
    encoding = aj.ENCODINGS[case.encoding]()
    ring = case.kind == "ring"
    batch = 1 if ring else DEVICES
    axis = {"axis_name": "sequence"} if ring else {}

    def loss(params: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
        where = jnp.arange(x.shape[1], dtype=jnp.int32)
        where = where + jax.lax.axis_index("sequence") * x.shape[1] if ring else where
        computed = aj.Trait.CONTEXT in encoding.traits
        pos = aj.context_positions(encoding, params, x, where, SIZES, **axis) if computed else None
        options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos, "mask": aj.Mask(causal=True)}
        out = aj.attend(q, k, v, implementation="chunked", **options, **axis)
        total = (out.astype(jnp.float32) ** 2).sum()
        return jax.lax.psum(total, "sequence") if ring else total

    spread = P(None, "sequence") if ring else P("data")
    specs = (P(), *(spread,) * 4)
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), SIZES))
    array = lambda *last: jax.ShapeDtypeStruct((batch, case.length, *last), jnp.bfloat16)
    keys = array(KV_HEADS, HEAD_DIM)
    arguments = (params, array(SIZES.model), array(HEADS, HEAD_DIM), keys, keys)
    return jax.grad(loss, argnums=(0, 1, 2, 3, 4)), arguments, specs
