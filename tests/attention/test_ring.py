"""Ring attention beside attention on one device: outputs, and gradients of everything, on 2, 4 and 8 virtual devices; and what
went wrong in the rings of other projects, each with its thread on GitHub.

One program serves every mask and order of the tokens, because indices, segments and validity are data. Default indices and
positions, which follow from the number of a device, have programs of their own.
"""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import Mask, Tiling, attend, context_positions
from attnjax.positions.compose import parts_of
from attnjax.positions.indices import zigzag
from tests.attention import matrix
from tests.attention.matrix import ENCODINGS, B, H, N, assert_near, compiled
from tests.cases import slow_except

P = jax.sharding.PartitionSpec
KV_HEADS, LENGTH, _ = matrix.LAYOUTS["ring"]
SIZES = aj.Sizes(N * H, N, KV_HEADS, H)
TILE = Tiling(5, 4)
"""Several tiles on every device, and padding of both sides."""
SPREAD = [name for name, part in ENCODINGS.items() if not any(one.whole_table for one in parts_of(part))]


def mesh_of(devices):
    return jax.make_mesh((devices,), ("tokens",), axis_types=(jax.sharding.AxisType.Auto,))


def ring_of(devices, function, like):
    """`function` with every array spread over the devices along the axis that has LENGTH entries, the others on each."""
    spec = lambda x: P(*("tokens" if n == LENGTH else None for n in np.shape(x)))
    specs = {"in_specs": tuple(jax.tree.map(spec, like)), "out_specs": P(None, "tokens")}
    return jax.shard_map(function, mesh=mesh_of(devices), **specs)


def drawn(name):
    """q, k, v, parameters, scale, and a sink."""
    return *matrix.draw(ENCODINGS[name], "ring"), np.random.default_rng(1).normal(size=N).astype(np.float32)


# All masks as data


def ordered(tree, order):
    """Every array with its tokens in this order."""
    at = lambda x: [axis for axis, n in enumerate(np.shape(x)) if n == LENGTH]
    return jax.tree.map(lambda x: np.take(x, order, axis=at(x)[0]) if at(x) else x, tree)


@pytest.mark.parametrize(("name", "devices"), slow_except([(name, d) for name in SPREAD for d in (2, 4, 8)], ("t5", 4)))
def test_it_equals_one_device_under_every_mask_and_in_both_orders(name, devices):
    """On one device in the same order of tokens, which is only another order of the rows. Each order has half of the cases."""
    cases, inputs = [*matrix.cases_of(name, "ring")], matrix.draw(ENCODINGS[name], "ring")
    ring = ring_of(devices, matrix.attention(name, TILE, "tokens"), (*inputs, *cases[0][1]))
    ways = [matrix.with_gradients(way) for way in (ring, matrix.attention(name, "dense"))]
    both = lambda inputs, cases: jax.lax.map(lambda case: [way(*inputs, *case) for way in ways], cases)
    both = jax.jit(both)
    for start, order in enumerate((np.arange(LENGTH), zigzag(LENGTH, devices))):
        kinds, data = zip(*cases[start::2], strict=True)
        found = both(ordered(inputs, order), matrix.stacked([ordered(case, order) for case in data]))
        for i, kind in enumerate(kinds):
            got, expected = (jax.tree.map(lambda x, i=i: np.asarray(x[i]), each) for each in found)
            assert_near(got, expected, 1e-5, (name, devices, kind, order[:8]))


# Default indices and positions


def as_written(name, mask=Mask(causal=True), **how):
    """Indices and positions are the default ones, unless they are given."""

    def run(q, k, v, params, scale, sink, valid=None, at=None):
        given = dataclasses.replace(mask, k_valid=valid, q_index=at, k_index=at)
        options = {"encoding": ENCODINGS[name], "params": params, "scale": scale, "sink": sink}
        return attend(q, k, v, mask=given, q_pos=at, k_pos=at, **options, **how)

    return run


def compare(name, devices, mask, inputs, *data):
    """Ring and dense attention as written; returns the results of both."""
    ring = ring_of(devices, as_written(name, mask, implementation=TILE, axis_name="tokens"), (*inputs, *data))
    dense = as_written(name, mask, implementation="dense")
    run = lambda *x: [matrix.with_gradients(f, inputs=6)(*x) for f in (ring, dense)]
    got, expected = compiled(run, *inputs, *data)
    assert_near(got, expected, 1e-5, (name, devices, mask))
    return got, expected


DEFAULT = [(name, d) for name in SPREAD for d in (2, 8) if not ENCODINGS[name].has("context")]


@pytest.mark.parametrize(("name", "devices"), slow_except(DEFAULT, ("rope-dynamic", 8)))
def test_a_window_and_default_positions_go_on_from_device_to_device(name, devices):
    """diffusers#14265: the backward pass took the keys and values of the first round in every round, without an error.

    ring-flash-attention#67: the loss of 8 devices was not that of 4. prime-rl#2828: with the sequence over devices the window
    was ignored. Each block of keys is of another direction and size: no block could stand for another.
    """
    q, k, v, *rest = drawn(name)
    block = np.arange(LENGTH) // (LENGTH // 8)
    v = v * (1.5**block)[None, :, None, None].astype(np.float32)
    k = k + np.eye(8, dtype=np.float32)[block][None, :, None, :]
    got, expected = compare(name, devices, Mask(causal=True, window=(29, 0)), (q, k, v, *rest))
    for key, i in itertools.product("kv", range(8)):
        mine, its = got[key][:, block == i], expected[key][:, block == i]
        assert np.abs(its).max() > 1e-3, "a gradient that is nothing would prove nothing"
        np.testing.assert_allclose(mine, its, atol=2e-5 * np.abs(its).max(), err_msg=f"{key} of block {i}")


CONTENT = [(name, d) for name in ("fox", "cable", "repo", "selective_rope") for d in (2, 4, 8)]


@pytest.mark.parametrize(("name", "devices"), slow_except(CONTENT, ("fox", 4)))
def test_positions_computed_from_content_go_on_from_device_to_device(name, devices):
    """With gradients through them to the tokens and to what is learned. The first keys behind padding are on another device."""
    encoding, (q, k, v, params, *_) = ENCODINGS[name], drawn(name)
    x = np.random.default_rng(3).normal(size=(B, LENGTH, N * H)).astype(np.float32)
    index, ragged = np.arange(LENGTH, dtype=np.int32), np.arange(LENGTH) >= np.array([[17], [0]])

    def attention(way, axis_name=None):
        def run(q, k, v, x, params, index, valid):
            pos = context_positions(encoding, params, x, index, SIZES, axis_name=axis_name)
            options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos, "axis_name": axis_name}
            return attend(q, k, v, mask=Mask(True, (9, 0), k_valid=valid, first=3), implementation=way, **options)

        return run

    inputs, data = (q, k, v, x, params), (index, ragged)
    ring = ring_of(devices, attention(TILE, "tokens"), (*inputs, *data))
    run = lambda *x: [matrix.with_gradients(f)(*x) for f in (ring, attention("dense"))]
    got, expected = compiled(run, *inputs, *data)
    assert_near(got, expected, 1e-5, (name, devices))


# What is sent and computed


@pytest.mark.parametrize("devices", slow_except((2, 4), 4))
def test_keys_and_values_are_sent_once_in_each_of_p_minus_1_rounds(devices):
    """Of T5's bias under a causal mask, in the compiled program."""
    shape = lambda heads: jax.ShapeDtypeStruct((1, LENGTH, heads, 16), jnp.float32)
    options = {"mask": Mask(causal=True), "axis_name": "tokens", "implementation": Tiling(64, 64)}
    run = lambda params, *qkv: attend(*qkv, encoding=aj.T5Bias(), params=params, **options)
    given = {"table": jax.ShapeDtypeStruct((4, 32), jnp.float32)}, shape(4), shape(2), shape(2)
    text = jax.jit(ring_of(devices, run, given)).lower(*given).compile().as_text()
    assert len(re.findall(r"= \(?f32\S* .*collective-permute(?:-start)?\(", text)) == 2
    trips = re.findall(r'"known_trip_count":\{"n":"(\d+)"\}', text)
    # Of two devices the one round is no loop any more.
    assert trips.count(str(devices - 1)) == (devices > 2)
    assert not re.findall(r" (?:all-gather|all-to-all|reduce-scatter|all-reduce)(?:-start)?\(", text)


@pytest.mark.parametrize("backward", slow_except((False, True), False))
@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_a_block_of_keys_that_no_query_sees_is_sent_on_without_a_product(order, backward):
    """Of P contiguous blocks device d computes those of d + 1 devices, in zigzag order all as many; backward each once more."""
    devices, block, witness = 4, 6, matrix.witness()
    at = zigzag(LENGTH, devices) if order == "zigzag" else np.arange(LENGTH)
    x, where = jnp.ones((1, LENGTH, 1, 2)), at.astype(np.int32)

    def run(x, where):
        given = {"mask": Mask(True, q_index=where, k_index=where), "q_pos": where, "k_pos": where}
        return attend(x, x, x, encoding=witness, axis_name="tokens", implementation=Tiling(block, block), **given)

    ring = ring_of(devices, run, (x, where))
    loss = lambda *given: ring(*given).sum()
    jax.block_until_ready(jax.jit(jax.grad(loss) if backward else loss)(x, where))
    jax.effects_barrier()
    blocks = [(i // block, j // block) for i, j in witness.seen]
    visible = [(i, j) for i in range(2 * devices) for j in range(i + 1)]
    assert sorted(blocks) == sorted(visible * (2 if backward else 1))
    of_device = {int(at[i]) // block: i // (2 * block) for i in range(0, LENGTH, block)}
    each = [sum(of_device[i] == d for i, _ in blocks) for d in range(devices)]
    assert each == [(2 if backward else 1) * n for n in ([9] * 4 if order == "zigzag" else [3, 7, 11, 15])]


# Refusals

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 8, 2, 4)


def refused(function=attend, x=X, **options):
    """A call on four devices, which is traced and no more."""
    ring = lambda q, k, v: function(q, k, v, **{"axis_name": "tokens"} | options)
    spread = jax.shard_map(ring, mesh=mesh_of(4), in_specs=(P(None, "tokens"),) * 3, out_specs=P(None, "tokens"))
    return jax.eval_shape(spread, x, x, x)


IDS = np.array([0, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: attend(X, X, X, axis_name="tokens"), ValueError, "'tokens' is no axis of a mesh.*jax.shard_map"),
        (lambda: refused(axis_name=("tokens",)), ValueError, r"one axis of a mesh, got \('tokens',\)"),
        (lambda: refused(implementation="dense"), NotImplementedError, "'dense' .*'tokens'.*these can: chunked"),
        (lambda: refused(mask=Mask(allowed=np.ones((2, 2), bool))), ValueError, "mask.allowed .*axis_name"),
        (lambda: refused(mask=Mask(q_segments=IDS, k_segments=IDS)), ValueError, "document.*pass q_pos and k_pos"),
        (lambda: refused(encoding=aj.StickBreaking()), NotImplementedError, "StickBreaking.*'tokens'|'tokens'.*StickBreaking"),
        (lambda: attend(X[:, :1], cache=aj.KVCache.create(1, 4, 2, 4), axis_name="tokens"), ValueError, "cache .*axis_name"),
        # EasyContext#10 and #57: a length that is no multiple of the devices hung, or failed in the backward pass.
        (lambda: refused(x=X[:, :7]), ValueError, "not evenly divisible"),
        (lambda: zigzag(12, 4), ValueError, "multiple of 2 [*] devices = 8, got 12"),
    ],
)  # fmt: skip
def test_what_cannot_be_spread_is_refused_in_a_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call()


# Bugs of other rings


@pytest.mark.slow
@pytest.mark.parametrize("in_zigzag", [False, True])
def test_a_length_that_devices_do_not_divide_is_padded_with_keys_that_nobody_sees(in_zigzag):
    """EasyContext#10 and #47: padding to a multiple changes neither outputs nor gradients, and has none of its own."""
    devices, length, (q, k, v, *rest) = 4, 43, drawn("rope")
    order = zigzag(LENGTH, devices) if in_zigzag else np.arange(LENGTH)
    data, back = (np.broadcast_to(order < length, (B, LENGTH)), order.astype(np.int32)), np.argsort(order)[:length]
    padded = (*(x[:, order] for x in (q, k, v)), *rest)
    ring = ring_of(devices, as_written("rope", implementation=TILE, axis_name="tokens"), (*padded, *data))
    got = compiled(matrix.with_gradients(lambda *x: ring(*x)[:, back], inputs=6), *padded, *data)
    cut = (*(x[:, :length] for x in (q, k, v)), *rest)
    expected = compiled(matrix.with_gradients(as_written("rope", implementation="dense"), inputs=6), *cut)
    for name in ("q", "k", "v"):
        assert not got[name][:, order >= length].any(), f"padding has a gradient: {name}"
        got[name] = got[name][:, back]
    assert_near(got, expected, 1e-5, "padded")


@pytest.mark.slow
def test_in_sixteen_bits_errors_do_not_grow_with_the_ring():
    """ring-flash-attention#42: outputs of blocks in 16 bits made the gradients of 8 devices useless."""
    inputs = drawn("rope")
    short = (*(jnp.asarray(x, jnp.bfloat16) for x in inputs[:3]), *inputs[3:])
    long = (*(x.astype(jnp.float32) for x in short[:3]), *inputs[3:])
    run = lambda function, given: compiled(matrix.with_gradients(function, inputs=6), *given)
    exact, ring = run(as_written("rope"), long), as_written("rope", implementation=TILE, axis_name="tokens")
    one, eight = (run(ring_of(devices, ring, short), short) for devices in (1, 8))
    assert eight["out"].dtype == jnp.bfloat16
    error = lambda got, name: np.square(np.asarray(got[name], np.float32) - exact[name]).mean()
    for name in ("out", "q", "k", "v"):
        assert error(eight, name) <= 1.3 * error(one, name), name
