"""Attention in bfloat16 on a GPU: no bias, ALiBi, FoX and a learned T5 bias against the libraries' kernels.

    B * T = 16,384 tokens, N * H = 2,048 channels, H = 64 and 128, causal    (the sizes of the FlashAttention papers)

"forward + backward" is the output and the gradients of sum(w * output) to q, k, v and all that the encoding learns: the
table of T5, and of FoX the sums of its gates, which are given [B, N, T] to all sides. A peer that takes a bias as an array is
charged for making it from the same parameters. Outputs and gradients of each peer are compared with ours before anything is
timed.

ALiBi and FoX have one more row each: against the fastest of JAX's kernels without any bias, which says what the bias costs.
It computes something else, so that there is nothing to compare; ours is compared with tiles in float32 instead.
"""

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention import Mask, attend
from attnjax.attention.choice import size_of
from attnjax.positions import PositionEncoding, Sizes, encoding, resolve
from attnjax.typing import Array, PyTree
from experiments.speed import suites
from experiments.speed.harness import Settings, difference
from experiments.speed.peers.torch_process import PeerError, TorchPeer, first_words
from experiments.speed.suites.attention import BOTH, FORWARD, OURS, program
from experiments.speed.timing import timed

TOKENS, CHANNELS = 16_384, 2_048
TOLERANCE = 2e-2
"""Largest difference relative to the largest entry: five units in the last place of bfloat16."""
LARGEST = 20 * 2**30
"""Bytes of the largest array of scores or biases that a peer is asked to make."""
XLA, CUDNN, TOKAMAX, SDPA, FLEX, NO_BIAS = suites.SUITES["gpu"].peers
NO_BIAS_GOAL = 0.97
CASES = ("nope", "alibi", "fox", "t5")


class Problem(NamedTuple):
    """An encoding, and arguments of our program: what is learned, q, k, v and the weights of the output, in bfloat16."""

    name: str
    args: tuple[PyTree, Array, Array, Array, Array]

    @property
    def encoding(self) -> PositionEncoding:
        """With its usual options."""
        return encoding(self.name)

    def ours(self, params: PyTree, q: Array, k: Array, v: Array, implementation: str | None = None) -> Array:
        """`attend`; of FoX, `params` are the positions."""
        given: dict[str, Any] = {"params": params}
        if self.name == "fox":  # its gates are in the positions already
            N, H = q.shape[2:]
            unread = self.encoding.init(jax.random.key(0), Sizes(N * H, N, N, H))
            given = {"params": unread, "q_pos": params, "k_pos": params}
        options = {"encoding": self.encoding, "mask": Mask(causal=True), "implementation": implementation}
        return attend(q, k, v, **options, **given)

    def bias(self, params: PyTree, T: int, N: int) -> Array | None:
        """What the encoding adds to the scores, [1 or B, N, T, T]."""
        if self.name == "nope":
            return None
        if self.name == "fox":
            return params[:, :, None, :] - params[:, :, :, None]
        vector = self.per_distance(params, T, N)
        n = jnp.arange(T)[:, None] - jnp.arange(T)[None, :]
        return vector[:, jnp.maximum(n, 0)][None]

    def per_distance(self, params: PyTree, T: int, N: int) -> Array:
        """The bias of every head at distances 0 .. T - 1, of an encoding that depends on the distance alone."""
        p = jax.tree.map(jnp.asarray, resolve(self.encoding, params, Sizes(N, N, N, 1), T))
        return jax.vmap(lambda p: self.encoding.bias(p, jnp.arange(T, dtype=jnp.float32)))(p)

    def of_peer(self, peer: str, params: PyTree, q: Array, k: Array, v: Array) -> Array:
        """The same attention by a library."""
        if peer == TOKAMAX:
            return importlib.import_module("tokamax").dot_product_attention(q, k, v, is_causal=True)
        bias = None if peer == NO_BIAS else self.bias(params, *q.shape[1:3])
        bias = None if bias is None else bias.astype(q.dtype)
        implementation = "xla" if peer == XLA else "cudnn"
        with jax.numpy_dtype_promotion("standard"):
            return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True, implementation=implementation)

    def sent(self) -> dict[str, np.ndarray]:
        """What PyTorch's process reads."""
        params, q, *_ = self.args
        arrays = {name: np.asarray(x, np.float32) for name, x in zip("qkvw", self.args[1:], strict=True)}
        if self.name == "fox":
            return arrays | {"positions": np.asarray(params, np.float32)}
        return arrays | ({"bias": np.asarray(self.per_distance(params, *q.shape[1:3]))} if self.name != "nope" else {})

    def received(self, found: dict[str, np.ndarray]) -> PyTree:
        """PyTorch's results in the form of ours: the gradient of a vector becomes that of the parameters."""
        if len(found) == 1:
            return found["out"]
        params, q, *_ = self.args
        if self.name == "fox":
            params = found["dpositions"]
        elif "dbias" in found:
            by_distance = functools.partial(self.per_distance, T=q.shape[1], N=q.shape[2])
            (params,) = jax.vjp(by_distance, params)[1](jnp.asarray(found["dbias"], jnp.float32))
        return found["out"], (params, *(found[name] for name in ("dq", "dk", "dv")))


def problem(name: str, T: int, H: int, *, tokens: int = TOKENS, channels: int = CHANNELS) -> Problem:
    """Normal queries, keys and values; parameters as they are at the start of a training; FoX forgets half at each token."""
    B, N = max(1, tokens // T), channels // H
    shape = (B, T, N, H)
    q, k, v, w = (jax.random.normal(key, shape, jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 4))
    if name == "fox":
        gates = jax.random.normal(jax.random.key(1), (B, N, T), jnp.float32)
        return Problem(name, (jnp.cumsum(jax.nn.softplus(-gates), -1), q, k, v, w))
    return Problem(name, (encoding(name).init(jax.random.key(1), Sizes(channels, N, N, H)), q, k, v, w))


def gpu(settings: Settings) -> None:
    """Rows of each length, width and encoding, in both directions."""
    if jax.default_backend() != "gpu" and not settings.smoke:
        settings.say("gpu: left out, because this process sees no GPU")
        return
    sizes = {"tokens": 256, "channels": 32} if settings.smoke else {}
    with beside(settings) as peer:
        for T in settings.lengths("gpu"):
            for H in (16,) if settings.smoke else (64, 128):
                for name in CASES:
                    given = problem(name, T, H, **sizes)
                    for backward in (False, True):
                        compare(settings, given, peer, backward=backward)


@contextlib.contextmanager
def beside(settings: Settings) -> Iterator[TorchPeer | None]:
    """PyTorch in its own process, or None without one, and on a machine where it sees no GPU."""
    if settings.torch is None or jax.default_backend() != "gpu":
        settings.say("gpu: PyTorch is left out, because --torch names no interpreter that has it, or there is no GPU")
        yield None
        return
    with TorchPeer(settings.torch) as peer:
        yield peer


def compare(settings: Settings, given: Problem, torch: TorchPeer | None, *, backward: bool) -> None:
    """Rows of one case: each peer that can compute it, agrees with us, and fits the memory."""
    args = given.args
    q = args[1]
    B, T, N, H = q.shape
    case = f"{given.name}, {BOTH if backward else FORWARD}"
    run = program(given.ours, args, backward=backward)
    found = run(*args)
    contenders, errors = {OURS: timed(run, *args)}, {}
    for name in peers_of(given.name, settings.smoke):
        array = B * N * T * T * 4 if name == XLA else given_bias(given, q)
        if array > LARGEST:
            settings.say(f"gpu: {case}, T = {T}: {name} is left out: its array would take {size_of(array)}")
            continue
        try:
            theirs = program(functools.partial(given.of_peer, name), args, backward=backward)
            error = None if name == NO_BIAS else difference(found, theirs(*args))
        except Exception as error:
            words = " ".join(str(error).split())[:200]
            settings.say(f"gpu: {case}, T = {T}: {name} cannot: {type(error).__name__}: {words}")
            continue
        _keep(settings, f"{case}, T = {T}", name, error, contenders, errors, timed(theirs, *args))
    if torch is not None:
        for kind, name in (("sdpa", SDPA), ("flex", FLEX)) if given.name == "nope" else (("flex", FLEX),):
            _beside_torch(settings, given, torch, kind, name, found, case, backward=backward)
    if NO_BIAS in errors:
        exact = program(functools.partial(given.ours, implementation="chunked"), wide(args), backward=backward)
        errors[NO_BIAS] = difference(found, exact(*wide(args)))
    taken = settings.race(contenders)
    libraries = [name for name in errors if name != NO_BIAS]
    best = min(libraries, key=lambda name: np.median(taken[name]), default=None)
    for name, error in errors.items():
        sizes = {"T": T, "B": B, "N": N, "H": H, "dtype": "bfloat16"}
        goal = None if settings.smoke else goal_of(given.name, name, best)
        settings.row(
            taken[OURS], taken[name], suite="gpu", case=case, ours=OURS, peer=name, sizes=sizes, goal=goal, error=error
        )


def _keep(
    settings: Settings, where: str, name: str, error: float | None, contenders: dict, errors: dict, run: Callable
) -> None:
    if error is not None and error > TOLERANCE:
        settings.refuse(f"gpu: {where}: {name} differs by {error:.1e}, not measured")
        return
    contenders[name], errors[name] = run, error


def _beside_torch(
    settings: Settings,
    given: Problem,
    torch: TorchPeer,
    kind: str,
    name: str,
    found: PyTree,
    case: str,
    *,
    backward: bool,
) -> None:
    """A row of its own for each of PyTorch's kernels: its process holds one case at a time."""
    q, T = given.args[1], given.args[1].shape[1]
    asked = {"kind": kind, "backward": backward, "device": "cuda", "dtype": "bfloat16"}
    asked |= {"constant": ["bias"]} if given.name == "alibi" else {}
    try:
        torch.prepare(asked, given.sent())
        error = difference(found, given.received(torch.results()))
    except PeerError as problem:
        settings.say(f"gpu: {case}, T = {T}: {name} cannot: {first_words(problem)}")
        return
    if error > TOLERANCE:
        settings.refuse(f"gpu: {case}, T = {T}: {name} differs by {error:.1e}, not measured")
        return
    run = program(given.ours, given.args, backward=backward)
    taken = settings.race({OURS: timed(run, *given.args), name: torch.run})
    B, T, N, H = q.shape
    sizes = {"T": T, "B": B, "N": N, "H": H, "dtype": "bfloat16"}
    goal = NO_BIAS_GOAL if given.name == "nope" else None
    settings.row(
        taken[OURS], taken[name], suite="gpu", case=case, ours=OURS, peer=name, sizes=sizes, goal=goal, error=error
    )


def peers_of(name: str, smoke: bool) -> list[str]:
    """The JAX kernels that can compute an encoding; in a smoke run the plain one alone, which any machine has."""
    if smoke:
        return [XLA]
    if name == "nope":
        return [XLA, CUDNN, *([TOKAMAX] if importlib.util.find_spec("tokamax") else [])]
    return [XLA, CUDNN, *([NO_BIAS] if name in ("alibi", "fox") else [])]


def given_bias(given: Problem, q: Array) -> int:
    """Bytes of the bias array [1 or B, N, T, T] in bfloat16, and of its gradient."""
    B, T, N, _ = q.shape
    examples = {"nope": 0, "fox": B}.get(given.name, 1)
    return 2 * 2 * examples * N * T * T


def goal_of(name: str, peer: str, best: str | None) -> float | None:
    """The ratio aimed at: of the best library without a bias, of cuDNN without one, and of cuDNN with a learned one."""
    if name == "nope":
        return NO_BIAS_GOAL if peer == best else None
    if name == "t5":
        return 3.0 if peer == CUDNN else None
    return 0.85 if peer == NO_BIAS else None


def wide(args: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
    """The same numbers in float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, args)
