"""What is known while tracing: the values of NumPy arrays and of JAX arrays outside a transformation.

Python's way of asking whether a mistake can be reported now (a `ValueError` that names the value) or only shown in the
result (a NaN row).
"""

from typing import Any

import jax
import numpy as np


def concrete(values: Any) -> np.ndarray | None:
    """The values as NumPy where they are known, None where they are traced.

    Example:
        >>> concrete(np.arange(2)).tolist(), jax.eval_shape(lambda x: concrete(x), np.arange(2)) is None
        ([0, 1], True)
    """
    try:
        return np.asarray(values)
    except jax.errors.TracerArrayConversionError:
        return None
