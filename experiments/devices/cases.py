"""What is compiled, for which devices: gradients of attention, training steps, evaluations, and every config of the project."""

import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attnjax as aj
from attnjax.cli.planning import planned
from attnjax.config import RunConfig, cell_id
from attnjax.sweep import groups

DEVICES = 8
EMBEDDINGS = ("sinusoidal", "learned")
"""They act before attention."""
TARGETS = ("h100:8", "v5e:2x4", "v6e:2x4")
MORE_TARGETS = ("v5p:2x2x2",)
"""A few cases are compiled for these too."""
FULLY = ("bfloat16", "heads", "heads_lm", "huang")
"""Configs of which all programs are compiled for an H100; of others, and elsewhere, the one that trains the most runs."""
CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
LONG = 2**19
"""Tokens of an example of an evaluation that one chip cannot hold."""


class Case(NamedTuple):
    """A program. `length` counts tokens, in a config those of `task.length_max`; the mesh has eight devices.

    kind        name                    variant
    data        encoding                ""                               a gradient of attention, an example on each device
    ring        encoding                "", window, packed, ...          the same, a piece of one example on each device
    train       decoder, encoder, ...   the mesh                         a training step of that family
    evaluate    encoding                the mesh                         a batch of an evaluation by length
    config      a file of configs/      the cell of its first run        a training step of runs that train together
    """

    kind: str
    name: str
    length: int
    variant: str = ""

    @property
    def ring(self) -> bool:
        """Whether tokens of an example are spread over devices."""
        return self.kind == "ring" or self.variant == "sequence=8"

    @property
    def refused(self) -> bool:
        """Whether the case is there to be refused: an example that one device alone should hold, and cannot."""
        return self.kind == "evaluate" and not self.ring

    def __str__(self) -> str:
        return ", ".join([self.kind, self.name, *([self.variant] if self.variant else []), f"T = {self.length:,}"])


MASKS = ("window", "packed", "ragged", "zigzag")
ATTENTION = [
    Case(kind, name, length)
    for name, encoding in aj.ENCODINGS.items()
    if name not in EMBEDDINGS and not encoding.whole_table
    for kind, length in (("data", 512), ("data", 4096), ("ring", 8192))
]
MASKED = [Case("ring", name, 8192, mask) for name in ("rope", "t5", "fox") for mask in MASKS]
FAMILIES = [Case("train", name, 1024, "data=8") for name in ("decoder", "encoder", "encoder_decoder")]
TRAINING = [*FAMILIES, Case("train", "decoder", 8192, "sequence=8"), Case("train", "decoder", 1024, "population=8")]
EVALUATIONS = [Case("evaluate", "rope", LONG, mesh) for mesh in ("population=8", "sequence=8")]
ELSEWHERE = [
    Case("data", "rope", 4096),
    Case("data", "t5", 4096),
    Case("ring", "rope", 8192),
    Case("ring", "fox", 8192),
    TRAINING[0],
    TRAINING[3],
]


def every_case() -> Iterator[tuple[str, Case]]:
    """Every case with its devices, those that take a model first."""
    for target in TARGETS:
        yield from ((target, case) for case in TRAINING)
    yield from (("v5e:2x4", case) for case in EVALUATIONS)
    yield from ((target, case) for target in TARGETS[:2] for case in MASKED)
    yield from ((target, case) for target in MORE_TARGETS for case in ELSEWHERE)
    for target in TARGETS:
        fully = FULLY if target == TARGETS[0] else ()
        yield from ((target, case) for case in of_configs(fully))
    for target in TARGETS:
        yield from ((target, case) for case in ATTENTION)


def selection() -> Iterator[tuple[str, Case]]:
    """What CI compiles: some of every kind, in a few minutes."""
    data, ring = (lambda name: Case("data", name, 4096)), (lambda name: Case("ring", name, 8192))
    theta = next(case for case in of_configs() if case.name == "theta")
    some = {
        "h100:8": [data("rope"), data("t5"), ring("fire"), ring("fox"), *FAMILIES, theta],
        "v5e:2x4": [data("rope"), data("t5"), ring("fox"), FAMILIES[0]],
        "v6e:2x4": [data("rope"), ring("rope")],
    }
    for target, cases in some.items():
        yield from ((target, case) for case in cases)


def of_configs(fully: Sequence[str] = ()) -> Iterator[Case]:
    """The programs of every config: all of those named, and of the others the one that trains the most runs."""
    for path in sorted(CONFIGS.glob("*.py")):
        found = groups_of(path.stem)
        for runs in found if path.stem in fully else [max(found, key=len)]:
            yield Case("config", path.stem, runs[0].task.length_max, cell_id(runs[0]))


@functools.cache
def groups_of(config: str) -> Sequence[Sequence[RunConfig]]:
    """The runs of a config, those together that one program trains."""
    return groups([one.config for one in planned(str(CONFIGS / f"{config}.py")).runs])


def chosen(
    kinds: Sequence[str] | None = None, names: Sequence[str] | None = None, targets: Sequence[str] | None = None
) -> list[tuple[str, Case]]:
    """The cases of these kinds, names and devices, all of them where None is given. Raises ValueError for unknown ones."""
    found = list(every_case())
    for what, asked, known in (
        ("kind", kinds, [case.kind for _, case in found]),
        ("name", names, [case.name for _, case in found]),
        ("topology", targets, [target for target, _ in found]),
    ):
        if unknown := [one for one in asked or () if one not in known]:
            raise ValueError(f"no case has the {what} {unknown[0]!r}; choose from {', '.join(dict.fromkeys(known))}")
    return [
        (target, case)
        for target, case in found
        if (kinds is None or case.kind in kinds)
        and (names is None or case.name in names)
        and (targets is None or target in targets)
    ]
