"""Records what a result depends on: code, versions, machine, threads, seeds, times. It holds no secrets: of the
environment it has only the variables named here, of the repository only hashes.
"""

import contextlib
import datetime
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import attnjax
from attnjax.config import RunConfig, cell_id, run_id
from attnjax.config.mesh import MeshShape

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "chex", "numpy", "ml-collections")
ENVIRONMENT = (
    "JAX_PLATFORMS",
    "JAX_ENABLE_X64",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_NUM_CPU_DEVICES",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "LIBTPU_INIT_ARGS",
    "CUDA_VISIBLE_DEVICES",
    "JAX_CUDA_VISIBLE_DEVICES",
    "NPROC",
    "OMP_NUM_THREADS",
)
"""Of the environment these alone are recorded: any other variable may hold a secret."""

BITWISE = (
    "code_sha256",
    "data_sha256",
    "threads",
    "processor",
    "version_jax",
    "version_jaxlib",
    "backend",
    "device_kind",
    "process_count",
    "population",
    "mesh",
)
"""What must not change between the parts of a run for its numbers to be the same, bit by bit, as in one go."""


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return which fields of `BITWISE` differ from those of a part before, or did in an earlier one."""
    known = old.get("changed_on_resume")
    told = known if isinstance(known, list) else []
    return [name for name in sorted(BITWISE) if name in told or (name in old and old[name] != new.get(name, old[name]))]


def of_run(config: RunConfig, *, attempt: str, population: list[str], mesh: MeshShape) -> dict[str, Any]:
    """The fields of one run and its start."""
    return {
        "run": run_id(config),
        "cell": cell_id(config),
        "name": config.name,
        "attempt_token": attempt,
        "population": population,
        "mesh": str(mesh),
        "start_time": now(),
    }


def of_machine() -> dict[str, Any]:
    """The fields of this process, which are the same for all of its runs."""
    return {
        "attnjax": attnjax.__version__,
        "code_sha256": code_hash(),
        **_repository(),
        "python": platform.python_version(),
        **{f"version_{name.replace('-', '_')}": _version(name) for name in PACKAGES},
        "os": platform.platform(),
        "processor": _processor(),
        "threads": threads(),
        "host": socket.gethostname()[:100],
        "process": os.getpid(),
        "environment": {name: os.environ[name][:1000] for name in ENVIRONMENT if name in os.environ},
    }


def of_jax() -> dict[str, Any]:
    """The settings of JAX, if it is loaded."""
    jax = sys.modules.get("jax")
    if jax is None:
        return {}
    devices = jax.devices()
    return {
        "backend": jax.default_backend(),
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "process_count": jax.process_count(),
        "x64": bool(jax.config.jax_enable_x64),
    }


def now() -> str:
    """The time in UTC, for people; no code orders anything by it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def threads() -> int:
    """The number of cores that this process may use, on which the bits of a result depend."""
    wanted = os.environ.get("NPROC", "")
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else allowed


def code_hash() -> str:
    """One hash of every Python file of the package but its configs, which works without a repository too.

    Names that begin with a dot are none of the package: editors make them, also as links to nowhere.
    """
    total, root = hashlib.sha256(), pathlib.Path(attnjax.__file__).parent
    for path in sorted(set(root.rglob("*.py")) - set(root.glob("configs/*"))):  # a checkout has its configs elsewhere
        name = path.relative_to(root)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            total.update(name.as_posix().encode() + b"\0")
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _repository() -> dict[str, Any]:
    """The commit of the checkout that holds the package, and whether files differ from it; None where git does not say."""
    root, program, said = pathlib.Path(attnjax.__file__).resolve().parents[1], shutil.which("git"), ""
    if program is not None and (root / ".git").exists():
        command = [program, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, timeout=20, check=True, stdin=subprocess.DEVNULL)
            said = done.stdout.decode(errors="replace").strip()
    return {"commit": said.removesuffix("-dirty") or None, "commit_dirty": said.endswith("-dirty") if said else None}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()
