"""What went wrong in other rings, each with its thread on GitHub; `python -m tests.planted` plants the same bugs here."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import Mask, Tiling, attend
from attnjax.config.mesh import MeshShape
from attnjax.positions.indices import zigzag
from attnjax.tasks.forms import Sequences
from attnjax.train.mesh import make_mesh, tokens_of_all, tokens_of_device
from tests.attention.matrix import ENCODINGS, assert_near
from tests.attention.test_ring import LENGTH, TILE, as_written, found, inputs_of, ring_of, with_gradients
from tests.cases import FAST, slow_except

P = jax.sharding.PartitionSpec


def on_a_ring(devices, arrays, mask, name="rope", *data):
    """Output and gradients with the tokens over so many devices, which may be one."""
    run = as_written(name, mask, implementation=TILE, axis_name="sequence")
    return found(with_gradients(ring_of(devices, run, (arrays, *data))), arrays, *data)


def on_one_device(arrays, mask, name="rope", *data):
    return found(with_gradients(as_written(name, mask, implementation="dense")), arrays, *data)


@pytest.mark.parametrize("causal", slow_except((True, False), False))
def test_gradients_of_distant_blocks_are_of_their_own_keys_and_values(causal):
    """diffusers#14265: the backward pass took the keys and values of the first round in every round, without an error."""
    q, k, v, *rest = inputs_of("rope")
    # Each block in another direction, and of another size: no block could stand for another.
    block = np.arange(LENGTH) // (LENGTH // 8)
    v = v * (1.5**block)[None, :, None, None].astype(np.float32)
    k = k + np.eye(8, dtype=np.float32)[block][None, :, None, :]
    arrays, mask = (q, k, v, *rest), Mask(causal=causal)
    got, expected = on_a_ring(8, arrays, mask), on_one_device(arrays, mask)
    for name in ("k", "v"):
        for i in range(8):
            mine, its = got[name][:, block == i], expected[name][:, block == i]
            assert np.abs(its).max() > 1e-3, "a gradient that is nothing would prove nothing"
            np.testing.assert_allclose(mine, its, atol=1e-5 * np.abs(its).max(), err_msg=f"{name} of device {i}")


def test_a_length_that_devices_do_not_divide_is_refused_by_the_map():
    """EasyContext#10 and #57: a length that is no multiple of the devices hung, or failed in the backward pass."""
    x = np.ones((1, 13, 2, 4), np.float32)
    mesh = jax.make_mesh((4,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
    ring = functools.partial(attend, axis_name="sequence")
    spread = jax.shard_map(ring, mesh=mesh, in_specs=(P(None, "sequence"),) * 3, out_specs=P(None, "sequence"))
    with pytest.raises(ValueError, match="sizes that are not evenly divisible by the corresponding mesh axis sizes"):
        jax.eval_shape(spread, x, x, x)


@pytest.mark.slow
def test_a_length_that_devices_do_not_divide_is_padded_with_keys_that_nobody_sees():
    """EasyContext#10: padding to a multiple changes neither outputs nor gradients, and has none of its own."""
    length, arrays = 43, inputs_of("t5")
    valid = np.broadcast_to(np.arange(LENGTH) < length, (2, LENGTH))
    cut = (*(x[:, :length] for x in arrays[:3]), *arrays[3:])
    padded = as_written("t5", Mask(causal=False), implementation=TILE, axis_name="sequence")

    def first(run):
        return lambda arrays, *data: run(arrays, *data)[:, :length]

    got = found(with_gradients(first(ring_of(4, padded, (arrays, None, valid)))), arrays, None, valid)
    expected = on_one_device(cut, Mask(causal=False), "t5")
    for name in ("q", "k", "v"):
        assert not got[name][:, length:].any(), f"padding has a gradient: {name}"
        got[name] = got[name][:, :length]
    assert_near(got, expected, 1e-5, "padded")


@pytest.mark.slow
def test_a_padded_length_in_zigzag_order_has_the_gradients_of_the_length_itself():
    """EasyContext#47: in zigzag order the backward pass of a length that devices do not divide failed."""
    devices, length, (q, k, v, *rest) = 4, 43, inputs_of("rope")
    order = zigzag(LENGTH, devices)
    valid, where = np.broadcast_to(order < length, (2, LENGTH)), order.astype(np.int32)

    def run(arrays, where, valid):
        q, k, v, params, scale, sink = arrays
        mask = Mask(True, k_valid=valid, q_index=where, k_index=where)
        options = {"encoding": ENCODINGS["rope"], "params": params, "q_pos": where, "k_pos": where, "mask": mask}
        return attend(q, k, v, scale=scale, sink=sink, implementation=TILE, axis_name="sequence", **options)

    back = np.argsort(order)[:length]
    given = ((*(x[:, order] for x in (q, k, v)), *rest), where, valid)
    ring = ring_of(devices, run, given)
    got = found(with_gradients(lambda *given: ring(*given)[:, back]), *given)
    expected = on_one_device((*(x[:, :length] for x in (q, k, v)), *rest), Mask(causal=True))
    for name in ("q", "k", "v"):
        assert not got[name][:, order >= length].any(), f"padding has a gradient: {name}"
        got[name] = got[name][:, back]
    assert_near(got, expected, 1e-5, "padded, in zigzag order")


@pytest.mark.parametrize("in_zigzag", [False, True])
@pytest.mark.parametrize("size", [13, 16, 17])
def test_every_token_of_a_batch_is_on_one_device(size, in_zigzag):
    """EasyContext#10, in training: padding is added, not valid and no target; no token is cut off."""
    mesh = make_mesh(MeshShape(sequence=4))
    rows = jnp.arange(2 * size, dtype=jnp.int32).reshape(2, size)
    real, end = jnp.ones((2, size), bool), jnp.full(2, size, jnp.int32)
    batch = Sequences(
        tokens=rows, positions=rows, valid=real, targets=rows, mask=real, answer=0 * end, answer_length=end
    )

    def each(batch):
        own = tokens_of_device(batch, mesh, zigzag=in_zigzag)
        count = jax.lax.psum(jnp.stack([own.mask.sum(dtype=jnp.int32), own.valid.sum(dtype=jnp.int32)]), "sequence")
        return tokens_of_all(own.tokens, size, mesh, zigzag=in_zigzag), count

    spread = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=P(), out_specs=P()), compiler_options=FAST)
    tokens, counts = spread(batch)
    np.testing.assert_array_equal(tokens, rows)
    assert counts.tolist() == [2 * size, 2 * size]


@pytest.mark.parametrize("devices", slow_except((1, 2, 4, 8), 8))
def test_loss_and_gradients_do_not_depend_on_the_size_of_the_ring(devices):
    """ring-flash-attention#67: the loss of 8 devices was not that of 4."""
    arrays, mask = inputs_of("rope"), Mask(causal=True)
    assert_near(on_a_ring(devices, arrays, mask), on_one_device(arrays, mask), 1e-5, devices)


@pytest.mark.slow
def test_in_sixteen_bits_errors_do_not_grow_with_the_ring():
    """ring-flash-attention#42: outputs of blocks in 16 bits made the gradients of 8 devices useless."""
    arrays, mask = inputs_of("rope"), Mask(causal=True)
    short = (*(jnp.asarray(x, jnp.bfloat16) for x in arrays[:3]), *arrays[3:])
    exact = on_one_device((*(x.astype(jnp.float32) for x in short[:3]), *arrays[3:]), mask)
    error = lambda got, name: np.square(np.asarray(got[name], np.float32) - exact[name]).mean()
    one, eight = (on_a_ring(devices, short, mask) for devices in (1, 8))
    for name in ("out", "q", "k", "v"):
        assert error(eight, name) <= 1.3 * error(one, name), name


@pytest.mark.parametrize("name", slow_except(("rope", "alibi", "t5", "fire"), "rope"))
def test_a_window_holds_across_devices(name):
    """prime-rl#2828: with the sequence over devices the window was ignored, and all earlier tokens were attended to."""
    arrays, near, full = inputs_of(name), Mask(causal=True, window=(9, 0)), Mask(causal=True)
    got = on_a_ring(8, arrays, near, name)
    assert_near(got, on_one_device(arrays, near, name), 1e-5, name)
    assert np.abs(got["out"] - on_one_device(arrays, full, name)["out"])[:, 10:].max() > 1e-2


def test_tokens_outside_of_the_window_have_no_gradient():
    """prime-rl#2828: of the last query alone, keys that are 10 and more behind it are on six other devices."""
    arrays, mask = inputs_of("rope"), Mask(causal=True, window=(9, 0))
    run = ring_of(8, as_written("rope", mask, implementation=Tiling(4, 4), axis_name="sequence"), (arrays,))
    last = jax.jit(jax.grad(lambda arrays: run(arrays)[:, -1].sum()), compiler_options=FAST)
    for name, gradient in zip(("k", "v"), last(arrays)[1:3], strict=True):
        sizes = np.abs(np.asarray(gradient)).max((0, 2, 3))
        assert not sizes[: LENGTH - 10].any(), name
        assert sizes[LENGTH - 10 :].all(), name


def test_zigzag_gives_every_device_as_many_visible_pairs():
    order = zigzag(64, 4)
    assert sorted(order) == [*range(64)]
    assert len({int((part + 1).sum()) for part in order.reshape(4, -1)}) == 1
