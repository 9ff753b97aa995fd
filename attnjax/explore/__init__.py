"""`attnjax explore`: one page to play with attention, and to look into one or two trained runs.

Nothing here imports JAX before a run is read.
"""

from attnjax.explore.build import build

__all__ = ["build"]
