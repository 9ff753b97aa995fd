"""What a lease says about who holds it, and whether that process is dead."""

import dataclasses
import json
import os
import pathlib
import secrets
import socket
import time
from typing import Any

from attnjax.config.schema import SCHEMA
from attnjax.folder import Folder
from attnjax.sweep.process import machine, runs, started

BEAT, RELEASED = "beat", "free"
PATIENCE = 60.0


@dataclasses.dataclass(frozen=True)
class Owner:
    """What a lease says about its holder. `attempt` counts deaths in a row at the same `step`."""

    host: str = "?"
    machine: str = ""
    pid: int = 0
    started: str = ""
    attempt: int = 1
    step: int = 0
    released: bool = False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Watch:
    """What was last seen of leases on other machines, and when by our own clock."""

    def __init__(self, patience: float = PATIENCE):
        self.patience = patience
        self._seen: dict[pathlib.Path, tuple[bytes, float, bool]] = {}

    def is_free(self, path: pathlib.Path, content: bytes, owner: Owner) -> bool:
        """Whether the lease is dead."""
        if owner.released:
            return True
        if owner.machine and owner.machine == machine():
            self._seen.pop(path, None)
            return not runs(owner.pid, owner.started)
        now = time.monotonic()
        before, since, _ = self._seen.setdefault(path, (content, now, False))
        if before != content:
            self._seen[path] = (content, now, True)
            return False
        return now - since > self.patience

    def forget(self, path: pathlib.Path) -> None:
        """This lease has been dealt with."""
        self._seen.pop(path, None)

    def undecided(self) -> bool:
        """Whether waiting may yet show that a holder is dead: one that was seen, but not alive."""
        return any(not alive for _, _, alive in self._seen.values())


def myself(attempt: int, step: int) -> Owner:
    """This process."""
    return Owner(socket.gethostname()[:100], machine(), os.getpid(), started(os.getpid()), attempt, step)


def first_line(owner: Owner) -> bytes:
    """What a lease says for good."""
    fields = {name: value for name, value in dataclasses.asdict(owner).items() if name != "released"}
    return json.dumps({"schema": SCHEMA, "token": secrets.token_hex(8), **fields}).encode() + b"\n"


def second_line(word: str, beat: int) -> bytes:
    """What a lease says now; always equally long."""
    return f"{word} {beat:012d}\n".encode()


def read(folder: Folder, name: str) -> bytes:
    """A lease file; empty where its owner died, or a successor removed it, just now."""
    try:
        with folder.opened(name) as descriptor:
            return os.read(descriptor, 4096)
    except (OSError, ValueError):
        return b""


def parse(content: bytes) -> Owner:
    """An unknown owner where the file is unreadable: it is then dead when it stays unchanged for long enough."""
    head, end, tail = content.partition(b"\n")
    try:
        table = json.loads(head)
        names = {field.name: type(field.default) for field in dataclasses.fields(Owner) if field.name != "released"}
        values: dict[str, Any] = {
            name: table[name] for name, kind in names.items() if isinstance(table.get(name), kind)
        }
    except (ValueError, AttributeError, RecursionError):
        return Owner()
    return Owner(**values, released=bool(end) and (not tail or tail.startswith(RELEASED.encode())))
