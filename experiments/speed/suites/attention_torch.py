"""Causal attention against PyTorch: its native CPU kernel, the same with a learned float mask, and FlexAttention.

Each side has its own layout: ours is [B, T, N, H], PyTorch's [B, N, T, H], and neither is charged for the other's. A
learned bias is one vector [N, T] for PyTorch, a number per distance; making it from T5's or KERPLE's parameters, and
their gradients from the vector's, is left out of PyTorch's time and is part of ours.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions import Kerple, NoPE, PositionEncoding, T5Bias, learns
from attnjax.typing import Array, Float, PyTree
from experiments.speed import suites
from experiments.speed.harness import TOLERANCE, Settings, difference
from experiments.speed.peers.torch_process import PeerError, TorchPeer, beside_torch, first_words
from experiments.speed.suites.attention import arguments, fields_of, ours, program
from experiments.speed.timing import timed

SUITE = "attention_torch"
SDPA, MASKED, FLEX = KINDS = ("sdpa", "sdpa_bias", "flex")
"""The worker's names of what the table of suites lists, in its order."""


class Problem(NamedTuple):
    """An encoding, and the arguments of our program: its parameters, q, k, v, and the weights of the output."""

    encoding: PositionEncoding
    args: tuple[PyTree, Array, Array, Array, Array]

    @property
    def T(self) -> int:
        """The length."""
        return self.args[1].shape[1]

    def per_distance(self, params: PyTree) -> Float[Array, "N T"]:
        """The bias of every head at distances 0 .. T - 1."""
        distances = jnp.arange(self.T, dtype=jnp.float32)
        return jax.vmap(lambda p: self.encoding.bias(p, distances))(params)

    def sent(self) -> dict[str, np.ndarray]:
        """What the worker reads."""
        arrays = dict(zip("qkvw", map(np.asarray, self.args[1:]), strict=True))
        return arrays | ({"bias": np.asarray(self.per_distance(self.args[0]))} if learns(self.encoding) else {})

    def received(self, found: dict[str, np.ndarray]) -> PyTree:
        """The worker's results in the form of ours: the gradient of the vector becomes that of the parameters."""
        if len(found) == 1:
            return found["out"]
        dparams = self.args[0]
        if learns(self.encoding):
            (dparams,) = jax.vjp(self.per_distance, dparams)[1](jnp.asarray(found["dbias"], jnp.float32))
        return found["out"], (dparams, *(found[name] for name in ("dq", "dk", "dv")))


def problem(encoding: PositionEncoding, T: int, **sizes: int) -> Problem:
    """Inputs of these sizes B, N, H, and parameters as they are at the start of a training."""
    return Problem(encoding, arguments(encoding, T, **sizes))


@beside_torch
def attention_torch(settings: Settings, peer: TorchPeer, known: dict[str, Any]) -> None:
    """Rows of both directions at each length: NoPE against SDPA, T5 and KERPLE against SDPA with a mask, and, forward
    alone, all three against FlexAttention, which has no gradients on CPU.
    """
    sizes = {"B": 1, "N": 2, "H": 16} if settings.smoke else {}
    for T in settings.lengths(SUITE):
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
        settings.say(f"{SUITE}: {name_of(FLEX)}, T = {given.T}, is not available: {first_words(error)}")


def against(
    settings: Settings, peer: TorchPeer, known: dict[str, Any], given: Problem, kind: str, *, backward: bool
) -> None:
    """One row; a line in its place where outputs or gradients differ by more than `TOLERANCE`."""
    case, name = f"{type(given.encoding).__name__}, {'forward + backward' if backward else 'forward'}", name_of(kind)
    peer.prepare({"kind": kind, "backward": backward}, given.sent())
    run, args = program(ours(given.encoding), given.args, backward=backward), given.args
    error = difference(run(*args), given.received(peer.results()))
    if error > TOLERANCE:
        settings.refuse(f"{SUITE}: {case}, T = {given.T}: {name} differs by {error:.1e}, not measured")
        return
    taken = settings.race({"ours": timed(run, *args), "theirs": peer.run})
    fields = fields_of(SUITE, case, args) | {"goal": goal(kind, given.T), "error": error}
    fields["sizes"] |= {"torch": known}
    settings.row(taken["ours"], taken["theirs"], ours="attnjax", peer=name, **fields)


def name_of(kind: str) -> str:
    """The peer of a kind, as the table of suites calls it."""
    return suites.SUITES[SUITE].peers[KINDS.index(kind)]


def goal(kind: str, T: int) -> float | None:
    """The ratio aimed at: as fast as the native kernel; 1.5 times as fast with a learned mask and T >= 2048."""
    if kind == SDPA:
        return 1.0 if T >= 1024 else None
    return 1.5 if kind == MASKED and T >= 2048 else None
