"""The interface of positional encodings: a frozen record of hyper-parameters with pure hooks for one head and one example.

    init(key, sizes)          -> dict      learned parameters
    constants(sizes, length)  -> dict      numbers that are not learned: slopes, frequencies
    context(p, x, pos, past)  -> [T, *F]   positions computed from the content x[T,D] that attention reads
    embed(p, x, pos)          -> [T,D]     on the embeddings x[T,D], once, called by the model
    angle(p, pos)             -> [T,pairs] angles by which pairs of channels of queries and keys are turned
    map_q(p, q, pos)          -> [T,h]     on the queries q[T,H] of one head
    map_k(p, k, pos)          -> [S,h]     on the keys k[S,H] of one key head
    bias(p, n)                -> like n    added to the logits; n = q_pos - k_pos
    score(p, tile)            -> [t,s]     the general case: new logits of one tile

`p` is a dict with learned parameters and constants side by side: a hook reads `p["slope"]` and sees the slice of its own
head. Arrays reach hooks in float32 (float64 where an input is), and a hook may return any floating type. A hook that is not
overridden is skipped while tracing, so the base class itself is NoPE.

Positions are data: [T], or [T,A] with A coordinates (`axes`). What a hook returns for a tile of queries and keys equals that
slice of what it returns for all of them, so that attention may choose tiles; `whole_table` says where this does not hold.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import coerce
from attnjax.positions.rotary import rotate
from attnjax.typing import Array, ArrayLike, Bool, Float, Num, PyTree

HOOKS = ("context", "embed", "angle", "map_q", "map_k", "bias", "score")
"""The methods by which an encoding acts."""
IN_ATTENTION = tuple(hook for hook in HOOKS if hook != "embed")
"""Those that act in a layer."""

Params = Mapping[str, Any]
"""Parameters and constants of an encoding by their names."""


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


class Tile(NamedTuple):
    """Queries and keys of one tile of one head, and `logits = scale * q @ k.T`.

    q and k are the results of `map_q` and `map_k`. `visible` says which entries the mask allows; the others may be
    returned with any finite value, because the mask is applied to the result. For a `whole_table` encoding logits, q and k
    lead with an axis of N heads, and positions with one of N or 1.

    Example:
        >>> q, k = jnp.ones((1, 4)), jnp.ones((3, 4))
        >>> tile = Tile(q @ k.T, q, k, jnp.array([2]), jnp.arange(3), jnp.ones((1, 3), bool), 1.0)
        >>> tile.distance.tolist()
        [[2.0, 1.0, 0.0]]
    """

    logits: Float[Array, "*N t s"]
    q: Float[Array, "*N t h"]
    k: Float[Array, "*N s h"]
    q_pos: Num[Array, "..."]
    k_pos: Num[Array, "..."]
    visible: Bool[Array, "t s"]
    scale: float | Float[Array, ""]

    @property
    def distance(self) -> Float[Array, "*N t s"]:
        """n = q_pos - k_pos in the type of the logits: positive where the key lies in the past."""
        return distance(self.q_pos, self.k_pos, self.logits.dtype)


def distance(q_pos: Num[Array, "*N t"], k_pos: Num[Array, "*N s"], dtype: Any) -> Float[Array, "*N t s"]:
    """q_pos - k_pos of every pair, subtracted as the integers or floats that they are, and then of type `dtype`.

    Example:
        >>> distance(jnp.array([2**30]), jnp.array([2**30 - 1]), jnp.float32).tolist()
        [[1.0]]
    """
    return (q_pos[..., :, None] - k_pos[..., None, :]).astype(dtype)


@dataclasses.dataclass(frozen=True)
class PositionEncoding:
    """The base class of encodings. Subclasses are frozen dataclasses without arrays: hashable, printable, static arguments.

    Annotations of fields are checked when an encoding is made: `theta: Positive`, `kind: Literal["log", "power"]`.

    Example:
        >>> from attnjax.positions import ALiBi, RoPE
        >>> ALiBi().has("bias"), RoPE().has("angle"), RoPE().has("bias")
        (True, True, False)
    """

    per_head: ClassVar[tuple[str, ...]] = ()
    """Parameters and constants that lead with the axis N. Those that neither this nor `per_kv_head` names serve every head."""
    per_kv_head: ClassVar[tuple[str, ...]] = ()
    """Those that lead with the axis K. `map_k` sees these and shared ones alone, because a group of queries shares its keys."""
    causal_only: ClassVar[str] = ""
    """Why a mask that is not causal is refused: what the encoding does with later keys. Empty where none is refused."""
    whole_table: ClassVar[bool] = False
    """Whether `score` needs all keys and all heads at once. Only the dense implementation serves such an encoding."""
    replaces_logits: ClassVar[bool] = False
    """Whether `score` computes logits from queries and keys and leaves out `tile.logits`, with what was added to them."""
    log_weights: ClassVar[bool] = False
    """Whether `score` returns the logarithms of the weights, which no softmax normalizes."""
    float16: ClassVar[bool] = True
    """Whether float16 holds what `map_q` and `map_k` return."""
    by_length: ClassVar[bool] = False
    """Whether `constants` depend on the length."""
    # Without annotations, which would keep the first place for fields of these names in the subclasses that have them.
    axes = None
    """The number A of coordinates of a position; None where a position is one number."""
    layout = "half"
    """Which channels `angle` turns as a pair, see `rotary.py`."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = coerce(field.type, getattr(self, field.name), f"{type(self).__name__}.{field.name}")
            object.__setattr__(self, field.name, value)

    def init(self, key: jax.Array, sizes: Sizes) -> Any:
        """Returns learned parameters, stored raw; an empty dict where nothing is learned."""
        del key, sizes
        return {}

    def constants(self, sizes: Sizes, length: int | None = None) -> Any:
        """Returns parameters that are not learned, as NumPy arrays. An array of the caller with the same name replaces one.

        `length` is the number of positions of the sequence, or of the cache. Raises ValueError for sizes that do not fit.
        """
        del sizes, length
        return {}

    def absent(self, sizes: Sizes) -> dict | None:
        """Returns constants with which the encoding changes nothing; None where there are none, or something is learned."""
        del sizes
        return None

    def context(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], past: Any) -> Num[Array, "T *F"]:
        """Returns positions [T] or [T,F] of one head, computed from x; `past` sums over earlier tokens, see `contextual.py`.

        Positions are per query head where `per_head` names parameters, and per key head otherwise.
        """
        del p, x, past
        return jnp.asarray(pos)

    def embed(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """Returns embeddings with their positions put in."""
        del p, pos
        return x

    def angle(self, p: Params, pos: Num[ArrayLike, "T *A"]) -> Float[Array, "T pairs"]:
        """Returns the angles by which the first channels of queries and keys are turned; p["gain"] then stretches them."""
        raise NotImplementedError

    def map_q(self, p: Params, q: Float[Array, "T H"], pos: Num[ArrayLike, "T *A"]) -> Float[Array, "T h"]:
        """Returns queries of one head with their positions put in: turned by `angle`, where there is one."""
        return rotate(q, self.angle(p, pos), self.layout, p.get("gain")) if self.has("angle") else q

    def map_k(self, p: Params, k: Float[Array, "S H"], pos: Num[ArrayLike, "S *A"]) -> Float[Array, "S h"]:
        """Returns keys of one key head with their positions put in: turned by `angle`, where there is one."""
        return rotate(k, self.angle(p, pos), self.layout, p.get("gain")) if self.has("angle") else k

    def bias(self, p: Params, n: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns a number to add to the logit of a query and a key at distance n = q_pos - k_pos.

        n is negative where the key lies in the future. The mask hides such entries after the hook has seen them, so value
        and derivative must be finite there too: `jnp.log1p(jnp.maximum(n, 0))`, not `jnp.log1p(n)`.
        """
        del p
        return jnp.zeros_like(n)

    def score(self, p: Params, tile: Tile) -> Float[Array, "*N t s"]:
        """Returns new logits of a tile: here `tile.logits + bias(p, tile.distance)`."""
        return tile.logits + self.bias(p, tile.distance) if self.has("bias") else tile.logits

    def features(self, sizes: Sizes) -> tuple[int, ...]:
        """Returns (F,) where a position holds F numbers, coordinates or computed ones, and () where it is one number."""
        del sizes
        return () if self.axes is None else (self.axes,)

    def slope(self, p: Params) -> Float[Array, ""] | None:
        """Returns the number m with `bias(p, n) == m * n` for all n, by which kernels serve the bias; None if there is none."""
        del p
        return None

    def check(self, pos: np.ndarray) -> None:
        """Raises ValueError for positions that the encoding cannot serve: [b, T + S] of queries and keys, a row per example."""
        del pos

    def for_encoder(self) -> Self:
        """Returns the encoding for a mask that is not causal. Raises ValueError where there is none."""
        if self.causal_only:
            raise ValueError(f"{self} {self.causal_only}, so it needs a causal mask; pass Mask(causal=True)")
        return self

    def has(self, *hooks: str) -> bool:
        """Returns whether the class overrides one of these hooks, or one of these methods."""
        return any(getattr(type(self), hook) is not getattr(PositionEncoding, hook) for hook in hooks)


@dataclasses.dataclass(frozen=True)
class NoPE(PositionEncoding):
    """No position encoding: score = scale * q.k. A causal mask is then the only source of position.

    Reference: Haviv et al. 2022 (arXiv:2203.16634); Kazemnejad et al. 2023 (arXiv:2305.19466).

    Example:
        >>> NoPE().has("angle", "bias", "score")
        False
    """


def validate_encoding(name: str, encoding: Any) -> None:
    """Raises ValueError for an object that is no encoding, that would act as NoPE, or that fields do not tell from others.

    Example:
        >>> validate_encoding("encoding", "rope")
        Traceback (most recent call last):
        ValueError: encoding must be a PositionEncoding such as RoPE(), got 'rope'
    """
    if not isinstance(encoding, PositionEncoding):
        raise ValueError(f"{name} must be a PositionEncoding such as RoPE(), got {encoding!r}")
    kind = type(encoding)
    for one in kind.__mro__[: kind.__mro__.index(PositionEncoding)]:
        if "__dataclass_params__" in vars(one):
            break
        if "__init__" in vars(one):
            raise ValueError(
                f"{name}: {one.__name__} must be a frozen dataclass, because encodings are compared by their fields"
            )
    parts = getattr(encoding, "parts", (encoding,))
    if not all(part.has(*HOOKS) or isinstance(part, NoPE) for part in parts):
        raise ValueError(
            f"{name}: {kind.__name__} overrides none of the hooks {', '.join(HOOKS)}, and would act as NoPE"
        )


def learns(encoding: PositionEncoding) -> bool:
    """Returns whether `init` makes parameters, so that attention cannot run with `params=None`.

    Example:
        >>> from attnjax.positions import ALiBi, T5Bias
        >>> learns(T5Bias()), learns(ALiBi())
        (True, False)
    """
    return encoding.has("init")


def resolve(encoding: PositionEncoding, params: Any, sizes: Sizes, length: int | None = None) -> dict[str, PyTree]:
    """Returns the constants of one encoding, and `params` over them: what hooks read as `p`, before it is sliced by head.

    Raises ValueError for missing parameters, for names that the encoding does not have, and for leading axes other than N or K.

    Example:
        >>> from attnjax import ALiBi, Sizes
        >>> resolve(ALiBi(), None, Sizes(model=16, heads=2, kv_heads=2, head_dim=8))["slope"].tolist()
        [0.0625, 0.00390625]
    """
    if params is not None and not isinstance(params, Mapping):
        raise ValueError(f"{encoding}: params must be a dict as made by init, got {type(params).__name__}")
    if not params and learns(encoding):
        raise ValueError(f"{encoding} learns parameters: pass params=encoding.init(key, sizes), got params={params}")
    constants = encoding.constants(sizes, length)
    found = {**constants, **(params or {})}
    if not learns(encoding) and (unknown := found.keys() - constants.keys()):
        raise ValueError(f"{encoding} has no parameter {min(unknown)!r}; it has the constants {sorted(constants)}")
    for names, count, of in (
        (encoding.per_head, sizes.heads, "heads"),
        (encoding.per_kv_head, sizes.kv_heads, "key heads"),
    ):
        for name in names:
            if name not in found:
                raise ValueError(f"{encoding}: params lacks {name!r}, got {sorted(found)}")
            for leaf in jax.tree.leaves(found[name]):
                if np.ndim(leaf) == 0 or leaf.shape[0] != count:
                    raise ValueError(
                        f"{encoding}: {name!r} must have {count} {of} on its first axis, got shape {np.shape(leaf)}"
                    )
    return found
