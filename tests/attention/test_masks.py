"""Who sees whom: every rule of `Mask` against loops over pairs, rows that see nothing, entries that must not be seen, and which
tiles are left out.

With q = k = 0 and v the unit vectors, the output of attention is the mask itself, each row divided by its sum.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax
from attnjax import Mask, Sizes, T5Bias, Tiling
from tests.attention.matrix import compiled, witness
from tests.cases import slow_except

B, T, S = 2, 7, 11
WAYS = {"dense": "dense", "tiles": Tiling(3, 4)}
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
        *(True, (5, 1), RAGGED[0], RAGGED[1] // 2, random.random(S) < 0.8, np.arange(T) + 3, None),
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


@pytest.mark.parametrize(("way", "start", "step"), [("dense", 0, 2), (WAYS["tiles"], 0, 1)])
def test_every_rule_pair_by_pair(way, start, step):
    """All by tiles, which may leave some out; dense reads one table, and takes half of the cases."""
    names = [*CASES][start::step]
    found = compiled(lambda: {name: seen_through(CASES[name], way) for name in names})
    for name, weights in found.items():
        seen = by_loops(CASES[name])
        expected = seen / np.maximum(seen.sum(-1, keepdims=True), 1)
        np.testing.assert_array_equal(weights > 0, seen, err_msg=name)
        np.testing.assert_allclose(weights, expected, rtol=1e-6, err_msg=name)


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


def test_the_first_keys_behind_padding_that_is_traced():
    valid = np.arange(S) >= np.array([[3], [1]])
    mask = lambda valid: Mask(causal=True, window=1, k_valid=valid, first=2, q_index=HERE)
    weights = compiled(lambda valid: seen_through(mask(valid), WAYS["tiles"]), valid)
    np.testing.assert_array_equal(weights > 0, by_loops(mask(valid)))


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


@pytest.mark.parametrize(("way", "dtype"), [(Tiling(3, 4), "bfloat16"), ("dense", "float16")])
def test_rows_that_see_nothing_are_zero_and_pass_no_gradient_in_sixteen_bits(way, dtype):
    encoding = T5Bias(bidirectional=True)
    params = encoding.init(jax.random.key(0), Sizes(8, 2, 1, 4))

    def loss(q, k, v, params):
        options = {"encoding": encoding, "params": params, "implementation": way}
        out = attnjax.attend(q, k, v, mask=EMPTY, **options)
        # A loss whose slope at 0 is not 0, so that a wrong gradient cannot hide.
        return (3.0 * out + out**2).astype(jnp.float32).sum(), out

    gradients = jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)
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


# Which tiles are visited

TILE = (2, 3)


def visited(mask, *, backward=False, examples=B, T=T, S=S):
    """(query tile, key tile) of every tile computed. Positions are the places in the arrays, whatever the indices."""
    seer = witness()
    q, k = np.ones((examples, T, 1, 2), np.float32), np.ones((examples, S, 1, 2), np.float32)
    options = {"encoding": seer, "mask": mask, "q_pos": np.arange(T), "k_pos": np.arange(S)}
    run = lambda q: attnjax.attend(q, k, k, implementation=Tiling(*TILE), **options).sum()
    jax.block_until_ready(jax.jit(jax.grad(run) if backward else run)(q))
    jax.effects_barrier()
    return [(i // TILE[0], j // TILE[1]) for i, j in seer.seen]


BOUNDED = {name for name in CASES if "segments" in name or "allowed" in name or "padding" in name}
BOUNDED |= {"a ring", "everything", "valid for all examples", "first where no key is valid"}
"""Masks of which empty tiles may be visited: the smallest and largest index and segment of a tile decide."""


@pytest.mark.parametrize(
    "name", slow_except(CASES, "causal cuts the window", "valid", "segments", "first beside a window")
)
def test_empty_tiles_are_skipped(name):
    needed = {(int(i) // TILE[0], int(j) // TILE[1]) for _, i, j in np.argwhere(by_loops(CASES[name]))}
    found = set(visited(CASES[name]))
    assert needed <= found
    assert needed == found or name in BOUNDED


@pytest.mark.parametrize("name", slow_except(("causal", "window int", "valid for all examples"), "window int"))
def test_backward_visits_each_tile_once_more(name):
    """Once forward and once backward, for one example: nothing is computed twice in either direction."""
    found = visited(CASES[name], backward=True, examples=1)
    assert len(found) == 2 * len(set(found)) > 0
    assert all(found.count(tile) == 2 for tile in set(found))


def test_packed_sequences_cost_what_they_would_apart():
    """Four segments of equal length and of whole tiles leave a quarter of the tiles."""
    ids = np.arange(4).repeat(12)
    found = visited(Mask(q_segments=ids, k_segments=ids), examples=1, T=48, S=48)
    assert len(found) == len(set(found)) == (48 // TILE[0]) * (48 // TILE[1]) / 4
