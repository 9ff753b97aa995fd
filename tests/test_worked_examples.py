"""The worked examples of the tutorial, number for number: the figures as published, and beside them the exact values.

Published figures are rounded to the digits shown; where one was itself computed from rounded intermediate values, the
tolerance says so and a closed form is checked to 1e-6.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj

pytestmark = pytest.mark.slow
BOTH = pytest.mark.parametrize("implementation", ["dense", "chunked"])


def one_head(x) -> jax.Array:
    """[T, H] as one example with one head."""
    return jnp.asarray(x, jnp.float32)[None, :, None, :]


def weights_of(q, k, **options) -> np.ndarray:
    """[T, S] weights of one head of one example."""
    return np.asarray(aj.attention_weights(one_head(q), one_head(k), **options)[0, 0])


# Projection ----------------------------------------------------------------------------------------------------------


def test_a_query_is_a_weighted_sum_of_rows_of_the_projection():
    x = np.array([1.0, 0.5, -0.3, 0.8])
    w_q = np.array([[0.2, 0.1], [0.4, -0.3], [0.1, 0.5], [-0.2, 0.3]])
    terms = x[:, None] * w_q
    # The published terms of both components: what each channel of x adds.
    np.testing.assert_allclose(terms[:, 0], [0.2, 0.2, -0.03, -0.16], atol=1e-12)
    np.testing.assert_allclose(terms[:, 1], [0.1, -0.15, -0.15, 0.24], atol=1e-12)
    q = terms.sum(0)
    np.testing.assert_allclose(q, [0.21, 0.04], atol=1e-12)
    # k_cat and k_mat: 0.0378 + 0.004 against 0.0462 + 0.0012, so that "mat" gets a little more of the weight.
    k = np.array([[0.18, 0.10], [0.22, 0.03]])
    np.testing.assert_allclose(k @ q, [0.0418, 0.0474], atol=1e-12)
    seen = weights_of(q[None], k)
    assert seen[0, 1] > seen[0, 0]
    odds = math.exp(0.0056 / math.sqrt(2))
    np.testing.assert_allclose(seen[0], [1 / (1 + odds), odds / (1 + odds)], atol=1e-6)


# Scaled dot-product attention: "I love math" -------------------------------------------------------------------------

Q = np.array([[1, 0], [0, 1], [1, 1]])
K = np.array([[0, 1], [1, 0], [1, 1]])
V = np.array([[1, 2], [3, 4], [5, 6]])
B, C = math.exp(1 / math.sqrt(2)), math.exp(2 / math.sqrt(2))
EXACT = np.array([[1, B, B], [B, 1, B], [B, B, C]]) / np.array([[1 + 2 * B], [1 + 2 * B], [2 * B + C]])


def test_scores_and_scaled_scores():
    scores = Q @ K.T
    np.testing.assert_array_equal(scores, [[0, 1, 1], [1, 0, 1], [1, 1, 2]])
    np.testing.assert_allclose(np.unique(scores) / math.sqrt(2), [0, 0.707, 1.414], atol=5e-4)


def test_weights():
    weights = weights_of(Q, K)
    published = [[0.198, 0.401, 0.401], [0.401, 0.198, 0.401], [0.248, 0.248, 0.503]]
    np.testing.assert_allclose(weights, published, atol=7e-4)
    np.testing.assert_allclose(weights, EXACT, atol=1e-6)


@BOTH
def test_output(implementation):
    out = aj.attend(*map(one_head, (Q, K, V)), implementation=implementation)[0, :, 0]
    # Published from weights rounded to three digits.
    np.testing.assert_allclose(out, [[3.406, 4.406], [3.000, 4.000], [3.507, 4.506]], atol=5e-3)
    np.testing.assert_allclose(out, EXACT @ V, atol=1e-6)


# Heads: split, attend, concatenate -----------------------------------------------------------------------------------


def split(x) -> jax.Array:
    """[T, 4] -> two heads of two channels."""
    return jnp.asarray(x, jnp.float32).reshape(1, len(x), 2, 2)


def concatenate(heads) -> np.ndarray:
    return np.asarray(heads).reshape(heads.shape[1], -1)


def test_concatenation_keeps_the_heads_side_by_side():
    heads = jnp.asarray([[[[0.5, -0.3], [0.8, 0.1]]]])
    w_o = np.eye(4)
    np.testing.assert_allclose(concatenate(heads) @ w_o, [[0.5, -0.3, 0.8, 0.1]], atol=1e-7)


def test_shapes_of_eight_heads():
    q = k = v = jnp.zeros((1, 10, 8, 64 // 8))
    assert aj.attend(q, k, v).reshape(1, 10, 64).shape == (1, 10, 64)
    assert aj.attention_weights(q, k).shape == (1, 8, 10, 10)


TOKENS = ["The", "cat", "sat", "down"]
# Channels 0 and 1 tell cat from sat, channels 2 and 3 tell The from down. W_Q = W_V = W_O = 1.
X = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]], np.float64)
SWAPPED = np.roll(np.eye(4), 2, axis=1)
NEGATED = np.diag([1.0, 1.0, -1.0, -1.0])
EQUAL = 0.25


def by_hand(pairs: dict[str, str], sign: int = 1, tau: float = math.sqrt(2)) -> np.ndarray:
    """Weights of a head in which these queries meet these keys with a product of `sign`; all others are orthogonal."""
    weights = np.full((4, 4), EQUAL)
    match = math.exp(sign / tau)
    for query, key in pairs.items():
        row = TOKENS.index(query)
        weights[row] = 1 / (match + 3)
        weights[row, TOKENS.index(key)] = match / (match + 3)
    return weights


HEAD_1, HEAD_2 = {"cat": "cat", "sat": "sat"}, {"The": "The", "down": "down"}
PRESETS = {
    "identity": (np.eye(4), by_hand(HEAD_1), by_hand(HEAD_2)),
    # Each head's queries meet the channels of the other: cat looks at The, sat at down, and the other way round.
    "swapped": (SWAPPED, by_hand({"cat": "The", "sat": "down"}), by_hand({"The": "cat", "down": "sat"})),
    # What attracted head 2 now repels it; head 1 does not change.
    "negated": (NEGATED, by_hand(HEAD_1), by_hand(HEAD_2, sign=-1)),
}


def test_the_number_behind_the_presets():
    match = by_hand(HEAD_1)[1, 1]
    # e^0.7071 = 2.0281; 2.0281 / 5.0281.
    np.testing.assert_allclose(match, 0.4034, atol=5e-5)
    np.testing.assert_allclose(by_hand(HEAD_2, sign=-1)[0, 0], 0.1412, atol=5e-5)


@pytest.mark.parametrize("name", PRESETS)
@BOTH
def test_the_cat_sat_down(name, implementation):
    w_k, head_1, head_2 = PRESETS[name]
    q, k, v = split(X), split(X @ w_k), split(X)
    weights = aj.attention_weights(q, k)[0]
    np.testing.assert_allclose(weights[0], head_1, atol=1e-6)
    np.testing.assert_allclose(weights[1], head_2, atol=1e-6)
    out = concatenate(aj.attend(q, k, v, implementation=implementation))
    np.testing.assert_allclose(out, np.concatenate([head_1 @ X[:, :2], head_2 @ X[:, 2:]], axis=1), atol=1e-6)


def test_random_keys_change_every_row_and_each_head_alone_gives_its_half():
    k = split(X @ np.random.default_rng(0).normal(size=(4, 4)))
    q = v = split(X)
    weights = aj.attention_weights(q, k)[0]
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert np.abs(weights[0, 1:3] - EQUAL).max(axis=1).min() > 0.01
    both = concatenate(aj.attend(q, k, v))
    for head in range(2):
        alone = aj.attend(*(x[:, :, head : head + 1] for x in (q, k, v)))
        np.testing.assert_allclose(concatenate(alone), both[:, 2 * head : 2 * head + 2], atol=1e-6)


@pytest.mark.parametrize("tau", [0.1, 1.0, math.sqrt(2), 100.0])
def test_temperature(tau):
    weights = aj.attention_weights(split(X), split(X), scale=1 / tau)[0]
    np.testing.assert_allclose(weights[0], by_hand(HEAD_1, tau=tau), atol=1e-6)
    # Cold looks at one token, hot at all alike.
    if tau == 0.1:
        assert weights[0, 1, 1] > 0.999
    if tau == 100.0:
        np.testing.assert_allclose(weights, EQUAL, atol=0.002)


def test_one_head_over_four_channels_against_two_over_two():
    # One head: every token finds itself, with 1/sqrt(4) in the exponent. Two heads: each finds half of the tokens.
    match = math.exp(0.5)
    expected = (np.ones((4, 4)) + (match - 1) * np.eye(4)) / (match + 3)
    np.testing.assert_allclose(weights_of(X, X), expected, atol=1e-6)
    np.testing.assert_allclose(expected[0, 0], 0.3547, atol=5e-5)
    two = aj.attention_weights(split(X), split(X))[0]
    np.testing.assert_allclose(two[0, 0], EQUAL, atol=1e-6)
    assert two[1, 0, 0] > expected[0, 0]


# Sinusoidal positions, width 4 ---------------------------------------------------------------------------------------


def positions(pos, dtype=jnp.float32) -> np.ndarray:
    """PE of these positions, as what `embed` adds to zero."""
    pos = np.asarray(pos)
    return np.asarray(aj.embed(aj.Sinusoidal(), None, jnp.zeros((1, len(pos), 4), dtype), pos)[0])


def test_positions_0_1_and_3():
    table = positions([0, 1, 3])
    published = [[0, 1, 0, 1], [0.841, 0.540, 0.010, 1.000], [0.141, -0.990, 0.030, 1.000]]
    np.testing.assert_allclose(table, published, atol=5e-4)
    exact = [[f(p * w) for w in (1, 0.01) for f in (math.sin, math.cos)] for p in (0, 1, 3)]
    np.testing.assert_allclose(table, exact, atol=1e-6)


def test_a_token_at_position_3():
    token = jnp.asarray([[[0.5, 0.3, -0.1, 0.8]]])
    moved = aj.embed(aj.Sinusoidal(), None, token, np.array([3]))[0, 0]
    np.testing.assert_allclose(moved, [0.641, -0.690, -0.070, 1.800], atol=5e-4)


def test_periods():
    # Channels 0 and 1 come back after 2 pi = 6.28 positions, channels 2 and 3 after about 628.
    np.testing.assert_allclose(positions([0.0, 2 * math.pi])[:, :2], [[0, 1]] * 2, atol=1e-6)
    np.testing.assert_allclose(positions([0.0, 200 * math.pi])[:, 2:], [[0, 1]] * 2, atol=1e-6)
    assert round(2 * math.pi, 2) == 6.28
    assert round(200 * math.pi) == 628


@pytest.mark.parametrize("k", [1, 2, 17])
def test_a_step_of_k_positions_is_one_rotation_for_all_positions(k):
    def turn(w):
        return [[math.cos(k * w), math.sin(k * w)], [-math.sin(k * w), math.cos(k * w)]]

    matrix = np.zeros((4, 4))
    matrix[:2, :2], matrix[2:, 2:] = turn(1), turn(0.01)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(4), atol=1e-12)
    p = np.arange(200)
    np.testing.assert_allclose(positions(p + k), positions(p) @ matrix.T, atol=1e-6)


def test_bounded_and_distinct():
    table = positions(np.arange(600)).astype(np.float64)
    assert np.abs(table).max() <= 1
    apart = np.linalg.norm(table[:, None] - table[None, :], axis=-1) + 2 * np.eye(600)
    assert apart.min() > 0.01


# Rotary positions ----------------------------------------------------------------------------------------------------

# One pair has the frequency 1; half of it is 0.5 radians per position.
HALF = aj.RoPE(scaling=aj.PositionInterpolation(2.0))
QUERY, KEY = np.array([1.0, 0.3]), np.array([0.4, -0.9])


def constants(encoding: aj.PositionEncoding, head_dim: int) -> dict:
    """The frequencies of one head."""
    return encoding.constants(aj.Sizes(model=head_dim, heads=1, kv_heads=1, head_dim=head_dim))


def rotation(angle: float) -> np.ndarray:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def test_a_query_at_positions_0_to_3():
    turned = HALF.map_q(constants(HALF, 2), jnp.asarray(np.tile(QUERY, (4, 1)), jnp.float32), np.arange(4))
    # (cos a - 0.3 sin a, sin a + 0.3 cos a) for a = 0, 0.5, 1, 1.5.
    expected = [[1, 0.3], [0.7338, 0.7427], [0.2879, 1.0036], [-0.2285, 1.0187]]
    np.testing.assert_allclose(turned, expected, atol=5e-5)
    np.testing.assert_allclose(turned, [rotation(0.5 * m) @ QUERY for m in range(4)], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), math.sqrt(1.09), atol=1e-6)


def rotary_scores(encoding, length: int) -> np.ndarray:
    """(R(m) q) . (R(n) k) for all m, n, of the same q and k."""
    repeat = lambda x: jnp.asarray(np.tile(x, (length, 1)), jnp.float32)
    pos = np.arange(length)
    p = constants(encoding, 2)
    return np.asarray(encoding.map_q(p, repeat(QUERY), pos) @ encoding.map_k(p, repeat(KEY), pos).T)


def test_the_score_depends_on_the_distance_alone():
    """With the standard rotation (R(m) q) . (R(n) k) = q . R(n - m) k; some texts print m - n, the other way round."""
    scores = rotary_scores(HALF, 8)
    for m in range(8):
        for n in range(8):
            np.testing.assert_allclose(scores[m, n], QUERY @ rotation(0.5 * (n - m)) @ KEY, atol=1e-6)
    assert abs(scores[0, 2] - QUERY @ rotation(0.5 * -2) @ KEY) > 0.1, "the sign matters"


def test_the_score_of_sinusoids_depends_on_both_positions():
    q, k = np.tile([1.0, 0.3, 0.0, 0.0], (8, 1)), np.tile([0.4, -0.9, 0.0, 0.0], (8, 1))
    scores = (q + positions(np.arange(8))) @ (k + positions(np.arange(8))).T
    along_a_diagonal = np.diag(scores, 2)
    assert np.ptp(along_a_diagonal) > 0.5
    assert np.ptp(np.diag(rotary_scores(HALF, 8), 2)) < 1e-6


def test_consecutive_pairs_with_one_frequency_each():
    x = jnp.asarray([[1.0, 0.0, 0.0, 1.0]])
    encoding = aj.RoPE(layout="interleaved")
    turned = encoding.map_q(constants(encoding, 4), x, np.array([3]))
    # Pair 0 turns by 3, pair 1 by 3 * 10,000^(-2/4) = 0.03.
    np.testing.assert_allclose(turned[0], [math.cos(3), math.sin(3), -math.sin(0.03), math.cos(0.03)], atol=1e-6)


# Order ---------------------------------------------------------------------------------------------------------------

VOCABULARY = [*TOKENS, "dog", "bites", "man", "Alice", "thanked", "Bob"]
WORDS = dict(zip(VOCABULARY, np.random.default_rng(0).normal(size=(len(VOCABULARY), 4)), strict=True))
PAIRS = [
    ("The cat sat down", "sat The down cat"),
    ("dog bites man", "man bites dog"),
    ("Alice thanked Bob", "Bob thanked Alice"),
]
ORDERED = {
    "sinusoidal": aj.Sinusoidal(),
    "learned": aj.Learned(length=4, std=1.0),
    "rope": aj.RoPE(),
    "t5": aj.T5Bias(bidirectional=True),
}
MIRRORED = {
    "alibi": aj.ALiBi(symmetric=True),
    "kerple": aj.Kerple(),
    "sandwich": aj.Sandwich(),
    "pope": aj.PoPE(),
}
"""Functions of |i - j|: they tell near from far, and not left from right."""


def matrix(sentence: str, encoding: aj.PositionEncoding = aj.NoPE(), **mask) -> np.ndarray:
    """The attention matrix of a sentence whose words are queries and keys at once."""
    params = encoding.init(jax.random.key(0), aj.Sizes(model=4, heads=1, kv_heads=1, head_dim=4))
    x = jnp.asarray(np.stack([WORDS[word] for word in sentence.split()]), jnp.float32)[None]
    x = aj.embed(encoding, params, x, np.arange(x.shape[1]))[:, :, None]
    encoding, params = (aj.NoPE(), None) if encoding.has("embed") else (encoding, params)
    return np.asarray(aj.attention_weights(x, x, encoding=encoding, params=params, mask=aj.Mask(**mask))[0, 0])


def reordered(sentence: str, other: str) -> tuple[np.ndarray, np.ndarray]:
    """The index that takes rows and columns of one sentence to those of the other."""
    order = [sentence.split().index(word) for word in other.split()]
    return np.ix_(order, order)


@pytest.mark.parametrize(("sentence", "other"), PAIRS)
def test_without_positions_order_permutes_rows_and_columns_and_nothing_else(sentence, other):
    np.testing.assert_allclose(matrix(other), matrix(sentence)[reordered(sentence, other)], atol=1e-6)


def change(sentence: str, other: str, encoding: aj.PositionEncoding, **mask) -> float:
    """The largest change of a weight that is more than its row and column moving."""
    there, here = (matrix(words, encoding, **mask) for words in (sentence, other))
    return np.abs(here - there[reordered(sentence, other)]).max()


@pytest.mark.parametrize("name", ORDERED)
def test_with_positions_order_matters(name):
    for sentence, other in PAIRS:
        assert change(sentence, other, ORDERED[name]) > 1e-3


@pytest.mark.parametrize("name", MIRRORED)
def test_symmetric_positions_see_no_difference_in_a_mirror(name):
    assert change(*PAIRS[0], MIRRORED[name]) > 1e-3
    for sentence, mirror in PAIRS[1:]:
        assert sentence.split() == mirror.split()[::-1]
        assert change(sentence, mirror, MIRRORED[name]) < 1e-6
        # A causal mask tells left from right.
        assert change(sentence, mirror, MIRRORED[name], causal=True) > 1e-3


def test_a_causal_mask_alone_tells_the_order():
    assert change(*PAIRS[0], aj.NoPE(), causal=True) > 0.1
    # The first word sees itself only, whichever it is.
    np.testing.assert_array_equal([matrix(words, causal=True)[0] for words in PAIRS[0]], [[1, 0, 0, 0]] * 2)


@BOTH
def test_the_causal_mask_is_minus_infinity_added_before_the_softmax(implementation):
    x = np.stack([WORDS[word] for word in TOKENS])
    mask = np.where(np.arange(4)[None, :] <= np.arange(4)[:, None], 0.0, -np.inf)
    logits = x @ x.T / 2 + mask
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(matrix("The cat sat down", causal=True), weights, atol=1e-6)
    attend = functools.partial(aj.attend, mask=aj.Mask(causal=True), implementation=implementation)
    np.testing.assert_allclose(attend(*map(one_head, (x, x, x)))[0, :, 0], weights @ x, atol=1e-6)
