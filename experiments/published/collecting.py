"""Collects published numbers and ours beside them from the records of several sweeps, each number at most once.

A sweep that was made for the comparison comes before others that happen to have the same cell. In a sweep with several variants
of an encoding the one stands that differs least from the published protocol.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnjax.records.stored import read
from attnjax.report.tables import summarise
from experiments.published.agreement import Agreement, agreements
from experiments.published.cells import Cell, Pair, cells, chosen, pairs, ranked
from experiments.published.protocols import Differs


@dataclass(frozen=True)
class Source:
    """A sweep: the folder below experiments/ that holds its records, and the command that makes them."""

    name: str
    command: str


SOURCES = (
    Source("kazemnejad", "attnjax sweep kazemnejad:cpu --workers 2"),
    Source("press", "attnjax sweep press:cpu --workers 2"),
    Source("huang", "attnjax sweep huang:cheap --workers 2 --population 5"),
    Source("huang_copy", "attnjax sweep huang:copy --workers 2 --population 3"),
    Source("rope_vs_sinusoidal_paper", "./run paper"),
)
"""In the order of preference; the records of the first four are copied there with scripts/keep_records.py."""


@dataclass(frozen=True)
class Found:
    """The pairs of one sweep, with a result of ours each, and how far its order of encodings agrees with the published one."""

    source: Source
    pairs: tuple[Pair, ...]
    agreements: tuple[Agreement, ...]

    @property
    def common(self) -> dict[str, tuple[Differs, ...]]:
        """What differs in all cells of a paper, by paper."""
        of_paper: dict[str, list[tuple[Differs, ...]]] = {}
        for pair in self.pairs:
            of_paper.setdefault(pair.cell.paper, []).append(pair.differs)
        return {
            paper: tuple(one for one in rows[0] if all(one in row for row in rows)) for paper, rows in of_paper.items()
        }


@dataclass(frozen=True)
class Collection:
    """All that was found, the sources without records, and how many cells of later sweeps were left out for earlier ones."""

    found: tuple[Found, ...]
    absent: tuple[Source, ...]
    repeated: int

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs."""
        return tuple(pair for one in self.found for pair in one.pairs)

    @property
    def missing(self) -> tuple[Cell, ...]:
        """The published numbers past the trained lengths that have no result of ours."""
        known = {pair.cell for pair in self.pairs}
        return tuple(cell for cell in cells() if cell.low > cell.trained and cell not in known)


def collect(experiments: Path, sources: Sequence[Source] = SOURCES, more: Sequence[Path] = ()) -> Collection:
    """The pairs of the records experiments/NAME/records of every source that has some, and of further folders of records.

    Raises ValueError for a folder of `more` that does not exist, for damaged records, and where there are no records at all.
    """
    there = [(source, experiments / source.name / "records") for source in sources]
    absent = tuple(source for source, folder in there if not folder.is_dir())
    there = [(source, folder) for source, folder in there if source not in absent]
    for folder in more:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder} with the records of a sweep")
    # Folders that a person names are newer than what is committed.
    named = [(Source(folder.resolve().name, ""), folder) for folder in more]
    if not (there := [*named, *there]):
        raise ValueError(f"{experiments} has no records of a sweep with published numbers")
    taken: set[Cell] = set()
    found, repeated = [], 0
    for source, folder in there:
        own = chosen(pairs(summarise(read(folder))), lambda pair: pair.cell)
        new = tuple(pair for pair in own if pair.cell not in taken)
        repeated += len(own) - len(new)
        taken |= {pair.cell for pair in new}
        if new:
            found.append(Found(source, new, agreements(ranked(new))))
    return Collection(tuple(found), absent, repeated)
