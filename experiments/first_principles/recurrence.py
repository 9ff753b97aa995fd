"""Attention against recurrence, measured: time against length, and how much of the first token reaches the last.

A layer of causal attention (4 heads) and Flax's LSTM, both of 64 channels, as they are initialised. Attention costs
O(T^2) work in a fixed number of steps, the LSTM O(T) work in T steps, one after another. The gradient of the last output
with respect to the first input goes through one step of attention, and through T - 1 gates of the LSTM.

References: Vaswani et al. 2017 (arXiv:1706.03762), table 1; Hochreiter & Schmidhuber 1997; Jozefowicz et al. 2015 for the
bias of the forget gate.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax import Mask
from attnjax.config.architecture import Implementation
from attnjax.modules import AttentionOptions, MultiHeadAttention
from attnjax.report.drawing import new_figure
from attnjax.report.formatting import markdown_table
from attnjax.typing import Array, Float, PyTree
from experiments.first_principles.drawing import BLUE, GREEN, RED, WIDTH, powers_of_two
from experiments.first_principles.words import seconds, small
from experiments.speed.records import Spread
from experiments.speed.timing import interleaved, timed

TITLE = "Attention against recurrence"
CAPTION = (
    "Left: a forward and backward pass (median and quartiles). Right: Frobenius norm of the derivative of the last output "
    "with respect to the first input, over sqrt(channels): median and range over seeds."
)

CHANNELS, HEADS, BATCH = 64, 4, 4
LENGTHS = (16, 64, 256, 1024, 2048)
REACH, SEEDS = 256, 10
ROUNDS, SECONDS = 9, 4.0
SHOWN = (2, 8, 32, 128, 256)
COLORS = (("attention", BLUE, "o"), ("lstm", RED, "s"), ("lstm, forget bias 1", GREEN, "^"))

Layer = Callable[[PyTree, Float[Array, "B T D"]], Float[Array, "B T D"]]


def attention(seed: int, implementation: Implementation | None = None) -> tuple[Layer, PyTree]:
    """A layer of causal attention and its parameters."""
    options = AttentionOptions(implementation=implementation)
    made = MultiHeadAttention(CHANNELS, HEADS, options=options, rngs=nnx.Rngs(seed))
    graph, params = nnx.split(made, graph=False)
    return lambda params, x: nnx.merge(graph, params)(x, mask=Mask(causal=True)), params


def lstm(seed: int, forget: float = 0.0) -> tuple[Layer, PyTree]:
    """Flax's LSTM and its parameters; `forget` is the bias of its forget gate, 0 by default."""
    cell = nnx.OptimizedLSTMCell(CHANNELS, CHANNELS, rngs=nnx.Rngs(seed))
    bias = cell.dense_h.bias  # of input, forget, cell and output gate, in this order
    assert bias is not None
    bias[...] = bias[...].at[CHANNELS : 2 * CHANNELS].set(forget)
    graph, params = nnx.split(cell, graph=False)

    def call(params: PyTree, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        start = jnp.zeros((x.shape[0], CHANNELS), x.dtype)
        step = lambda carry, token: nnx.merge(graph, params)(carry, token)
        return jax.lax.scan(step, (start, start), x.swapaxes(0, 1))[1].swapaxes(0, 1)

    return call, params


def kinds() -> dict[str, Callable[[int], tuple[Layer, PyTree]]]:
    """What gradients are taken of, by seed. Only "dense" can be differentiated forward."""
    return {
        "attention": lambda seed: attention(seed, "dense"),
        "lstm": lstm,
        "lstm, forget bias 1": lambda seed: lstm(seed, 1.0),
    }


def numbers() -> dict[str, Any]:
    """Times of both, and gradient norms of attention and of the LSTM with two biases, by seed."""
    sizes = {"channels": CHANNELS, "heads": HEADS, "batch": BATCH, "rounds": ROUNDS, "seeds": SEEDS}
    times = [time_at(length) for length in LENGTHS]
    return {
        "sizes": sizes,
        "lengths": list(LENGTHS),
        "seconds": {name: [list(Spread.of(taken[name])) for taken in times] for name in ("attention", "lstm")},
        "reach": list(range(1, REACH + 1)),
        "gradient": {name: summary(gradients(kind)) for name, kind in kinds().items()},
    }


def time_at(length: int) -> dict[str, list[float]]:
    """Seconds of a forward and backward pass of each, in turn."""
    x = jax.random.normal(jax.random.key(length), (BATCH, length, CHANNELS))
    contenders = {}
    for name, (call, params) in (("attention", attention(0)), ("lstm", lstm(0))):
        loss = lambda params, x, call=call: jnp.square(call(params, x)).mean()
        contenders[name] = timed(jax.jit(jax.grad(loss, argnums=(0, 1))), params, x)
    return interleaved(contenders, rounds=ROUNDS, seconds=SECONDS)


def gradients(make: Callable[[int], tuple[Layer, PyTree]]) -> np.ndarray:
    """Norms [SEEDS, REACH] for 1 .. REACH tokens: the layers are causal, so one pass has all lengths."""
    call = make(0)[0]
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(make(seed)[1] for seed in range(SEEDS)))
    x = jax.random.normal(jax.random.key(0), (SEEDS, REACH, CHANNELS))

    def one(params: PyTree, x: Float[Array, "T D"]) -> Float[Array, " T"]:
        last = lambda first: call(params, jnp.concatenate([first[None], x[1:]])[None])[0]
        derivative = jnp.abs(jax.jacfwd(last)(x[0]))
        # Squares of numbers below 1e-19 would be 0 in float32.
        top = derivative.max((1, 2))
        shares = derivative / jnp.where(top > 0, top, 1.0)[:, None, None]
        return top * jnp.sqrt(jnp.square(shares).sum((1, 2))) / jnp.float32(math.sqrt(CHANNELS))

    return np.asarray(jax.jit(jax.vmap(one))(params, x), np.float64)


def summary(norms: np.ndarray) -> dict[str, list[float]]:
    """Median and range over seeds."""
    return {"median": np.median(norms, 0).tolist(), "low": norms.min(0).tolist(), "high": norms.max(0).tolist()}


def text(numbers: dict[str, Any]) -> str:
    """Times and norms at some lengths."""
    sizes, times = numbers["sizes"], numbers["seconds"]
    rows = []
    for place, length in enumerate(numbers["lengths"]):
        ours, theirs = (times[name][place][0] for name in ("attention", "lstm"))
        rows.append([str(length), seconds(ours), seconds(theirs), f"{theirs / ours:.2g}"])
    header = ["tokens", "attention", "LSTM", "LSTM / attention"]
    norms = [[str(T), *(small(numbers["gradient"][name]["median"][T - 1]) for name, _, _ in COLORS)] for T in SHOWN]
    return "\n\n".join(
        [
            f"A layer of causal attention ({sizes['heads']} heads) and an LSTM, both of {sizes['channels']} channels, forward "
            f"and backward over a batch of {sizes['batch']}; medians of up to {sizes['rounds']} rounds, taken in turn:",
            markdown_table(header, rows).rstrip(),
            "Attention joins any two tokens in one step; its work grows with the square of the length. The LSTM's grows "
            "with the length, but each token waits for the one before. How much of the first token arrives at the last "
            f"output, as initialised (median of {sizes['seeds']} seeds; 0 is below the smallest float32):",
            markdown_table(["tokens", "attention", "LSTM", "LSTM, forget bias 1"], norms).rstrip(),
            "The first falls like 1/T, since a row shares its weights among T keys; the second by a factor at each token.",
        ]
    )


def draw(numbers: dict[str, Any]) -> Any:
    """Time and gradient norm against length, all axes logarithmic."""
    figure, axes = new_figure(WIDTH, 3.6, 1, 2)
    for name, color, marker in COLORS[:2]:
        median, low, high = 1000 * np.array(numbers["seconds"][name]).T
        axes[0].fill_between(numbers["lengths"], low, high, color=color, alpha=0.16, linewidth=0)
        axes[0].plot(numbers["lengths"], median, color=color, marker=marker, linewidth=1.9, markersize=5)
    for name, color, marker in COLORS:
        found = {key: np.array(value) for key, value in numbers["gradient"][name].items()}
        shown = {key: np.where(value > 0, value, np.nan) for key, value in found.items()}
        axes[1].fill_between(numbers["reach"], shown["low"], shown["high"], color=color, alpha=0.16, linewidth=0)
        label = name.replace("lstm", "LSTM")
        options = {"color": color, "marker": marker, "linewidth": 1.9, "markersize": 5}
        axes[1].plot(numbers["reach"], shown["median"], label=label, markevery=[1, 7, 31, 127, 255], **options)
    for axis, lengths in ((axes[0], (16, 64, 256, 1024)), (axes[1], (1, 4, 16, 64, 256))):
        powers_of_two(axis, lengths)
        axis.set_yscale("log")
        axis.set_xlabel("tokens T")
        axis.minorticks_off()
    axes[0].set_title("time, forward and backward")
    axes[0].set_ylabel("ms")
    axes[0].yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes[1].set_title("d last output / d first input")
    axes[1].set_ylabel("norm")
    axes[1].set_yticks([1, 1e-10, 1e-20, 1e-30], ["1", "1e-10", "1e-20", "1e-30"])
    axes[1].set_ylim(1e-38, 10)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
