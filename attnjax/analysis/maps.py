"""Two figures of heads: their attention on one text, and their scores on every pattern.

Each is drawn by a pure function of numbers; `write_maps` and `write_scores` save them as PNG and SVG.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnjax.analysis.heads import check_head, check_tokens, visible_keys
from attnjax.analysis.scores import HeadScores, stands_out
from attnjax.analysis.subject import Subject
from attnjax.report.drawing import FAINT, new_figure, plain, save, settings
from attnjax.report.figures import draw_cells, label_cells
from attnjax.report.formatting import decimal
from attnjax.report.scales import some
from attnjax.typing import Float

NAMED = 40
"""Most tokens whose names fit beside a map."""
MOST = 256
"""Most tokens of a map: cells of more would be smaller than a pixel."""
SPECIAL = ((32, "\N{OPEN BOX}"), (10, "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"), (9, "\N{RIGHTWARDS ARROW}"))


def head_map(subject: Subject, text: bytes, layer: int, head: int) -> Float[np.ndarray, "T T"]:
    """The weights of one head on one text, NaN where nothing is seen. Raises ValueError for a head that is not there."""
    check_head(subject, layer, head)
    return head_maps(subject, text)[layer, head]


def head_maps(subject: Subject, text: bytes) -> Float[np.ndarray, "L N T T"]:
    """The weights of all heads on one text of bytes, NaN where nothing is seen.

    Raises ValueError for a text that is empty, or longer or of other tokens than the subject takes.
    """
    tokens = check_tokens(subject, np.frombuffer(text, np.uint8)[None])
    seen = visible_keys(subject, tokens.shape[1])
    return np.where(seen, np.asarray(subject.weights(jnp.asarray(tokens)))[:, 0], np.nan)


def write_maps(subject: Subject, text: bytes, path: str | Path) -> list[Path]:
    """Draw the attention of all heads on a text, and write path.png and path.svg.

    Raises ValueError as `head_maps`, for more than 256 bytes, and where matplotlib is not installed.
    """
    if len(text) > MOST:
        raise ValueError(f"a map shows at most {MOST} tokens, got {len(text)}")
    weights = head_maps(subject, text)
    with settings():
        return save(draw_maps(weights, byte_names(text), f"{subject.name}: attention"), Path(path))


def draw_maps(weights: Float[np.ndarray, "L N T T"], names: Sequence[str], title: str) -> Any:
    """Layers down, heads across; queries down, keys across, one scale of colour for all, in steps of the square root."""
    from matplotlib.colors import PowerNorm

    L, N, T, _ = weights.shape
    side = min(max(1.9, 0.105 * T), 3.4) if N <= 4 else 1.7
    figure, axes = new_figure(side * N + 1.3, side * L + 0.9, L, N)
    norm = PowerNorm(0.5, 0.0, 1.0)
    for place, axis in enumerate(axes):
        layer, head = divmod(place, N)
        image = draw_cells(axis, weights[layer, head], "cividis", None)
        image.set_norm(norm)
        axis.set_aspect("equal")
        axis.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9, weight="normal")
        _name_axes(axis, names, side, left=head == 0, bottom=layer == L - 1)
    bar = figure.colorbar(image, ax=axes, label="attention weight", pad=0.01, aspect=30, ticks=(0, 0.05, 0.2, 0.5, 1))
    bar.outline.set_visible(False)
    figure.suptitle(plain(title, 80), x=0.01, ha="left", weight="bold", fontsize=11.5)
    figure.supxlabel("key: the token that is read", fontsize=9.5)
    figure.supylabel("query: the token that reads", fontsize=9.5)
    return figure


def byte_names(text: bytes) -> list[str]:
    """Bytes as letters, white space as visible signs, all else in hexadecimal."""
    special = dict(SPECIAL)
    return [special.get(byte) or (chr(byte) if 32 < byte < 127 else f"{byte:02x}") for byte in text]


def write_scores(found: Mapping[str, HeadScores], path: str | Path, title: str = "heads") -> list[Path]:
    """Draw the scores of all heads on all patterns, and write path.png and path.svg.

    Raises ValueError without a pattern, and where matplotlib is not installed.
    """
    if not found:
        raise ValueError("there are no scores to draw")
    with settings():
        return save(draw_scores(found, title), Path(path))


def draw_scores(found: Mapping[str, HeadScores], title: str) -> Any:
    """Heads down, patterns across; framed and bold where a head stands out. Last, the best offset and chance."""
    from matplotlib.patches import Rectangle

    L, N = next(iter(found.values())).score.shape
    table = np.stack([one.score.ravel() for one in found.values()], axis=1)
    beside = np.array([[one.baseline for one in found.values()], [one.chance for one in found.values()]])
    table = np.concatenate([table, np.full((1, len(found)), np.nan), beside])
    marked = np.stack([stands_out(name, one).ravel() for name, one in found.items()], axis=1)
    figure, (axis,) = new_figure(2.1 + 1.02 * len(found), 1.5 + 0.33 * len(table))
    image = draw_cells(axis, table, "cividis", (0, 1))
    words = [[decimal(value, 2) for value in row] for row in table]
    words[L * N] = [""] * len(found)
    label_cells(axis, image, table, words)
    for y, x in np.argwhere(marked):
        axis.add_patch(Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, fill=False, edgecolor="#d55e00", linewidth=2.2))
        axis.texts[y * len(found) + x].set_fontweight("bold")
    axis.add_patch(Rectangle((-0.5, L * N - 0.5), len(found), 1, facecolor="white", linewidth=0, zorder=1.5))
    heads = [f"layer {layer + 1}, head {head + 1}" for layer in range(L) for head in range(N)]
    axis.set_yticks([*range(L * N), L * N + 1, L * N + 2], [*heads, "best offset", "chance"])
    axis.set_xticks(range(len(found)), [plain(name.replace("_", "\n", 1), 20) for name in found])
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.tick_params(length=0, labeltop=True, labelbottom=False)
    figure.colorbar(image, ax=axis, label="attention on the targets", pad=0.02)
    axis.set_title(plain(title, 80), pad=26)
    axis.set_xlabel(
        "framed: above the best offset and chance (for offsets themselves: above 1/2)", color=FAINT, fontsize=9
    )
    return figure


def _name_axes(axis: Any, names: Sequence[str], side: float, *, left: bool, bottom: bool) -> None:
    """The tokens beside a map where they fit, their numbers otherwise; only at the outer edges of the grid."""
    T = len(names)
    named = T <= NAMED
    places = list(range(T)) if named else [int(place) for place in some(range(T), 6)]
    labels = list(names) if named else [str(place) for place in places]
    size = min(8.0, 58.0 * side / T) if named else 8.0
    axis.tick_params(length=0 if named else 2, pad=2, labelsize=max(size, 4.0))
    axis.set_xticks(places, labels if bottom else [""] * len(places))
    axis.set_yticks(places, labels if left else [""] * len(places))
    for spine in axis.spines.values():
        spine.set_visible(False)
