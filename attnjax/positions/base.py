"""The interface of positional encodings: a frozen record of hyper-parameters with pure hooks for one head and one example.

    init(key, sizes)            -> EncodingParams   what is learned
    constants(sizes, length)    -> EncodingParams   what is not: slopes, frequencies; may depend on heads and length
    context(p, x, pos, before)  -> [T] or [T,F]     positions computed from the content x[T,D] that attention reads
    embed(p, x, pos)            -> [T,D]            on the embeddings x[T,D], once, called by the model
    map_q(p, q, pos)            -> [T,h]            on the queries q[T,H] of one head
    map_k(p, k, pos)            -> [S,h]            on the keys k[S,H] of one key head
    bias(p, n)                  -> like n           added to the logits; n = q_pos - k_pos
    score(p, tile)              -> [t,s]            the general case: new logits of one tile

`p` holds learned parameters and constants side by side: a hook reads `p.head["slope"]` and does not know which of the two
it is. A hook that is not overridden is skipped while tracing, so the base class itself is NoPE.

Positions are data: [T], or [T,A] with several axes (`Trait.AXES`), and a hook sees those of one head. What a hook returns
for a tile of queries and keys equals that slice of what it returns for all of them, so that attention may choose tiles.
"""

import dataclasses
import enum
import functools
import operator
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from attnjax.typing import Array, ArrayLike, Bool, Float, Num, PyTree, compute_dtype


class Sizes(NamedTuple):
    """Sizes that parameters are made from: model dimension D, query heads N, key heads K, head dimension H.

    Example:
        >>> Sizes(model=512, heads=8, kv_heads=2, head_dim=64).heads
        8
    """

    model: int
    heads: int
    kv_heads: int
    head_dim: int


class EncodingParams(NamedTuple):
    """Parameters of an encoding, by what they belong to; each side is a dictionary, or a tuple of them in a composition.

    Leaves of `head` lead with the axis N, those of `kv_head` with K, and those of `shared` serve all heads. Hooks see the
    slice of their head; `map_k` sees no `head`, because the queries of a group share their key head.

    Example:
        >>> EncodingParams(head={"slope": 0.5}).shared
        ()
    """

    head: PyTree = ()
    kv_head: PyTree = ()
    shared: PyTree = ()

    def __getitem__(self, key: Any) -> Any:
        """A side by its number, as of any tuple. Raises ValueError for the name of a parameter, which belongs to a side."""
        if isinstance(key, str):
            raise ValueError(
                f"p[{key!r}]: say which side it is of, p.head[{key!r}], p.kv_head[{key!r}] or p.shared[{key!r}]"
            )
        return tuple.__getitem__(self, key)


class Tile(NamedTuple):
    """Queries and keys of one tile of one head, in float32 (or float64), and `logits = scale * q @ k.T`.

    q and k are the results of `map_q` and `map_k`. `visible` says which entries the mask allows; the others may be
    returned with any value, because the mask is applied to the result. Positions are q_pos[t] and k_pos[s], with a last axis
    [A] for `Trait.AXES`. For `Trait.ALL_HEADS` logits, q and k lead with an axis of heads: N, N and K; positions may too.

    Example:
        >>> q, k = jnp.ones((1, 4)), jnp.ones((3, 4))
        >>> tile = Tile(q @ k.T, q, k, jnp.array([2]), jnp.arange(3), jnp.ones((1, 3), bool), 1.0)
        >>> tile.distance.tolist()
        [[2, 1, 0]]
    """

    logits: Float[Array, "*N t s"]
    q: Float[Array, "*N t h"]
    k: Float[Array, "*K s h"]
    q_pos: Num[ArrayLike, "..."]
    k_pos: Num[ArrayLike, "..."]
    visible: Bool[Array, "t s"]
    scale: float | Float[Array, ""]

    @property
    def distance(self) -> Num[Array, "*N t s"]:
        """n = q_pos - k_pos: positive where the key lies in the past. A tuple where positions are one."""
        subtract = lambda q_pos, k_pos: jnp.asarray(q_pos)[..., :, None] - jnp.asarray(k_pos)[..., None, :]
        return jax.tree.map(subtract, self.q_pos, self.k_pos)


class Trait(enum.Flag):
    """What attention asks about an encoding: which hooks it overrides, and what these need.

    Example:
        >>> from attnjax.positions import ALiBi
        >>> Trait.BIAS in ALiBi().traits, Trait.SCORE in ALiBi().traits
        (True, False)
    """

    CONTEXT = enum.auto()
    EMBED = enum.auto()
    MAP_Q = enum.auto()
    MAP_K = enum.auto()
    BIAS = enum.auto()
    SCORE = enum.auto()
    CARRY = enum.auto()
    """`score` takes and returns a state that travels from the last keys to the first, see `SequentialScore`."""
    ALL_HEADS = enum.auto()
    """`score` takes the tiles of all heads of an example at once."""
    UNNORMALIZED = enum.auto()
    """`score` returns the logarithms of the weights themselves, which the softmax must not normalize."""
    LENGTH = enum.auto()
    """`constants` depend on the length, so that a cache keeps keys as they were before `map_k`."""
    AXES = enum.auto()
    """Positions that reach `map_q`, `map_k` and `score` have a last axis of coordinates, whose number the class has as `axes`,
    or of channels that it computes.
    """

    MAPS = MAP_Q | MAP_K
    ON_SCORES = BIAS | SCORE


HOOKS = ("context", "embed", "map_q", "map_k", "bias", "score")
"""What an encoding may override; the trait of a hook has its name in capitals."""


@dataclasses.dataclass(frozen=True)
class PositionEncoding:
    """No position encoding (NoPE), and the base class of all others.

    Subclasses are frozen dataclasses without arrays inside: hashable, printable, static arguments of `jax.jit`.

    Example:
        >>> from attnjax.positions import NoPE, RoPE, Trait
        >>> RoPE().traits == Trait.MAP_Q | Trait.MAP_K, bool(NoPE().traits)
        (True, False)
    """

    needs_causal: ClassVar[str] = ""
    """Why a mask that is not causal is refused, as what the encoding does with keys in the future; "" where none is."""

    replaces_logits: ClassVar[bool] = False
    """Whether `score` computes logits from queries and keys and leaves out `tile.logits`, with what was added to them."""

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """Learned parameters, stored raw; an empty `EncodingParams` where nothing is learned."""
        del key, sizes
        return EncodingParams()

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """Parameters that are not learned, as NumPy arrays where they are known while tracing.

        `length` is given where `Trait.LENGTH` asks for it: max(position of a valid key) + 1 of one example. A learned
        parameter of the same name replaces a constant, and so does an array that the caller of `attend` passes.
        """
        del sizes, length
        return EncodingParams()

    def context(
        self, p: EncodingParams, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], before: Float[Array, "*F"]
    ) -> Num[Array, "T *F"]:
        """Positions of one head, computed from x: [T], or with `Trait.AXES` [T,F].

        `before` is the position of the token before the first of x: zeros at the start of a sequence, of shape [] or [F]. A
        first trace, which finds F, passes zeros of shape [1], so use it by broadcasting alone. An encoding with `map_k` has
        positions per key head and sees no `p.head`; others have positions per query head.
        """
        del p, x, before
        return jnp.asarray(pos)

    def embed(self, p: EncodingParams, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """Embeddings with their positions put in."""
        del p, pos
        return x

    def map_q(self, p: EncodingParams, q: Float[Array, "T H"], pos: Num[ArrayLike, "T *A"]) -> Float[Array, "T h"]:
        """Queries of one head with their positions put in."""
        del p, pos
        return q

    def map_k(self, p: EncodingParams, k: Float[Array, "S H"], pos: Num[ArrayLike, "S *A"]) -> Float[Array, "S h"]:
        """Keys of one key head with their positions put in."""
        del p, pos
        return k

    def bias(self, p: EncodingParams, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """A number to add to the logit of a query and a key at distance n = q_pos - k_pos.

        n is negative where the key lies in the future. The mask hides such entries after the hook has seen them, so value
        and derivative must be finite there too: `jnp.log1p(jnp.maximum(n, 0))`, not `jnp.log1p(n)`.
        """
        del p
        return jnp.zeros(n.shape, jnp.float32)

    def score(self, p: EncodingParams, tile: Tile) -> Any:
        """New logits of a tile: here `tile.logits + bias(p, tile.distance)`."""
        if Trait.BIAS not in self.traits:
            return tile.logits
        return tile.logits + self.bias(p, tile.distance).astype(tile.logits.dtype)

    @property
    def traits(self) -> Trait:
        """The hooks that are overridden; a subclass adds what else it needs."""
        own, base = type(self), PositionEncoding
        return sum_of(*(Trait[name.upper()] for name in HOOKS if getattr(own, name) is not getattr(base, name)))

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Raise `ValueError` where the encoding cannot serve these sizes, this kind of mask, or positions whose values are
        known. What is None is not known; hooks see one example under `vmap`, where values are not known any more.
        """
        del sizes, pos
        if causal is False and self.needs_causal:
            reason = f"{type(self).__name__} {self.needs_causal}"
            raise ValueError(f"{reason}, so it needs a causal mask; pass Mask(causal=True)")

    def check_distance(self, farthest: float) -> None:
        """Raise `ValueError` where the encoding cannot serve this distance, the largest of a query and a key whose positions
        are known.
        """
        del farthest


class SequentialScore(PositionEncoding):
    """An encoding whose scores depend on the keys to the right: key tiles are visited from the last to the first.

    Example:
        >>> from attnjax.positions import CoPE
        >>> isinstance(CoPE(), SequentialScore), Trait.CARRY in CoPE().traits
        (True, True)
    """

    def carry(self, p: EncodingParams, q: Float[Array, "t h"]) -> PyTree:
        """State of t query rows before the last key tile, which may depend on the mapped queries: here 0 for each."""
        del p
        return jnp.zeros(q.shape[:1], compute_dtype(q))

    def score(self, p: EncodingParams, tile: Tile, carry: PyTree = None) -> Any:
        """(new logits of a tile, state for the tile to its left)."""
        raise NotImplementedError

    @property
    def traits(self) -> Trait:
        """The hooks that are overridden, and the carry."""
        return super().traits | Trait.CARRY


class NoPE(PositionEncoding):
    """No position encoding: score = scale * q.k. A causal mask is then the only source of position.

    Reference: Haviv et al. 2022 (arXiv:2203.16634); Kazemnejad et al. 2023 (arXiv:2305.19466).

    Example:
        >>> NoPE().constants(Sizes(model=8, heads=1, kv_heads=1, head_dim=8)) == EncodingParams()
        True
    """


def validate_encoding(what: str, encoding: Any) -> None:
    """Raise `ValueError` for what is no encoding, and for one whose class has no hook, so that it would act as NoPE, or an
    `__init__` of its own, so that all of its encodings would be equal.

    Example:
        >>> validate_encoding("encoding", "rope")
        Traceback (most recent call last):
        ValueError: encoding must be a PositionEncoding such as RoPE(), got 'rope'
    """
    if not isinstance(encoding, PositionEncoding):
        raise ValueError(f"{what} must be a PositionEncoding such as RoPE(), got {encoding!r}")
    kind = type(encoding)
    base = kind is PositionEncoding or issubclass(kind, NoPE)
    if not base and all(getattr(kind, name) is getattr(PositionEncoding, name) for name in HOOKS):
        raise ValueError(
            f"{what}: {kind.__name__} overrides no hook of PositionEncoding ({', '.join(HOOKS)}), and would act as NoPE"
        )
    for one in kind.__mro__:
        if vars(one).keys() & {"__dataclass_params__", "__eq__"}:
            return
        if "__init__" in vars(one):
            raise ValueError(
                f"{what}: {one.__name__} must be a frozen dataclass with its options as fields. Encodings are compared by "
                "their fields: all that an __init__ of its own makes are equal, and could be served by a program of another"
            )


def sum_of(*traits: Trait) -> Trait:
    """The union of traits.

    Example:
        >>> sum_of(Trait.MAP_Q, Trait.MAP_K) == Trait.MAPS
        True
    """
    return functools.reduce(operator.or_, traits, Trait(0))


def resolve(
    encoding: PositionEncoding, params: EncodingParams | None, sizes: Sizes, length: Any = None
) -> EncodingParams:
    """What hooks receive as `p`, before it is sliced by head: constants, and `params` over them.

    Raises ValueError where `params` are not dictionaries, or tuples with one entry per part of a composition.

    Example:
        >>> import numpy as np
        >>> from attnjax import ALiBi, Sizes
        >>> resolve(ALiBi(), None, Sizes(model=16, heads=2, kv_heads=2, head_dim=8)).head["slope"].tolist()
        [0.0625, 0.00390625]
    """
    constants = encoding.constants(sizes, length)
    if not isinstance(constants, EncodingParams):
        raise ValueError(f"{encoding}: constants must return EncodingParams, got {type(constants).__name__}")
    return constants if params is None else replaced(encoding, constants, params)


def learns(encoding: PositionEncoding) -> bool:
    """Whether `init` makes parameters, so that attention cannot run with `params=None`.

    Example:
        >>> from attnjax.positions import ALiBi, T5Bias
        >>> learns(T5Bias()), learns(ALiBi())
        (True, False)
    """
    if type(encoding).init is PositionEncoding.init:
        return False
    sizes = Sizes(model=64, heads=4, kv_heads=4, head_dim=16)
    return bool(jax.tree.leaves(jax.eval_shape(lambda: encoding.init(jax.random.key(0), sizes))))


def replaced(encoding: PositionEncoding, constants: EncodingParams, params: EncodingParams) -> EncodingParams:
    """`params`, and the constants that it does not replace.

    Example:
        >>> from attnjax.positions import RoPE
        >>> constants = EncodingParams(shared={"frequencies": 1.0, "gain": 1.0})
        >>> replaced(RoPE(), constants, EncodingParams(shared={"gain": 2.0})).shared
        {'frequencies': 1.0, 'gain': 2.0}
    """
    return EncodingParams(*(_over(encoding, *sides) for sides in zip(constants, params, strict=True)))


def _over(encoding: PositionEncoding, constants: PyTree, params: PyTree) -> PyTree:
    """`params` with the constants that it does not replace."""
    if isinstance(params, tuple | list | Mapping) and not params:
        return constants
    if (
        isinstance(constants, tuple)
        and constants
        and isinstance(params, tuple | list)
        and len(params) == len(constants)
    ):
        return tuple(_over(encoding, ours, theirs) for ours, theirs in zip(constants, params, strict=True))
    if not constants:
        return params
    if isinstance(constants, Mapping) and isinstance(params, Mapping):
        return {**constants, **params}
    raise ValueError(
        f"each side of the parameters of {encoding} must be a dictionary, or for a composition a tuple with one entry per "
        f"part, got {jax.tree.map(jnp.shape, params)}"
    )
