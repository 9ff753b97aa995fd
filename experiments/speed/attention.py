"""Causal attention beside `jax.nn` and Flax: time with and without gradients, the price of encodings, and memory.

B = 4, N = 8, H = 64, float32. "gradients" are the output and the gradients of sum(w * output) to q, k, v and the parameters of
the encoding. A peer gets a bias as an array that is made from the same parameters inside the program. A peer whose results
differ by more than `TOLERANCE` gets no row.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

import attnjax as aj
from attnjax.positions import resolve
from attnjax.typing import Array, PyTree
from experiments.speed.timing import Table, difference, timed

TOLERANCE = 1e-4
PEERS = ("jax.nn xla", "flax linen")
LENGTHS = (64, 128, 1024, 2048, 4096)
BIASES = ("t5", "kerple")
PRICED = ("rope", "xpos", "pope", "alibi", "t5", "kerple", "sandwich", "fire", "transformer_xl", "cope")
LONG = 16_384
"""Tokens of the program whose memory is read."""


def measure(table: Table, lengths: Sequence[int] | None) -> int:
    """Adds all rows and returns how many peers disagree."""
    chosen = lengths or ((64,) if table.smoke else LENGTHS)
    wrong = 0
    for T in chosen:
        for backward in (False, True):
            for name in ("nope", *(BIASES if backward else ())):
                wrong += beside_peers(table, name, T, backward=backward)
        if table.smoke or T == 2048:
            price(table, T)
    memory(table, chosen[0] if table.smoke else LONG)
    return wrong


def beside_peers(table: Table, name: str, T: int, *, backward: bool) -> int:
    """Adds a row for each peer that agrees with us and returns how many do not."""
    encoding, args = aj.encoding(name), arguments(name, T)
    peers = PEERS if name == "nope" else PEERS[:1]
    functions = {"attnjax": ours(encoding)} | {peer: functools.partial(of_peer, peer, encoding) for peer in peers}
    programs = {who: program(f, args, backward=backward) for who, f in functions.items()}
    errors = {peer: difference(programs["attnjax"](*args), programs[peer](*args)) for peer in peers}
    for peer in [peer for peer in peers if not errors[peer] <= TOLERANCE]:
        print(f"attention, {name}, T = {T}: {peer} differs by {errors.pop(peer):.1e}, not measured")
        del programs[peer]
    taken = table.race({who: timed(run, *args) for who, run in programs.items()})
    case = f"{'gradients' if backward else 'forward'}, {name}"
    for peer, error in errors.items():
        fields = {"suite": "attention", "case": case, "T": T, "ours": "attnjax", "peer": peer, "error": error}
        table.add(taken["attnjax"], taken[peer], **fields)
    return len(peers) - len(errors)


def price(table: Table, T: int) -> None:
    """Adds the time of no encoding over that of each encoding, with gradients, all in one round."""
    runs = {}
    for name in ("nope", *(PRICED[:2] if table.smoke else PRICED)):
        args = arguments(name, T)
        runs[name] = timed(program(ours(aj.encoding(name)), args, backward=True), *args)
    taken = table.race(runs)
    for name in [name for name in taken if name != "nope"]:
        table.add(taken[name], taken["nope"], suite="encodings", case="gradients", T=T, ours=name, peer="nope")


def memory(table: Table, T: int) -> None:
    """Adds the temporary bytes of a gradient as the compiler counts them, beside `jax.nn`; nothing is run."""
    args = jax.eval_shape(lambda: arguments("nope", T, B=1, N=4))
    held = []
    for f in (ours(aj.NoPE(), "chunked"), functools.partial(of_peer, PEERS[0], aj.NoPE())):
        analysis = program(f, args, backward=True).memory_analysis()
        assert analysis is not None
        held.append([float(analysis.temp_size_in_bytes)])
    table.add(*held, unit="B", suite="memory", case="gradient, nope", T=T, ours="attnjax", peer=PEERS[0])


def ours(encoding: aj.PositionEncoding, implementation: Any = None) -> Callable[..., Array]:
    """Returns `attend` under a causal mask as a function of (params, q, k, v)."""
    options = {"encoding": encoding, "mask": aj.Mask(causal=True), "implementation": implementation}
    return lambda params, q, k, v: aj.attend(q, k, v, params=params, **options)


def of_peer(peer: str, encoding: aj.PositionEncoding, params: PyTree, q: Array, k: Array, v: Array) -> Array:
    """Returns causal attention by `jax.nn` or Flax, with the bias of each distance as an array [1, N, T, T]."""
    T, N = q.shape[1:3]
    bias = None
    if encoding.has("bias"):
        bias = bias_array(encoding, params, T, N)
    if peer == PEERS[0]:
        return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True, implementation="xla")
    causal = jnp.tril(jnp.ones((1, 1, T, T), bool))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return linen.dot_product_attention(q, k, v, bias=bias, mask=causal)


def bias_array(encoding: aj.PositionEncoding, params: PyTree, T: int, N: int) -> Array:
    """Returns the bias of every head for all queries and keys, [1, N, T, T], of an encoding that depends on the distance."""
    p = jax.tree.map(jnp.asarray, resolve(encoding, params, aj.Sizes(N, N, N, 1), T))
    by_distance = jax.vmap(lambda p: encoding.bias(p, jnp.arange(T, dtype=jnp.float32)))(p)
    n = jnp.arange(T)[:, None] - jnp.arange(T)[None, :]
    return by_distance[:, jnp.maximum(n, 0)][None]


def arguments(name: str, T: int, *, B: int = 4, N: int = 8, H: int = 64, dtype: Any = jnp.float32) -> tuple[Any, ...]:
    """Returns parameters as at the start of training, and normal q, k, v and weights w of the output, [B, T, N, H]."""
    params = aj.encoding(name).init(jax.random.key(1), aj.Sizes(N * H, N, N, H))
    return params, *(jax.random.normal(key, (B, T, N, H), dtype) for key in jax.random.split(jax.random.key(0), 4))


def program(f: Callable[..., Array], args: Sequence[Any], *, backward: bool) -> Any:
    """Returns the compiled f(params, q, k, v) of the arguments (params, q, k, v, w), with all gradients where `backward`."""

    def value(params: PyTree, q: Array, k: Array, v: Array, w: Array):
        out = f(params, q, k, v)
        return (w * out).sum(), out

    def both(*args: Any):
        gradients, out = jax.grad(value, argnums=(0, 1, 2, 3), has_aux=True)(*args)
        return out, gradients

    return jax.jit(both if backward else lambda *args: f(*args[:4])).lower(*args).compile()
