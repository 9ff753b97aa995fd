"""Shape contracts of the functions behind the modules: a wrong shape stops at the first line, before it can broadcast."""

import jax
import jax.numpy as jnp
import pytest

from attnjax.modules import dropout, parameters, query_subset
from attnjax.modules.feed_forward import activate
from attnjax.modules.sampling import Sampling

X, INDICES = jnp.ones((2, 5, 4)), jnp.zeros((2, 3), int)
GREEDY = Sampling(vocab=4)
WRONG = {
    "vectors of rank 2": lambda: query_subset.gather_vectors(X[0], INDICES),
    "vectors of another batch": lambda: query_subset.gather_vectors(X[:1], INDICES),
    "numbers of rank 3": lambda: query_subset.gather_scalars(X, INDICES),
    "numbers of another batch": lambda: query_subset.gather_scalars(jnp.zeros((1, 5), int), INDICES),
    "a kernel of another width": lambda: parameters.linear(X, jnp.ones((5, 4))),
    "a kernel of rank 4": lambda: parameters.linear(X, jnp.ones((4, 2, 2, 2))),
    "a bias that would broadcast": lambda: parameters.add(X, parameters.zeros((1,), dtype="float32")),
    "a norm of integers": lambda: parameters.normalize(lambda x: x, INDICES),
    "dropout of integers": lambda: dropout.drop(INDICES, jax.random.key(0), 0.5),
    "an activation of integers": lambda: activate("relu", INDICES),
    "logits of another vocabulary": lambda: GREEDY.pick(jax.random.key(0), jnp.ones((2, 5))),
    "logits of several positions": lambda: GREEDY.pick(jax.random.key(0), X),
    "tokens of rank 2": lambda: GREEDY.ends(INDICES),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_wrong_shape_or_type_is_refused_at_once(call):
    with pytest.raises(AssertionError, match=r"(?i)assert|shape|rank|dtype|type"):
        call()


def test_contracts_hold_while_tracing():
    with pytest.raises(AssertionError, match="gather_vectors|shape|rank"):
        jax.eval_shape(query_subset.gather_vectors, X[:1], INDICES)
