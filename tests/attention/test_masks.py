"""Who sees whom: every rule of `Mask` against loops over pairs, rows that see nothing, and entries that must not be seen.

With q = k = 0 and v the unit vectors, the output of attention is the mask itself, each row divided by its sum.
"""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax
from attnjax import Mask, NoPE, Sizes, T5Bias, Tiling, attention_fn, attention_weights, explain
from attnjax.attention import masks
from tests.attention.matrix import compiled

B, T, S = 2, 7, 11
WAYS = {"dense": "dense", "tiles": Tiling(3, 4), "xla": "xla"}
IMPLEMENTATIONS = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)

random = np.random.default_rng(0)
RAGGED = np.array([[0, 0, 1, 1, 1, 2, 2], [0, 3, 3, 3, 4, 4, 4]]), random.integers(0, 5, (B, S))
HERE = np.arange(T)
"""Indices of queries, which are said where there are more keys."""
CASES = {
    "nothing": Mask(),
    "causal": Mask(causal=True, q_index=HERE),
    "window int": Mask(window=2, q_index=HERE),
    "window 0": Mask(window=0, q_index=HERE),
    "window left": Mask(window=(3, 0), q_index=HERE),
    "window right": Mask(window=(0, 2), q_index=HERE),
    "window open to the left": Mask(window=(None, 1), q_index=HERE),
    "window open to the right": Mask(window=(2, None), q_index=HERE),
    "causal cuts the window": Mask(causal=True, window=(4, 3), q_index=HERE),
    "segments": Mask(q_segments=RAGGED[0], k_segments=RAGGED[1]),
    "segments of all examples": Mask(q_segments=RAGGED[0][0], k_segments=np.arange(S) // 3),
    "segments of keys only by example": Mask(q_segments=RAGGED[0][0], k_segments=RAGGED[1]),
    "valid": Mask(k_valid=random.random((B, S)) < 0.6),
    "valid for all examples": Mask(causal=True, k_valid=random.random(S) < 0.6, q_index=HERE),
    "allowed": Mask(allowed=random.random((B, T, S)) < 0.5),
    "allowed for all examples": Mask(window=4, allowed=random.random((T, S)) < 0.7, q_index=HERE),
    "queries of a later chunk": Mask(causal=True, window=5, q_index=np.arange(T) + 4),
    "queries at the end of each example": Mask(causal=True, q_index=np.arange(T) + np.array([[4], [1]])),
    "keys of a later chunk": Mask(window=(3, 1), k_index=np.arange(S) - 5, q_index=HERE),
    "a ring": Mask(causal=True, window=4, q_index=np.arange(T) + 20, k_index=np.roll(np.arange(S) + 16, 3)),
    "first beside a window": Mask(causal=True, window=(2, 0), first=3, q_index=HERE),
    "first without a window": Mask(causal=True, first=3, q_index=HERE),
    "first in a window to both sides": Mask(window=(1, 1), first=2, q_index=HERE),
    "first behind padding": Mask(True, 1, k_valid=np.arange(S) >= np.array([[3], [1]]), first=2, q_index=HERE),
    "first behind padding of all examples": Mask(window=(1, 2), k_valid=np.arange(S) >= 2, first=1, q_index=HERE),
    "first where no key is valid": Mask(window=1, k_valid=np.arange(S) >= [[S], [0]], first=2, q_index=HERE),
    "first by given indices": Mask(True, (2, 0), q_index=np.arange(T) + 6, k_index=np.arange(S) - 1, first=3),
    "everything": Mask(
        True,
        (5, 1),
        RAGGED[0],
        RAGGED[1] // 2,
        random.random(S) < 0.8,
        np.arange(T) + 3,
        None,
        random.random((T, S)) < 0.8,
    ),
}


def by_loops(mask, T=T, S=S) -> np.ndarray:
    """[B, T, S], pair by pair, as the documentation of `Mask` reads."""
    of = lambda array, b, i: array[b][i] if np.ndim(array) == 2 else array[i]
    left, right = mask.window if isinstance(mask.window, tuple) else (mask.window, mask.window)
    seen = np.zeros((B, T, S), bool)
    for b, t, s in itertools.product(range(B), range(T), range(S)):
        i = t if mask.q_index is None else of(mask.q_index, b, t)
        j = s if mask.k_index is None else of(mask.k_index, b, s)
        counted = mask.k_index is None and mask.k_valid is not None
        start = min((k for k in range(S) if counted and of(mask.k_valid, b, k)), default=0)
        rules = [
            not mask.causal or j <= i,
            left is None or i - left <= j or (mask.first > 0 and j < start + mask.first),
            right is None or j <= i + right,
            mask.q_segments is None or of(mask.q_segments, b, t) == of(mask.k_segments, b, s),
            mask.k_valid is None or of(mask.k_valid, b, s),
            mask.allowed is None or (mask.allowed[b] if mask.allowed.ndim == 3 else mask.allowed)[t, s],
        ]
        seen[b, t, s] = all(rules)
    return seen


def seen_through(mask, way, T=T, S=S):
    zeros = jnp.zeros((B, T, 1, S))
    v = jnp.broadcast_to(jnp.eye(S)[None, :, None], (B, S, 1, S))
    return attnjax.attend(zeros, jnp.zeros_like(v), v, mask=mask, implementation=way)[:, :, 0]


@IMPLEMENTATIONS
def test_every_rule_pair_by_pair(way):
    found = compiled(lambda: {name: seen_through(mask, way) for name, mask in CASES.items()})
    for name, weights in found.items():
        seen = by_loops(CASES[name])
        expected = seen / np.maximum(seen.sum(-1, keepdims=True), 1)
        np.testing.assert_array_equal(weights > 0, seen, err_msg=name)
        np.testing.assert_allclose(weights, expected, rtol=1e-6, err_msg=name)


def test_some_case_leaves_rows_empty_and_some_does_not():
    empty = {name for name, mask in CASES.items() if not by_loops(mask).any(-1).all()}
    assert {"segments", "everything"} <= empty
    assert {"nothing", "causal"}.isdisjoint(empty)


@pytest.mark.parametrize("rule", [{"window": 2**31}, {"window": (0, 2**40)}, {"window": 3, "first": 2**31}], ids=str)
def test_a_rule_that_int32_cannot_hold_is_refused(rule):
    with pytest.raises(ValueError, match=r"window and first must be at most 2147483647"):
        Mask(**rule)


ENDS = np.array([-(2**31), -(2**31) + 3, -5, 0, 7, 2**31 - 4, 2**31 - 1], np.int32)


@IMPLEMENTATIONS
def test_indices_at_both_ends_of_int32(way):
    """The difference of -5 and 2^31 - 1 wrapped around, so that a causal mask showed the future."""
    x, lefts = jnp.zeros((1, 7, 1, 7)), {None: 2**40, 3: 3, 2**31 - 1: 2**31 - 1}

    def run():
        mask = lambda left: Mask(causal=True, window=None if left is None else (left, left), q_index=ENDS, k_index=ENDS)
        v = jnp.eye(7)[None, :, None]
        return {left or -1: attnjax.attend(x, x, v, mask=mask(left), implementation=way) for left in lefts}

    found = compiled(run)
    ahead = ENDS.astype(np.int64)[None, :] - ENDS.astype(np.int64)[:, None]
    for left, reach in lefts.items():
        np.testing.assert_array_equal(found[left or -1][0, :, 0] > 0, (ahead <= 0) & (ahead >= -reach))


def test_the_pictures_in_the_documentation():
    """Four tables of 0 and 1 stand side by side there, and one alone; each is what its mask does."""
    table = r"((?:[01] ){5}[01])"
    rows = re.findall(rf"^    {table}   +{table}   +{table}   +{table}$", masks.__doc__, re.M)
    numbers = lambda row: [int(x) for x in row.split()]
    pictures = np.array([[numbers(row) for row in line] for line in rows]).swapaxes(0, 1)
    alone = np.array([numbers(row) for row in re.findall(rf"^    {table}$", masks.__doc__, re.M)])
    ids = np.array([0, 0, 0, 1, 1, 1])
    drawn = (
        Mask(causal=True),
        Mask(window=(2, 0)),
        Mask(q_segments=ids, k_segments=ids),
        Mask(causal=True, window=(2, 0), q_segments=ids, k_segments=ids),
        Mask(causal=True, window=(1, 0), k_valid=np.arange(6) > 0, first=2),
    )
    for picture, mask in zip((*pictures, alone), drawn, strict=True):
        np.testing.assert_array_equal(by_loops(mask, 6, 6)[0], picture)


def test_the_first_keys_behind_padding_that_is_traced():
    valid = np.arange(S) >= np.array([[3], [1]])
    mask = lambda valid: Mask(causal=True, window=1, k_valid=valid, first=2, q_index=HERE)
    weights = compiled(lambda valid: seen_through(mask(valid), WAYS["tiles"]), valid)
    np.testing.assert_array_equal(weights > 0, by_loops(mask(valid)))


def test_index_of_the_first_valid_key():
    """By example; 0 where no key is valid, so that the indices stay in range."""
    valid = np.array([[0, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool).reshape(3, 1, 1, 4)
    found = masks.from_first_valid(np.arange(5, 9, dtype=np.int32).reshape(1, 1, 1, 4), valid, None)
    assert found.ravel().tolist() == [7, 5, 0]


@IMPLEMENTATIONS
def test_chunks_of_queries_equal_the_whole(way):
    """A row does not depend on the rows beside it, only on its index."""
    normal = np.random.default_rng(1).normal
    q, k, v = (jnp.asarray(normal(size=(B, 12, 2, 4)), "float32") for _ in range(3))
    run = lambda q, index: attnjax.attend(q, k, v, mask=Mask(True, 5, q_index=index), implementation=way)

    def both(q):
        parts = [run(q[:, at : at + 3], np.arange(at, at + 3)) for at in (0, 3, 6, 9)]
        return jnp.concatenate(parts, 1), run(q, np.arange(12))

    np.testing.assert_allclose(*compiled(both, q), rtol=1e-6, atol=1e-6)


def content(dtype, seed=2):
    normal = np.random.default_rng(seed).normal
    return tuple(jnp.asarray(normal(size=(B, n, heads, 4)), dtype) for n, heads in ((T, 2), (S, 1), (S, 1)))


EMPTY = Mask(
    causal=True,
    q_index=np.array([-1, 0, 1, 2, 3, 4, 5]),
    q_segments=np.array([0, 0, 0, 9, 0, 0, 0]),
    k_segments=np.zeros(S, int),
    k_valid=np.array([[True] * S, [False] * S]),
)
"""Row 0 comes before all keys, row 3 is alone in its segment, and all keys of the second example are padding."""


@pytest.mark.parametrize(("way", "dtype"), [("dense", "float32"), (Tiling(3, 4), "bfloat16"), ("xla", "float16")])
def test_rows_that_see_nothing_are_zero_and_pass_no_gradient(way, dtype):
    encoding = T5Bias(bidirectional=True)
    params = encoding.init(jax.random.key(0), Sizes(8, 2, 1, 4))

    def loss(q, k, v, params):
        options = {"encoding": encoding, "params": params, "implementation": way}
        out = attnjax.attend(q, k, v, mask=EMPTY, **options)
        # A loss whose slope at 0 is not 0, so that a wrong gradient cannot hide.
        return (3.0 * out + out**2).astype(jnp.float32).sum(), out

    gradients = jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)
    # JAX cannot lower the gradient of its own kernel in 16 bits while promotion of types is strict.
    with jax.numpy_dtype_promotion("standard" if way == "xla" else "strict"):
        (_, out), (*gradients, learned) = compiled(gradients, *content(dtype), params)
    empty = ~by_loops(EMPTY).any(-1)
    assert empty.tolist() == [[True, False, False, True, False, False, False], [True] * T]
    out, dq, dk, dv, table = (np.asarray(x, np.float64) for x in (out, *gradients, learned["table"]))
    assert all(np.isfinite(x).all() and x.any() for x in (out, dq, dk, dv, table))
    assert not any(x.any() for x in (out[empty], dq[empty], dk[1], dv[1]))


@IMPLEMENTATIONS
def test_what_is_hidden_has_no_effect(way):
    """Whatever keys that are not valid hold, and however large those of the future are, the output and all gradients are the
    same to the last bit, and their own gradients are 0."""
    table, mask = np.ones((2, 32), np.float32), Mask(causal=True, k_valid=np.arange(S) != 2, q_index=HERE)
    future, padding = np.arange(S)[None, :, None, None] >= T, np.arange(S)[None, :, None, None] == 2

    def loss(table, q, k, v):
        options = {"encoding": T5Bias(), "params": {"table": table}, "mask": mask, "implementation": way}
        out = attnjax.attend(q, k, v, **options)
        return jnp.sin(out).sum(), out

    def run(q, k, v, hidden):
        gradients = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)
        spoilt = lambda x, of: jnp.where(padding, of[0], jnp.where(future, of[1], x))
        return jax.lax.map(lambda of: gradients(table, q, spoilt(k, of), spoilt(v, of)), hidden)

    hidden = np.float32([[0, 0], [np.nan, 1], [np.inf, 1e37], [-np.inf, -1e37]])
    for leaf in jax.tree.leaves(compiled(run, *content("float32"), hidden)):
        assert np.isfinite(leaf).all()
        for other in leaf[1:]:
            np.testing.assert_array_equal(other, leaf[0])


@pytest.mark.parametrize("wrong", [jnp.ones((4, 4), bool), True, None])
def test_what_is_no_mask_is_told_what_to_write(wrong):
    """`jax.nn.dot_product_attention` and Flax take arrays; here they are `Mask(allowed=array)`."""
    q = jnp.ones((1, 4, 2, 8))
    calls = [
        lambda: attnjax.attend(q, q, q, mask=wrong),
        lambda: attention_weights(q, q, mask=wrong),
        lambda: explain(q, q, q, mask=wrong),
        lambda: attention_fn(NoPE(), mask=wrong),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"must be a Mask such as Mask\(causal=True\).*Mask\(allowed=array\)"):
            call()
