"""An encoding whose hyper-parameters are data, so that many of them are one compiled program.

    program, numbers = RoPE(theta=500.0).as_data(sizes)
    attend(q, k, v, encoding=Given(program, numbers))          the same as with RoPE(theta=500.0)

`numbers` may be traced: mapping over stacked numbers runs bases, scalings or slopes side by side,

    all_numbers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(RoPE(t).as_data(sizes)[1] for t in thetas))
    jax.vmap(lambda numbers: attend(q, k, v, encoding=Given(program, numbers)))(all_numbers)

Acts as `program` does, through the same hooks. Encodings that have no numbers, or whose numbers depend on the length, are
their own program, and nothing changes for them.
"""

import dataclasses
from typing import Any

import jax

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, Tile, Vectors
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Given(PositionEncoding):
    """`program` with `numbers` in place of those that its `bind` finds, as `PositionEncoding.as_data` made both.

    Equal to itself alone, and meant for the inside of one transformation: where `numbers` are traced, neither it nor a
    cache made for it may leave the traced function. Raises ValueError where the first argument is no encoding.
    """

    program: PositionEncoding
    numbers: EncodingParams

    def __post_init__(self) -> None:
        if not isinstance(self.program, PositionEncoding) or not isinstance(self.numbers, EncodingParams):
            came = f"{type(self.program).__name__} and {type(self.numbers).__name__}"
            raise ValueError(f"Given takes what as_data returned, an encoding and EncodingParams; got {came}")

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """What the program learns."""
        return self.program.init(key, sizes)

    def bind(self, params: EncodingParams, heads: int, length: Any = None) -> EncodingParams:
        """What the program's hooks receive, with each side that is given as numbers replaced."""
        found = self.program.bind(params, heads, length)
        sides = zip(self.numbers, found, strict=True)
        return EncodingParams(*(ours if jax.tree.leaves(ours) else theirs for ours, theirs in sides))

    @property
    def learns(self) -> bool:
        """Whether the program learns."""
        return self.program.learns

    @property
    def length_dependent(self) -> bool:
        """Whether the program needs the length."""
        return self.program.length_dependent

    def embed(self, shared: PyTree, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """The program's, with the numbers: the model calls it without `bind`."""
        return self.program.embed(self.numbers.shared if jax.tree.leaves(self.numbers.shared) else shared, x, pos)

    def map_q(
        self, head: PyTree, shared: PyTree, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]
    ) -> Float[Array, "T h"]:
        return self.program.map_q(head, shared, q, pos)

    def map_k(self, shared: PyTree, k: Float[Array, "S H"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S h"]:
        return self.program.map_k(shared, k, pos)

    def bias(self, head: PyTree, shared: PyTree, n: Num[Array, "..."]) -> Float[Array, "..."]:
        return self.program.bias(head, shared, n)

    def carry(self, t: int) -> PyTree:
        return self.program.carry(t)

    def score(self, head: PyTree, shared: PyTree, tile: Tile, carry: PyTree = ()) -> Any:
        return self.program.score(head, shared, tile, carry)

    def columns_q(
        self, head: PyTree, shared: PyTree, q: Float[Array, "T h"], pos: Num[ArrayLike, " T"], scale: Float[Array, ""]
    ) -> Float[Array, "T c"]:
        return self.program.columns_q(head, shared, q, pos, scale)

    def columns_k(self, shared: PyTree, k: Float[Array, "S h"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S c"]:
        return self.program.columns_k(shared, k, pos)

    def vectors(self, head: PyTree, shared: PyTree, n: Num[Array, " m"]) -> Vectors:
        return self.program.vectors(head, shared, n)

    def hooks(self) -> frozenset[str]:
        """Those of the program."""
        return self.program.hooks()

    def check(self, sizes: Sizes, *, causal: bool) -> None:
        """Raises what the program raises."""
        self.program.check(sizes, causal=causal)

    def check_positions(self, pos: ArrayLike) -> None:
        """Raises what the program raises."""
        self.program.check_positions(pos)
