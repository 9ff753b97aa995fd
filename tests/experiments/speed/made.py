"""Rows with figures that nobody measured."""

from typing import Any

from experiments.speed.records import Row, Spread


def row(**changes: Any) -> Row:
    """Ours takes 10 ms, the peer 40 ms, and the goal is 3x."""
    ours, peer, ratio = Spread(0.01, 0.009, 0.012), Spread(0.04, 0.038, 0.045), Spread(4.0, 3.5, 4.25)
    sizes = {"T": 1024, "B": 4, "N": 8, "H": 64}
    plain: dict[str, Any] = dict(
        suite="attention",
        case="forward",
        ours="attnjax",
        peer="jax.nn xla",
        unit="s",
        our_figure=ours,
        peer_figure=peer,
        ratio=ratio,
        sizes=sizes,
        goal=3.0,
        error=2e-7,
        rounds=15,
    )
    return Row(**{**plain, **changes})
