"""Sinusoidal positions: every position has a fingerprint, and a step of k positions is one rotation for all of them.

    PE_p = (sin p w_0, cos p w_0, sin p w_1, cos p w_1 ...),    w_c = 10000^(-2c/D),    PE_{p+k} = M_k PE_p

M_k turns each pair of channels by k w_c: blocks [[cos, sin], [-sin, cos]], whatever p is.

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.5.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

import attnjax as aj
from attnjax.report.drawing import new_figure
from attnjax.report.formatting import decimal
from experiments.first_principles.arrays import plain
from experiments.first_principles.drawing import BLUE, GREEN, RED, WIDTH, heat
from experiments.first_principles.words import code, grid, row, small

TITLE = "Sinusoidal positions"
CAPTION = (
    "Left: the fingerprints of 64 positions in 32 channels. Middle: the matrix that moves any position of width 4 by three. "
    "Right: the product of two fingerprints depends on their distance alone."
)

TOKEN, PLACE = (0.5, 0.3, -0.1, 0.8), 3
SHOWN, SHIFTS = (0, 1, 3), (1, 3)
MANY = 600
WIDE, PLACES, REACH = 32, 64, 40
STARTS = (0, 10, 1000)


def table(pos: Any, width: int = 4) -> np.ndarray:
    """PE of these positions: what `embed` adds to zero."""
    pos = np.asarray(pos, np.int32)
    made = aj.embed(aj.Sinusoidal(), None, jnp.zeros((1, len(pos), width)), pos)
    return np.asarray(made[0], np.float64)


def shift(k: int) -> np.ndarray:
    """M_k [4, 4], from the formula."""
    matrix = np.zeros((4, 4))
    for pair, w in enumerate((1.0, 0.01)):
        here = slice(2 * pair, 2 * pair + 2)
        matrix[here, here] = [[math.cos(k * w), math.sin(k * w)], [-math.sin(k * w), math.cos(k * w)]]
    return matrix


def numbers() -> dict[str, Any]:
    """The examples of width 4, how well one matrix moves every position, and a wider table for the figure."""
    many = table(range(MANY))
    apart = np.linalg.norm(many[:, None] - many[None, :], axis=-1) + 2 * np.eye(MANY)
    token = jnp.asarray([[TOKEN]], jnp.float32)
    wide = table(range(PLACES), WIDE)
    products = [table([start], WIDE) @ table(start + np.arange(REACH + 1), WIDE).T for start in STARTS]
    return {
        "positions": list(SHOWN),
        "pe": table(SHOWN).tolist(),
        "token": list(TOKEN),
        "place": PLACE,
        "token_there": plain(aj.embed(aj.Sinusoidal(), None, token, np.array([PLACE], np.int32))[0, 0]),
        "periods": [2 * math.pi, 200 * math.pi],
        "shifts": list(SHIFTS),
        "matrices": [shift(k).tolist() for k in SHIFTS],
        "worst_shift_error": max(float(np.abs(table(np.arange(MANY) + k) - many @ shift(k).T).max()) for k in SHIFTS),
        "many": MANY,
        "largest": float(np.abs(many).max()),
        "nearest": float(apart.min()),
        "fingerprints": np.round(wide, 3).tolist(),
        "starts": list(STARTS),
        "products": [one[0].tolist() for one in products],
    }


def text(numbers: dict[str, Any]) -> str:
    """The published rows, the rotation, and what holds for all positions."""
    pairs = zip(numbers["positions"], numbers["pe"], strict=True)
    lines = [f"PE_{p} = {row(values)}" for p, values in pairs]
    lines.append(f"{row(numbers['token'], 1)} + PE_{numbers['place']} = {row(numbers['token_there'])}")
    k, matrix = numbers["shifts"][-1], numbers["matrices"][-1]
    short, long = numbers["periods"]
    return "\n\n".join(
        [
            "Width 4, sines and cosines in turn:",
            code(*lines),
            f"Channels 0 and 1 come back after {decimal(short, 2)} positions, channels 2 and 3 after "
            f"{decimal(long, 0)}. PE_(p+{k}) is this matrix times PE_p, for every p:",
            code(grid(matrix)),
            f"Of {numbers['many']} positions, moved by {' and by '.join(map(str, numbers['shifts']))}, the worst entry is "
            f"off by {small(numbers['worst_shift_error'])} (float32). No entry is larger than "
            f"{decimal(numbers['largest'], 3)}, and the two nearest positions are {decimal(numbers['nearest'], 3)} apart: "
            "every position is a different point.",
        ]
    )


def draw(numbers: dict[str, Any]) -> Any:
    """Fingerprints, a shift matrix, and products against distance."""
    figure, axes = new_figure(WIDTH, 3.4, 1, 3)
    image = heat(axes[0], numbers["fingerprints"], digits=None, limits=(-1, 1), colors="PuOr", title="PE, 32 channels")
    axes[0].set_xticks(shown := [0, 8, 16, 24, 31], shown)
    axes[0].set_yticks(shown := [0, 16, 32, 48, 63], shown)
    axes[0].set_xlabel("channel")
    axes[0].set_ylabel("position")
    figure.colorbar(image, ax=axes[0], location="bottom", ticks=[-1, 0, 1], shrink=0.8)
    k = numbers["shifts"][-1]
    heat(
        axes[1], numbers["matrices"][-1], range(4), range(4), limits=(-1, 1), colors="PuOr", title=f"PE_p to PE_(p+{k})"
    )
    axes[1].set_aspect("equal")
    looks = ((BLUE, (None, None), 3.2), (RED, (5, 3), 2.0), (GREEN, (1.2, 2.5), 2.0))
    for start, values, (color, dashes, width) in zip(numbers["starts"], numbers["products"], looks, strict=True):
        label = f"p = {start:,}"
        axes[2].plot(range(len(values)), values, color=color, dashes=dashes, linewidth=width, label=label)
    axes[2].set_title("PE_p · PE_(p+k)", fontsize=10)
    axes[2].set_xlabel("k")
    axes[2].legend()
    return figure
