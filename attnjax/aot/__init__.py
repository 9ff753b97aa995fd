"""Ahead-of-time compilation for accelerators that are not here, and what the compiled program tells of itself."""

from attnjax.aot.hlo import Collective, collectives, widened_products
from attnjax.aot.program import Compiled, TooLarge, compile_for, mesh_of
from attnjax.aot.topologies import Topology, topology

__all__ = [
    "Collective",
    "Compiled",
    "TooLarge",
    "Topology",
    "collectives",
    "compile_for",
    "mesh_of",
    "topology",
    "widened_products",
]
