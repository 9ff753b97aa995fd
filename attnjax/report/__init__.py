"""Makes a figure, tables with intervals, and one page from the stored records of a sweep.

Every number is a pure function of the records; nothing here imports JAX.
"""

from attnjax.report.build import answer, build

__all__ = ["answer", "build"]
