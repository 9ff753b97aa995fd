"""Who sees whom: every rule of `Mask` against loops over pairs, rows that see nothing, and entries that must not be seen.

With q = k = 0 and v the unit vectors, the output of attention is the mask itself, each row divided by its sum.
"""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax
from attnjax import CoPE, Mask, NoPE, Sizes, T5Bias, Tiling, attend, attention_fn, attention_weights, explain
from attnjax.attention import dispatch, masks
from attnjax.attention.blockwise import blockwise
from attnjax.modules import Decoder, TransformerConfig

B, T, S = 2, 7, 11
IMPLEMENTATIONS = ("dense", "chunked", "xla")
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setitem(dispatch.WITH_LSE, "chunked", functools.partial(blockwise, tiling=Tiling(3, 4)))


random = np.random.default_rng(0)
RAGGED = np.array([[0, 0, 1, 1, 1, 2, 2], [0, 3, 3, 3, 4, 4, 4]]), random.integers(0, 5, (B, S))
CASES = {
    "nothing": Mask(),
    "causal": Mask(causal=True),
    "window int": Mask(window=2),
    "window 0": Mask(window=0),
    "window left": Mask(window=(3, 0)),
    "window right": Mask(window=(0, 2)),
    "window open to the left": Mask(window=(None, 1)),
    "window open to the right": Mask(window=(2, None)),
    "causal cuts the window": Mask(causal=True, window=(4, 3)),
    "segments": Mask(q_segments=RAGGED[0], k_segments=RAGGED[1]),
    "segments of all examples": Mask(q_segments=RAGGED[0][0], k_segments=np.arange(S) // 3),
    "segments of keys only by example": Mask(q_segments=RAGGED[0][0], k_segments=RAGGED[1]),
    "valid": Mask(k_valid=random.random((B, S)) < 0.6),
    "valid for all examples": Mask(causal=True, k_valid=random.random(S) < 0.6),
    "allowed": Mask(allowed=random.random((B, T, S)) < 0.5),
    "allowed for all examples": Mask(window=4, allowed=random.random((T, S)) < 0.7),
    "queries of a later chunk": Mask(causal=True, window=5, q_index=np.arange(T) + 4),
    "queries at the end of each example": Mask(causal=True, q_index=np.arange(T) + np.array([[4], [1]])),
    "keys of a later chunk": Mask(window=(3, 1), k_index=np.arange(S) - 5),
    "a ring": Mask(causal=True, window=4, q_index=np.arange(T) + 20, k_index=np.roll(np.arange(S) + 16, 3)),
    "first beside a window": Mask(causal=True, window=(2, 0), first=3),
    "first without a window": Mask(causal=True, first=3),
    "first in a window to both sides": Mask(window=(1, 1), first=2),
    "first behind padding": Mask(causal=True, window=1, k_valid=np.arange(S) >= np.array([[3], [1]]), first=2),
    "first behind padding of all examples": Mask(window=(1, 2), k_valid=np.arange(S) >= 2, first=1),
    "first where no key is valid": Mask(window=1, k_valid=np.arange(S) >= np.array([[S], [0]]), first=2),
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
        valid = (
            [] if mask.k_index is not None or mask.k_valid is None else [k for k in range(S) if of(mask.k_valid, b, k)]
        )
        start = min(valid, default=0)
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


def seen_through(mask, implementation, T=T, S=S):
    zeros = jnp.zeros((B, T, 1, S))
    v = jnp.broadcast_to(jnp.eye(S)[None, :, None], (B, S, 1, S))
    return attnjax.attend(zeros, jnp.zeros_like(v), v, mask=mask, implementation=implementation)[:, :, 0]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_rule_pair_by_pair(implementation):
    run = jax.jit(
        lambda: {name: seen_through(mask, implementation) for name, mask in CASES.items()}, compiler_options=QUICK
    )
    for name, weights in run().items():
        seen = by_loops(CASES[name])
        expected = seen / np.maximum(seen.sum(-1, keepdims=True), 1)
        np.testing.assert_array_equal(np.asarray(weights) > 0, seen, err_msg=name)
        np.testing.assert_allclose(weights, expected, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("rule", [{"window": 2**31}, {"window": (0, 2**40)}, {"window": 3, "first": 2**31}], ids=str)
def test_a_rule_that_int32_cannot_hold_is_refused(rule):
    """It was an OverflowError of NumPy, deep inside; the largest that there is sees everything."""
    with pytest.raises(ValueError, match=r"window and first must be at most 2147483647 \(int32\), got"):
        Mask(**rule)
    q, k, v = content("float32")
    run = jax.jit(lambda mask, way: attnjax.attend(q, k, v, mask=mask, implementation=way), static_argnums=1)
    for way in ("dense", "chunked"):
        np.testing.assert_allclose(run(Mask(window=2**31 - 1), way), run(Mask(), way), atol=1e-6)


ENDS = np.array([-(2**31), -(2**31) + 3, -5, 0, 7, 2**31 - 4, 2**31 - 1], np.int32)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("window", [None, 3, (2**31 - 1, 2**31 - 1)], ids=str)
def test_indices_at_both_ends_of_int32(implementation, window):
    """The difference of -5 and 2^31 - 1 wrapped around, so that a causal mask showed the future."""
    x = jnp.zeros((1, 7, 1, 7))
    mask = Mask(causal=True, window=window, q_index=ENDS, k_index=ENDS)
    out = attend(x, x, jnp.eye(7)[None, :, None], mask=mask, implementation=implementation)
    ahead = ENDS.astype(np.int64)[None, :] - ENDS.astype(np.int64)[:, None]
    left = {None: 2**40, 3: 3}.get(window, 2**31 - 1)
    np.testing.assert_array_equal(out[0, :, 0] > 0, (ahead <= 0) & (ahead >= -left))


def test_some_case_leaves_rows_empty_and_some_does_not():
    empty = {name for name, mask in CASES.items() if not by_loops(mask).any(-1).all()}
    assert {"segments", "everything"} <= empty
    assert {"nothing", "causal"}.isdisjoint(empty)


def test_the_picture_in_the_documentation():
    """Four tables of 0 and 1 stand side by side there; each is what its mask does."""
    rows = re.findall(
        r"^    ((?:[01] ){5}[01])   +((?:[01] ){5}[01])   +((?:[01] ){5}[01])   +((?:[01] ){5}[01])$",
        masks.__doc__,
        re.M,
    )
    assert len(rows) == 6
    pictures = np.array([[[int(x) for x in table.split()] for table in row] for row in rows]).swapaxes(0, 1)
    ids = np.array([0, 0, 0, 1, 1, 1])
    drawn = (
        Mask(causal=True),
        Mask(window=(2, 0)),
        Mask(q_segments=ids, k_segments=ids),
        Mask(causal=True, window=(2, 0), q_segments=ids, k_segments=ids),
    )
    for picture, mask in zip(pictures, drawn, strict=True):
        np.testing.assert_array_equal(by_loops(mask, 6, 6)[0], picture)
        np.testing.assert_array_equal(np.asarray(seen_through(mask, "dense", 6, 6))[0] > 0, picture)


def test_the_picture_of_the_first_keys():
    rows = re.findall(r"^    ((?:[01] ){5}[01])$", masks.__doc__, re.M)
    picture = np.array([[int(x) for x in row.split()] for row in rows])
    mask = Mask(causal=True, window=(1, 0), k_valid=np.arange(6) > 0, first=2)
    np.testing.assert_array_equal(by_loops(mask, 6, 6)[0], picture)
    np.testing.assert_array_equal(np.asarray(seen_through(mask, "dense", 6, 6))[0] > 0, picture)


def test_the_first_keys_behind_padding_that_is_traced():
    valid = np.arange(S) >= np.array([[3], [1]])
    mask = lambda valid: Mask(causal=True, window=1, k_valid=valid, first=2)
    weights = jax.jit(lambda valid: seen_through(mask(valid), "chunked"))(valid)
    np.testing.assert_array_equal(np.asarray(weights) > 0, by_loops(mask(valid)))


def test_the_fused_kernel_refuses_the_first_keys():
    x = jnp.zeros((1, 4, 1, 8), "bfloat16")
    told = attnjax.explain(x, x, x, mask=Mask(causal=True, window=(2, 0), first=1))
    assert dict(told.rejected)["cudnn"].startswith(("it needs an NVIDIA GPU", "it has no mask in which the first keys"))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_chunks_of_queries_equal_the_whole(implementation):
    """A row does not depend on the rows beside it, only on its index."""
    normal = np.random.default_rng(1).normal
    q, k, v = (jnp.asarray(normal(size=(B, 12, 2, 4)), "float32") for _ in range(3))
    attend = functools.partial(attnjax.attend, implementation=implementation)
    mask_at = lambda index: Mask(causal=True, window=5, q_index=index)
    run = jax.jit(lambda q, index: attend(q, k, v, mask=mask_at(index)), compiler_options=QUICK)
    whole = run(q, np.arange(12))
    parts = [run(q[:, at : at + 3], np.arange(at, at + 3)) for at in (0, 3, 6, 9)]
    np.testing.assert_allclose(jnp.concatenate(parts, 1), whole, rtol=1e-6, atol=1e-6)


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


@pytest.mark.quick("dense-float32", "chunked-bfloat16", "xla-float16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rows_that_see_nothing_are_zero_and_pass_no_gradient(implementation, dtype):
    def loss(q, k, v):
        out = attnjax.attend(q, k, v, mask=EMPTY, implementation=implementation)
        # A loss whose slope at 0 is not 0, so that a wrong gradient cannot hide.
        return (3.0 * out + out**2).astype(jnp.float32).sum(), out

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True), compiler_options=QUICK)
    # JAX cannot lower the gradient of its own kernel in 16 bits while promotion of types is strict.
    with jax.numpy_dtype_promotion("standard" if implementation == "xla" else "strict"):
        (_, out), gradients = run(*content(dtype))
    empty = ~by_loops(EMPTY).any(-1)
    assert empty[0].tolist() == [True, False, False, True, False, False, False]
    assert empty[1].all()
    out, dq, dk, dv = (np.asarray(x, np.float64) for x in (out, *gradients))
    assert out.any()
    assert all(np.isfinite(x).all() for x in (out, dq, dk, dv))
    assert not out[empty].any()
    assert not dq[empty].any()
    assert not dk[1].any()
    assert not dv[1].any()


@pytest.mark.parametrize("implementation", ["dense", "chunked"])
@pytest.mark.parametrize("encoding", [T5Bias(), CoPE(max_position=3)])
def test_where_nobody_sees_anything_nothing_is_learned(encoding, implementation):
    params = jax.tree.map(lambda leaf: leaf + 1, encoding.init(jax.random.key(0), Sizes(8, 2, 1, 4)))

    def loss(params, q, k, v):
        options = {"encoding": encoding, "params": params, "implementation": implementation}
        return 3 * attnjax.attend(q, k, v, mask=Mask(k_valid=np.zeros(S, bool)), **options).sum()

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)), compiler_options=QUICK)(params, *content("float32"))
    for leaf in jax.tree.leaves(gradients):
        np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


POISONS = (np.nan, np.inf, -np.inf, 1e38, -1e38)


@functools.cache
def poisoned_program(implementation):
    attend = functools.partial(attnjax.attend, implementation=implementation)
    return jax.jit(lambda q, k, v, mask: attend(q, k, v, mask=mask), compiler_options=QUICK)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_poison_reaches_exactly_the_rows_that_see_it(implementation):
    """A hidden entry changes no bit; rows that see one that is not finite are not finite, in the heads it serves."""
    N = K = 2
    normal = np.random.default_rng(3).normal
    q, k, v = (normal(size=(B, n, heads, 4)).astype(np.float32) for n, heads in ((T, N), (S, K), (S, K)))
    run = poisoned_program(implementation)
    for name in ("causal cuts the window", "segments", "valid", "everything"):
        mask = CASES[name]
        clean, seen = np.asarray(run(q, k, v, mask)), by_loops(mask)
        assert np.isfinite(clean).all()
        for which, poison in itertools.product((1, 2), POISONS):
            inputs = [q, k.copy(), v.copy()]
            inputs[which][0, 5, 1, 2] = poison
            out = np.asarray(run(*inputs, mask))
            reached = np.zeros((B, T, N), bool)
            reached[0, :, 1] = seen[0, :, 5]
            np.testing.assert_array_equal(out[~reached], clean[~reached], err_msg=f"{name} {poison}")
            if not np.isfinite(poison):
                assert not np.isfinite(out[reached]).all(-1).any(), f"{name} {poison}"


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_poisoned_query_is_alone(implementation):
    q, k, v = (np.array(x) for x in content("float32"))
    mask = Mask(causal=True, q_index=np.arange(T) - 1)
    clean = np.asarray(poisoned_program(implementation)(q, k, v, mask))
    q[0, 4, 1, 0], q[1, 0, 0, 3] = np.inf, np.nan
    out = np.array(poisoned_program(implementation)(q, k, v, mask))
    assert not np.isfinite(out[0, 4, 1]).all()
    assert not out[1, 0].any(), "a row that sees nothing is 0 whatever it asks"
    out[0, 4, 1] = clean[0, 4, 1]
    np.testing.assert_array_equal(out, clean)


@pytest.mark.parametrize(
    ("encoding", "implementation"),
    [(NoPE(), "xla"), *itertools.product((NoPE(), T5Bias(), CoPE(max_position=3)), ("dense", "chunked"))],
)
def test_gradients_do_not_see_what_is_hidden(encoding, implementation):
    """Whatever lies behind the mask, the gradients are the same to the last bit; those of hidden entries are 0."""
    params = jax.tree.map(lambda leaf: leaf + 1, encoding.init(jax.random.key(0), Sizes(8, 2, 1, 4)))
    mask = Mask(causal=True, k_valid=np.arange(S) != 2)

    def loss(params, q, k, v):
        options = {"encoding": encoding, "params": params, "implementation": implementation}
        return jnp.sin(attnjax.attend(q, k, v, mask=mask, **options)).sum()

    run = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)), compiler_options=QUICK)
    q, k, v = (np.array(x) for x in content("float32"))
    clean = [np.asarray(leaf) for leaf in jax.tree.leaves(run(params, q, k, v))]
    assert all(np.isfinite(leaf).all() for leaf in clean)
    for poison in POISONS:
        # Key 2 is padding; keys 7 and later are in the future of all queries.
        for key in (2, 7, 10):
            k[:, key], v[:, key] = poison, poison
        for leaf, expected in zip(jax.tree.leaves(run(params, q, k, v)), clean, strict=True):
            np.testing.assert_array_equal(leaf, expected, err_msg=str(poison))


@pytest.mark.parametrize("wrong", [jnp.ones((4, 4), bool), True, None])
def test_what_is_no_mask_is_told_what_to_write(wrong):
    """`jax.nn.dot_product_attention` and Flax take arrays; here they are `Mask(allowed=array)`."""
    q = jnp.ones((1, 4, 2, 8))
    told = r"^mask must be a Mask such as Mask\(causal=True\), or Mask\(allowed=array\), got "
    decoder = Decoder(TransformerConfig(vocab=5, model=8, heads=2, layers=1, hidden=8), rngs=nnx.Rngs(0))
    calls = [
        lambda: attend(q, q, q, mask=wrong),
        lambda: attention_weights(q, q, mask=wrong),
        lambda: explain(q, q, q, mask=wrong),
        lambda: attention_fn(NoPE(), mask=wrong),
        lambda: decoder(jnp.ones((1, 4), int), mask=wrong),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=told):
            call()
