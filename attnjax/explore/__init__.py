"""`attnjax explore`: writes one interactive page about attention and up to two trained runs.

Nothing here imports JAX before a run is read.
"""

from attnjax.explore.page import build

__all__ = ["build"]
