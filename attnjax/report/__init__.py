"""From the stored records of a sweep to what can be published: figures, tables with intervals, and one page.

Every number is a pure function of the records; nothing here imports JAX.
"""

from attnjax.report.build import build
from attnjax.report.records import read
from attnjax.report.summarise import summarise

__all__ = ["build", "read", "summarise"]
