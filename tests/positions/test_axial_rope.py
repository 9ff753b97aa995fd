"""AxialRoPE, MixedRoPE and MRoPE against arrays of rope-vit and Qwen2-VL, by hand, in decoding and in compositions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import (
    ALiBi,
    AxialRoPE,
    EncodingParams,
    KVCache,
    Mask,
    MixedRoPE,
    MRoPE,
    RoPE,
    Sizes,
    YaRN,
    attend,
    compose,
)
from attnjax.positions import DynamicNTK
from attnjax.positions.axial_rope import mixed_frequencies
from attnjax.positions.base import resolve
from attnjax.positions.mrope import grid_positions
from tests.positions.attending import (
    DECODING,
    TILES,
    assert_close,
    check_decoding,
    drawn,
    golden,
    gradient_program,
    moved,
    outcome,
    quadratic,
)

CAUSAL = Mask(causal=True)
B, T, N, K, H = 2, 13, 4, 2, 12
GRID = np.random.default_rng(3).integers(0, 9, (B, T, 3)).astype(np.int32)
SUBJECTS = {
    "axial": (AxialRoPE(), GRID[..., :2]),
    "axial of three": (AxialRoPE(axes=3, layout="half", theta=50.0), GRID),
    "mixed": (MixedRoPE(), GRID[..., :2]),
    "mixed of three": (MixedRoPE(axes=3, layout="half"), GRID),
    "mrope": (MRoPE(), GRID),
    "mrope with sections": (MRoPE(theta=500.0, sections=(3, 0, 3), layout="interleaved", scaling=YaRN(4.0, 64)), GRID),
}


def softmax_attention(q, k, v):
    """Causal attention in NumPy, for queries and keys that are turned already."""
    scores = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), v)


def pairs_of_release(case):
    """Encoding, parameters, positions, and what the published code makes of q and k."""
    arrays = golden("frontier_multimodal_rope" if case == "mrope" else "frontier_axial_rope")
    if case == "mrope":
        pos, turned = arrays["positions"].transpose(1, 2, 0), "turned"
        encoding, params = MRoPE(sections=tuple(int(n) for n in arrays["section"])), None
    else:
        pos, turned = arrays["positions"].astype(np.int32), case
        frequencies = arrays["freqs"].transpose(1, 0, 2)
        encoding = {"axial": AxialRoPE(), "mixed": MixedRoPE()}[case]
        params = None if case == "axial" else EncodingParams(kv_head={"frequencies": frequencies})
    return encoding, params, arrays["q"], arrays["k"], pos, arrays[f"{turned}_q"], arrays[f"{turned}_k"]


@pytest.mark.quick("float32-4e-06-mixed", "float64-1e-12-axial", "float64-1e-12-mrope")
@pytest.mark.parametrize("case", ["axial", "mixed", "mrope"])
@pytest.mark.parametrize(("dtype", "atol"), [("float32", 4e-6), ("float64", 1e-12)])
def test_turns_as_the_published_code_does(case, dtype, atol):
    encoding, params, q, k, pos, *expected = pairs_of_release(case)
    with jax.enable_x64(dtype == "float64"):
        q, k = (jnp.asarray(x, dtype) for x in (q, k))
        p = resolve(encoding, params, Sizes(1, q.shape[2], q.shape[2], q.shape[3]))
        p = jax.tree.map(jnp.asarray, p)
        for x, turn, turned in ((q, encoding.map_q, expected[0]), (k, encoding.map_k, expected[1])):
            for b in range(x.shape[0]):
                for h in range(x.shape[2]):
                    own = EncodingParams((), jax.tree.map(lambda leaf, h=h: leaf[h], p.kv_head), p.shared)
                    at = pos[b] if pos.ndim == 3 else pos
                    np.testing.assert_allclose(turn(own, x[b, :, h], at), turned[b, :, h], atol=atol)


@pytest.mark.quick("dense-mixed", "tiles-axial", "tiles-mrope")
@pytest.mark.parametrize("case", ["axial", "mixed", "mrope"])
@pytest.mark.parametrize("implementation", ["dense", TILES], ids=["dense", "tiles"])
def test_attention_of_what_the_published_code_turned(case, implementation, x64):
    encoding, params, q, k, pos, turned_q, turned_k = pairs_of_release(case)
    v = np.random.default_rng(0).normal(size=k.shape)
    out = attend(
        *(jnp.asarray(x) for x in (q, k, v)),
        encoding=encoding, params=params, q_pos=pos, k_pos=pos, mask=CAUSAL, implementation=implementation,
    )  # fmt: skip
    np.testing.assert_allclose(out, softmax_attention(turned_q, turned_k, v), atol=1e-12)


def test_frequencies_at_first_are_those_of_the_published_code(x64):
    arrays = golden("frontier_axial_rope")
    turn = 2 * np.pi * arrays["initial_turns"]
    directions = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]).transpose(2, 0, 1)
    expected = arrays["initial_freqs"].transpose(1, 0, 2)
    np.testing.assert_allclose(mixed_frequencies(jnp.asarray(directions), 2, 10.0), expected, atol=1e-7)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_blocks_of_pairs_are_orthogonal_at_first(axes):
    params = MixedRoPE(axes=axes).init(jax.random.key(1), Sizes(model=96, heads=16, kv_heads=8, head_dim=4 * axes))
    found = np.asarray(params.kv_head["frequencies"], np.float64).reshape(8, axes, axes, 2)
    assert params.head == params.shared == ()
    for block in (found[..., 0], found[..., 1] * np.sqrt(10.0)):
        np.testing.assert_allclose(
            block.transpose(0, 2, 1) @ block, np.broadcast_to(np.eye(axes), (8, axes, axes)), atol=1e-6
        )
        np.testing.assert_allclose(np.linalg.det(block), 1, atol=1e-6)


def test_two_pairs_by_hand(x64):
    """One pair per axis at frequency 1: a quarter turn of the first by the column, of the second by the row."""
    quarter = np.pi / 2
    x, p = jnp.array([[1.0, 2.0, 3.0, 4.0]]), AxialRoPE().constants(Sizes(4, 1, 1, 4))
    np.testing.assert_allclose(AxialRoPE().map_q(p, x, jnp.array([[quarter, 0.0]])), [[-2, 1, 3, 4]], atol=1e-12)
    np.testing.assert_allclose(AxialRoPE().map_q(p, x, jnp.array([[0.0, quarter]])), [[1, 2, -4, 3]], atol=1e-12)
    np.testing.assert_array_equal(AxialRoPE().map_k(p, x, jnp.zeros((1, 2))), x)


@pytest.mark.slow
@pytest.mark.parametrize("scaling", [None, YaRN(4.0, 64)])
@pytest.mark.parametrize("sections", [None, (2, 1, 3)])
def test_text_is_rope_bit_by_bit(scaling, sections):
    q, k, v = (jnp.asarray(x, jnp.float32) for x in drawn(B, T, N, K, H))
    pos = np.arange(T, dtype=np.int32) + 70_000
    expected = attend(q, k, v, encoding=RoPE(scaling=scaling), q_pos=pos, k_pos=pos, mask=CAUSAL)
    encoding = MRoPE(scaling=scaling, sections=sections)
    for at in (pos, np.stack([pos] * 3, -1), jnp.asarray(pos), np.stack([pos] * B)):
        out = attend(q, k, v, encoding=encoding, q_pos=at, k_pos=at, mask=CAUSAL)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.slow
def test_positions_are_indices_unless_given():
    q, k, v = (jnp.asarray(x, jnp.float32) for x in drawn(B, T, N, K, H))
    np.testing.assert_array_equal(
        attend(q, k, v, encoding=MRoPE(), mask=CAUSAL), attend(q, k, v, encoding=RoPE(), mask=CAUSAL)
    )


@pytest.mark.quick("axial of three", "mixed")
@pytest.mark.parametrize("name", SUBJECTS)
def test_scores_depend_on_differences_alone(name, x64):
    encoding, pos = SUBJECTS[name]
    q, k, v = (jnp.asarray(x) for x in drawn(B, T, N, K, H))
    params = moved(encoding, N, K, H)
    shift = np.array([500, -3, 70_000])[: pos.shape[-1]].astype(np.int32)
    run = lambda pos: attend(q, k, v, encoding=encoding, params=params, q_pos=pos, k_pos=pos, mask=CAUSAL)
    np.testing.assert_allclose(run(pos + shift), run(pos), atol=1e-9)
    for axis in range(pos.shape[-1]):
        other = run(pos * (np.arange(pos.shape[-1]) != axis))
        matters = name != "mrope with sections" or axis != 1
        assert bool(np.abs(other - run(pos)).max() > 1e-3) == matters, f"axis {axis}"


SEGMENTS = np.arange(T, dtype=np.int32) // 5
MASKS = {
    "window and padding": Mask(window=(5, 2), k_valid=np.arange(T)[None] >= np.array([[3], [0]])),
    "causal and segments": Mask(causal=True, q_segments=SEGMENTS, k_segments=SEGMENTS),
}


@pytest.mark.quick(
    "axial-window and padding", "mixed of three-causal and segments", "mrope with sections-causal and segments"
)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["axial", "mixed", "mixed of three", "mrope with sections"])
def test_tiles_give_the_values_and_gradients_of_dense(name, mask, x64):
    encoding, pos = SUBJECTS[name]

    def run(implementation):
        options = {"encoding": encoding, "mask": MASKS[mask], "implementation": implementation}
        one = lambda params, q, k, v: attend(q, k, v, params=params, q_pos=pos, k_pos=pos, **options)
        return outcome(one, moved(encoding, N, K, H), *drawn(B, T, N, K, H))

    assert_close(run(TILES), run("dense"), 1e-9)


def test_gradients_of_mixed_frequencies_by_differences(x64):
    encoding, pos = SUBJECTS["mixed"]
    q, k, v = (jnp.asarray(x) for x in drawn(B, T, N, K, H))
    params = moved(encoding, N, K, H)
    run = lambda params: attend(q, k, v, encoding=encoding, params=params, q_pos=pos, k_pos=pos, mask=CAUSAL)
    gradient = outcome(run, params)["gradients"][0].kv_head["frequencies"]
    loss = lambda f: (
        np.random.default_rng(9).normal(size=q.shape) * run(EncodingParams(kv_head={"frequencies": f}))
    ).sum()
    at, step = params.kv_head["frequencies"], 1e-6
    for index in [(0, 0, 1), (1, 1, 5), (1, 0, 0)]:
        change = np.zeros_like(at)
        change[index] = step
        slope = (loss(at + change) - loss(at - change)) / (2 * step)
        np.testing.assert_allclose(gradient[index], slope, rtol=1e-6, atol=1e-8)


@pytest.mark.quick("axial-chunks in a ring, jitted", "mixed-tokens, jitted")
@pytest.mark.parametrize("way", DECODING)
@pytest.mark.parametrize("name", ["axial", "mixed", "mrope"])
def test_decoding_is_the_full_forward(name, way, x64):
    encoding, pos = SUBJECTS[name]
    check_decoding(encoding, moved(encoding, N, K, H), *drawn(B, T, N, K, H), pos, way, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["axial", "mrope"])
def test_parts_of_a_composition_have_positions_of_their_own(name, x64):
    """ALiBi counts tokens while the rotation sees the grid: the same as ALiBi of what is turned already."""
    part, pos = SUBJECTS[name]
    encoding, index = compose(part, ALiBi()), np.arange(T, dtype=np.int32)
    q, k, v = drawn(B, T, N, K, H)
    both = (pos, index)
    out = attend(
        *(jnp.asarray(x) for x in (q, k, v)),
        encoding=encoding,
        q_pos=both,
        k_pos=both,
        mask=CAUSAL,
        implementation=TILES,
    )
    p = part.constants(Sizes(N * H, N, K, H))
    turned = jax.vmap(jax.vmap(lambda x, pos: part.map_q(p, x, pos), (1, None), 1))
    apart = attend(
        turned(q, pos), turned(k, pos), jnp.asarray(v), encoding=ALiBi(), mask=CAUSAL, implementation="dense"
    )
    np.testing.assert_allclose(out, apart, atol=1e-12)
    cache = KVCache.create(B, T, K, H, jnp.float64, heads=N, encoding=encoding)
    for first, last in ((0, 4), (4, 5), (5, T)):
        at = (jnp.asarray(pos[:, first:last]), None if first else jnp.asarray(index[:last]))
        cache = cache.append(*(jnp.asarray(x[:, first:last]) for x in (k, v)), at)
        got = attend(jnp.asarray(q[:, first:last]), cache=cache, encoding=encoding, mask=CAUSAL)
        np.testing.assert_allclose(got, out[:, first:last], atol=1e-12)


@pytest.mark.parametrize("encoding", [AxialRoPE(), MixedRoPE(), MRoPE(), compose(MRoPE(), ALiBi())], ids=str)
def test_tiles_need_linear_memory(encoding):
    assert quadratic(gradient_program(encoding, 512), 512) == []


def test_patches_of_an_image_follow_the_text_of_the_published_arrays():
    rows = golden("frontier_multimodal_rope")["positions"][:, 0].T
    text = np.stack([np.arange(4)] * 3, -1)
    image = grid_positions(1, 2, 3, start=4)
    after = np.stack([np.arange(2)] * 3, -1) + image.max() + 1
    np.testing.assert_array_equal(np.concatenate([text, image, after]), rows)


REFUSED = [
    (lambda: AxialRoPE(axes=0), "AxialRoPE: axes must be at least 1, got 0"),
    (lambda: MixedRoPE(theta=-1.0), "MixedRoPE: theta must be positive and finite, got -1.0"),
    (lambda: AxialRoPE(layout="whole"), "layout must be one of"),
    (lambda: MRoPE(sections=(1, 2)), "sections must be three numbers of pairs, or None"),
    (lambda: MRoPE(sections=(1, -2, 3)), "sections must be at least 0, got -2"),
    (lambda: MRoPE(scaling=DynamicNTK(2.0, 64)), "positions with three axes have no length"),
    (lambda: grid_positions(1, 0, 2), "height must be at least 1, got 0"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_refuses_hyper_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("encoding", "H", "pos", "message"),
    [
        (AxialRoPE(), 6, None, "the head dimension must be a multiple of 4, got 6"),
        (MixedRoPE(axes=3), 8, None, "the head dimension must be a multiple of 6, got 8"),
        (MRoPE(sections=(1, 1, 1)), 8, None, r"sections \(1, 1, 1\) must add up to the 4 pairs of a head of 8"),
        (MRoPE(), 7, None, "the head dimension must be even, got 7"),
        (MRoPE(), 8, np.zeros((5, 2), np.int32), r"a last axis of 3 coordinates, got \(5, 2\)"),
        (AxialRoPE(), 8, np.zeros((4, 2), np.int32), r"q_pos must have shape \(5,\) or \(2, 5\).* coordinates, got"),
        (compose(AxialRoPE(), ALiBi()), 8, np.zeros((5, 2), np.int32), r"q_pos must have shape \(5,\) or \(2, 5\)"),
    ],
)
def test_refuses_heads_and_positions(encoding, H, pos, message):
    x = jnp.ones((2, 5, 2, H))
    kind = encoding.parts[0] if hasattr(encoding, "parts") else encoding
    params = kind.init(jax.random.key(0), Sizes(24, 2, 2, 12)) if isinstance(kind, MixedRoPE) else None
    with pytest.raises(ValueError, match=message):
        attend(x, x, x, encoding=encoding, params=params, q_pos=pos, mask=CAUSAL)


def test_refuses_a_square_of_positions():
    """[B, T] and [T, A] are one shape where B = T = A; it was read as coordinates, whatever was meant."""
    square, encoding = np.array([[0, 1, 2], [5, 6, 7], [1, 3, 9]], np.int32), compose(MRoPE(), ALiBi())
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3, 2, 12)), jnp.float32)
    message = r"positions \(3, 3\) may be rows of 3 examples or one row with 3 coordinates .*\[B, T, A\], \(3, 3, 3\)"
    for given in (square, jnp.asarray(square)):
        with pytest.raises(ValueError, match=f"q_pos: {message}"):
            attend(x, x, x, encoding=encoding, q_pos=given, k_pos=given, mask=CAUSAL)
        with pytest.raises(ValueError, match=f"k_pos: {message}"):
            KVCache.create(3, 4, 2, 12, encoding=MRoPE()).append(x, x, given)
    run = lambda encoding, pos: attend(x, x, x, encoding=encoding, q_pos=pos, k_pos=pos)
    np.testing.assert_allclose(run(MRoPE(), np.stack([square] * 3, -1)), run(RoPE(), square), atol=1e-6)
    one = np.zeros((1, 1), np.int32)
    alone = attend(*[x[:1, :1]] * 3, encoding=AxialRoPE(axes=1), q_pos=one, k_pos=one)
    assert alone.shape == (1, 1, 2, 12)
