"""Ring attention beside attention on one device: outputs, and gradients of everything, on 2, 4 and 8 virtual devices.

One program serves every mask and order of the tokens, because indices, segments and validity are data. What follows from the
number of a device (default indices and positions, which do not travel) has programs of its own, and so do encodings that read
the keys in order.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import Mask, Tiling, Trait, attend, attend_with_lse, context_positions
from attnjax.positions.indices import zigzag
from tests.attention.matrix import (
    AXES,
    BAND,
    CAUSAL_ONLY,
    ENCODINGS,
    FARTHEST,
    PER_HEAD,
    REACHES,
    B,
    H,
    N,
    assert_near,
)
from tests.attention.test_blockwise_structure import Witness
from tests.cases import FAST, slow_except

P = jax.sharding.PartitionSpec
LENGTH, KV_HEADS = 48, 2
TILE = Tiling(5, 4)
"""Several tiles on every device, and padding of both sides."""
SMALL = Tiling(64, 64)
"""Tiles that take little of the memory, as those of a CPU do not."""
IN_ORDER = {name for name, encoding in ENCODINGS.items() if Trait.CARRY in encoding.traits}
SIZES = aj.Sizes(N * H, N, KV_HEADS, H)
EVERY_DAY = ("rope", "t5", "fox", "cope", "dape")


def ring_of(devices, function, like, out_ranks=1):
    """`function` with every array spread over the devices along the axis that has LENGTH entries, the others on each."""
    mesh = jax.make_mesh((devices,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = lambda x: P(*("sequence" if n == LENGTH else None for n in np.shape(x)))
    out = P(None, "sequence")
    specs = {"in_specs": jax.tree.map(spec, like), "out_specs": out if out_ranks == 1 else (out,) * out_ranks}
    return jax.shard_map(function, mesh=mesh, **specs)


def inputs_of(name):
    """q, k, v, parameters, scale and a sink, no number of them trivial."""
    random = np.random.default_rng(0)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)
    params = jax.tree.map(np.asarray, ENCODINGS[name].init(jax.random.key(0), SIZES))
    params = jax.tree.map(lambda leaf: leaf + 0.3 * normal(*leaf.shape), params)
    keys = (B, LENGTH, KV_HEADS, H)
    sink = None if "stick" in name else normal(N)
    return normal(B, LENGTH, N, H), normal(*keys), normal(*keys), params, np.float32(0.4), sink


def positions_of(name):
    """Positions [B, T], with rows per head or coordinates where the encoding has them."""
    random = np.random.default_rng(1)
    rows = np.stack([np.sort(random.choice(FARTHEST, LENGTH, replace=False)) for _ in range(B)]).astype(np.int32)
    if name in PER_HEAD:
        heads = KV_HEADS if Trait.MAP_K in ENCODINGS[name].traits and name != "rope+fox" else N
        last = (AXES[name],) if name in AXES else ()
        own = np.sort(random.uniform(0, 9, (B, heads, LENGTH, *last)), axis=2).astype(np.float32)
        return own if PER_HEAD[name] is True else (rows, own)
    return np.stack([rows] * AXES[name], -1) if name in AXES else rows


def masks_of(name):
    """Indices, segments and validity of every kind of mask."""
    whole, valid = np.zeros((B, LENGTH), np.int32), np.ones((B, LENGTH), bool)
    packed = np.stack([np.arange(LENGTH) // 11, np.arange(LENGTH) // 29]).astype(np.int32)
    ragged = np.arange(LENGTH) < np.array([[17], [41]])
    kinds = {reach: (reach, whole, valid) for reach in REACHES if name not in CAUSAL_ONLY or "causal" in reach}
    kinds |= {"packed": ("causal", packed, valid), "ragged": ("causal", whole, ragged)}
    kinds |= {"nothing": ("causal", whole, np.zeros_like(valid))}
    for kind, (reach, segments, valid) in kinds.items():
        stretch, shift = REACHES[reach]
        index = np.arange(LENGTH)
        yield kind, ((stretch * index + shift).astype(np.int32), (stretch * index).astype(np.int32), segments, valid)


def with_gradients(function):
    """A random sum of the output, and its gradients."""

    def loss(arrays, *data):
        out = function(arrays, *data)
        weight = np.random.default_rng(2).normal(size=out.shape) / np.sqrt(out.size)
        return (jnp.asarray(weight, out.dtype) * out).sum(), out

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=FAST)


def found(program, *arguments):
    (_, out), (q, k, v, *learned) = program(*arguments)
    return jax.tree.map(np.asarray, {"out": out, "q": q, "k": k, "v": v, "params": tuple(learned)})


def attention(name, **how):
    """Attention whose mask and positions are data, as in `matrix.py`."""
    causal = name in CAUSAL_ONLY

    def run(arrays, pos, q_index, k_index, segments, valid):
        q, k, v, params, scale, sink = arrays
        window, q_index = (2 * BAND, q_index + BAND) if causal else (BAND, q_index)
        mask = Mask(causal, window, segments, segments, valid, q_index, k_index)
        options = {
            "encoding": ENCODINGS[name],
            "params": params,
            "q_pos": pos,
            "k_pos": pos,
            "scale": scale,
            "sink": sink,
        }
        return attend(q, k, v, mask=mask, **options, **how)

    return run


def ordered(tree, order):
    """Every array with its tokens in this order."""

    def one(x):
        axes = [axis for axis, n in enumerate(np.shape(x)) if n == LENGTH]
        return np.take(x, order, axis=axes[0]) if axes else x

    return jax.tree.map(one, tree)


def sizes_of_ring():
    """Every encoding on two, four and eight devices; one of each kind on four is quick."""
    for name in ENCODINGS.keys() - IN_ORDER:
        for devices in (2, 4, 8):
            quick = name in EVERY_DAY and devices == 4
            marks = () if quick else pytest.mark.slow
            yield pytest.param(name, devices, marks=marks, id=f"{name}-{devices}")


@pytest.mark.parametrize(("name", "devices"), sorted(sizes_of_ring(), key=lambda case: case.id))
def test_it_equals_one_device_under_every_mask_and_in_both_orders(name, devices):
    arrays, pos = inputs_of(name), positions_of(name)
    like = (arrays, pos, *next(masks_of(name))[1])
    single = with_gradients(attention(name, implementation="dense"))
    spread = with_gradients(ring_of(devices, attention(name, implementation=TILE, axis_name="sequence"), like))
    orders = {"contiguous": np.arange(LENGTH), "zigzag": zigzag(LENGTH, devices)}
    for kind, data in masks_of(name):
        for order, at in orders.items():
            # On one device in the same order of tokens, which is only another order of the rows.
            given = ordered((arrays, pos, *data), at)
            assert_near(found(spread, *given), found(single, *given), 1e-5, (name, devices, kind, order))


def as_written(name, mask, **how):
    """Indices, and positions that are not computed from content, are the default ones."""

    def run(arrays, segments=None, valid=None):
        q, k, v, params, scale, sink = arrays
        given = Mask(mask.causal, mask.window, segments, segments, valid)
        return attend(q, k, v, encoding=ENCODINGS[name], params=params, mask=given, scale=scale, sink=sink, **how)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 17])
def test_the_first_keys_are_those_of_the_first_device(padding):
    """Counted over all devices, also where the padding of an example ends on another one."""
    name, valid = "streaming_llm", np.arange(LENGTH)[None] >= np.array([[padding], [0]])
    arrays, mask = inputs_of(name), Mask(causal=True, window=(6, 0), first=3)

    def written(**how):
        def run(arrays, valid):
            q, k, v, _, scale, sink = arrays
            given = dataclasses.replace(mask, k_valid=valid if padding else None)
            return attend(q, k, v, encoding=ENCODINGS[name], scale=scale, sink=sink, mask=given, **how)

        return with_gradients(run if not how.get("axis_name") else ring_of(4, run, (arrays, valid)))

    spread, single = written(implementation=TILE, axis_name="sequence"), written(implementation="dense")
    assert_near(found(spread, arrays, valid), found(single, arrays, valid), 1e-5, padding)


DEFAULT = [name for name in ENCODINGS if Trait.CONTEXT not in ENCODINGS[name].traits]


def kinds_of_default():
    """Two and eight devices for every encoding, and four for those that read the keys in order; one is quick."""
    for name in DEFAULT:
        marks = () if name == "rope-dynamic" else pytest.mark.slow
        yield pytest.param(name, 2, marks=marks, id=f"{name}-2")
        if name in IN_ORDER:
            yield pytest.param(name, 4, marks=pytest.mark.slow, id=f"{name}-4")
        yield pytest.param(name, 8, marks=pytest.mark.slow, id=f"{name}-8")


@pytest.mark.parametrize(("name", "devices"), [*kinds_of_default()])
def test_default_indices_and_positions_go_on_from_device_to_device(name, devices):
    arrays = inputs_of(name)
    packed = (np.arange(LENGTH) // 11).astype(np.int32)
    valid = np.arange(LENGTH)[None] < np.array([[17], [41]])
    # Of a composition with a length of its own, validity is what tells the length.
    for window, data in ((None, ()), ((9, 0), (packed, valid))):
        mask = Mask(causal=True, window=window)
        single = with_gradients(as_written(name, mask, implementation="dense"))
        spread = as_written(name, mask, implementation=TILE, axis_name="sequence")
        spread = with_gradients(ring_of(devices, spread, (arrays, *data)))
        assert_near(found(spread, arrays, *data), found(single, arrays, *data), 1e-5, (name, devices, window))


def kinds_of_content():
    """Every encoding whose positions are computed from the tokens, on two, four and eight devices; one is quick."""
    for name in ("fox", "cable", "repo", "selective_rope", "path"):
        for devices in (2, 4, 8):
            marks = () if (name, devices) == ("fox", 4) else pytest.mark.slow
            yield pytest.param(name, devices, marks=marks, id=f"{name}-{devices}")


@pytest.mark.parametrize(("name", "devices"), [*kinds_of_content()])
def test_positions_computed_from_content_go_on_from_device_to_device(name, devices):
    """Gradients come home through them to the tokens and to what is learned, under every mask that these encodings share."""
    encoding = {"path": aj.PaTH(rank=4, forget=True)}.get(name) or ENCODINGS[name]
    random = np.random.default_rng(3)
    params = encoding.init(jax.random.key(1), SIZES)
    x = random.normal(size=(B, LENGTH, N * H)).astype(np.float32)
    q, k, v = (random.normal(size=(B, LENGTH, heads, H)).astype(np.float32) for heads in (N, KV_HEADS, KV_HEADS))
    where = np.arange(LENGTH, dtype=np.int32)
    whole, valid = np.zeros(LENGTH, np.int32), np.ones((B, LENGTH), bool)
    packed, ragged = np.arange(LENGTH, dtype=np.int32) // 11, where < np.array([[17], [41]])

    def run(arrays, where, segments, valid, window=None, **how):
        x, q, k, v, params = arrays
        axis = {"axis_name": how["axis_name"]} if "axis_name" in how else {}
        pos = context_positions(encoding, params, x, where, SIZES, **axis)
        options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos}
        mask = Mask(True, window, segments, segments, valid)
        return attend(q, k, v, mask=mask, **options, **how)

    given = ((x, q, k, v, params), where)
    for window, cases in ((None, ((whole, valid), (packed, valid), (whole, ragged))), ((9, 0), ((whole, valid),))):
        one = functools.partial(run, window=window)
        single = with_gradients(functools.partial(one, implementation="dense"))
        ring = functools.partial(one, implementation=TILE, axis_name="sequence")
        spread = with_gradients(ring_of(devices, ring, (*given, whole, valid)))
        for data in cases:
            got, expected = (jax.tree.map(np.asarray, program(*given, *data)) for program in (spread, single))
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5 * max(1, np.abs(b).max()))


def test_the_log_sum_exp_is_that_of_all_keys():
    arrays = inputs_of("t5")
    run = lambda arrays, **how: attend_with_lse(
        *arrays[:3], encoding=ENCODINGS["t5"], params=arrays[3], mask=Mask(causal=True), **how
    )
    spread = ring_of(4, functools.partial(run, axis_name="sequence"), (arrays,), out_ranks=2)
    for a, b in zip(jax.jit(spread)(arrays), run(arrays, implementation="dense"), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_queries_and_keys_may_be_of_different_numbers():
    random = np.random.default_rng(4)
    q, k, v = (random.normal(size=(B, n, 2, H)).astype(np.float32) for n in (16, 24, 24))
    mesh = jax.make_mesh((4,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
    run = functools.partial(attend, encoding=aj.RoPE())
    spread = functools.partial(run, axis_name="sequence")
    ring = jax.shard_map(spread, mesh=mesh, in_specs=(P(None, "sequence"),) * 3, out_specs=P(None, "sequence"))
    np.testing.assert_allclose(jax.jit(ring)(q, k, v), run(q, k, v), atol=1e-5)


def test_in_sixteen_bits_it_is_as_near_as_one_device():
    q, k, v, params, _, sink = inputs_of("t5")
    exact = attend(q, k, v, encoding=ENCODINGS["t5"], params=params, sink=sink, mask=Mask(causal=True))
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in (q, k, v))
    arrays = (q, k, v, params, np.float32(H**-0.5), sink)
    spread = ring_of(4, as_written("t5", Mask(causal=True), axis_name="sequence"), (arrays,))
    out = jax.jit(spread)(arrays)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(jnp.float32), exact, atol=0.05)


def compiled(devices, name="t5", *, gradient=False, length=LENGTH):
    shape = lambda heads: jax.ShapeDtypeStruct((1, length, heads, 16), jnp.float32)
    params = jax.eval_shape(lambda: ENCODINGS[name].init(jax.random.key(0), aj.Sizes(64, 4, 2, 16)))
    mesh = jax.make_mesh((devices,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
    run = lambda params, q, k, v: attend(
        q,
        k,
        v,
        encoding=ENCODINGS[name],
        params=params,
        mask=Mask(causal=True),
        axis_name="sequence",
        implementation=SMALL,
    )
    specs = {"in_specs": (P(), *(P(None, "sequence"),) * 3), "out_specs": P(None, "sequence")}
    ring = jax.shard_map(run, mesh=mesh, **specs)
    value = jax.grad(lambda *given: ring(*given).sum(), argnums=(0, 1, 2, 3)) if gradient else ring
    spread = jax.sharding.NamedSharding(mesh, P(None, "sequence"))
    program = jax.jit(value, in_shardings=(None, spread, spread, spread))
    return program.lower(params, shape(4), shape(2), shape(2)).compile(compiler_options=FAST)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_keys_and_values_are_sent_once_in_each_of_p_minus_1_rounds(devices):
    text = compiled(devices).as_text()
    assert len(re.findall(r" collective-permute(?:-start)?\(", text)) == 1
    trips = re.findall(r'"known_trip_count":\{"n":"(\d+)"\}', text)
    # Of two devices the one round is no loop any more.
    assert trips.count(str(devices - 1)) == (devices > 2)
    assert not re.findall(r" (?:all-gather|all-to-all|reduce-scatter|all-reduce)(?:-start)?\(", text)


def blocks_computed(order, *, backward, devices=4, block=6):
    """(block of the queries, block of the keys) of every product in a causal ring, with two blocks on each device."""
    witness, zigzagged = Witness((block, block)), order is not None
    x, where = jnp.ones((1, 2 * block * devices, 1, 2)), jnp.asarray(order, jnp.int32) if zigzagged else None

    def run(x, where=None):
        given = {"mask": Mask(True, q_index=where, k_index=where), "q_pos": where, "k_pos": where}
        return attend(x, x, x, encoding=witness, axis_name="sequence", implementation=Tiling(block, block), **given)

    given = (x, where) if zigzagged else (x,)
    ring = ring_of(devices, run, given)
    loss = lambda *given: ring(*given).sum()
    program = jax.jit(jax.grad(loss) if backward else loss, compiler_options=FAST)
    jax.block_until_ready(program(*given))
    jax.effects_barrier()
    return witness.seen


@pytest.mark.parametrize("backward", slow_except((False, True), False))
@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_a_block_of_keys_that_no_query_sees_is_sent_on_without_a_product(order, backward):
    """Of P contiguous blocks device d computes those of d + 1 devices, in zigzag order all as many; backward each once more."""
    devices, block = 4, 6
    at = zigzag(LENGTH, devices) if order == "zigzag" else np.arange(LENGTH)
    seen = blocks_computed(at if order == "zigzag" else None, backward=backward)
    visible = [(i, j) for i in range(2 * devices) for j in range(i + 1)]
    assert sorted(seen) == sorted(visible * (2 if backward else 1))
    of_device = {int(at[i]) // block: i // (2 * block) for i in range(0, LENGTH, block)}
    each = [sum(of_device[i] == d for i, _ in seen) for d in range(devices)]
    expected = [9, 9, 9, 9] if order == "zigzag" else [3, 7, 11, 15]
    assert each == [(2 if backward else 1) * n for n in expected]


@pytest.mark.slow
def test_memory_of_a_device_falls_with_their_number():
    """As 1/P from four on; two devices, whose one round is no loop, need less than twice as much as four."""
    taken = {n: compiled(n, gradient=True, length=32768).memory_analysis().temp_size_in_bytes for n in (2, 4, 8)}
    assert taken[8] < 0.52 * taken[4], taken
    assert taken[4] < 0.65 * taken[2], taken


def test_what_cannot_be_spread_is_refused_in_a_sentence():
    x = np.ones((1, 8, 2, 4), np.float32)
    mesh = jax.make_mesh((4,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))

    def run(**options):
        ring = lambda q, k, v: attend(q, k, v, **{"axis_name": "sequence"} | options)
        spread = jax.shard_map(ring, mesh=mesh, in_specs=(P(None, "sequence"),) * 3, out_specs=P(None, "sequence"))
        return jax.eval_shape(spread, x, x, x)

    with pytest.raises(ValueError, match=r"^axis_name='sequence' is no axis of a mesh here: call attend inside jax"):
        attend(x, x, x, axis_name="sequence")
    with pytest.raises(ValueError, match=r"^axis_name must be the name of one axis of a mesh, got \('sequence',\)"):
        run(axis_name=("sequence",))
    with pytest.raises(
        NotImplementedError, match=r"'dense' cannot serve NoPE\(\): the sequence is spread over the mesh axis"
    ):
        run(implementation="dense")
    with pytest.raises(ValueError, match=r"^mask.allowed is a table of all queries and keys"):
        run(mask=Mask(allowed=np.ones((2, 2), bool)))
    with pytest.raises(ValueError, match=r"^attention dropout is not served with axis_name"):
        run(dropout=aj.Dropout(jax.random.key(0), 0.1))
    with pytest.raises(
        ValueError, match=r"^CoPE\(max_position=16\) reads the keys in their order, from the last to the first"
    ):
        run(encoding=aj.CoPE(), params=aj.CoPE().init(jax.random.key(0), SIZES._replace(heads=2, head_dim=4)))
    cache = aj.KVCache.create(batch=1, capacity=4, kv_heads=2, head_dim=4)
    with pytest.raises(ValueError, match=r"^a cache holds the keys of one device"):
        attend(x[:, :1], cache=cache, axis_name="sequence")
    with pytest.raises(ValueError, match=r"^zigzag: length must be a multiple of 2 \* devices = 8, got 12$"):
        zigzag(12, 4)
