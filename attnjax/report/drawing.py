"""Style and saving of all figures: fonts, sizes, frames, and files whose bytes depend only on the figure.

Matplotlib is loaded when the first figure is drawn. Its own settings start from its defaults, so that nobody's
matplotlibrc changes a figure, and text is never read as mathematics, so that a name with a dollar sign is a name.
"""

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

INK, FAINT, SHADE = "#24292f", "#6e7781", "#eef1f4"
UNFITTED = "#b6bdc5"
"""The grey of a variant that did not fit its task."""
GRID, WHITE = "#d8dee4", "#ffffff"
DARK = (
    (INK, "#e6ebf0"),
    (FAINT, "#9ba6b2"),
    (SHADE, "#1d252e"),
    (UNFITTED, "#5b6570"),
    (GRID, "#323a44"),
    (WHITE, "#0f1318"),
)
"""What these colours are on a dark screen."""
SALT = "attnjax"
DPI = 160

SETTINGS = (
    ("font.family", ["DejaVu Sans"]),
    ("font.size", 10.5),
    ("text.parse_math", False),
    ("text.color", INK),
    ("axes.labelcolor", INK),
    ("axes.edgecolor", FAINT),
    ("axes.titlesize", 11.5),
    ("axes.titleweight", "bold"),
    ("axes.titlelocation", "left"),
    ("axes.spines.top", False),
    ("axes.spines.right", False),
    ("axes.axisbelow", True),
    ("axes.grid", True),
    ("axes.grid.axis", "y"),
    ("grid.color", GRID),
    ("grid.linewidth", 0.7),
    ("xtick.color", FAINT),
    ("ytick.color", FAINT),
    ("xtick.labelcolor", INK),
    ("ytick.labelcolor", INK),
    ("legend.frameon", False),
    ("legend.handlelength", 2.6),
    ("svg.hashsalt", SALT),
    ("svg.fonttype", "path"),
)


def check_library() -> None:
    """Raise ValueError, with what to do, where matplotlib is absent; for commands that draw what took them long to compute."""
    try:
        import matplotlib.style  # noqa: F401
    except ImportError as error:
        raise ValueError("figures need matplotlib, which is not installed: pip install 'attnjax[plot]'") from error


@contextlib.contextmanager
def settings() -> Iterator[None]:
    """The look of all figures, around drawing and saving. Raises ValueError where matplotlib is absent."""
    check_library()
    import matplotlib.style

    with matplotlib.style.context(["default", dict(SETTINGS)]):
        yield


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, width_ratios: Sequence[float] | None = None
) -> tuple[Any, list[Any]]:
    """A figure of this size in inches and its axes, row by row, without any global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(np.ravel(figure.subplots(rows, columns, squeeze=False, width_ratios=width_ratios)))


def save(figure: Any, path: Path) -> None:
    """Write path.png and path.svg; the same figure gives the same bytes."""
    path.with_name(f"{path.name}.png").write_bytes(png(figure))
    path.with_name(f"{path.name}.svg").write_text(svg(figure), encoding="utf-8")


def png(figure: Any) -> bytes:
    """A figure as PNG."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def svg(figure: Any) -> str:
    """A figure as SVG, whose texts are outlines."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def plain(text: str, most: int = 44) -> str:
    """A name as the font can show it: ASCII, on one line, and not too long."""
    shown = " ".join(text.split()).encode("ascii", "replace").decode()
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def some(places: Sequence[int], most: int = 9, kept: int = 0) -> list[int]:
    """All places where they are few, else those nearest to equal steps: doubling ones where they span a wide range. If `kept`
    is one of the places, it is chosen in place of the nearest other.

    Example:
      >>> some([8, 12, 16, 17, 18, 19, 20, 21, 22, 24, 32, 64, 128], most=6, kept=16)
      [8, 16, 32, 64, 128]
    """
    if len(places) <= most:
        return list(places)
    low, high = places[0], places[-1]
    wanted = np.geomspace(low, high, most - 1) if low > 0 and high >= 8 * low else np.linspace(low, high, most - 1)
    chosen = {places[int(np.argmin(np.abs(np.asarray(places) - x)))] for x in wanted}
    if kept in places and kept not in chosen:
        chosen = chosen - {min(chosen, key=lambda x: abs(x - kept))} | {kept}
    return sorted(chosen)


def finite_only(values: Float[np.ndarray, " X"]) -> Float[np.ndarray, " X"]:
    """The values with gaps where they are infinite, which no axis can show."""
    return np.where(np.isfinite(values), values, np.nan)
