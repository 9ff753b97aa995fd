"""The choice of an implementation: the first in order that does not refuse, with the reasons of those that do.

GPU (NVIDIA)    cudnn, dense, chunked         cudnn takes a bias as columns where they fit, then as an array
elsewhere       dense, chunked                dense up to a size of the table, see `DENSE_BYTES`
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.attention import fused
from attnjax.attention.blockwise import Tiling, blockwise
from attnjax.attention.dense import dense
from attnjax.attention.record import Call
from attnjax.attention.ring import ring
from attnjax.typing import Array, Float

IMPLEMENTATIONS = ("dense", "chunked", "cudnn")

DENSE_BYTES = {"cpu": 2**22, "gpu": 2**28}
"""Up to this size of the [B, N, T, S] table the dense implementation is chosen by itself. CPU: measured with gradients, tiles
take 1.1 times as long at 2 and 4.5 MiB, 0.7 to 0.9 times at 8 MiB. GPU: set by memory, not by time; at 4 and 8 GiB tiles took
0.75 to 0.97 times as long as XLA's table on an H200, and smaller tables were not measured."""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The implementation chosen, why, and for each other one the reason why not."""

    implementation: str
    reason: str
    rejected: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{self.implementation}: {self.reason}"]
        return "\n".join(lines + [f"  not {name}: {reason}" for name, reason in self.rejected])


def choose(call: Call, implementation: str | Tiling | None, *, needs_lse: bool = False) -> Explanation:
    """Returns the implementation asked for, or the best that can serve. Nothing is traced for those that are not run.

    Raises ValueError for an unknown name and for calls that none can serve, and NotImplementedError where the one asked for
    cannot, with the reason and those that can.
    """
    name = "chunked" if isinstance(implementation, Tiling) else implementation
    if name is not None and name not in IMPLEMENTATIONS:
        raise ValueError(f"unknown implementation {name!r}; choose from {', '.join(IMPLEMENTATIONS)} or None")
    if call.sink is not None and any(part.log_weights for part in call.encodings):
        raise ValueError(f"{call.encodings[-1]}: its weights are not normalized, so that a sink has no meaning")
    obstacles = {one: obstacle(one, call, needs_lse) for one in IMPLEMENTATIONS}
    able = [one for one in IMPLEMENTATIONS if obstacles[one] is None]
    if not able:
        raise NotImplementedError("; ".join(f"{one}: {reason}" for one, reason in obstacles.items()))
    if name is None:
        name, reason = _best(call, able)
    elif name in able:
        reason = "asked for by name"
    else:
        raise NotImplementedError(
            f"implementation {name!r} cannot serve this call: {obstacles[name]}; these can: {', '.join(able)}"
        )
    others = (
        (one, obstacles[one] or f"{name} is chosen before it: {reason}") for one in IMPLEMENTATIONS if one != name
    )
    return Explanation(name, reason, tuple(others))


def _best(call: Call, able: list[str]) -> tuple[str, str]:
    table, platform = _table_bytes(call), "gpu" if fused.has_cuda() else "cpu"
    small = table <= DENSE_BYTES[platform]
    order = ["cudnn", "dense", "chunked"] if small else ["cudnn", "chunked", "dense"]
    name = next(one for one in order if one in able)
    if name == "cudnn":
        return name, "the kernel of the GPU serves it"
    return name, f"the [B,N,T,S] table takes {size_of(table)}, the limit for dense is {size_of(DENSE_BYTES[platform])}"


def obstacle(name: str, call: Call, needs_lse: bool) -> str | None:
    """Returns why an implementation cannot serve a call, or None if it can."""
    if call.axis_name is not None and name != "chunked":
        return f"the sequence is spread over the mesh axis {call.axis_name!r}, and only tiles go around a ring"
    if needs_lse and any(part.log_weights for part in call.encodings):
        return "weights of this encoding are not normalized, so that there is no log-sum-exp"
    if name == "dense":
        return None
    if call.dropout is not None:
        return "dense alone drops attention weights"
    if name == "chunked":
        whole = [part for part in call.encodings if part.whole_table]
        return f"{whole[0]} scores all keys and heads at once, which a tile does not hold; use dense" if whole else None
    if needs_lse:
        return "it does not return the log-sum-exp of our scores"
    return fused.obstacle(call)


def run(
    call: Call, implementation: str | Tiling | None, *, needs_lse: bool = False
) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"] | None]:
    """Returns output and log-sum-exp of the implementation that `choose` returns; the kernel gives no log-sum-exp."""
    name = choose(call, implementation, needs_lse=needs_lse).implementation
    tiling = implementation if isinstance(implementation, Tiling) else None
    if name == "chunked":
        return ring(call, tiling) if call.axis_name is not None else blockwise(call, tiling)
    if name == "dense":
        return dense(call)
    if implementation is not None:
        return fused.fused(call), None
    # Chosen, not asked for: the program may be lowered for a CPU of the same host.
    other = dense if _table_bytes(call) <= DENSE_BYTES["cpu"] else blockwise
    return jax.lax.platform_dependent(cuda=lambda: fused.fused(call), default=lambda: other(call)[0]), None


def _table_bytes(call: Call) -> int:
    B, K, G, T, _ = call.rows.q.shape
    return B * K * G * T * call.cols.k.shape[3] * jnp.dtype(call.compute_dtype).itemsize


def size_of(count: int) -> str:
    """Returns bytes in the largest unit that they fill once."""
    power = min(max(count.bit_length() - 1, 0) // 10, 4)
    return f"{count / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
