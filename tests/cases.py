"""What tests of several folders share: options of the compiler, and which of many cases are quick."""

from collections.abc import Iterable
from typing import Any

import jax
import pytest

FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options of `jax.jit`: compiled in a third of the time. What is checked is the program, not the optimizer of XLA."""
OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
if jax.__version_info__ < (0, 11):
    OPTIMISED["xla_cpu_use_fusion_emitters"] = True
"""Options of `jax.jit`: compiled as users do, whatever `conftest.py` says, where rounding or speed are the matter."""


def slow_except(cases: Iterable[Any], *quick: Any) -> list:
    """Parameters of a test, all of them slow but those named, which stand for all in the quick run.

    A tuple holds one value for each of several parameters.
    """
    cases = [case if isinstance(case, tuple) else (case,) for case in cases]
    quick = [case if isinstance(case, tuple) else (case,) for case in quick]
    assert all(case in cases for case in quick), "a quick case that does not exist"
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.slow) for case in cases]
