"""The page's JavaScript beside the JAX functions: the same random inputs, in a real browser, in double precision."""

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
from attnjax.positions import Sinusoidal, embed
from attnjax.positions.alibi import published_slopes
from attnjax.positions.angles import angles, exact, geometric
from attnjax.positions.rotary import rotate
from tests.browser import BROWSER, visit
from tests.explore.synthetic import told

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("x64"),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium, and run this again"),
]

DRIVER = (pathlib.Path(__file__).parent / "agreement.js").read_text(encoding="utf-8")
DRAWS, LENGTH = 4, 7
PRESETS, ENCODINGS = ("identity", "swap", "flip", "random"), ("none", "sinusoidal", "rope", "alibi")

ATTENTION = (
    {"heads": 1, "width": 6, "causal": True, "tau": 0.37},
    {"heads": 3, "width": 12, "causal": False},
    {"heads": 3, "width": 12, "causal": True, "slopes": [0.75, 0.03, 1.5], "symmetric": False},
    {"heads": 2, "width": 12, "causal": False, "slopes": [0.5, 0.0625], "symmetric": True},
    {"heads": 2, "width": 12, "causal": True, "theta": 37.0},
)
"""What is attended with; each on several draws of q, k and v."""


def all_cases():
    """Names of functions with their arguments."""
    for place, options in enumerate(ATTENTION):
        for seed in range(DRAWS):
            draw = np.random.default_rng((place, seed)).uniform
            arrays = {name: draw(-1, 1, (LENGTH, options["width"])).tolist() for name in "qkv"}
            yield "attend", {**arrays, **options, "place": place}
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        known = {"pairs": int(rng.integers(1, 9)), "theta": float(10 ** rng.uniform(1, 6))}
        known["positions"] = rng.integers(-500, 30_000, LENGTH).tolist()
        # Channels behind the last pair pass through.
        yield "rope", {**known, "x": rng.uniform(-1, 1, (LENGTH, 2 * known["pairs"] + seed % 3)).tolist()}
        yield "sinusoidal", known
        yield "slopes", {"heads": 2**seed}
    for encoding, heads, causal, tau, preset in itertools.product(
        ENCODINGS, (1, 2), (False, True), (None, 0.7), PRESETS
    ):
        state = {"preset": preset, "encoding": encoding, "heads": heads, "causal": causal, "tau": tau}
        yield "notebook", {**state, "order": [1, 0, 2, 3]}


CASES = list(all_cases())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the browser computed for every case."""
    folder = tmp_path_factory.mktemp("mathematics")
    page = f'<pre id="told"></pre><script type="application/json" id="data">{script_json(CASES)}</script>'
    code = script(("math", "forward")) + DRIVER
    (folder / "report.html").write_text(f'<meta charset="utf-8">{page}<script>{code}</script>', encoding="utf-8")
    return told(visit(folder)[0])


def cases(results, name, **wanted):
    """(arguments, result) of the cases of one function that have these arguments."""
    pairs = zip(CASES, results, strict=True)
    return [(given, found) for (called, given), found in pairs if called == name and wanted.items() <= given.items()]


def close(actual, expected):
    expected = np.asarray(expected)
    assert np.shape(actual) == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


@functools.partial(jax.jit, static_argnames=("heads", "causal", "encoding"))
def attention(q, k, v, scale, pos, *, heads, causal, encoding):
    """Weights [B, N, T, T] and output [B, T, N * H] of attnjax for inputs [B, T, N * H]."""
    split = lambda x: x.reshape(*x.shape[:2], heads, -1)
    options = {"encoding": encoding, "mask": aj.Mask(causal=causal), "scale": scale, "q_pos": pos, "k_pos": pos}
    out = aj.attend(split(q), split(k), split(v), **options)
    return aj.attention_weights(split(q), split(k), **options), out.reshape(q.shape)


def compare(found, arrays, tau, pos, **options):
    """The page's weights and outputs, case by case, with those of one call on all of them."""
    tau = math.sqrt(arrays[0].shape[-1] / options["heads"]) if tau is None else tau
    weights, out = attention(*arrays, 1 / tau, pos, **options)
    close([one["weights"] for one in found], weights)
    close([one["out"] for one in found], out)


@pytest.mark.parametrize("place", range(len(ATTENTION)))
def test_attention(results, place):
    options = ATTENTION[place]
    encoding = aj.NoPE()
    if "theta" in options:
        encoding = aj.RoPE(theta=options["theta"], layout="interleaved")
    if "slopes" in options:
        encoding = aj.ALiBi(tuple(options["slopes"]), symmetric=options["symmetric"])
    given, found = zip(*cases(results, "attend", place=place), strict=True)
    arrays = [np.asarray([one[name] for one in given]) for name in "qkv"]
    fixed = {"heads": options["heads"], "causal": options["causal"], "encoding": encoding}
    compare(found, arrays, options.get("tau"), np.arange(LENGTH), **fixed)


def test_rotations_waves_and_slopes(results):
    for given, found in cases(results, "rope"):
        turned = angles(jnp.asarray(given["positions"]), exact(geometric(given["pairs"], given["theta"])))
        close(found, rotate(jnp.asarray(given["x"]), turned, "interleaved"))
    for given, found in cases(results, "sinusoidal"):
        pos = jnp.asarray(given["positions"])
        zeros = jnp.zeros((1, len(pos), 2 * given["pairs"]))
        close(found, embed(Sinusoidal(theta=given["theta"]), None, zeros, pos)[0])
    for given, found in cases(results, "slopes"):
        close(found, published_slopes(given["heads"]))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_notebook(results, encoding):
    """cat The sat down, under every preset: X and W_K are what they should be, and JAX makes the same of them."""
    words = np.array([[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]], np.float64)
    fixed = {"identity": np.eye(4), "swap": np.roll(np.eye(4), 2, axis=1), "flip": np.diag([1.0, 1, -1, -1])}
    waves = [[math.sin(t), math.cos(t), math.sin(t / 100), math.cos(t / 100)] for t in range(4)]
    for heads, causal, tau in itertools.product((1, 2), (False, True), (None, 0.7)):
        wanted = {"encoding": encoding, "heads": heads, "causal": causal, "tau": tau}
        given, found = zip(*cases(results, "notebook", **wanted), strict=True)
        for one, told_ in zip(given, found, strict=True):
            close(told_["x"], words + np.asarray(waves) if encoding == "sinusoidal" else words)
            close(told_["keys"], fixed.get(one["preset"], told_["keys"]))
        x = np.asarray([one["x"] for one in found], np.float64)
        pos, chosen = np.arange(4), aj.NoPE()
        if encoding == "rope":
            # Half a radian per position; the first pair of attnjax turns by one, so these are its positions.
            pos, chosen = 0.5 * np.arange(4), aj.RoPE(layout="interleaved")
        if encoding == "alibi":
            chosen = aj.ALiBi(symmetric=not causal)
        options = {"heads": heads, "causal": causal, "encoding": chosen}
        compare(found, [x, x @ np.asarray([one["keys"] for one in found]), x], tau, pos, **options)
