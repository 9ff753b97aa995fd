"""The figure: length factor against base, novelty and onset, and the effect of clamping single pairs."""

import pathlib
from typing import Any

import numpy as np

from attnjax.report.drawing import FAINT, SHADE, new_figure, save, settings
from experiments.unseen_phase.phases import CRITICAL
from experiments.unseen_phase.results import Length, Results

LOOKS = (("#074a8d", "o"), ("#9a3104", "s"))
"""Colour and marker of each trained length."""


def draw(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write figure.png and figure.svg. Raises ValueError where matplotlib is not installed."""
    with settings():
        return save(panels(results), folder / "figure")


def panels(results: Results) -> Any:
    """Four panels, a colour per trained length in each."""
    figure, (base, novelty, onset, clamp) = new_figure(9.0, 7.0, 2, 2)
    for one, look in zip(results.lengths, LOOKS, strict=False):
        draw_factor(base, one, np.array(one.bases), look)
        draw_factor(novelty, one, one.predictors["novelty"], look)
        draw_factor(onset, one, one.predictors["onset"] / one.trained, look)
        draw_clamps(clamp, one, look)
    set_log_axis(base.xaxis, [1e1, 1e3, 1e5])
    base.set_xlabel("base")
    novelty.set_xlabel("novelty of phases at L .. 2L-1")
    set_log_axis(onset.xaxis, [1.0, 1.5, 2.0, 3.0, 4.0])
    onset.set_xlabel("first unseen wavelength / L")
    for axis in (base, novelty, onset):
        axis.set_ylabel("length factor")
    set_log_axis(clamp.xaxis, [1e-1, 1e0, 1e1, 1e2, 1e3, 1e4])
    clamp.axvspan(1, CRITICAL, color=SHADE, zorder=0, linewidth=0)
    clamp.axhline(0, color=FAINT, linewidth=0.8)
    clamp.set_xlabel("wavelength of the clamped pair / L")
    clamp.set_ylabel("effect on the loss at 4L, nats")
    base.legend()
    return figure


def set_log_axis(axis: Any, ticks: list[float]) -> None:
    """A logarithmic axis with these ticks, as plain numbers."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_ticks(ticks, [f"{tick:,g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def draw_factor(axis: Any, one: Length, x: Any, look: tuple[str, str]) -> None:
    """Mean length factor of each base that fitted, and in grey of those that did not."""
    color, marker = look
    mean = one.factor.mean(0)
    there = np.isfinite(x)
    x, mean, fits = x[there], mean[there], one.fits[there]
    axis.plot(x[fits], mean[fits], marker, color=color, markeredgecolor="white", label=f"L = {one.trained}")
    axis.plot(x[~fits], mean[~fits], marker, color=FAINT, markeredgecolor="white")


def draw_clamps(axis: Any, one: Length, look: tuple[str, str]) -> None:
    """The effect of each pair, a point for every wavelength."""
    color, marker = look
    if one.pairs:
        axis.plot(*zip(*one.pairs, strict=True), marker, color=color, markersize=4, markeredgecolor="white")
