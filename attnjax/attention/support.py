"""What each implementation can serve, and the choice among them with a reason for every one not taken."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.blockwise.sizes import Tiling
from attnjax.attention.fused import columns, linear_bias_obstacle
from attnjax.attention.inputs import AttentionInputs
from attnjax.positions.base import Trait

IMPLEMENTATIONS = ("dense", "chunked", "xla", "cudnn")

DENSE_BYTES = 2**22
"""Up to this size of the [B, N, T, S] table the dense implementation is chosen; above it, never without being asked.
Measured on a CPU, with gradients: tiles take 1.1 times as long at 2 and 4.5 MiB, 0.7 to 0.9 times at 8 MiB, a third at 32 MiB.
"""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The implementation chosen, why, and for each other one the reason why not."""

    implementation: str
    reason: str
    rejected: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{self.implementation}: {self.reason}"]
        return "\n".join(lines + [f"  not {name}: {reason}" for name, reason in self.rejected])


def choose(inputs: AttentionInputs, implementation: str | Tiling | None, *, needs_lse: bool = False) -> Explanation:
    """The implementation asked for, or the best that can serve.

    Raises ValueError for an unknown name and for what no implementation can serve, and NotImplementedError where the one
    asked for cannot, naming the encoding, what is in the way and what can serve.
    """
    obstacles = {name: _obstacle(name, inputs, needs_lse) for name in IMPLEMENTATIONS}
    if obstacles["chunked"] is not None:
        raise ValueError(f"{inputs.encoding}: {obstacles['chunked']}")
    if isinstance(implementation, Tiling):
        return _asked("chunked", obstacles, inputs)
    if implementation is not None or inputs.sequence is not None:
        return _asked(implementation or "chunked", obstacles, inputs)
    table = _table_bytes(inputs)
    small = table <= DENSE_BYTES
    verdict = {
        "cudnn": "the fused kernel of the GPU",
        "dense": f"the [B,N,T,S] table takes {size_of(table)}, at most {size_of(DENSE_BYTES)}",
        "chunked": f"the [B,N,T,S] table would take {size_of(table)}; tiles need memory linear in T and S",
    }
    order = ["cudnn", "dense", "chunked"] if small else ["cudnn", "chunked"]
    name = next(name for name in order if obstacles[name] is None)
    passed_over = {
        "dense": f"the [B,N,T,S] table would take {size_of(table)}; ask for it by name",
        "chunked": f"{name} is chosen first where it can serve",
        "xla": "dense serves the same cases; ask for it by name",
    }
    if small and name == "cudnn":
        passed_over["dense"] = "cudnn is chosen first where it can serve"
    others = tuple((other, obstacles[other] or passed_over[other]) for other in IMPLEMENTATIONS if other != name)
    return Explanation(name, verdict[name], others)


def _asked(implementation: str, obstacles: dict[str, str | None], inputs: AttentionInputs) -> Explanation:
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"unknown implementation {implementation!r}; choose from {', '.join(IMPLEMENTATIONS)} or None")
    obstacle = obstacles[implementation]
    if obstacle is not None:
        able = ", ".join(name for name in IMPLEMENTATIONS if obstacles[name] is None)
        raise NotImplementedError(
            f"implementation {implementation!r} cannot serve {inputs.encoding}: {obstacle}; these can: {able}"
        )
    others = tuple(
        (name, reason or "another was asked for") for name, reason in obstacles.items() if name != implementation
    )
    return Explanation(implementation, "asked for by name", others)


def _obstacle(name: str, inputs: AttentionInputs, needs_lse: bool) -> str | None:
    """Why an implementation cannot serve, or None if it can."""
    traits = inputs.encoding.traits
    if inputs.sequence is not None and name != "chunked":
        return f"the sequence is spread over the mesh axis {inputs.sequence.name!r}, and only tiles travel in a ring"
    if needs_lse and Trait.UNNORMALIZED in traits:
        return "weights of this encoding are not normalized, so that there is no log-sum-exp"
    if inputs.sink is not None and Trait.UNNORMALIZED in traits:
        return "weights of this encoding are not normalized, so that a sink has no meaning"
    if name in ("dense", "chunked"):
        return None
    if needs_lse:
        return "it does not return the log-sum-exp of our scores"
    if inputs.dropout is not None:
        return "it has no attention dropout"
    if inputs.sink is not None:
        return "it has no sink"
    if inputs.compute_dtype == jnp.float64:
        return "its softmax is float32, the inputs are float64"
    if Trait.SCORE in traits:
        return "the hook 'score' of the encoding computes the logits"
    return _cudnn_obstacle(inputs) if name == "cudnn" else None


def _cudnn_obstacle(inputs: AttentionInputs) -> str | None:
    if not has_cuda():
        return "it needs an NVIDIA GPU, and this process sees none"
    if inputs.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it needs bfloat16 or float16 queries, got {inputs.dtype}"
    if not inputs.dtype == inputs.queries.q.dtype == inputs.keys.k.dtype:
        return f"the encoding keeps queries or keys in a wider type than {inputs.dtype}, which it would round"
    if inputs.span.first:
        return "it has no mask in which the first keys stay visible beside a window (Mask.first)"
    if not _plain_mask(inputs):
        return "it takes causal or full masks over default indices, with a window to the left only"
    if Trait.BIAS in inputs.encoding.traits:
        obstacle = linear_bias_obstacle(inputs)
        if obstacle is not None:
            return obstacle
    width = jax.eval_shape(lambda: columns(inputs)[0]).shape[-1]
    return f"its heads have at most 128 channels, with columns these have {width}" if width > 128 else None


def has_cuda() -> bool:
    """Whether this process can trace a program for an NVIDIA GPU; where the program runs is decided when it is lowered."""
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def _plain_mask(inputs: AttentionInputs) -> bool:
    """Whether the mask is the causal flag and a left window over all keys, in the order of the arrays."""
    queries, keys, span = inputs.queries, inputs.keys, inputs.span
    T, S = queries.q.shape[3], keys.k.shape[2]
    default = all(
        isinstance(index, np.ndarray) and np.array_equal(index, np.arange(n))
        for index, n in ((queries.index, T), (keys.index, S))
    )
    whole = isinstance(keys.valid, np.ndarray) and bool(keys.valid.all())
    static = inputs.allowed is None and queries.segments is None
    shape = (span.left is None and span.right is None) or (span.causal and T == S)
    return default and whole and static and shape


def _table_bytes(inputs: AttentionInputs) -> int:
    B, K, G, T, _ = inputs.queries.q.shape
    return B * K * G * T * inputs.keys.k.shape[2] * inputs.compute_dtype.itemsize


def size_of(count: int) -> str:
    """Bytes in the largest unit of which there is one."""
    power = min(max(count.bit_length() - 1, 0) // 10, 4)
    return f"{count / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
