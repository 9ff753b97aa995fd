"""Sizes, seeded inputs and small layers that the scripts behind `frontier_*.npz` share."""

import numpy as np
import torch
from make_golden import Arrays, gradients, numpy, tensor
from torch import Tensor, nn

B, T, N, H = 2, 12, 2, 8
D = N * H


def draw(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Seeded normal numbers in float32, stored as they are."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def parameter(array: np.ndarray) -> nn.Parameter:
    return nn.Parameter(tensor(array))


def causal(length: int = T) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def slopes(out: Tensor, w: np.ndarray, leaves: dict[str, Tensor]) -> Arrays:
    """`gradients` without those of v, whose way through any softmax is the same."""
    return gradients(out, w, {name: leaf for name, leaf in leaves.items() if name != "v"})


def visible(bias: Tensor) -> np.ndarray:
    """The entries of a bias that a causal mask lets through; 0 elsewhere."""
    return numpy(bias.masked_fill(~causal(bias.shape[-1]), 0.0))


class Given(nn.Module):
    """A layer that returns what it was made with; it replaces a projection whose result is an input here."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, _: Tensor) -> Tensor:
        return self.value
