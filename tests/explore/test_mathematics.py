"""The page's JavaScript beside the JAX functions: the same random inputs, in a real browser, to 1e-6 in both precisions."""

import functools
import itertools
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.explore.page import script, script_json
from attnjax.positions.absolute import sinusoidal_table
from attnjax.positions.alibi import published_slopes
from attnjax.positions.angles import angles, exact, geometric
from attnjax.positions.rotary import rotate
from tests.browser import BROWSER, visit
from tests.explore.synthetic import told

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium, and run this again"),
]

DRIVER = (pathlib.Path(__file__).parent / "agreement.js").read_text(encoding="utf-8")
LAYOUTS, ORDERS = ("half", "interleaved"), ("interleaved", "concatenated")
TOLERANCE = 1e-6
DRAWS, LENGTH = 16, 7
PRESETS, ENCODINGS = ("identity", "swap", "flip", "random"), ("none", "sinusoidal", "rope", "alibi")

ATTENTION = (
    {"heads": 1, "width": 6, "causal": False},
    {"heads": 1, "width": 6, "causal": True, "tau": 0.37},
    {"heads": 3, "width": 12, "causal": True},
    {"heads": 3, "width": 12, "causal": True, "slopes": [0.75, 0.03, 1.5], "symmetric": False},
    {"heads": 2, "width": 12, "causal": False, "slopes": [0.5, 0.0625], "symmetric": True},
    {"heads": 2, "width": 12, "causal": False, "theta": 10_000.0, "layout": "half"},
    {"heads": 2, "width": 12, "causal": True, "theta": 37.0, "layout": "interleaved"},
)
"""What is attended with; each on several draws of q, k and v."""


def draw(generator, *shape):
    """Numbers in -1 .. 1 that float32 holds exactly, so that both precisions start from the same."""
    return generator.uniform(-1, 1, shape).astype(np.float32).astype(np.float64).tolist()


def attention_cases():
    for place, options in enumerate(ATTENTION):
        for seed in range(DRAWS):
            g = np.random.default_rng((place, seed))
            yield "attend", {**{name: draw(g, LENGTH, options["width"]) for name in "qkv"}, **options, "place": place}


def position_cases():
    for seed in range(DRAWS // 2):
        g = np.random.default_rng(seed)
        pairs, theta = int(g.integers(1, 9)), float(10 ** g.uniform(1, 6))
        positions = g.integers(-500, 30_000, LENGTH).tolist()
        x, layout, order = draw(g, LENGTH, 2 * pairs + seed % 3), LAYOUTS[seed % 2], ORDERS[seed % 2]
        yield "rope", {"x": x, "positions": positions, "theta": theta, "layout": layout, "pairs": pairs}
        yield "sinusoidal", {"positions": positions, "width": 2 * pairs, "theta": theta, "order": order}
        yield "slopes", {"heads": seed + 1}


def notebook_cases():
    for encoding, heads, causal, tau, preset in itertools.product(
        ENCODINGS, (1, 2), (False, True), (None, 0.7), PRESETS
    ):
        state = {"preset": preset, "encoding": encoding, "heads": heads, "causal": causal, "tau": tau}
        yield "notebook", {**state, "layout": LAYOUTS[heads - 1], "order": [1, 0, 2, 3]}


CASES = [
    *attention_cases(),
    *position_cases(),
    *notebook_cases(),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the browser computed for every case."""
    folder = tmp_path_factory.mktemp("mathematics")
    code = script(("math", "positions", "words", "forward")) + DRIVER
    page = f'<pre id="told"></pre><script type="application/json" id="data">{script_json(CASES)}</script>'
    (folder / "report.html").write_text(f'<meta charset="utf-8">{page}<script>{code}</script>', encoding="utf-8")
    found = told(visit(folder)[0])
    assert len(found) == len(CASES)
    return found


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield jnp.dtype(request.param)


def cases(results, name, **wanted):
    """(arguments, result) of the cases of one function that have these arguments."""
    pairs = zip(CASES, results, strict=True)
    return [(given, found) for (called, given), found in pairs if called == name and wanted.items() <= given.items()]


def close(actual, expected):
    expected = np.asarray(expected)
    assert np.shape(actual) == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


@functools.partial(jax.jit, static_argnames=("heads", "causal", "encoding"))
def attention(q, k, v, scale, pos, *, heads, causal, encoding):
    """Weights [B, N, T, T] and output [B, T, N * H] of attnjax for inputs [B, T, N * H]."""
    split = lambda x: x.reshape(*x.shape[:2], heads, -1)
    options = {"encoding": encoding, "mask": aj.Mask(causal=causal), "scale": scale, "q_pos": pos, "k_pos": pos}
    out = aj.attend(split(q), split(k), split(v), **options)
    return aj.attention_weights(split(q), split(k), **options), out.reshape(q.shape)


def compare(found, arrays, dtype, tau, pos, **options):
    """The page's weights and outputs, case by case, with those of one call on all of them."""
    tau = math.sqrt(arrays[0].shape[-1] / options["heads"]) if tau is None else tau
    pos = jnp.asarray(pos, dtype if pos.dtype == np.float64 else jnp.int32)
    arrays = [jnp.asarray(x, dtype) for x in arrays]
    weights, out = attention(*arrays, jnp.asarray(1 / tau, dtype), pos, **options)
    close([one["weights"] for one in found], weights)
    close([one["out"] for one in found], out)


@pytest.mark.parametrize("place", range(len(ATTENTION)))
def test_attention(results, dtype, place):
    options = ATTENTION[place]
    encoding = aj.NoPE()
    if "theta" in options:
        encoding = aj.RoPE(theta=options["theta"], layout=options["layout"])
    if "slopes" in options:
        encoding = aj.ALiBi(tuple(options["slopes"]), symmetric=options["symmetric"])
    given, found = zip(*cases(results, "attend", place=place), strict=True)
    assert len(given) == DRAWS
    arrays = [np.asarray([one[name] for one in given]) for name in "qkv"]
    fixed = {"heads": options["heads"], "causal": options["causal"], "encoding": encoding}
    compare(found, arrays, dtype, options.get("tau"), np.arange(LENGTH), **fixed)


def test_rotation(results, dtype):
    turn = jax.jit(
        lambda x, pos, theta, layout: rotate(x, angles(pos, exact(geometric(*theta))).astype(x.dtype), layout),
        static_argnums=(2, 3),
    )
    for given, found in cases(results, "rope"):
        pos = jnp.asarray(given["positions"], jnp.int32)
        close(found, turn(jnp.asarray(given["x"], dtype), pos, (given["pairs"], given["theta"]), given["layout"]))


def test_sinusoidal_table(results, dtype):
    table = jax.jit(sinusoidal_table, static_argnums=(1, 2, 3))
    for given, found in cases(results, "sinusoidal"):
        pos = jnp.asarray(given["positions"], jnp.int32)
        close(found, table(pos, given["width"], given["theta"], given["order"]))


def test_slopes(results):
    for given, found in cases(results, "slopes"):
        close(found, published_slopes(given["heads"]))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_notebook(results, encoding):
    """cat The sat down, under every preset: X and W_K are what they should be, and JAX makes the same of them."""
    words = np.array([[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]], np.float64)
    fixed = {"identity": np.eye(4), "swap": np.roll(np.eye(4), 2, axis=1), "flip": np.diag([1.0, 1, -1, -1])}
    waves = [[math.sin(t), math.cos(t), math.sin(t / 100), math.cos(t / 100)] for t in range(4)]
    for heads, causal, tau in itertools.product((1, 2), (False, True), (None, 0.7)):
        given, found = zip(
            *cases(results, "notebook", encoding=encoding, heads=heads, causal=causal, tau=tau), strict=True
        )
        for one, told_ in zip(given, found, strict=True):
            close(told_["x"], words + np.asarray(waves) if encoding == "sinusoidal" else words)
            close(told_["keys"], fixed.get(one["preset"], told_["keys"]))
        x = np.asarray([one["x"] for one in found])
        pos, chosen = np.arange(4), aj.NoPE()
        if encoding == "rope":
            # Half a radian per position; the first pair of attnjax turns by one, so these are its positions.
            pos, chosen = 0.5 * np.arange(4), aj.RoPE(layout=given[0]["layout"])
        if encoding == "alibi":
            chosen = aj.ALiBi(symmetric=not causal)
        options = {"heads": heads, "causal": causal, "encoding": chosen}
        compare(found, [x, x @ np.asarray([one["keys"] for one in found]), x], jnp.float32, tau, pos, **options)
