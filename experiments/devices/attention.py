"""Gradients of causal attention in bfloat16, with an example on each device or a ring of devices, under several masks."""

import math
from typing import Any

import jax
import jax.numpy as jnp

import attnjax as aj
from attnjax.aot import Topology, mesh_of
from attnjax.train.programs import Program
from experiments.devices.cases import DEVICES, Case

P = jax.sharding.PartitionSpec
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 128
SIZES = aj.Sizes(HEADS * HEAD_DIM, HEADS, KV_HEADS, HEAD_DIM)
WINDOW = 1024
DOUBLED = ("pope",)
"""Encodings that map queries and keys to twice as many channels."""
DISTANCES = {"t5": 1, "kerple": 1, "transformer_xl": HEAD_DIM}
POSITIONS = {"ssmax": HEADS, "pope": 2 * HEADS * HEAD_DIM, "mixed_rope": 4 * KV_HEADS * HEAD_DIM}
"""How many numbers of a gradient belong to a distance of each head, or to a position, before they are gradients of what is
learned: a bias; a key; a factor of each head; cosine and sine of each channel of queries, and of queries and keys. They do not
depend on the example, and are added over examples, and so over devices, before they are added over distances or positions.
Transformer-XL has a key of each distance in the records of before 0.3.0 alone.
"""


def budget(case: Case) -> int:
    """Bytes of temporary memory that a device may need: 64 KiB for each of its tokens, 32 times its mapped queries."""
    channels = 2 if case.name in DOUBLED else 1
    return 2**16 * channels * (case.length // DEVICES if case.ring else case.length)


def learned(name: str) -> int:
    """Bytes of the learned numbers of an encoding, in float32."""
    params = jax.eval_shape(lambda: aj.ENCODINGS[name]().init(jax.random.key(0), SIZES))
    return sum(4 * math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def summed(case: Case) -> int:
    """Bytes that each device may hand to sums over devices, where a batch is over devices: those of the learned numbers, but
    for the exceptions `DISTANCES`, of which there are at most 2 T, and `POSITIONS`.
    """
    if case.name in DISTANCES:
        # What Transformer-XL adds to queries has no distance.
        others = 2 * HEADS * HEAD_DIM if case.name == "transformer_xl" else 0
        return 4 * (2 * case.length * HEADS * DISTANCES[case.name] + others)
    if case.name in POSITIONS:
        return 4 * case.length * POSITIONS[case.name]
    return learned(case.name)


def gradient(there: Topology, case: Case) -> Program:
    """The gradient with respect to parameters, content, q, k and v, as a program for all devices of a topology."""
    encoding, axis = aj.ENCODINGS[case.name](), "sequence" if case.ring else None
    context = encoding.has("context")
    data, of_data = _data(case, context)

    def loss(params: Any, x: Any, q: Any, k: Any, v: Any, data: dict[str, Any]) -> Any:
        where = jnp.arange(x.shape[1], dtype=jnp.int32)
        where = where + jax.lax.axis_index("sequence") * x.shape[1] if case.ring else where
        pos = data.get("pos")
        if context and pos is None:
            pos = aj.context_positions(encoding, params, x, where, SIZES, axis_name=axis)
        options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos, "mask": _mask(case, data)}
        out = aj.attend(q, k, v, implementation="chunked", **options, axis_name=axis)
        total = (out.astype(jnp.float32) ** 2).sum()
        return jax.lax.psum(total, name) if case.ring else total

    name = "sequence" if case.ring else "data"
    spread = P(None, "sequence") if case.ring else P("data")
    results = (P(), *(spread,) * 4)
    specs = (*results, of_data)
    mesh = mesh_of(there, {name: DEVICES})
    function = jax.grad(loss, argnums=(0, 1, 2, 3, 4))
    if case.ring:
        function = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=results)
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), SIZES))
    array = lambda *last: jax.ShapeDtypeStruct((1 if case.ring else DEVICES, case.length, *last), jnp.bfloat16)
    keys = array(KV_HEADS, HEAD_DIM)
    given = (params, array(SIZES.model), array(HEADS, HEAD_DIM), keys, keys, data)
    return Program(mesh, function, given, specs, {})


def _data(case: Case, context: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays that say who sees whom and where tokens are, and how they are spread."""
    numbers = jax.ShapeDtypeStruct((1, case.length), jnp.int32)
    tokens = P(None, "sequence")
    if case.variant == "packed":
        # Encodings of content go on from document to document; others count from the start of each.
        names = ("segments",) if context else ("segments", "pos")
        return dict.fromkeys(names, numbers), dict.fromkeys(names, tokens)
    if case.variant == "ragged":
        return {"valid": jax.ShapeDtypeStruct((1, case.length), jnp.bool_)}, {"valid": tokens}
    if case.variant == "zigzag":
        # What is computed from content is computed in the order of the text, before its tokens change places.
        pos = jax.ShapeDtypeStruct((1, HEADS, case.length), jnp.float32) if context else numbers
        return {"index": numbers, "pos": pos}, {
            "index": tokens,
            "pos": P(None, None, "sequence") if context else tokens,
        }
    return {}, {}


def _mask(case: Case, data: dict[str, Any]) -> aj.Mask:
    window = (WINDOW, 0) if case.variant == "window" else None
    segments, index = data.get("segments"), data.get("index")
    return aj.Mask(True, window, segments, segments, data.get("valid"), index, index)
