"""The checkpoints that a population writes while it trains: who writes which member, and when a step is committed.

One process writes all members, each in turn, in a thread. Several processes that see the same folders, and have members of
their own (`--mesh population=N`), each write their own, and nothing of the state is sent from one to another:

    each process   checkpoints/partial-60-<attempt>    all files of a member that lies on its devices
    process 0      checkpoints/60                      by one rename of each member, once all processes have written theirs

So a process that is lost amid a save leaves the step before, of all members, and process 0, which has the lease, alone decides
what is committed. Files are those of one process, but for the number in `ocdbt.process_1`: a checkpoint is that of its member,
and goes on on any mesh, in any number of processes. Where another process does not see the folder, or all have all members
(`data`, `sequence`), process 0 gets the whole state and writes it.
"""

import pathlib
import secrets
from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

import jax
import numpy as np

from attnjax.folder import enter
from attnjax.train import checkpoint
from attnjax.train.background import BackgroundSave
from attnjax.train.mesh import on_host, owners
from attnjax.train.processes import announced, leads, said, shared, together
from attnjax.typing import PyTree

CHECKPOINTS = "checkpoints"


@runtime_checkable
class Holder(Protocol):
    """Says whether checkpoints may still be written into a folder; of several processes that of the first is asked."""

    def holds(self, directory: pathlib.Path) -> bool: ...


class Saves:
    """The saves of a population, one at a time, as a context manager: at its end no thread is left.

    Every process must make it and call its methods with the others.

    Args:
      directories: the folder of each member, where this process sees it.
      mesh: the devices; None for one.
      keep: how many checkpoints of a member stay.
      context: whose folders they are.

    Example:
      >>> import tempfile
      >>> from unittest.mock import Mock
      >>> with tempfile.TemporaryDirectory() as run:
      ...     with Saves([pathlib.Path(run)], None, 2, Mock(holds=lambda directory: True)) as saves:
      ...         saves.begin({"w": jax.numpy.zeros((1, 3))}, [0], 60)
      ...         saves.wait()
      ...     checkpoint.steps(pathlib.Path(run) / CHECKPOINTS)
      [60]
    """

    def __init__(self, directories: Sequence[pathlib.Path], mesh: Any, keep: int, context: Holder):
        self._directories, self._mesh, self._keep, self._context = directories, mesh, keep, context
        self._thread = BackgroundSave()
        self._owners = owners(len(directories), mesh)
        self._attempt = _agreed_attempt(directories, self._owners, context) if any(self._owners) else ""
        self._prepared: tuple[int, list[int]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.__exit__(*error)

    def begin(self, state: PyTree, members: Sequence[int], step: int) -> None:
        """Begin to save a copy of members: the next call of the program overwrites the memory of `state`.

        Runs that another process has taken over are left out, also where that is found when their turn comes.
        """
        self.wait()
        if self._attempt:
            held = self._held(members)
            self._prepared = step, held
            own = [i for i in held if self._owners[i] == jax.process_index()]
            copies = {i: jax.tree.map(lambda leaf, i=i: _row(leaf, i), state) for i in own}
            self._thread.start(lambda: self._prepare(copies, step))
            return
        here = on_host(state, self._mesh)
        if leads():
            held = [i for i in members if self._context.holds(self._directories[i])]
            copies = {i: jax.tree.map(lambda leaf, i=i: np.array(leaf[i]), here) for i in held}
            self._thread.start(lambda: self._save(copies, step))

    def check(self) -> None:
        """Raise what a save has raised in any process. Commits the step that all have written. Does not wait for a disk."""
        written = self._thread.ended()
        together(self._thread.check)
        if self._prepared and all(said("written" if written else "")):
            self._commit()

    def wait(self) -> None:
        """Wait until the last step is committed. Raises what its save has raised in any process."""
        together(self._thread.wait)
        if self._prepared:
            self._commit()

    def _save(self, copies: dict[int, PyTree], step: int) -> None:
        for i, copy in copies.items():
            if self._context.holds(self._directories[i]):
                checkpoint.save(self._directories[i] / CHECKPOINTS, step, copy, keep=None)
        self._prune([self._directories[i] for i in copies])

    def _prune(self, directories: Sequence[pathlib.Path]) -> None:
        """Delete old steps of members that all have the new one, so that there is always one that all have."""
        for directory in directories:
            if self._context.holds(directory):
                checkpoint.prune(directory / CHECKPOINTS, keep=self._keep)

    def _prepare(self, copies: dict[int, PyTree], step: int) -> None:
        for i, copy in copies.items():
            checkpoint.prepare(self._directories[i] / CHECKPOINTS, step, copy, self._attempt)

    def _held(self, members: Sequence[int]) -> list[int]:
        """Return the members whose folders process 0 still holds, without what is left in them from saves that failed."""
        held = np.zeros(len(self._directories), bool)

        def look() -> None:
            for i in members if leads() else ():
                if self._context.holds(self._directories[i]):
                    checkpoint.sweep_up(self._directories[i] / CHECKPOINTS)
                    held[i] = True

        together(look)
        return np.flatnonzero(shared(held)).tolist()

    def _commit(self) -> None:
        assert self._prepared is not None
        (step, members), self._prepared = self._prepared, None

        def commit() -> None:
            held = [self._directories[i] for i in members if leads() and self._context.holds(self._directories[i])]
            for directory in held:
                checkpoint.commit(directory / CHECKPOINTS, step, self._attempt)
            self._prune(held)

        together(commit)


def _agreed_attempt(directories: Sequence[pathlib.Path], owners: Sequence[int], context: Holder) -> str:
    """Return the word by which this training is known, "" where a process does not see the folders of its members.

    Process 0 makes a folder with that name, so that folders that lie under the same path on two machines are told apart.
    """
    attempt = announced(secrets.token_hex(8).encode() if leads() else b"").decode()
    mark = f"partial-{attempt}"
    held = [directory for directory in directories if leads() and context.holds(directory)]

    def offer() -> None:
        for directory in held:
            with enter(directory) as run, run.make(CHECKPOINTS) as folder:
                folder.make(mark).close()

    def withdraw() -> None:
        for directory in held:
            checkpoint.sweep_up(directory / CHECKPOINTS)

    together(offer)
    own = [directory for directory, owner in zip(directories, owners, strict=True) if owner == jax.process_index()]
    seen = all(said("seen" if all(_is_seen(directory, mark) for directory in own) else ""))
    together(withdraw)
    return attempt if seen else ""


def _is_seen(directory: pathlib.Path, mark: str) -> bool:
    """Return whether this process may write into the folder that process 0 has made."""
    try:
        with enter(directory) as run, run.enter(CHECKPOINTS) as folder, folder.enter(mark) as made:
            made.write("seen", b"", durable=False)
    except (OSError, ValueError):
        return False
    return True


def _row(leaf: jax.Array, i: int) -> np.ndarray:
    """Return a copy of member `i` of a leaf [P, ...], which lies on a device of this process."""
    for shard in leaf.addressable_shards:
        first, end, _ = shard.index[0].indices(leaf.shape[0])
        if first <= i < end:
            return np.array(np.asarray(shard.data)[i - first])
    raise AssertionError(f"member {i} is in another process")
