"""Causal attention against PyTorch: its native CPU kernel, the same with a learned float mask, and FlexAttention.

Each side has its own layout: ours is [B, T, N, H], PyTorch's [B, N, T, H], and neither is charged for the other's. A
learned bias is one vector [N, T] for PyTorch, a number per distance; making it from T5's or KERPLE's parameters, and
their gradients from the vector's, is left out of PyTorch's time and is part of ours.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions import EncodingParams, Kerple, NoPE, PositionEncoding, Sizes, T5Bias, learns
from attnjax.typing import Array, Float, PyTree
from experiments.speed.comparing import compare
from experiments.speed.inputs import TOLERANCE, Inputs, both_ways, compiled, difference, inputs
from experiments.speed.peers.torch_process import PeerError, TorchPeer, first_words
from experiments.speed.settings import Settings
from experiments.speed.suites.attention import ours
from experiments.speed.timing import Contender, interleaved, timed

SUITE = "attention_torch"
LEFT_OUT = (
    "left out, because it needs PyTorch: `python -m venv torch && torch/bin/pip install torch numpy x-transformers` "
    "makes an environment (a CPU build is enough), and `--torch torch/bin/python` names it"
)
SDPA, MASKED, FLEX = "sdpa", "sdpa_bias", "flex"
NAMES = ((SDPA, "PyTorch SDPA"), (MASKED, "PyTorch SDPA, float mask"), (FLEX, "PyTorch FlexAttention, compiled"))


class Problem(NamedTuple):
    """Inputs of one length, and an encoding with its parameters."""

    arrays: Inputs
    encoding: PositionEncoding
    params: EncodingParams

    @property
    def T(self) -> int:
        """The length."""
        return self.arrays.q.shape[1]

    def per_distance(self, params: EncodingParams) -> Float[Array, "N T"]:
        """The bias of every head at distances 0 .. T - 1."""
        distances = jnp.arange(self.T)
        return jax.vmap(lambda head: self.encoding.bias(params._replace(head=head), distances))(params.head)

    def sent(self, *, backward: bool) -> dict[str, np.ndarray]:
        """What the worker reads."""
        arrays = {name: np.asarray(getattr(self.arrays, name)) for name in ("qkvw" if backward else "qkv")}
        return arrays | ({"bias": np.asarray(self.per_distance(self.params))} if learns(self.encoding) else {})

    def received(self, found: dict[str, np.ndarray]) -> PyTree:
        """The worker's results in the form of ours: the gradient of the vector becomes that of the parameters."""
        if len(found) == 1:
            return found["out"]
        dparams = self.params
        if learns(self.encoding):
            (dparams,) = jax.vjp(self.per_distance, self.params)[1](jnp.asarray(found["dbias"], jnp.float32))
        return found["out"], (dparams, *(found[name] for name in ("dq", "dk", "dv")))


def problem(encoding: PositionEncoding, T: int, **sizes: int) -> Problem:
    """Inputs of these sizes B, N, H, and parameters as they are at the start of a training."""
    arrays = inputs(T, **sizes)
    N, H = arrays.q.shape[2:]
    return Problem(arrays, encoding, encoding.init(jax.random.key(1), Sizes(N * H, N, N, H)))


def attention_torch(settings: Settings) -> None:
    """Rows of both directions at each length: NoPE against SDPA, T5 and KERPLE against SDPA with a mask, and, forward
    alone, all three against FlexAttention, which has no gradients on CPU.
    """
    if settings.torch is None:
        settings.say(f"{SUITE}: {LEFT_OUT}")
        return
    sizes = {"B": 1, "N": 2, "H": 16} if settings.smoke else {}
    with TorchPeer(settings.torch) as peer:
        known = peer.versions()
        for T in (128,) if settings.smoke else (1024, 2048, 4096):
            for encoding in (NoPE(), T5Bias(), Kerple()):
                given = problem(encoding, T, **sizes)
                for backward in (False, True):
                    against(settings, peer, known, given, MASKED if learns(encoding) else SDPA, backward=backward)
                if not settings.smoke:  # compiling it takes half a minute
                    _against_flex(settings, peer, known, given)


def _against_flex(settings: Settings, peer: TorchPeer, known: dict[str, Any], given: Problem) -> None:
    try:
        against(settings, peer, known, given, FLEX, backward=False)
    except PeerError as error:
        settings.say(f"{SUITE}: {dict(NAMES)[FLEX]}, T = {given.T}, is not available: {first_words(error)}")


def against(
    settings: Settings, peer: TorchPeer, known: dict[str, Any], given: Problem, kind: str, *, backward: bool
) -> None:
    """One row; a line in its place where outputs or gradients differ by more than `TOLERANCE`."""
    case = f"{type(given.encoding).__name__}, {'forward + backward' if backward else 'forward'}"
    name, (B, T, N, H) = dict(NAMES)[kind], given.arrays.q.shape
    peer.prepare({"kind": kind, "backward": backward}, given.sent(backward=backward))
    program, args = _ours(given, backward=backward)
    error = difference(given.received(peer.results()), jax.device_get(program(*args)))
    if error > TOLERANCE:
        settings.refuse(f"{SUITE}: {case}, T = {T}: {name} differs by {error:.1e}, not measured")
        return
    contenders = [Contender("ours", timed(program, *args)), peer.contender("theirs")]
    taken = interleaved(contenders, rounds=settings.rounds, seconds=settings.seconds)
    sizes = {"T": T, "B": B, "N": N, "H": H, "dtype": "float32", "torch": known}
    told = {"sizes": sizes, "goal": goal(kind, T), "error": error, "rounds": len(taken["ours"])}
    settings.emit(compare(taken["ours"], taken["theirs"], suite=SUITE, case=case, ours="attnjax", peer=name, **told))


def goal(kind: str, T: int) -> float | None:
    """The ratio aimed at: as fast as the native kernel; 1.5 times as fast with a learned mask and T >= 2048."""
    if kind == SDPA:
        return 1.0 if T >= 1024 else None
    return 1.5 if kind == MASKED and T >= 2048 else None


def _ours(given: Problem, *, backward: bool) -> tuple[Any, tuple[Any, ...]]:
    """Our program and its arguments."""
    forward = ours(given.encoding)
    args = (given.params, given.arrays.q, given.arrays.k, given.arrays.v)
    args, function = ((*args, given.arrays.w), both_ways(forward)) if backward else (args, forward)
    return compiled(function, *args), args
