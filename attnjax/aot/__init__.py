"""Ahead-of-time compilation for accelerators that are not here, and what the compiled program tells of itself."""

from attnjax.aot.hlo import Collective, collectives, widened_products
from attnjax.aot.topologies import Topology, topology

__all__ = ["Collective", "Topology", "collectives", "topology", "widened_products"]
