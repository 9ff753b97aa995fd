"""Which process this is, and whether another one of this machine still runs."""

import os
import pathlib
import platform
import subprocess
import sys

PROC = pathlib.Path("/proc")


def machine() -> str:
    """What tells apart machines, their restarts, and containers that number processes for themselves.

    "" where that cannot be told: processes are then judged by their heartbeat alone.
    """
    if sys.platform == "darwin":
        return f"{platform.node()}/{_output('sysctl', '-n', 'kern.boottime')}"
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def started(pid: int) -> str:
    """When a process started, as its system tells it; "" where there is none, or only its remains."""
    if sys.platform == "darwin":
        return _output("ps", "-o", "lstart=", "-p", str(pid))
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()  # a name may hold spaces and brackets
    return "" if state in ("Z", "X") else fields[18]


def runs(pid: int, start: str) -> bool:
    """Whether the process that had this number at this start still runs."""
    return bool(start) and started(pid) == start


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
