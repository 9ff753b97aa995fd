"""A ring of one device is attention, whatever the encoding carries; what a ring does not have is refused in a sentence."""

import jax
import numpy as np
import pytest

from attnjax import Mask, StickBreaking, attend, attention_weights
from tests.attention.matrix import assert_near
from tests.attention.test_ring import IN_ORDER, inputs_of
from tests.attention.test_ring_failures import on_a_ring, on_one_device
from tests.cases import slow_except

P = jax.sharding.PartitionSpec
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 8, 2, 4)


def spread(function, *axes_of_result):
    """`function` of queries, keys and values, with the tokens over two devices."""
    mesh = jax.make_mesh((2,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(function, mesh=mesh, in_specs=(P(None, "sequence"),) * 3, out_specs=P(*axes_of_result))


@pytest.mark.parametrize("name", slow_except(sorted(IN_ORDER), "cope", "stick"))
def test_a_ring_of_one_device_serves_encodings_that_read_the_keys_in_order(name):
    """It makes no round, but JAX traces the body of a round, which stores the carry: output and all gradients."""
    arrays, mask = inputs_of(name), Mask(causal=True)
    assert_near(on_a_ring(1, arrays, mask, name), on_one_device(arrays, mask, name), 1e-5, name)


def test_weights_over_several_devices_are_refused():
    """Each device normalised over its own keys: its rows summed to 1, and were not the weights of `attend`."""
    run = spread(lambda q, k, v: attention_weights(q, k, axis_name="sequence"), None, None, "sequence")
    with pytest.raises(
        NotImplementedError, match=r"'dense' cannot serve NoPE\(\): the sequence is spread over the mesh"
    ):
        jax.eval_shape(run, X, X, X)


def test_weights_refuse_a_sink_where_attend_does():
    """A sink beside weights that are not normalized was left out without a word."""
    options = {"encoding": StickBreaking(), "mask": Mask(causal=True), "sink": np.ones(2, np.float32)}
    for function in (attend, attention_weights):
        with pytest.raises(
            ValueError, match="weights of this encoding are not normalized, so that a sink has no meaning"
        ):
            function(X, X, X, **options)
