"""Double precision for library code that asks for float32 by name; for the scripts that make golden arrays."""

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
from torch import Tensor


@contextlib.contextmanager
def double() -> Iterator[None]:
    """Let every name by which library code asks for float32 mean float64."""
    names = {"float": torch.float64, "float32": torch.float64, "FloatTensor": torch.DoubleTensor}
    default = torch.get_default_dtype()
    with mock.patch.multiple(torch, **names), mock.patch.object(Tensor, "float", Tensor.double):
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)
