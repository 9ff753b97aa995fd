"""AxialRoPE, MixedRoPE and MRoPE against arrays of rope-vit and Qwen2-VL, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.positions.axes import grid_positions, mixed_frequencies
from tests.positions.hooks import close, constants, golden, run

SECTIONS = [int(n) for n in golden("frontier_multimodal_rope")["section"]]
CASES = {
    "axial": (aj.AxialRoPE(), "frontier_axial_rope", "axial"),
    "mixed": (aj.MixedRoPE(), "frontier_axial_rope", "mixed"),
    "mrope": (aj.MRoPE(sections=SECTIONS), "frontier_multimodal_rope", "turned"),
}


@pytest.mark.parametrize("name", CASES)
def test_turns_as_the_published_code_does(name, x64):
    encoding, file, turned = CASES[name]
    arrays = golden(file)
    q, k, pos = arrays["q"], arrays["k"], arrays["positions"].astype(np.int32)
    pos = pos.transpose(1, 2, 0) if name == "mrope" else np.broadcast_to(pos, (2, *pos.shape))
    p, leads = encoding.constants(aj.Sizes(32, 2, 2, q.shape[3])), None
    if name == "mixed":
        p, leads = {"frequencies": arrays["freqs"].transpose(1, 0, 2)}, 0

    def of_all(hook, x):
        heads = jax.vmap(lambda p, x, pos: hook(p, x, pos), (leads, 1, None), 1)
        return jax.vmap(heads, (None, 0, 0))(p, x, pos)

    for found, side in zip(run(lambda q, k: (of_all(encoding.map_q, q), of_all(encoding.map_k, k)), q, k), "qk"):
        close(found, arrays[f"{turned}_{side}"])


def test_frequencies_at_first_are_those_of_the_published_code():
    arrays = golden("frontier_axial_rope")
    turn = 2 * np.pi * arrays["initial_turns"]
    directions = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]).transpose(2, 0, 1)
    found = run(lambda directions: mixed_frequencies(directions, 2, 10.0), directions.astype(np.float32))
    close(found, arrays["initial_freqs"].transpose(1, 0, 2), 1e-6)


def test_init_draws_rotations():
    """The A blocks of pairs point along the columns of a rotation, with magnitudes theta^(-m/pairs)."""
    K, A, pairs = 8, 3, 2
    sizes = aj.Sizes(1, 16, K, 2 * A * pairs)
    frequencies = run(lambda key: aj.MixedRoPE(axes=A).init(key, sizes), jax.random.key(0))["frequencies"]
    blocks = frequencies.reshape(K, A, A, pairs)
    for m in range(pairs):
        block = blocks[..., m] * 10.0 ** (m / pairs)
        close(block.swapaxes(1, 2) @ block, np.broadcast_to(np.eye(A), (K, A, A)), 1e-6)
        close(np.linalg.det(block), np.ones(K), 1e-6)
    assert np.abs(blocks[0] - blocks[1]).max() > 0.1


def test_three_axes_have_blocks_of_pairs():
    encoding, pos = aj.AxialRoPE(axes=3, theta=50.0), np.array([[5, -7, 1]])
    assert (encoding.axes, encoding.features(aj.Sizes(1, 1, 1, 12))) == (3, (3,))
    frequencies = 50.0 ** (-np.arange(2) / 2)
    close(run(lambda pos: encoding.angle(constants(encoding, 12), pos), pos),
          (np.outer(pos[0], frequencies).reshape(1, -1) + np.pi) % (2 * np.pi) - np.pi, 1e-6)  # fmt: skip


@pytest.mark.parametrize("sections", [None, (2, 1, 5)])
def test_text_is_rope_bit_by_bit(sections):
    scaling, pos = aj.YaRN(4.0, 64), np.arange(70_000, 70_009, dtype=np.int32)
    text, rope = aj.MRoPE(scaling=scaling, sections=sections), aj.RoPE(scaling=scaling)
    p = constants(text, 16)
    assert p["gain"] == constants(rope, 16)["gain"]
    both = run(lambda pos: (text.angle(p, jnp.stack([pos] * 3, -1)), rope.angle(p, pos)), pos)
    np.testing.assert_array_equal(*both)


def test_sections_are_a_quarter_and_halves_of_the_rest_unless_given():
    assert [aj.MRoPE().spans(pairs) for pairs in (64, 8, 6)] == [(16, 24, 24), (2, 3, 3), (1, 2, 3)]
    assert aj.MRoPE(sections=[1, 2, 3]).spans(6) == (1, 2, 3)


def test_patches_of_an_image_follow_the_text_of_the_published_arrays():
    rows = golden("frontier_multimodal_rope")["positions"][:, 0].T
    image = grid_positions(1, 2, 3, start=4)
    text = [np.stack([np.arange(n)] * 3, -1) for n in (4, 2)]
    np.testing.assert_array_equal(np.concatenate([text[0], image, text[1] + image.max() + 1]), rows)
    np.testing.assert_array_equal(grid_positions(2, 1, 1), [[0, 0, 0], [1, 0, 0]])
    with pytest.raises(ValueError, match="height must be at least 1, got 0"):
        grid_positions(1, 0, 2)


@pytest.mark.parametrize(
    ("encoding", "head", "message"),
    [
        (aj.AxialRoPE(), 6, "multiple of 4, got 6"),
        (aj.MixedRoPE(axes=3), 8, "multiple of 6, got 8"),
        (aj.MRoPE(sections=(1, 1, 1)), 8, r"sections \(1, 1, 1\) must add up to the 4 pairs"),
        (aj.MRoPE(), 7, "head dimension must be even, got 7"),
    ],
)
def test_refuses_head_dimensions(encoding, head, message):
    with pytest.raises(ValueError, match=message):
        constants(encoding, head)
    if isinstance(encoding, aj.MixedRoPE):
        with pytest.raises(ValueError, match=message):
            encoding.init(jax.random.key(0), aj.Sizes(8, 1, 1, head))
