"""Makes figures, tables with intervals, and one page from the stored records of a sweep.

Every number is a pure function of the records; nothing here imports JAX.
"""

from attnjax.report.build import build
from attnjax.report.records import read
from attnjax.report.summarise import summarise

__all__ = ["build", "read", "summarise"]
