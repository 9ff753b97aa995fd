"""Rotary positions: turn query and key by their positions, and the score sees the distance alone.

    R(m) = [[cos m t, -sin m t], [sin m t, cos m t]],    (R(m) q) . (R(n) k) = q . R(n - m) k

This is the standard rotation, counter-clockwise for positive angles; some texts print m - n, which is the other
direction of turning. Sinusoidal positions are added instead, and leave products that depend on m and on n.

Reference: Su et al. 2021 (arXiv:2104.09864), section 3.2.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

import attnjax as aj
from attnjax.report.drawing import FAINT, INK, new_figure
from attnjax.report.formatting import decimal
from experiments.first_principles.arrays import plain
from experiments.first_principles.drawing import BLUE, RED, WIDTH
from experiments.first_principles.words import code, row, small

TITLE = "Rotary positions"
CAPTION = (
    "Left: one query at positions 0 to 3. Middle: its rotary score with one key, for all 64 pairs of positions 0 to 7: a "
    "function of the distance. Right: the sinusoidal score of the same pairs is not."
)

THETA = 0.5
QUERY, KEY = (1.0, 0.3), (0.4, -0.9)
SHOWN, LENGTH = 4, 8


def angle_positions(length: int) -> np.ndarray:
    """Positions at which a pair of frequency 1 turns by THETA each: positions are data, and may be fractions."""
    return THETA * np.arange(length, dtype=np.float32)


def numbers() -> dict[str, Any]:
    """The query at four positions; scores of all pairs of eight, rotary and sinusoidal; two pairs of channels."""
    pos, rope = angle_positions(LENGTH), aj.RoPE(layout="interleaved")
    q, k = (jnp.asarray(np.tile(x, (LENGTH, 1)), jnp.float32) for x in (QUERY, KEY))
    p, wide_p = (rope.constants(aj.Sizes(model=H, heads=1, kv_heads=1, head_dim=H)) for H in (2, 4))
    turned_q, turned_k = rope.map_q(p, q, pos), rope.map_k(p, k, pos)
    added = [aj.embed(aj.Sinusoidal(), None, x[None], pos)[0] for x in (q, k)]
    rotary, sinusoidal = np.asarray(turned_q @ turned_k.T), np.asarray(added[0] @ added[1].T)
    wide = rope.map_q(wide_p, jnp.asarray([[1.0, 0.0, 0.0, 1.0]]), np.array([3]))
    return {
        "theta": THETA,
        "q": list(QUERY),
        "k": list(KEY),
        "turned": plain(turned_q[:SHOWN]),
        "length": float(np.hypot(*QUERY)),
        "rotary": plain(rotary),
        "sinusoidal": plain(sinusoidal),
        "rotary_spread": spread(rotary),
        "sinusoidal_spread": spread(sinusoidal),
        "standard": float(np.array(QUERY) @ rotation(2 * THETA) @ np.array(KEY)),
        "other_sign": float(np.array(QUERY) @ rotation(-2 * THETA) @ np.array(KEY)),
        "pairs": {"x": [1.0, 0.0, 0.0, 1.0], "position": 3, "angles": [3.0, 0.03], "turned": plain(wide[0])},
    }


def rotation(angle: float) -> np.ndarray:
    """R by an angle, counter-clockwise."""
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def spread(scores: np.ndarray) -> float:
    """The largest difference between two scores at one distance n - m."""
    return max(float(np.ptp(np.diag(scores, n))) for n in range(1 - len(scores), len(scores)))


def text(numbers: dict[str, Any]) -> str:
    """The four directions, the convention of signs, and both spreads."""
    lines = [f"R({m}) q = {row(values, 4)}" for m, values in enumerate(numbers["turned"])]
    pairs = numbers["pairs"]
    return "\n\n".join(
        [
            f"q = {row(numbers['q'], 1)} turned by {numbers['theta']:g} radians per position; its length stays "
            f"{decimal(numbers['length'], 4)}:",
            code(*lines),
            f"With k = {row(numbers['k'], 1)} the score of positions m and n is (R(m) q).(R(n) k) = q.R(n - m) k, for the "
            "standard rotation R(a) = [[cos a, -sin a], [sin a, cos a]]; some texts print m - n, which is the rotation the "
            f"other way. The sign matters: q at 0 and k at 2 score {decimal(numbers['rotary'][0][2], 4)} = "
            f"q.R(2) k = {decimal(numbers['standard'], 4)}, and q.R(-2) k would be {decimal(numbers['other_sign'], 4)}.",
            f"Pairs of positions at one distance differ in their rotary score by at most "
            f"{small(numbers['rotary_spread'])} (float32), in their sinusoidal score by up to "
            f"{decimal(numbers['sinusoidal_spread'], 3)}.",
            f"For d_k > 2 consecutive pairs of channels turn, each at a frequency of its own: {row(pairs['x'], 0)} at "
            f"position {pairs['position']} turns by {' and '.join(f'{a:g}' for a in pairs['angles'])} to "
            f"{row(pairs['turned'], 4)}.",
        ]
    )


def draw(numbers: dict[str, Any]) -> Any:
    """Directions in the plane, and both scores against distance."""
    figure, axes = new_figure(WIDTH, 3.2, 1, 3)
    plane = axes[0]
    corner = np.linspace(0, 2 * np.pi, 200)
    plane.plot(numbers["length"] * np.cos(corner), numbers["length"] * np.sin(corner), color=FAINT, linewidth=0.9)
    for m, (x, y) in enumerate(numbers["turned"]):
        plane.annotate(
            "", (x, y), (0, 0), arrowprops=dict(arrowstyle="-|>", color=BLUE, linewidth=1.8, shrinkA=0, shrinkB=0)
        )
        plane.annotate(f"m = {m}", (1.16 * x, 1.16 * y), ha="left" if x > 0.1 else "center", va="center", color=INK)
    plane.set(xlim=(-1.3, 1.75), ylim=(-1.25, 1.4), aspect="equal")
    plane.set_title("R(m) q", fontsize=10)
    plane.set_xlabel("channel 0")
    plane.set_ylabel("channel 1")
    for axis, name, color in ((axes[1], "rotary", BLUE), (axes[2], "sinusoidal", RED)):
        scores = np.array(numbers[name])
        m, n = np.indices(scores.shape)
        axis.plot((n - m).ravel(), scores.ravel(), "o", color=color, markersize=4.5, alpha=0.55, markeredgewidth=0)
        axis.set_title(f"{name} score", fontsize=10)
        axis.set_xlabel("n - m (key - query)")
        axis.set_xticks([-6, -3, 0, 3, 6])
    return figure
