"""Attention against what JAX and Flax users call today: long, short, with learned biases, and every encoding against none.

B = 4, N = 8, H = 64, float32, causal, unless a row says otherwise. "forward + backward" is the output and the gradients
of sum(w * output) to q, k, v and all parameters of the encoding. Contenders whose outputs or gradients differ by more
than `TOLERANCE` get no row.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from attnjax.attention import Mask, attend
from attnjax.positions import ENCODINGS, PositionEncoding, Sizes, encoding, learns
from experiments.speed.comparing import compare
from experiments.speed.inputs import TOLERANCE, both_ways, compiled, difference, inputs
from experiments.speed.peers import attention as peers
from experiments.speed.rows import Row
from experiments.speed.settings import Settings
from experiments.speed.timing import Contender, interleaved, timed

OURS = "attnjax"
FORWARD, BOTH = "forward", "forward + backward"
SLOW = ("fire", "cope")
"""A small network, and a sum over all keys, per score: more than 1.25 times the time of no encoding is expected."""
EMBEDDINGS = ("sinusoidal", "learned")
"""Encodings that act on embeddings alone: inside attention they are no encoding."""
FROM_QUERIES = ("cope", "transformer_xl")
"""Encodings whose scores depend on the queries, which no bias array can say."""


class Case(NamedTuple):
    """One setting that several contenders run."""

    suite: str
    name: str
    T: int
    mode: str
    encoding: str = "nope"
    implementation: str | None = None


def attention(settings: Settings) -> None:
    """No encoding, long sequences: ours against `jax.nn` and Flax."""
    for T in (128,) if settings.smoke else (1024, 2048, 4096):
        for mode, goal in ((FORWARD, 4.0), (BOTH, 3.0)):
            case = Case("attention", f"{mode}, causal", T, mode)
            against_peers(settings, case, (peers.JAX_NN, peers.FLAX), goal)


def bias(settings: Settings) -> None:
    """Learned biases: ours, which never makes the [N, T, T] table, against `jax.nn` with a bias array."""
    for T in (128,) if settings.smoke else (1024, 2048):
        for name in ("t5", "kerple"):
            case = Case("bias", f"{BOTH}, {name}", T, BOTH, name)
            against_peers(settings, case, (peers.JAX_NN,), 3.0)


def short(settings: Settings) -> None:
    """Training lengths, where a table of all scores is small: never slower than `jax.nn` or Flax."""
    for T in (64,) if settings.smoke else (64, 128, 256, 512):
        for name in attending():
            case = Case("short", f"{BOTH}, {name}", T, BOTH, name)
            if name in FROM_QUERIES:
                settings.say(f"short: {name} has no peer: its scores depend on the queries")
            else:
                against_peers(settings, case, (peers.JAX_NN, peers.FLAX) if name == "nope" else (peers.JAX_NN,), 1.0)


def encodings(settings: Settings) -> None:
    """The price of each encoding: the time of no encoding at all over its time, in the same implementation."""
    sizes = ((128, "chunked"),) if settings.smoke else ((256, "dense"), (2048, "chunked"))
    for T, implementation in sizes:
        for mode in (FORWARD, BOTH):
            _against_none(settings, T, mode, implementation)


def attending() -> list[str]:
    """The encodings that act inside attention."""
    return [name for name, kind in ENCODINGS.items() if name not in EMBEDDINGS]


def ours(chosen: PositionEncoding, implementation: str | None = None) -> Any:
    """attnjax.attend under a causal mask, as a function of (params, q, k, v)."""
    mask = Mask(causal=True)
    return lambda params, q, k, v: attend(
        q, k, v, encoding=chosen, params=params, mask=mask, implementation=implementation
    )


def against_peers(settings: Settings, case: Case, names: Sequence[str], goal: float) -> None:
    """Rows of one case against each peer that agrees with us."""
    chosen, arrays = encoding(case.encoding), inputs(case.T)
    functions = {OURS: ours(chosen, case.implementation)}
    for name in names:
        functions[name] = lambda params, q, k, v, name=name: peers.attention(name, chosen, params, q, k, v)
    programs, args = _programs(case, functions, chosen, arrays)
    reference = jax.device_get(programs[OURS](*args))
    errors = {name: difference(jax.device_get(programs[name](*args)), reference) for name in names}
    for name in [name for name in names if errors[name] > TOLERANCE]:
        settings.refuse(f"{case.suite}: {case.name}, T = {case.T}: {name} differs by {errors[name]:.1e}, not measured")
        del programs[name]
    taken = _taken(settings, programs, args)
    for name in [name for name in names if name in programs]:
        settings.emit(_row(case, OURS, name, taken[OURS], taken[name], goal, errors[name]))


def _against_none(settings: Settings, T: int, mode: str, implementation: str) -> None:
    """All encodings in one round, so that all are compared with the same run of none."""
    arrays, programs, cases = inputs(T), {}, {}
    for name in attending():
        case = Case("encodings", f"{mode}, {name}, {implementation}", T, mode, name, implementation)
        chosen = encoding(name)
        made, args = _programs(case, {name: ours(chosen, implementation)}, chosen, arrays)
        cases[name], programs[name] = case, Contender(name, timed(made[name], *args))
    taken = interleaved([*programs.values()], rounds=settings.rounds, seconds=settings.seconds)
    for name in [name for name in cases if name != "nope"]:
        goal = 1 / 2.5 if name in SLOW else 1 / 1.25
        settings.emit(_row(cases[name], name, "nope", taken[name], taken["nope"], goal, None))


def _programs(case: Case, functions: dict[str, Any], chosen: PositionEncoding, arrays: Any) -> tuple[dict, tuple]:
    N, H = arrays.q.shape[2:]
    params = chosen.init(jax.random.key(1), Sizes(N * H, N, N, H)) if learns(chosen) else None
    args = (params, arrays.q, arrays.k, arrays.v)
    if case.mode == BOTH:
        args, functions = (*args, arrays.w), {name: both_ways(f) for name, f in functions.items()}
    return {name: compiled(f, *args) for name, f in functions.items()}, args


def _taken(settings: Settings, programs: dict[str, Any], args: tuple) -> dict[str, list[float]]:
    contenders = [Contender(name, timed(program, *args)) for name, program in programs.items()]
    return interleaved(contenders, rounds=settings.rounds, seconds=settings.seconds)


def _row(case: Case, us: str, peer: str, our: list[float], their: list[float], goal: float, error: float | None) -> Row:
    sizes = {"T": case.T, "B": 4, "N": 8, "H": 64, "dtype": "float32"}
    told: dict[str, Any] = {"suite": case.suite, "case": case.name, "sizes": sizes, "goal": goal, "error": error}
    return compare(our, their, ours=us, peer=peer, rounds=len(our), **told)
