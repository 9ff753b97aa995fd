"""A gradient that is not finite under a finite loss ends its run at that step, and no other."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.train import checkpoint, train
from attnjax.train.step import Trainer
from tests.cases import slow_except

BIG, FAST = 3.0, 40.0


"""Parameters of the tiny run stay below the one; one step at the other rate, of a quarter in the warm-up, passes it."""


def poison(bad):
    """Adds 0 to a loss, and `bad` to its gradient wherever a parameter is beyond any that training reaches."""

    @jax.custom_vjp
    def term(x):
        return jnp.zeros((), jnp.float32)

    def forward(x):
        return term(x), x

    def backward(x, cotangent):
        return (jnp.where(jnp.abs(x) > BIG, jnp.asarray(bad, x.dtype), jnp.zeros((), x.dtype)),)

    term.defvjp(forward, backward)
    return term


@pytest.fixture
def poisoned(monkeypatch):
    """Makes training with such a loss."""

    def install(bad):
        term, real = poison(bad), Trainer._shares

        def shares(self, params, *arguments):
            value, accuracy = real(self, params, *arguments)
            return value + sum(term(leaf) for leaf in jax.tree.leaves(params)), accuracy

        monkeypatch.setattr(Trainer, "_shares", shares)

    return install


@pytest.mark.parametrize(
    ("bad", "said", "clip"),
    slow_except([(np.inf, "inf", 1.0), (np.nan, "nan", None), (3e38, "inf", 1.0)], (np.inf, "inf", 1.0)),
)
def test_a_gradient_that_is_not_finite_ends_its_run_at_that_step(tiny, recorder, folders, poisoned, bad, said, clip):
    poisoned(bad)
    wild = dataclasses.replace(tiny, train=dataclasses.replace(tiny.train, learning_rate=FAST, clip=clip))
    context, (folder,) = recorder(), folders("alone", 1)
    train([wild], [folder], context)
    step, reason = context.failed["0"]
    assert (step, reason) == (2, f"nan at step 2: the norm of the gradient was {said}")
    assert not context.found["0"]
    assert checkpoint.steps(folder / "checkpoints") == []


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.inf, 3e38])
def test_the_other_member_of_its_population_goes_on_unharmed(tiny, recorder, folders, poisoned, bad):
    """Bit by bit as beside a member whose gradients stay finite: the same program, other numbers."""
    poisoned(bad)
    faster = lambda rate: dataclasses.replace(tiny, train=dataclasses.replace(tiny.train, learning_rate=rate))
    found = {}
    for rate in (2e-3, FAST):
        context, parts = recorder(), folders(f"rate{rate}")
        train([tiny, faster(rate)], parts, context)
        assert ("1" in context.failed) == (rate == FAST)
        assert "0" not in context.failed
        found[rate] = context.logs["0"], context.found["0"], context.notes["0"]
    assert context.failed["1"] == (2, "nan at step 2: the norm of the gradient was inf")
    assert found[2e-3] == found[FAST]
