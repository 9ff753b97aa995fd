"""Machines that share a folder over a file system that shows each of them old states of it, simulated in one process.

Each machine is a thread, and one of them runs at a time: before each operation on a file, which is a tick of the clock, the
seed draws which goes on. A listing, and a file that is opened to be read, are shown as they were at some moment of the last
`DELAY` ticks, each at another one, but not as they were before the machine itself changed them. Exclusive creation, renames,
and files that are opened to be changed are exact, as the one server decides them.
"""

import contextlib
import errno
import os
import pathlib
import random
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from attnjax.folder import Folder
from attnjax.sweep import execute, lease, population

DELAY = 150
"""Ticks after which at the latest every machine sees what was written."""
PATIENCE = 3 * DELAY


class LostError(BaseException):
    """Ends what a machine does that is lost, at its next operation and at every one after that."""


class Machines:
    """See the module's text. `root` is the shared folder, `patch` pytest's monkeypatch; `now` is the clock.

    `lost`: machines that do nothing any more. `old`: how often one was shown something that was no longer so.
    """

    def __init__(self, seed: int, root: pathlib.Path, patch):
        self.draw, self.root, self.now = random.Random(seed), root, -DELAY
        self.lost: set[str] = set()
        self.old = 0
        self._names, self._running, self._turns = [], "", threading.Condition()
        self._leases: list[tuple[str, lease.Lease]] = []
        self._states: dict[pathlib.Path, list[tuple[int, Any]]] = defaultdict(list)
        self._own: dict[tuple[str, pathlib.Path], int] = defaultdict(lambda: -DELAY)
        self._changed = {path for path in root.rglob("*") if path.is_file()}
        self._note("")
        self.now = 0
        self._patch(patch)

    def run(self, work: Callable[[str], None], names: Sequence[str]) -> None:
        """Let each machine do `work(name)`, until all have returned or are lost. Raises what one of them raised."""
        errors: list[BaseException] = []

        def machine(name: str) -> None:
            try:
                self._wait(name)
                work(name)
            except LostError:
                pass
            except BaseException as error:
                errors.append(error)
            with self._turns:
                self._note(name)
                self._names.remove(name)
                self._draw()

        self._names = list(names)
        threads = [threading.Thread(target=machine, args=(name,), name=name) for name in names]
        for thread in threads:
            thread.start()
        with self._turns:
            self._draw()
        for thread in threads:
            thread.join()
        for _, one in self._leases:
            if one._descriptor >= 0:
                os.close(one._descriptor)
        if errors:
            raise errors[0]

    def turn(self) -> None:
        """One tick of the clock, after which any machine goes on. Raises LostError in one that is lost."""
        name = threading.current_thread().name
        if name not in self._names:
            return
        self._note(name)
        self.now += 1
        if self.now % (DELAY // 4) == 0:
            for owner, one in self._leases:
                if owner not in self.lost and one._descriptor >= 0:
                    one.renew_in_time()
                    self._note(owner)
        with self._turns:
            self._draw()
        self._wait(name)

    def _draw(self) -> None:
        self._running = self.draw.choice(self._names) if self._names else ""
        self._turns.notify_all()

    def _wait(self, name: str) -> None:
        with self._turns:
            self._turns.wait_for(lambda: self._running == name)
        if name in self.lost:
            raise LostError

    def _note(self, name: str) -> None:
        """Keep the states of the files that a machine has just changed, and the listings of their folders."""
        for path in sorted(self._changed):
            self._states[path].append((self.now, path.read_bytes() if path.exists() else None))
            self._states[path.parent].append((self.now, sorted(os.listdir(path.parent))))
            self._own[name, path] = self._own[name, path.parent] = self.now
        self._changed.clear()

    def _seen(self, path: pathlib.Path) -> Any:
        """A state of the last ticks; None of a file that was not there."""
        own = self._own[threading.current_thread().name, path]
        moment = max(own, self.draw.randint(self.now - DELAY, self.now))
        states = [None, *(state for tick, state in self._states[path] if tick <= moment)]
        self.old += len(states) <= len(self._states[path])
        return states[-1]

    def _patch(self, patch) -> None:
        real_names, real_open, real_claim, real_mark = Folder.names, Folder.open, lease.claim, lease.Lease._mark
        ours = lambda folder: threading.current_thread().name in self._names and folder.path.is_relative_to(self.root)

        def names(folder):
            self.turn()
            seen = self._seen(folder.path) if ours(folder) else None
            return real_names(folder) if seen is None else seen  # checkpoints, which are written in another way

        def opened(folder, name, flags=os.O_RDONLY):
            path = folder.path / name
            self.turn()
            if not ours(folder):
                return real_open(folder, name, flags)
            if flags & os.O_ACCMODE != os.O_RDONLY:
                self._changed.add(path)
                return real_open(folder, name, flags)
            content = self._seen(path)
            if content is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            with tempfile.TemporaryFile() as file:
                file.write(content)
                file.seek(0)
                return os.dup(file.fileno())

        def changing(real):
            def call(folder, name, *arguments, **named):
                real(folder, name, *arguments, **named)
                if ours(folder):
                    self._changed.add(folder.path / name)

            return call

        def claim(*arguments, **named):
            found = real_claim(*arguments, **named)
            if isinstance(found, lease.Lease):
                self._leases.append((threading.current_thread().name, found))
            return found

        def mark(one, *arguments):
            if threading.current_thread().name in self.lost:
                raise LostError
            real_mark(one, *arguments)
            self._changed.add(one.path)

        def renew_in_time(one):
            one._beat += 1
            real_mark(one, lease.BEAT)
            self._changed.add(one.path)

        patch.setattr(Folder, "names", names)
        patch.setattr(Folder, "open", opened)
        patch.setattr(Folder, "write", changing(Folder.write))
        patch.setattr(Folder, "remove", changing(Folder.remove))
        patch.setattr(lease.Lease, "_mark", mark)
        patch.setattr(lease.Lease, "renew_in_time", renew_in_time, raising=False)
        patch.setattr(lease, "machine_id", lambda: threading.current_thread().name)
        patch.setattr(execute, "claim", claim)
        patch.setattr(execute, "POLL", 0)
        patch.setattr(population, "heartbeat", lambda *_: contextlib.nullcontext())
        patch.setattr(time, "monotonic", lambda: float(self.now))
