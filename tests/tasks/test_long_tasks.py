"""MQAR, word problems and PosGen against sequences by the authors' code.

`golden/README.md` says how `long.npz` was made.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.tasks import MQAR, PosGen, WordProblem
from attnjax.tasks.recall import arrange
from tests import golden_arrays
from tests.tasks import cases

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def golden():
    return golden_arrays.load("long")


def sampled(task, length, count=20):
    """Examples of one length, as NumPy arrays."""
    sample = cases.compiled(lambda key: task.sample(key, jnp.full(count, length), length))
    return jax.tree.map(np.asarray, sample(KEY))


@pytest.mark.parametrize("filler", ["inputs", "noisy"])
def test_mqar_is_arranged_as_by_its_authors(golden, filler):
    expected, arranged = golden[f"mqar_{filler}"], cases.compiled(arrange)
    for i, (inputs, labels) in enumerate(zip(expected, golden["mqar_labels"], strict=True)):
        # Theirs replaces zeros by noise, so that what stands there is the noise; -100 marks what does not count.
        noise = jnp.asarray(inputs if filler == "noisy" else 0 * inputs, jnp.int32)
        drawn = (jnp.asarray(golden[f"mqar_{name}"][i], jnp.int32) for name in ("keys", "values", "gaps"))
        ours = arranged(*drawn, noise)
        np.testing.assert_array_equal(ours[0], inputs)
        np.testing.assert_array_equal(ours[1], np.where(labels == -100, 0, labels))


def test_mqar_gaps_are_distributed_as_those_of_its_authors(golden):
    """20,000 sequences of each; a gap is used or not, so its count varies no more than a binomial one."""
    count = int(golden["mqar_counts"].sum()) // 4
    made = sampled(MQAR(vocab=64, pairs=4, power=0.3, filler="zero"), 32, count)
    ours = np.bincount((np.nonzero(made.weight)[1] - 8) // 2, minlength=12)
    share = golden["mqar_counts"] / count
    assert share[0] > 1.7 * share[-1]
    assert (np.abs(ours - golden["mqar_counts"]) < 5 * np.sqrt(2 * count * share * (1 - share))).all()


def test_mqar_gaps_have_the_power_law_of_the_length_and_not_of_the_batch():
    """Keys are drawn in turn: the first has gap g with p_g ~ (g + 1)^(a - 1), the second one of those left."""
    count, length, pairs, power = 20_000, 16, 2, 0.5
    task = MQAR(vocab=64, pairs=pairs, power=power, filler="zero")
    made = cases.compiled(lambda n: task.sample(KEY, n, 24))(np.full(count, length, np.int32))
    x = np.asarray(made.inputs)
    assert not x[:, length:].any()
    p = np.arange(1, 7) ** (power - 1)
    p /= p.sum()
    second = [sum(p[i] * p[g] / (1 - p[i]) for i in range(6) if i != g) for g in range(6)]
    for key, expected in zip(x[:, 0 : 2 * pairs : 2].T, (p, np.array(second)), strict=True):
        gaps = (x[:, 2 * pairs : length : 2] == key[:, None]).argmax(1)
        found = np.bincount(gaps, minlength=6) / count
        assert (np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / count)).all()


@pytest.mark.parametrize("group", ["A5", "S5"])
def test_products_are_those_of_the_authors(golden, group):
    """Theirs permute 1 .. 5, and are listed in the same order."""
    task = WordProblem(group)
    assert len(task.elements) == {"A5": 60, "S5": 120}[group]
    np.testing.assert_array_equal(task.elements, golden[f"{group}_elements"] - 1)
    words, products = golden[f"{group}_words"], golden[f"{group}_products"]
    found = words[:, :1]
    for x in words.T[1:]:
        found = np.concatenate([found, task.table[found[:, -1], x][:, None]], axis=1)
    np.testing.assert_array_equal(found, products)
    np.testing.assert_array_equal(task.table[0], np.arange(len(task.elements)))


@pytest.mark.parametrize("rule", ["recurrent", "cot", "semi_recurrent"])
def test_posgen_goes_on_as_by_its_authors(golden, rule):
    expected = golden[f"posgen_{rule}"]
    task = PosGen(rule, modulus=17, near=3, far=2)
    found = cases.compiled(lambda x: task.extend(x, 40))(np.asarray(expected[:5], np.int32))
    np.testing.assert_array_equal(found, expected)
