"""The one interface: a positional encoding is a frozen record of hyper-parameters with at most five pure hooks.

Every hook is written for **one head of one example** and sees positions as data. What a subclass does not override is
skipped while tracing, so the base class itself is NoPE. Where each hook acts:

    embed(shared, x[T,D], pos[T])        -> [T,D]   on the embeddings, once, called by the model
    map_q(head, shared, q[T,H], pos[T])  -> [T,h]   on the queries
    map_k(shared, k[S,H], pos[S])        -> [S,h]   on the keys (no head parameters: GQA shares keys, caches keep them)
    bias(head, shared, n)                -> like n  a function of the distance n = q_pos - k_pos, added to the logits
    score(head, shared, tile[, carry])   -> [t,s]   the general case: new logits of one tile of one head

Two forms of a `score` are optional and exact, for those who can use them: `columns_q` and `columns_k` where it is a product
of few columns, and `vectors` where a vector of the distance meets the query.

An attention implementation picks the tile; a hook's result on a tile equals that slice of its result on the whole.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnjax.typing import Array, ArrayLike, Bool, Float, Num, PyTree

HOOKS = ("embed", "map_q", "map_k", "bias", "score", "carry", "columns_q", "columns_k", "vectors")


class Sizes(NamedTuple):
    """The sizes an encoding makes its parameters from: model D, query heads N, key heads K, head dimension H."""

    model: int
    heads: int
    kv_heads: int
    head: int


class EncodingParams(NamedTuple):
    """What an encoding learned: leaves of `head` lead with the axis N, `shared` serves all heads. Both may be empty."""

    head: PyTree = ()
    shared: PyTree = ()


class Tile(NamedTuple):
    """One tile of one head, in float32, with q and k after `map_q` and `map_k`, and `logits = scale * q @ k.T`.

    `visible` says which entries the mask allows. The others may take any value: the caller masks after.
    """

    logits: Float[Array, "t s"]
    q: Float[Array, "t h"]
    k: Float[Array, "s h"]
    q_pos: Num[ArrayLike, " t"]
    k_pos: Num[ArrayLike, " s"]
    visible: Bool[Array, "t s"]
    scale: float | Float[Array, ""]

    @property
    def distance(self) -> Num[Array, "t s"]:
        """n = q_pos - k_pos: positive where the key lies in the past."""
        return jnp.asarray(self.q_pos)[:, None] - jnp.asarray(self.k_pos)[None, :]


class Vectors(NamedTuple):
    """What the m distances of one head meet its queries and keys with: logits + scale * (u . k_j + (q_i + v) . r_n)."""

    r: Float[Array, "m h"]
    u: Float[Array, " h"]
    v: Float[Array, " h"]


@dataclasses.dataclass(frozen=True)
class PositionEncoding:
    """No position encoding (NoPE), and the base class of all others.

    Subclasses are frozen dataclasses without arrays inside: hashable, printable, safe as static arguments of `jax.jit`.
    """

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """Learned parameters; an empty `EncodingParams` where nothing is learned."""
        del key, sizes
        return EncodingParams()

    def bind(self, params: EncodingParams, heads: int, length: Any = None) -> EncodingParams:
        """What the hooks receive: `params`, joined by constants that depend on the number of heads or on the length.

        `length` is given to encodings with `length_dependent`: max(position of a valid key) + 1 of one example.
        """
        del heads, length
        return params

    def as_data(self, sizes: Sizes) -> "tuple[PositionEncoding, EncodingParams]":
        """(program, numbers): the encoding as code that others share, and as NumPy arrays in which it differs from them.

        Encodings with equal programs are one compiled program; see `given.py`. Without numbers it is its own program.
        """
        del sizes
        return self, EncodingParams()

    @property
    def learns(self) -> bool:
        """Whether `init` makes parameters, so that attention cannot run with `params=None`."""
        return False

    @property
    def length_dependent(self) -> bool:
        """Whether `bind` needs the length of the sequence; a cache then keeps keys as they were before `map_k`."""
        return False

    def embed(self, shared: PyTree, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """Position into the embeddings."""
        del shared, pos
        return x

    def map_q(
        self, head: PyTree, shared: PyTree, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]
    ) -> Float[Array, "T h"]:
        """Position into the queries of one head."""
        del head, shared, pos
        return q

    def map_k(self, shared: PyTree, k: Float[Array, "S H"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S h"]:
        """Position into the keys of one head."""
        del shared, pos
        return k

    def bias(self, head: PyTree, shared: PyTree, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """A number to add to the logit of a query and a key at distance n."""
        del head, shared
        return jnp.zeros(n.shape, jnp.float32)

    def carry(self, t: int) -> PyTree:
        """State of t query rows before the first key tile. With it, key tiles are visited from the last to the first
        and `score` takes the state and returns `(logits, state)`.
        """
        del t
        return ()

    def score(self, head: PyTree, shared: PyTree, tile: Tile, carry: PyTree = ()) -> Any:
        """New logits of a tile: here `tile.logits + bias(distance)`."""
        del carry
        if not self.has("bias"):
            return tile.logits
        return tile.logits + self.bias(head, shared, tile.distance).astype(tile.logits.dtype)

    def columns_q(
        self, head: PyTree, shared: PyTree, q: Float[Array, "T h"], pos: Num[ArrayLike, " T"], scale: Float[Array, ""]
    ) -> Float[Array, "T c"]:
        """Extra query columns of an exact low-rank form of `score`, for kernels that take no bias:
        `score - logits == columns_q @ columns_k.T` up to a constant per query, which the softmax ignores.
        `scale` is the one already inside `logits`; an additive bias does not need it.
        """
        del head, shared, pos, scale
        return q[:, :0]

    def columns_k(self, shared: PyTree, k: Float[Array, "S h"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S c"]:
        """Extra key columns, see `columns_q`."""
        del shared, pos
        return k[:, :0]

    def vectors(self, head: PyTree, shared: PyTree, n: Num[Array, " m"]) -> Vectors:
        """The same as `score`, as vectors of the distances n = q_pos - k_pos. Where positions are consecutive they are made
        once for all distances and not for each tile. `head` comes in the type of the queries, and so do the vectors.

        Raises NotImplementedError here: no vector is the neutral one of every head dimension.
        """
        del head, shared, n
        raise NotImplementedError(f"{self} is not made of vectors that meet the query")

    def hooks(self) -> frozenset[str]:
        """Names of the hooks that this encoding overrides; all others are skipped."""
        return frozenset(name for name in HOOKS if getattr(type(self), name) is not getattr(PositionEncoding, name))

    def has(self, *hooks: str) -> bool:
        """Whether any of these hooks is overridden."""
        return not self.hooks().isdisjoint(hooks)

    def check(self, sizes: Sizes, *, causal: bool) -> None:
        """Raise `ValueError` where the encoding cannot serve these sizes or this kind of mask."""
        del sizes, causal

    def check_positions(self, pos: ArrayLike) -> None:
        """Raise `ValueError` where positions of any shape, if their values are known, are out of the encoding's reach.

        Hooks see one example under `vmap`, where values are not known any more.
        """
        del pos


class NoPE(PositionEncoding):
    """No position encoding: score = scale * q.k. A causal mask is then the only source of position.

    Reference: Haviv et al. 2022 (arXiv:2203.16634); Kazemnejad et al. 2023 (arXiv:2305.19466).
    """


def validate(encoding: str, **fields: Any) -> None:
    """Refuse hyper-parameters that are NaN, infinite or not positive, naming the encoding, the field and the value."""
    for name, value in fields.items():
        values: Sequence[Any] = value if isinstance(value, tuple | list) else (value,)
        for number in values:
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError(f"{encoding}: {name} must be a number, got {number!r}")
            if not 0 < number < float("inf"):
                raise ValueError(f"{encoding}: {name} must be positive and finite, got {number!r}")
