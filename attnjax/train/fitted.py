"""Members of a population that have fitted their task end, while the others go on.

    train.until = 0.99     the mean exact match over the validation lengths, all of them trained ones, at which a run ends

It is looked at every `evaluate.every` steps. A member that reaches it has its checkpoint, its results and its parameters of
that step, and its manifest says `stopped_at`. It keeps its place in the population: the compiled program has a fixed number
of members, each of which is computed from its own data alone, so the bits of the others do not depend on whether one has
ended. What the program computes of it from then on is dropped. Its tests are measured with those of the others, at the end.

A run ends when the score is reached once, so that where it ends is a function of its parameters alone, also after a resume.
Huang et al. 2025 (arXiv:2410.02140) stop at the first evaluation without an error too; Kazemnejad et al. 2023
(arXiv:2305.19466) train every run to the last step, and test the best checkpoint by validation. The validation score of such a
run is chosen to be high; its test scores are those of other examples, and are not.

`fitted.json` in the folder of a run says at which step it ended. It is written when the checkpoint of that step is on the
disk; a run that died before it finds the same score again.
"""

import json
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import jax
import numpy as np

from attnjax.config import RunConfig
from attnjax.config.files import parse_json
from attnjax.folder import LinkError, enter
from attnjax.train.mesh import on_host, place
from attnjax.train.processes import leads, shared
from attnjax.typing import PyTree

FILE = "fitted.json"
METRIC = "exact_match"
LARGEST = 1000
"""Bytes of the file."""

Records = Sequence[Mapping[str, Any]]
"""What one member scores at one length."""


class Fitted:
    """The members of a population that have ended: `steps` says at which step, by their index."""

    def __init__(self, run: RunConfig, directories: Sequence[pathlib.Path]):
        self._until, self._last, self._directories = run.train.until, run.train.steps, directories
        self._params: dict[int, PyTree] = {}
        found = [self._read(one) if self._until and leads() else 0 for one in directories]
        self.steps = {i: step for i, step in enumerate(found) if step}

    def reached(self, lengths: Sequence[Sequence[Records]], alive: Sequence[int]) -> list[int]:
        """Return which of the members `alive` have fitted their task; `lengths` has the records of all, length by length."""
        if not self._until or not lengths:
            return []
        rows = {i: [row for of_members in lengths for row in of_members[i]] for i in alive}
        score = lambda i: fmean(
            row["value"] for row in rows[i] if (row["metric"], row["split"]) == (METRIC, "validation")
        )
        # A mean of 0.99 three times over is 0.9899999999999999.
        return [i for i in alive if round(score(i), 12) >= self._until]

    def end(self, members: Sequence[int], step: int, params: PyTree) -> None:
        """End members at a step whose checkpoint is on the disk; `params` [P, ...] are of the population, on the host."""
        for i in members:
            self.steps[i] = step
            if leads():
                with enter(self._directories[i]) as folder:
                    folder.write(FILE, (json.dumps({"schema": 1, "step": step}) + "\n").encode())
        self.take(params)

    def take(self, params: PyTree) -> None:
        """Keep the parameters of members that have ended and have none yet."""
        for i in self.steps.keys() - self._params.keys():
            self._params[i] = jax.tree.map(lambda leaf, i=i: np.array(leaf[i]), params)

    def put(self, params: PyTree, mesh: jax.sharding.Mesh | None) -> PyTree:
        """Return the parameters [P, ...] of a population with those of ended members at the step at which they ended."""
        if not self._params:
            return params
        whole = jax.tree.map(np.array, on_host(params, mesh))
        for i, own in self._params.items():
            jax.tree.map(lambda leaf, row, i=i: leaf.__setitem__(i, row), whole, own)
        return place(jax.tree.map(jax.numpy.asarray, whole), mesh)

    def forget(self, members: Sequence[int]) -> None:
        """Let members go on that had ended, because the checkpoint of their end cannot be used."""
        for i in members:
            del self.steps[i]
            with enter(self._directories[i]) as folder:
                folder.remove(FILE)

    def agree(self) -> None:
        """Take over the steps that process 0 knows; every process must call it."""
        found = np.array([self.steps.get(i, 0) for i in range(len(self._directories))], np.int32)
        self.steps = {i: int(step) for i, step in enumerate(shared(found)) if step}

    def _read(self, directory: pathlib.Path) -> int:
        """Return at which step the run in a folder ended; 0 where it has not, or where the file is damaged, with a warning."""
        with enter(directory) as folder:
            if not folder.kind(FILE):
                return 0
            try:
                step = parse_json(folder.read(FILE, LARGEST).decode("utf-8"))["step"]
                if type(step) is int and 0 < step < self._last:
                    return step
            except LinkError:
                raise
            except (ValueError, KeyError, TypeError):
                pass
        warnings.warn(f"{FILE} of run {directory.name} is damaged, so the run goes on from a checkpoint", stacklevel=2)
        return 0
