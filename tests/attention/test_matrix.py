"""The big agreement: every encoding, implementation, mask, head layout and choice of positions against the oracle.

Outputs, and the gradients of q, k, v, the scale and every learned number, are compared in float64 to 1e-9 and in float32
to 2e-5 (see `assert_near`). Cases and programs are in `matrix.py`. Masks as users write them are tested in
`test_masks_as_written`.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax
from attnjax import (
    Mask,
    Trait,
)
from attnjax.attention import dispatch
from attnjax.attention.blockwise import blockwise
from attnjax.positions.compose import Compose
from tests.attention.matrix import (
    AXES,
    CAUSAL_ONLY,
    EMBEDDINGS,
    ENCODINGS,
    EVERY_DAY,
    FARTHEST,
    LAYOUTS,
    PER_HEAD,
    REACHES,
    RULES,
    TILE,
    TOLERANCE,
    VARIANTS,
    WAYS,
    B,
    H,
    N,
    allowed_by,
    as_precise,
    assert_near,
    attention,
    cases_of,
    draw,
    index_of,
    outcome,
    programs_of,
    read_beside_the_paper,
    rules_of,
    tolerance,
    truth,
    with_gradients,
)
from tests.cases import FAST, slow_except
from tests.oracle import oracle


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles in both directions, and padding of both."""
    monkeypatch.setitem(dispatch.WITH_LSE, "chunked", functools.partial(blockwise, tiling=TILE))


@functools.lru_cache(maxsize=1)
def truths(name, layout):
    """What every case of `cases_of` gives, for all types."""
    inputs, program = draw(ENCODINGS[name], layout), truth(name)
    arguments = ((*data[:2], allowed_by(*data[2:]), data[-1]) for _, data in cases_of(name, layout))
    return [outcome(program, inputs, given, "float64") for given in arguments]


def ways():
    """Encoding, layout and type; in float32, the encodings that are not variants of others are quick in grouped heads."""
    for name, (layout, dtype) in itertools.product(ENCODINGS, WAYS):
        wide = dtype == "float64"
        slow = wide or name in VARIANTS or (layout != "gqa" and name not in EVERY_DAY)
        yield pytest.param(name, layout, dtype, marks=pytest.mark.slow if slow else ())


@pytest.mark.parametrize(("name", "layout", "dtype"), [*ways()])
def test_agrees_with_the_oracle(name, layout, dtype):
    inputs = draw(ENCODINGS[name], layout)
    programs = {way: attention(name, way) for way, _ in programs_of(name, dtype)}
    for (case, data), expected in zip(cases_of(name, layout), truths(name, layout), strict=True):
        for implementation, program in programs.items():
            got = outcome(program, inputs, data, dtype)
            assert_near(got, expected, tolerance(name, implementation, dtype), (implementation, dtype, *case))
    if (layout, dtype) == ("gqa", "float64") and Trait.ALL_HEADS not in ENCODINGS[name].traits:
        compare_with_reference(name, layout)


def compare_with_reference(name, layout):
    """`reference.py` is of one head, so encodings that mix heads have none."""
    run = read_beside_the_paper(name)
    with jax.enable_x64(True):
        inputs = jax.tree.map(lambda x: jnp.asarray(x, "float64"), draw(ENCODINGS[name], layout))
        for (case, data), expected in zip(cases_of(name, layout), truths(name, layout), strict=True):
            got = run(*inputs, *as_precise(data[:2], "float64"), allowed_by(*data[2:]), data[-1])
            assert_near({"out": np.asarray(got)}, {"out": expected["out"]}, tolerance(name, "dense", "float64"), case)


ROWS_BY_DAY = {"rope", "pope", "alibi", "t5", "fire", "transformer_xl", "cope", "stick", "ssmax", "axial", "dape"}


def rows_of_positions():
    """Encodings whose positions may have a row per head, with query heads and, where no map reads them, key heads of keys."""
    for name, encoding in ENCODINGS.items():
        for heads in ("key heads", "query heads"):
            may = heads == "key heads" or Trait.MAP_K not in encoding.traits
            if may and name not in PER_HEAD and Trait.LENGTH not in encoding.traits:
                yield pytest.param(name, heads, marks=() if name in ROWS_BY_DAY else pytest.mark.slow)


@pytest.mark.quick("rope-key heads", "alibi-query heads", "cope-query heads")
@pytest.mark.parametrize(("name", "heads"), [*rows_of_positions()])
def test_positions_with_a_row_per_head(name, heads):
    """Any positions may differ between heads: [B, N, T] of queries, [B, K, S] of keys, or [B, N, S] where no map reads them."""
    inputs = draw(ENCODINGS[name], "gqa")
    K, T, S = LAYOUTS["gqa"]
    random, last = np.random.default_rng(6), (AXES[name],) if name in AXES else ()
    rows = lambda heads, n: np.sort(random.integers(0, FARTHEST, (B, heads, n, *last)), axis=2).astype(np.int32)
    index, rules = index_of("causal", T, S), rules_of("left padding", T, S)
    pos = rows(N, T), rows({"key heads": K, "query heads": N}[heads], S)

    def true(q, k, v, params, scale, q_pos, k_pos, allowed, valid):
        each = tuple(True for _ in ENCODINGS[name].parts) if isinstance(ENCODINGS[name], Compose) else True
        q_pos, k_pos = ((at,) * len(each) if isinstance(each, tuple) else at for at in (q_pos, k_pos))
        return oracle(ENCODINGS[name], params, q, k, v, q_pos, k_pos, allowed, scale, valid, per_head=each)

    expected = outcome(with_gradients(true), inputs, (*pos, allowed_by(*index, *rules), rules[-1]), "float64")
    for implementation in {way for way, _ in programs_of(name, "float32")}:
        got = outcome(attention(name, implementation), inputs, (*pos, *index, *rules), "float32")
        assert_near(got, expected, TOLERANCE["float32"], f"{name} in {implementation}")


def test_the_matrix_is_whole():
    """Every kind of encoding but those of embeddings, and PaTH, whose tests have a reference of their own: layouts of heads,
    masks (2 of 4 for what must be causal), each with 4 rules; positions; dense and chunked in double precision, and for
    grouped heads in single precision too, with xla."""
    kinds = {type(part) for encoding in ENCODINGS.values() for part in getattr(encoding, "parts", (encoding,))}
    assert kinds | {type(encoding) for encoding in EMBEDDINGS.values()} == set(attnjax.ENCODINGS.values()) - {
        attnjax.PaTH
    }
    programs = lambda name, layout, dtype: len([*cases_of(name, layout)]) * len(programs_of(name, dtype))
    counts = {name: sum(programs(name, *way) for way in WAYS) for name in ENCODINGS}
    # 4 masks, 4 rules, 2 kinds of positions; 3 layouts with 2 programs and one with 2 or 3.
    assert counts["rope"] == 4 * 4 * 2 * (3 * 2 + 3)
    assert counts["fire"] == 4 * 4 * 2 * (3 * 2 + 2)
    assert counts["alibi"] == 2 * 4 * 2 * (3 * 2 + 3)
    assert counts["fox"] == 2 * 4 * 1 * (3 * 2 + 3)
    assert counts["dual_chunk"] == 2 * 4 * 2 * (3 * 2 + 2)
    assert counts["axial"] == 4 * 4 * 1 * (3 * 2 + 3)
    assert sum(counts.values()) == 11_024


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_act_before_attention(name):
    q = jnp.ones((B, 13, N, H))
    with pytest.raises(ValueError, match="acts on the embeddings alone: add it to the input of the model"):
        attnjax.attend(q, q, q, encoding=EMBEDDINGS[name])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("reach", REACHES)
def test_masks_of_the_matrix_are_what_they_are_called(reach, rule):
    """The affine change of indices, against the mask drawn from its name."""
    T, S = 13, 21
    q_segments, k_segments, valid = rules_of(rule, T, S)
    i, j = np.arange(T)[:, None], np.arange(S)[None]
    named = {
        "causal": j <= i,
        "full": j == j + 0 * i,
        "window": abs(i - j) <= 2,
        "causal window": (i - 4 <= j) & (j <= i),
    }
    expected = named[reach][None] & (q_segments[:, :, None] == k_segments[:, None]) & valid[:, None]
    found = allowed_by(*index_of(reach, T, S), q_segments, k_segments, valid)
    np.testing.assert_array_equal(found, expected)
    assert rule != "empty rows" or not expected.any(-1).all()


@pytest.mark.parametrize("name", slow_except("nope rope-dynamic alibi t5-bidirectional sandwich cope".split(), "alibi"))
def test_masks_as_written(name):
    """The masks of a user, with positions by default or [T] instead of [B, T]: output and gradients, float32."""
    inputs = draw(ENCODINGS[name], "mha")
    T = inputs[0].shape[1]
    i, j = np.arange(T)[:, None], np.arange(T)[None]
    causal, window, ids = j <= i, (i - 3 <= j) & (j <= i + 2), np.arange(T) // 5
    masks = [
        (Mask(causal=True), None, causal),
        (Mask(causal=True, window=4, k_valid=np.arange(T) > 1), 3 * np.arange(T), causal & (i - 4 <= j) & (j > 1)),
        (Mask(), np.arange(T), causal | True),
        (Mask(window=(3, 2), q_segments=ids, k_segments=ids), None, window & (ids[:, None] == ids[None])),
    ]
    expected_of = truth(name)
    for mask, pos, allowed in masks[: 2 if name in CAUSAL_ONLY else 4]:
        options = {"encoding": ENCODINGS[name], "mask": mask, "q_pos": pos, "k_pos": pos, "implementation": "chunked"}
        attend = lambda q, k, v, params, scale, options=options: attnjax.attend(
            q, k, v, params=params, scale=scale, **options
        )
        pos = np.broadcast_to(np.arange(T) if pos is None else pos, (B, T)).astype(np.int32)
        valid = np.broadcast_to(True if mask.k_valid is None else mask.k_valid, (B, T))
        expected = outcome(expected_of, inputs, (pos, pos, np.broadcast_to(allowed, (B, T, T)), valid), "float64")
        assert_near(outcome(with_gradients(attend), inputs, (), "float32"), expected, TOLERANCE["float32"], mask)


@pytest.mark.parametrize("implementation", ["dense", "chunked"])
@pytest.mark.parametrize("name", slow_except("rope xpos kerple-power fire transformer_xl".split(), "rope", "fire"))
def test_fractional_positions_and_their_gradients(name, implementation):
    """Positions may lie anywhere between whole numbers, and get the gradient of a smooth function of them."""
    inputs = draw(ENCODINGS[name], "gqa")
    (T, S), uniform = (inputs[0].shape[1], inputs[1].shape[1]), np.random.default_rng(5).uniform
    pos = [np.sort(uniform(0, 40, (B, n)), axis=1).astype(np.float32) for n in (T, S)]
    allowed = np.broadcast_to(np.arange(S)[None] <= np.arange(T)[:, None], (B, T, S))

    def outcome(attention, dtype):
        q, k, v, params, scale = jax.tree.map(lambda x: jnp.asarray(x, dtype), inputs)

        def loss(q_pos, k_pos):
            out = attention(q, k, v, params, scale, q_pos, k_pos)
            return jnp.sin(out).sum(), out

        run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), compiler_options=FAST)
        (_, out), (q_pos, k_pos) = run(*(jnp.asarray(x, dtype) for x in pos))
        return {"out": np.asarray(out), "q_pos": np.asarray(q_pos), "k_pos": np.asarray(k_pos)}

    def ours(q, k, v, params, scale, q_pos, k_pos):
        options = {"encoding": ENCODINGS[name], "params": params, "scale": scale, "implementation": implementation}
        return attnjax.attend(q, k, v, q_pos=q_pos, k_pos=k_pos, mask=Mask(causal=True), **options)

    with jax.enable_x64(True):
        true = lambda q, k, v, params, scale, *pos: oracle(ENCODINGS[name], params, q, k, v, *pos, allowed, scale)
        expected = outcome(true, "float64")
    assert_near(outcome(ours, "float32"), expected, TOLERANCE["float32"], name)
