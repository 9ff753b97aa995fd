"""The worked examples of the page: published figures as printed, closed forms to 1e-6, and the command.

`tests/test_worked_examples.py` checks the same ideas on every implementation; here it is the numbers of the page.
Random numbers are read from the committed record, and computed anew at one width.
"""

import functools
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.first_principles import pruning, record, recurrence, scale
from experiments.first_principles.__main__ import main
from experiments.first_principles.sections import NAMES, SECTIONS, chosen

pytestmark = pytest.mark.slow

FOLDER = pathlib.Path(__file__).parents[2] / "experiments" / "first_principles"
ROOT2 = math.sqrt(2)
B, C = math.exp(1 / ROOT2), math.exp(2 / ROOT2)
MEASURED = [section.name for section in SECTIONS if section.measured]
EXACT = [name for name in NAMES if name not in [*MEASURED, "scale"]]
"""Computed anew here; `scale` in part."""


@functools.cache
def computed(name: str) -> dict:
    (section,) = chosen([name])
    return record.rounded(section.numbers())


@functools.cache
def committed(name: str) -> dict:
    return record.read(FOLDER)[name]["numbers"]


def found(name: str, path: str):
    """The number, or the table of them, at a dotted path."""
    value = computed(name)
    for step in path.split("."):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


# As published, with the rounding that they were printed with. -------------------------------------------------------

HALF_DIGIT = 5.1e-4
PUBLISHED = [
    ("projection", "q", [0.21, 0.04], 1e-6),
    ("projection", "terms", [[0.2, 0.1], [0.2, -0.15], [-0.03, -0.15], [-0.16, 0.24]], 1e-6),
    ("attention", "scores", [[0, 1, 1], [1, 0, 1], [1, 1, 2]], 0),
    ("attention", "scaled.2", [0.707, 0.707, 1.414], HALF_DIGIT),
    ("attention", "weights", [[0.198, 0.401, 0.401], [0.401, 0.198, 0.401], [0.248, 0.248, 0.503]], 7e-4),
    # Printed from weights rounded to three digits.
    ("attention", "output", [[3.406, 4.406], [3.0, 4.0], [3.507, 4.506]], 5e-3),
    ("scale", "example.e_to_16", 8.9e6, 5e4),
    ("heads", "concatenated", [0.5, -0.3, 0.8, 0.1], 1e-6),
    ("sinusoidal", "pe", [[0, 1, 0, 1], [0.841, 0.540, 0.010, 1.0], [0.141, -0.990, 0.030, 1.0]], HALF_DIGIT),
    ("sinusoidal", "token_there", [0.641, -0.690, -0.070, 1.8], HALF_DIGIT),
    ("sinusoidal", "periods", [6.28, 628], 0.5),
    ("parameters", "shapes.output", [1, 10, 64], 0),
    ("parameters", "shapes.weights", [1, 8, 10, 10], 0),
    ("block", "original.d_ff", 2048, 0),
]


@pytest.mark.parametrize(
    ("name", "path", "value", "tolerance"), PUBLISHED, ids=lambda x: x if isinstance(x, str) else ""
)
def test_published_numbers_come_out(name, path, value, tolerance):
    if name == "scale":
        assert abs(committed(name)["example"]["e_to_16"] - value) < tolerance
    else:
        np.testing.assert_allclose(found(name, path), value, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", EXACT)
def test_the_record_is_what_the_code_computes(name):
    """On either set of versions, up to the rounding of float32."""

    def compare(a, b, where):
        assert type(a) is type(b) or {type(a), type(b)} == {int, float}, where
        if isinstance(a, dict):
            assert a.keys() == b.keys(), where
            for key in a:
                compare(a[key], b[key], f"{where}.{key}")
        elif isinstance(a, list):
            assert len(a) == len(b), where
            for i, (x, y) in enumerate(zip(a, b)):
                compare(x, y, f"{where}.{i}")
        elif isinstance(a, float | int) and not isinstance(a, bool):
            assert abs(a - b) <= 3e-6 * max(1, abs(a)), where
        else:
            assert a == b, where

    compare(committed(name), computed(name), name)


# In closed form. ----------------------------------------------------------------------------------------------------


def test_three_words():
    weights = np.array([[1, B, B], [B, 1, B], [B, B, C]]) / np.array([[1 + 2 * B], [1 + 2 * B], [2 * B + C]])
    np.testing.assert_allclose(found("attention", "weights"), weights, atol=1e-6)
    np.testing.assert_allclose(found("attention", "output"), weights @ [[1, 2], [3, 4], [5, 6]], atol=1e-6)
    np.testing.assert_allclose(
        found("attention", "scaled"), np.array([[0, 1, 1], [1, 0, 1], [1, 1, 2]]) / ROOT2, atol=1e-6
    )


def test_the_projection_scores_two_keys():
    np.testing.assert_allclose(found("projection", "scores"), [0.0418, 0.0474], atol=1e-7)
    odds = math.exp(0.0056 / ROOT2)
    np.testing.assert_allclose(found("projection", "weights"), [1 / (1 + odds), odds / (1 + odds)], atol=1e-6)


def test_heads_by_preset_and_temperature():
    match, other, repelled = B / (B + 3), 1 / (B + 3), (1 / B) / (1 / B + 3)
    one, rest = found("heads", "presets.identity.weights"), 0.25
    for head, tokens in ((0, (1, 2)), (1, (0, 3))):
        for token in range(4):
            row = [match if key == token else other for key in range(4)] if token in tokens else [rest] * 4
            np.testing.assert_allclose(one[head][token], row, atol=1e-6)
    swapped = found("heads", "presets.swapped.weights")
    # cat looks at The, sat at down; in the other head The at cat, down at sat.
    picked = [swapped[0][1][0], swapped[0][2][3], swapped[1][0][1], swapped[1][3][2]]
    np.testing.assert_allclose(picked, [match] * 4, atol=1e-6)
    negated = found("heads", "presets.negated.weights")
    assert negated[0] == one[0]
    np.testing.assert_allclose([negated[1][0][0], negated[1][3][3]], [repelled] * 2, atol=1e-6)
    np.testing.assert_allclose(np.diag(found("heads", "one_head")), math.exp(0.5) / (math.exp(0.5) + 3), atol=1e-6)
    for tau, weight in zip(found("heads", "tau"), found("heads", "match")):
        np.testing.assert_allclose(weight, 1 / (1 + 3 * math.exp(-1 / tau)), atol=1e-6)


def test_parameters_do_not_depend_on_the_number_of_heads():
    rows = {(row["model"], row["heads"]): row for row in found("parameters", "rows")}
    assert rows[64, 4]["qkv"] == 3 * 64 * 16 * 4 == 12_288
    assert rows[64, 4]["d_k"] == 16
    assert rows[512, 8]["d_k"] == 64
    for model in (64, 512):
        for heads in (1, 2, 4, 8, 16):
            row = rows[model, heads]
            assert (row["qkv"], row["all"]) == (3 * model**2, 4 * model**2)
            assert row["flops"] == rows[model, 1]["flops"]
            assert row["exponentials"] == heads * 100


def test_sinusoids_and_their_shift():
    exact = [[f(p * w) for w in (1, 0.01) for f in (math.sin, math.cos)] for p in (0, 1, 3)]
    np.testing.assert_allclose(found("sinusoidal", "pe"), exact, atol=1e-6)
    np.testing.assert_allclose(found("sinusoidal", "periods"), [2 * math.pi, 200 * math.pi], rtol=1e-7)
    token = np.array([0.5, 0.3, -0.1, 0.8]) + exact[2]
    np.testing.assert_allclose(found("sinusoidal", "token_there"), token, atol=1e-6)
    c, s, d, t = math.cos(3), math.sin(3), math.cos(0.03), math.sin(0.03)
    expected = [[c, s, 0, 0], [-s, c, 0, 0], [0, 0, d, t], [0, 0, -t, d]]
    np.testing.assert_allclose(found("sinusoidal", "matrices.1"), expected, atol=1e-7)
    assert found("sinusoidal", "worst_shift_error") < 1e-6
    assert found("sinusoidal", "largest") <= 1
    assert found("sinusoidal", "nearest") > 0.01
    # sin a sin b + cos a cos b = cos(a - b): the product of two positions is a sum of cosines of their distance.
    waves = 10_000.0 ** (-np.arange(16) / 16)
    expected = np.cos(np.arange(41)[:, None] * waves).sum(1)
    np.testing.assert_allclose(found("sinusoidal", "products"), np.tile(expected, (3, 1)), atol=2e-5)


def test_rotary_scores_are_a_function_of_the_distance():
    q, k = np.array([1.0, 0.3]), np.array([0.4, -0.9])

    def turn(a):
        return np.array([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])

    np.testing.assert_allclose(found("rotary", "turned"), [turn(0.5 * m) @ q for m in range(4)], atol=1e-6)
    expected = [[q @ turn(0.5 * (n - m)) @ k for n in range(8)] for m in range(8)]
    np.testing.assert_allclose(found("rotary", "rotary"), expected, atol=1e-6)
    assert found("rotary", "rotary_spread") < 1e-6
    np.testing.assert_allclose(found("rotary", "standard"), expected[0][2], atol=1e-7)
    np.testing.assert_allclose(found("rotary", "other_sign"), expected[2][0], atol=1e-7)
    added = lambda x: np.array([x + np.array([math.sin(0.5 * p), math.cos(0.5 * p)]) for p in range(8)])
    np.testing.assert_allclose(found("rotary", "sinusoidal"), added(q) @ added(k).T, atol=1e-6)
    assert found("rotary", "sinusoidal_spread") > 0.5
    pair = [math.cos(3), math.sin(3), -math.sin(0.03), math.cos(0.03)]
    np.testing.assert_allclose(found("rotary", "pairs.turned"), pair, atol=1e-6)


def test_order_is_invisible_without_positions():
    changes = computed("order")["changes"]
    assert max(changes["none"]) < 1e-6
    for name in ("sinusoidal", "rope", "causal mask alone"):
        assert min(changes[name]) > 1e-3, name
    example = computed("order")["examples"]["none"]
    places = ["sat The down cat".split().index(word) for word in "The cat sat down".split()]
    np.testing.assert_allclose(np.array(example["there"])[np.ix_(places, places)], example["here"], atol=1e-6)


def test_masks_hide_what_they_say():
    bottom = 2 * B + C
    expected = [[1, 0, 0], [B / (1 + B), 1 / (1 + B), 0], [B / bottom, B / bottom, C / bottom]]
    np.testing.assert_allclose(found("masks", "weights"), expected, atol=1e-6)
    np.testing.assert_allclose(found("masks", "output"), expected @ np.array([[1, 2], [3, 4], [5, 6]]), atol=2e-6)
    assert found("masks", "additive") == [[0, None, None], [0, 0, None], [0, 0, 0]]
    assert found("masks", "sees_nothing") == [0, 0]
    rules = {
        "none": lambda i, j: True,
        "causal": lambda i, j: j <= i,
        "causal, window of 3": lambda i, j: i - 2 <= j <= i,
        "two packed sequences": lambda i, j: i // 3 == j // 3,
        "padding at the end": lambda i, j: j < 4,
    }
    assert found("masks", "kinds").keys() == rules.keys()
    for name, rule in rules.items():
        seen = np.array([[rule(i, j) for j in range(6)] for i in range(6)], float)
        np.testing.assert_allclose(found("masks", "kinds")[name], seen / seen.sum(1, keepdims=True), atol=1e-6)


def test_the_block_and_its_parts():
    np.testing.assert_allclose(found("block", "normed"), (np.arange(1, 5) - 2.5) / math.sqrt(1.25), atol=2e-6)
    # x W_1 + b_1 = (0, -1 - 1 + 0.5, 0.5 + 0.5, 2 - 1); two survive: (1 + 0.5 + 0.1, 1 - 0.5 - 0.1).
    assert found("block", "ffn.before") == [0, -1.5, 1, 1]
    np.testing.assert_allclose(found("block", "ffn.out"), [1.6, 0.4], atol=1e-6)
    assert found("block", "post_error") < 2e-6
    assert found("block", "pre_error") < 2e-6
    assert found("block", "pre_zero_change") == 0
    assert found("block", "post_zero_change") < 1e-6
    depth = found("block", "depth")
    assert len(set(depth["pre-norm, branches zero"])) == 1
    np.testing.assert_allclose(depth["post-norm"][1:], 1, atol=1e-5)
    counts, ffn = found("block", "original"), 2 * 512 * 2048 + 2048 + 512
    assert (counts["blocks"], counts["attention"], counts["feed_forward"]) == (6, 4 * 512**2, ffn)
    assert counts["encoder_block"] == 4 * 512**2 + ffn + 2 * 1024
    assert counts["decoder_block"] == 8 * 512**2 + ffn + 3 * 1024
    assert counts["all"] == 6 * (counts["encoder_block"] + counts["decoder_block"]) + 37_000 * 512
    assert found("block", "shapes") == {"encoder": [1, 2, 5, 5], "decoder": [1, 2, 3, 3], "cross": [1, 2, 3, 5]}


def test_heads_made_by_hand_and_their_importance():
    """Everything once more with tables written by hand, and the gradient of the gates on paper."""
    sentence, read = pruning.SENTENCE, np.array(pruning.READ)
    names = list(dict.fromkeys(sentence))
    matches = [
        lambda i, j: j == i - 1,
        lambda i, j: j == i + 1,
        lambda i, j: sentence[j] == ".",
        lambda i, j: sentence[i] == sentence[j],
    ]
    scores = np.array([[[math.exp(4.0 * match(i, j)) for j in range(8)] for i in range(8)] for match in matches])
    weights = scores / scores.sum(-1, keepdims=True)
    np.testing.assert_allclose(found("pruning", "weights"), weights, atol=1e-6)
    assert weights[0, 1, 0] == pytest.approx(math.exp(4) / (math.exp(4) + 7))
    words = np.eye(8)[[names.index(word) for word in sentence]]
    said = read[:, None, None] * (weights @ words)[:, 1:]
    logits = said.sum(0)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    by_gate = ((p - words[:-1])[None] * said).sum(-1)
    np.testing.assert_allclose(found("pruning", "importance"), np.abs(by_gate).mean(1), atol=1e-6)
    for way in ("least_first", "most_first"):
        gates = np.ones(4)
        for step, name in enumerate([None, *found("pruning", way)["order"]][:4]):
            gates = gates * [name != head for head in pruning.HEADS]
            left = np.einsum("n,ntw->tw", gates, said)
            right = (left.argmax(-1) == words[:-1].argmax(-1)).mean()
            assert found("pruning", way)["accuracy"][step] == pytest.approx(right)
            loss = np.log(np.exp(left).sum(-1)) - left[words[:-1] == 1]
            np.testing.assert_allclose(found("pruning", way)["loss"][step], loss.mean(), atol=2e-6)
    assert found("pruning", "least_first.accuracy") == [1, 1, 1, 1]
    assert found("pruning", "most_first.accuracy.1") < 0.5


# Why the square root of d_k. ----------------------------------------------------------------------------------------


def test_the_variance_of_a_product_is_the_width():
    held = committed("scale")
    assert held["d_k"] == list(scale.SIZES)
    # Of a sum of d independent products of variance 1 and fourth moment 9: the variance of the square is 2 d^2 + 6 d.
    for d, plain, scaled in zip(held["d_k"], held["variance"], held["variance_scaled"]):
        error = math.sqrt((2 * d**2 + 6 * d) / held["pairs"])
        assert abs(plain - d) < 4 * error
        assert abs(scaled - plain / d) < 1e-4 * plain / d
    np.testing.assert_allclose(held["example"]["deviation"], math.sqrt(64))
    np.testing.assert_allclose(held["example"]["e_to_16"], math.e**16, rtol=1e-7)
    np.testing.assert_allclose(held["entropy_of_all_alike"], math.log(64), rtol=1e-7)


def test_one_width_is_what_the_record_says():
    held, place = committed("scale"), scale.SIZES.index(64)
    for name, value in scale.at_size(jax.random.fold_in(jax.random.key(0), 64), 64).items():
        np.testing.assert_allclose(value, held[name][place], rtol=2e-4, err_msg=name)


def test_entropy_and_gradient_of_a_softmax():
    np.testing.assert_allclose(scale.entropy(jnp.full((1, 64), 1 / 64)), [math.log(64)], rtol=1e-6)
    np.testing.assert_allclose(scale.entropy(jnp.eye(3)), 0, atol=1e-7)
    np.testing.assert_allclose(scale.gradient_norm(jnp.eye(3)), 0, atol=1e-7)
    scores = 2 * jax.random.normal(jax.random.key(3), (5, 7))
    jacobians = jax.vmap(jax.jacobian(jax.nn.softmax))(scores)
    norms = np.linalg.norm(np.asarray(jacobians, np.float64), axis=(1, 2))
    np.testing.assert_allclose(scale.gradient_norm(jax.nn.softmax(scores)), norms, rtol=1e-4)


def test_the_lstm_is_the_published_one_and_its_forget_bias_is_where_it_belongs(monkeypatch):
    monkeypatch.setattr(recurrence, "CHANNELS", 3)
    call, params = recurrence.lstm(0, 1.0)
    w_i, w_h = (np.asarray(params[name]["kernel"][...], np.float64) for name in ("dense_i", "dense_h"))
    x = np.random.default_rng(0).normal(size=(1, 4, 3))
    sigmoid = lambda a: 1 / (1 + np.exp(-a))
    c, h, out = np.zeros(3), np.zeros(3), []
    for token in x[0]:
        i, f, g, o = np.split(token @ w_i + h @ w_h, 4)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    np.testing.assert_allclose(call(params, jnp.asarray(x, jnp.float32))[0], out, atol=1e-6)


@pytest.mark.parametrize("kind", ["attention", "lstm"])
def test_one_causal_pass_has_the_gradients_of_all_lengths(kind, monkeypatch):
    for name, value in (("CHANNELS", 4), ("HEADS", 2), ("REACH", 4), ("SEEDS", 2)):
        monkeypatch.setattr(recurrence, name, value)
    make = recurrence.kinds()[kind]
    norms = recurrence.gradients(make)
    x = jax.random.normal(jax.random.key(0), (2, 4, 4))
    for seed in range(2):
        call, params = make(seed)
        whole = jax.jacrev(lambda x, call=call, params=params: call(params, x[None])[0, -1])
        for T in (1, 3):
            derivative = np.asarray(whole(x[seed, :T]))[:, 0]
            np.testing.assert_allclose(norms[seed, T - 1], np.linalg.norm(derivative) / 2, rtol=1e-5)


def test_some_sections_are_computed_and_the_others_kept(tmp_path, capsys):
    record.write(tmp_path, {"parameters": record.read(FOLDER)["parameters"]})
    assert main(["--only", "projection", "--out", str(tmp_path)]) == 0
    assert "q[0] = 0.20 + 0.20 - 0.03 - 0.16 = 0.21" in capsys.readouterr().out
    assert list(record.read(tmp_path)) == ["projection", "parameters"]
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "12,288" in text
    assert (tmp_path / "projection.png").exists()
    assert not list(tmp_path.glob("*.new"))
