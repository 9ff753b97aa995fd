"""The position-wise feed-forward layer, gated or not.

    relu, gelu    FFN(x) = act(x W_in + b_in) W_out + b_out
    swiglu        FFN(x) = (silu(x W_gate + b_gate) * (x W_in + b_in)) W_out + b_out
    geglu         the same with the tanh approximation of gelu in place of silu, as in T5 v1.1

Reference: Vaswani et al. 2017 (arXiv:1706.03762), eq. 2; Shazeer 2020 (arXiv:2002.05202), eq. 6.
"""

import math

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from attnjax.config.architecture import Activation
from attnjax.config.kinds import Count, coerce
from attnjax.modules.parameters import add, kernel, linear, zeros
from attnjax.typing import Array, Float

GATED = ("swiglu", "geglu")


class FeedForward(nnx.Module):
    """Maps features [B, T, D] to [B, T, D] by two linear layers with F hidden units and an activation between.

    It computes in the dtype of its input. The learned parameters are w_in [D, F], w_out [F, D], and w_gate [D, F] if
    the activation is gated; b_in [F], b_out [D] and b_gate [F] with `bias`.

    Args:
      model, hidden: widths D and F.
      activation: "relu", "gelu" (exact), "gelu_tanh", or the gated "swiglu" and "geglu".
      bias: whether the linear layers have bias vectors.
      param_dtype: dtype of the parameters.
      rngs: the stream `params` draws the initial values.

    Raises:
      ValueError: sizes below 1, or an unknown activation.

    Example:
      >>> import jax.numpy as jnp
      >>> layer = FeedForward(model=8, hidden=32, activation="swiglu", rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((1, 5, 8))).shape
      (1, 5, 8)
    """

    def __init__(
        self,
        model: int,
        hidden: int,
        *,
        activation: Activation = "gelu",
        bias: bool = True,
        param_dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        for name, kind, value in (
            ("model", Count, model),
            ("hidden", Count, hidden),
            ("activation", Activation, activation),
        ):
            coerce(kind, value, f"FeedForward.{name}")
        self.activation = activation
        gated = activation in GATED
        self.w_in = kernel((model, hidden), 1, dtype=param_dtype, rngs=rngs)
        self.w_gate = kernel((model, hidden), 1, dtype=param_dtype, rngs=rngs) if gated else None
        self.w_out = kernel((hidden, model), 1, dtype=param_dtype, rngs=rngs)
        self.b_in = zeros((hidden,), dtype=param_dtype) if bias else None
        self.b_gate = zeros((hidden,), dtype=param_dtype) if bias and gated else None
        self.b_out = zeros((model,), dtype=param_dtype) if bias else None

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns FFN(x) of the formula above. Raises ValueError where the width of x is not D."""
        if x.ndim != 3 or x.shape[-1] != self.w_in.shape[0]:
            raise ValueError(f"FeedForward: x must have shape [B, T, {self.w_in.shape[0]}], got {x.shape}")
        hidden = _affine(x, self.w_in, self.b_in)
        if self.w_gate is None:
            hidden = activate(self.activation, hidden)
        else:
            hidden = activate(self.activation, _affine(x, self.w_gate, self.b_gate)) * hidden
        return _affine(hidden, self.w_out, self.b_out)


def _affine(x: Float[Array, "B T D"], w: nnx.Param, b: nnx.Param | None) -> Float[Array, "B T F"]:
    return add(linear(x, w[...]), b)


def activate(name: str, x: Float[Array, "B T F"]) -> Float[Array, "B T F"]:
    """Returns act(x) for the activation `name`; for a gated one, what it applies to the gate.

    Example:
      >>> import jax.numpy as jnp
      >>> activate("relu", jnp.array([[[-1.0, 2.0]]])).tolist()
      [[[0.0, 2.0]]]
    """
    chex.assert_type(x, float)
    gates = {"swiglu": jax.nn.silu, "geglu": jax.nn.gelu}
    return {"relu": jax.nn.relu, "gelu": gelu, "gelu_tanh": jax.nn.gelu, **gates}[name](x)


@jax.custom_jvp
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns x Phi(x), with the distribution function Phi of the normal distribution; as `jax.nn.gelu(approximate=False)`.

    Its derivative, Phi(x) + x phi(x), is written out, because that of `jax.lax.erfc` fails inside `jax.shard_map` in jax 0.12.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(gelu(jnp.float32(1.0))), 4)
      0.8413
    """
    return jax.nn.gelu(x, approximate=False)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    number = lambda value: jnp.asarray(value, x.dtype)
    below = number(0.5) * jax.lax.erfc(-x * number(math.sqrt(0.5)))
    density = number(1 / math.sqrt(2 * math.pi)) * jnp.exp(number(-0.5) * x * x)
    return gelu(x), (below + x * density) * dx
