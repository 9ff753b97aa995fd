"""Arrays that other libraries made (`golden/README.md` says what each is), and the types in which they are compared."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import attnjax as aj

GOLDEN = Path(__file__).parent / "golden"


@functools.cache
def load(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


@dataclasses.dataclass(frozen=True)
class Precision:
    """A type to compute in, and how far a result may be from the float64 reference, relative to the largest entry."""

    dtype: str
    tolerance: float

    def array(self, x: np.ndarray) -> jax.Array:
        return jnp.asarray(x, self.dtype)

    def check(self, actual: jax.Array, expected: np.ndarray, what: str = "") -> None:
        assert actual.dtype == self.dtype, what
        atol = self.tolerance * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(actual, expected, rtol=self.tolerance, atol=atol, err_msg=what)


SINGLE, DOUBLE = Precision("float32", 1e-5), Precision("float64", 1e-12)


@contextlib.contextmanager
def in_precision(dtype: str) -> Iterator[Precision]:
    """float32, or float64 with JAX's x64 mode on."""
    precision = {"float32": SINGLE, "float64": DOUBLE}[dtype]
    with jax.enable_x64(precision is DOUBLE):
        yield precision


def constants(encoding: aj.PositionEncoding, head: int, length: int | None = None) -> dict:
    """Those of one head."""
    return encoding.constants(aj.Sizes(head, 1, 1, head), length)
