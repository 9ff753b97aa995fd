"""What each implementation can serve, and the choice among them with a reason for every one not taken."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.fused import lower
from attnjax.attention.problem import Problem
from attnjax.attention.tiling import Tiling

IMPLEMENTATIONS = ("dense", "chunked", "xla", "cudnn")

DENSE_BYTES_CPU = 2**22
"""Up to this size of the [B, N, T, S] table the dense implementation is chosen on a CPU; above it, never without being
asked. Measured, with gradients: tiles take 1.1 times as long at 2 and 4.5 MiB, 0.7 to 0.9 times at 8 MiB, a third at 32 MiB."""
DENSE_BYTES = 2**25
"""The same on accelerators, where a loop over tiles leaves more of the device idle; not measured."""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The implementation chosen, why, and for each other one the reason why not."""

    implementation: str
    reason: str
    rejected: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{self.implementation}: {self.reason}"]
        return "\n".join(lines + [f"  not {name}: {reason}" for name, reason in self.rejected])


def choose(problem: Problem, implementation: str | Tiling | None, *, needs_lse: bool = False) -> Explanation:
    """The implementation asked for, or the best that can serve.

    Raises ValueError for an unknown name, and NotImplementedError where the one asked for cannot serve, naming the
    encoding, what is in the way and what can serve.
    """
    obstacles = {name: _obstacle(name, problem, needs_lse) for name in IMPLEMENTATIONS}
    if isinstance(implementation, Tiling):
        return _asked("chunked", obstacles, problem)
    if implementation is not None:
        return _asked(implementation, obstacles, problem)
    table = _table_bytes(problem)
    most = DENSE_BYTES_CPU if jax.default_backend() == "cpu" else DENSE_BYTES
    small = table <= most
    verdict = {
        "cudnn": "the fused kernel of this GPU",
        "dense": f"the [B,N,T,S] table takes {_size(table)}, at most {_size(most)}",
        "chunked": f"the [B,N,T,S] table would take {_size(table)}; tiles need memory linear in T and S",
    }
    order = ["cudnn", "dense", "chunked"] if small else ["cudnn", "chunked"]
    name = next(name for name in order if obstacles[name] is None)
    passed_over = {
        "dense": f"the [B,N,T,S] table would take {_size(table)}; ask for it by name",
        "chunked": f"{name} is chosen first where it can serve",
        "xla": "dense serves the same cases; ask for it by name",
        "cudnn": "never passed over",
    }
    if small and name == "cudnn":
        passed_over["dense"] = "cudnn is chosen first where it can serve"
    others = tuple((other, obstacles[other] or passed_over[other]) for other in IMPLEMENTATIONS if other != name)
    return Explanation(name, verdict[name], others)


def _asked(implementation: str, obstacles: dict[str, str | None], problem: Problem) -> Explanation:
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"unknown implementation {implementation!r}; choose from {', '.join(IMPLEMENTATIONS)} or None")
    obstacle = obstacles[implementation]
    if obstacle is not None:
        able = ", ".join(name for name in IMPLEMENTATIONS if obstacles[name] is None)
        raise NotImplementedError(
            f"implementation {implementation!r} cannot serve {problem.encoding}: {obstacle}; these can: {able}"
        )
    others = tuple(
        (name, reason or "another was asked for") for name, reason in obstacles.items() if name != implementation
    )
    return Explanation(implementation, "asked for by name", others)


def _obstacle(name: str, problem: Problem, needs_lse: bool) -> str | None:
    """Why an implementation cannot serve, or None if it can."""
    if name in ("dense", "chunked"):
        return None
    encoding = problem.encoding
    if needs_lse:
        return "it does not return the log-sum-exp of our scores"
    if problem.dropout is not None:
        return "it has no attention dropout"
    if problem.rows.q.dtype == jnp.float64:
        return "its softmax is float32, the inputs are float64"
    acting = sorted(encoding.hooks() & {"bias", "score", "carry"})
    if acting and not encoding.has("columns_q"):
        return f"the hook {acting[0]!r} of the encoding would need a bias tensor"
    return _cudnn_obstacle(problem) if name == "cudnn" else None


def _cudnn_obstacle(problem: Problem) -> str | None:
    if jax.default_backend() != "gpu":
        return f"it needs an NVIDIA GPU, the backend is {jax.default_backend()!r}"
    if problem.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it needs bfloat16 or float16 queries, got {problem.dtype}"
    if not _plain_mask(problem):
        return "it takes causal or full masks over default indices, with a window to the left only"
    width = jax.eval_shape(lambda: lower(problem)[0]).shape[-1]
    return f"its heads have at most 128 channels, with columns these have {width}" if width > 128 else None


def _plain_mask(problem: Problem) -> bool:
    """Whether the mask is the causal flag and a left window over all keys, in the order of the arrays."""
    rows, cols, span = problem.rows, problem.cols, problem.span
    T, S = rows.q.shape[3], cols.k.shape[2]
    default = all(
        isinstance(index, np.ndarray) and np.array_equal(index, np.arange(n))
        for index, n in ((rows.index, T), (cols.index, S))
    )
    whole = isinstance(cols.valid, np.ndarray) and bool(cols.valid.all())
    static = problem.allowed is None and rows.segments is None
    shape = (span.left is None and span.right is None) or (span.causal and T == S)
    return default and whole and static and shape


def _table_bytes(problem: Problem) -> int:
    B, K, G, T, _ = problem.rows.q.shape
    return B * K * G * T * problem.cols.k.shape[2] * problem.rows.q.dtype.itemsize


def _size(count: int) -> str:
    power = min(max(count.bit_length() - 1, 0) // 10, 4)
    return f"{count / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
