"""Attention against what JAX and Flax users call today: long, short, with learned biases, and every encoding against none.

B = 4, N = 8, H = 64, float32, causal, unless a row says otherwise. "forward + backward" is the output and the gradients
of sum(w * output) to q, k, v and all parameters of the encoding. Contenders whose outputs or gradients differ by more
than `TOLERANCE` get no row.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.attention import Mask, attend
from attnjax.positions import ENCODINGS, PositionEncoding, Sizes, context_positions, encoding
from attnjax.positions.remapped import Remapped
from attnjax.typing import Array, PyTree
from experiments.speed import suites
from experiments.speed.harness import TOLERANCE, Settings, difference
from experiments.speed.peers.jax_nn import attention as of_peer
from experiments.speed.timing import timed

OURS = "attnjax"
FORWARD, BOTH = "forward", "forward + backward"
SLOW = ("fire", "cope")
"""A small network, and a sum over all keys, per score: more than 1.25 times the time of no encoding is expected."""
EMBEDDINGS = ("sinusoidal", "learned")
"""Encodings that act on embeddings alone: inside attention they are no encoding."""


def attention(settings: Settings) -> None:
    """No encoding, long sequences: ours against `jax.nn` and Flax."""
    for T in settings.lengths("attention"):
        for mode, goal in ((FORWARD, 4.0), (BOTH, 3.0)):
            against_peers(settings, "attention", f"{mode}, causal", T, "nope", goal, backward=mode == BOTH)


def bias(settings: Settings) -> None:
    """Learned biases: ours, which never makes the [N, T, T] table, against `jax.nn` with a bias array."""
    for T in settings.lengths("bias"):
        for name in ("t5", "kerple"):
            against_peers(settings, "bias", f"{BOTH}, {name}", T, name, 3.0)


def short(settings: Settings) -> None:
    """Training lengths, where a table of all scores is small: never slower than `jax.nn` or Flax."""
    for T in settings.lengths("short"):
        for name in attending():
            if has_peer(name):
                against_peers(settings, "short", f"{BOTH}, {name}", T, name, 1.0)
            else:
                settings.say(f"short: {name} has no peer: no array of biases gives its scores")


def encodings(settings: Settings) -> None:
    """The price of each encoding: the time of no encoding at all over its time, in the same implementation.

    All run in one round, so that all are compared with the same run of none.
    """
    for T in settings.lengths("encodings"):
        implementation, (_, *arrays) = "dense" if T == 256 else "chunked", arguments(encoding("nope"), T)
        for mode in (FORWARD, BOTH):
            contenders = {}
            for name in attending():
                args = (arguments(encoding(name), T)[0], *arrays)
                run = program(ours(encoding(name), implementation), args, backward=mode == BOTH)
                contenders[name] = timed(run, *args)
            taken = settings.race(contenders)
            for name in [name for name in taken if name != "nope"]:
                fields = fields_of("encodings", f"{mode}, {name}, {implementation}", arrays)
                goal = 1 / 2.5 if name in SLOW else 1 / 1.25
                settings.row(taken[name], taken["nope"], ours=name, peer="nope", goal=goal, **fields)


def attending() -> list[str]:
    """The encodings that act inside attention."""
    return [name for name in ENCODINGS if name not in EMBEDDINGS]


def has_peer(name: str) -> bool:
    """Whether an array of biases says what an encoding does, at one given number for each position.

    Scores of Transformer-XL and remapped RoPE read the queries.
    """
    chosen = encoding(name)
    plain = not chosen.whole_table and chosen.axes is None and not chosen.has("context")
    return plain and name != "transformer_xl" and not isinstance(chosen, Remapped)


def ours(chosen: PositionEncoding, implementation: str | None = None) -> Callable[..., Array]:
    """attnjax.attend under a causal mask, as a function of (params, q, k, v).

    Positions that an encoding computes from tokens are computed inside; a token is the values of all its heads.
    """
    options = {"encoding": chosen, "mask": Mask(causal=True), "implementation": implementation}

    def run(params: PyTree, q: Array, k: Array, v: Array) -> Array:
        B, T, N, H = v.shape
        pos = None
        if chosen.has("context"):
            pos = context_positions(chosen, params, v.reshape(B, T, N * H), jnp.arange(T), Sizes(N * H, N, N, H))
        return attend(q, k, v, params=params, q_pos=pos, k_pos=pos, **options)

    return run


def arguments(
    chosen: PositionEncoding, T: int, *, B: int = 4, N: int = 8, H: int = 64
) -> tuple[PyTree, Array, Array, Array, Array]:
    """Parameters as they are at the start of a training; queries, keys, values, and the weights w of the scalar
    sum(w * out) that is differentiated, [B, T, N, H]: normal numbers in float32.
    """
    params = chosen.init(jax.random.key(1), Sizes(N * H, N, N, H))
    q, k, v, w = (jax.random.normal(key, (B, T, N, H), jnp.float32) for key in jax.random.split(jax.random.key(0), 4))
    return params, q, k, v, w


def program(f: Callable[..., Array], args: Sequence[Any], *, backward: bool) -> Any:
    """The compiled f(params, q, k, v), with the gradients of sum(w * f) to all four where it is `backward`.

    It takes (params, q, k, v, w) in both cases; `args` may be shapes.
    """

    def value(params: PyTree, q: Array, k: Array, v: Array, w: Array):
        out = f(params, q, k, v)
        return (w * out).sum(), out

    def both(*args: Any):
        gradients, out = jax.grad(value, argnums=(0, 1, 2, 3), has_aux=True)(*args)
        return out, gradients

    return jax.jit(both if backward else lambda *args: f(*args[:4])).lower(*args).compile()


def against_peers(
    settings: Settings, suite: str, case: str, T: int, name: str, goal: float, *, backward: bool = True
) -> None:
    """Rows of one case against each peer that agrees with us. Flax, which takes no bias alone, runs without encoding."""
    chosen = encoding(name)
    names, args = suites.SUITES[suite].peers[: None if name == "nope" else 1], arguments(chosen, T)
    functions = {OURS: ours(chosen)} | {peer: functools.partial(of_peer, peer, chosen) for peer in names}
    programs = {name: program(f, args, backward=backward) for name, f in functions.items()}
    errors = {peer: difference(programs[OURS](*args), programs[peer](*args)) for peer in names}
    for peer in [peer for peer in names if errors[peer] > TOLERANCE]:
        settings.refuse(f"{suite}: {case}, T = {T}: {peer} differs by {errors.pop(peer):.1e}, not measured")
        del programs[peer]
    taken = settings.race({name: timed(run, *args) for name, run in programs.items()})
    for peer, error in errors.items():
        fields = fields_of(suite, case, args) | {"goal": goal, "error": error}
        settings.row(taken[OURS], taken[peer], ours=OURS, peer=peer, **fields)


def fields_of(suite: str, case: str, arrays: Sequence[Any]) -> dict[str, Any]:
    """What rows say of the case and of the sizes of its arrays."""
    B, T, N, H = arrays[-1].shape
    return {"suite": suite, "case": case, "sizes": {"T": T, "B": B, "N": N, "H": H, "dtype": "float32"}}
