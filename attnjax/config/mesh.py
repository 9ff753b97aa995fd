"""The mesh that a run trains on, `population=4,data=2`: chosen at launch, kept in the manifest, and no part of a run's id.

    population    members of a population, each with its own parameters
    data          examples of a batch
    sequence      tokens of an example, whose keys travel in a ring

Nothing here imports JAX.
"""

import re
from typing import NamedTuple, Self

SIZE = re.compile(r"[1-9]\d{0,5}")


class MeshShape(NamedTuple):
    """How many devices lie along each axis. The default is one device."""

    population: int = 1
    data: int = 1
    sequence: int = 1

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.population * self.data * self.sequence

    def for_members(self, count: int) -> Self:
        """The mesh with as many devices along the population as share `count` members evenly.

        Example:
            >>> MeshShape(population=8).for_members(12).population
            6
        """
        each = -(-count // self.population)
        return self._replace(population=-(-count // each))

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self._asdict().items() if size > 1)


ONE_DEVICE = MeshShape()


def parse_mesh(text: str) -> MeshShape:
    """Return the mesh of a text like "population=4,data=2", "" for one device. Raises ValueError for other axes and sizes.

    Example:
        >>> parse_mesh("data=2").devices
        2
    """
    sizes: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, size = part.partition("=")
        if name not in MeshShape._fields or not SIZE.fullmatch(size):
            axes = ", ".join(MeshShape._fields)
            raise ValueError(
                f"mesh: each part must be AXIS=SIZE, with an axis of {axes} and a size of 1 or more; got {part!r}"
            )
        if name in sizes:
            raise ValueError(f"mesh: the axis {name} is given twice")
        sizes[name] = int(size)
    return MeshShape(**sizes)
