"""Makes sampling.npz and perplexity.npz: what transformers leaves of logits before a draw, and its losses in sliding windows.

Logits are float32, as transformers has them when it draws. torch.sort is asked for a stable
order: which of several equal logits top p keeps is otherwise arbitrary, and only how many is not, which the script checks.
The tiny GPT-2 has the weights of `drawn.py`, in float64. The loop over windows is that of transformers' page on perplexity; it
sums losses of tokens, where the page multiplies a mean by a number of tokens.
"""

import functools
import json
from unittest import mock

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from scripts.golden.common import ARRAYS, double
from tests.golden import drawn

WARPERS = {
    "temperature": (TemperatureLogitsWarper, (0.3, 1.0, 2.5)),
    "top_k": (TopKLogitsWarper, (1, 2, 7, 40)),
    "top_p": (TopPLogitsWarper, (0.001, 0.25, 0.5, 0.75, 0.9, 0.999)),
    "min_p": (MinPLogitsWarper, (0.001, 0.05, 0.25, 0.5, 1.0)),
}
COMPOSED = (
    {"temperature": 0.7, "top_k": 12, "top_p": 0.8, "min_p": 0.1},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.5, "top_p": 0.6, "min_p": 0.3},
    {"temperature": 0.5, "min_p": 0.02},
)
FIELDS = {"vocab_size": 13, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16}
WINDOWS = ((16, 8), (16, 1), (12, 5), (7, 6), (16, 15))
"""Lengths of windows and strides."""


def logits() -> dict[str, np.ndarray]:
    """Random rows, rows with ties, and rows at the edges: probabilities that are exact, -inf, and equal logits."""
    random = 6 * drawn.uniform("logits", 8, 33)
    exact = np.log2([[0.5, 0.25, 0.125, 0.0625, 0.0625], [0.0625, 0.125, 0.0625, 0.25, 0.5]])
    edges = np.array(
        [[0.0] * 5, [3.0, -np.inf, 2.0, -np.inf, 1.0], [-np.inf] * 4 + [1.0], [60.0, -60.0, 0.0, 59.0, 1.0]]
    )
    named = {"random": random, "ties": np.round(random), "exact": exact * np.log(2), "edges": edges}
    return {name: value.astype(np.float32) for name, value in named.items()}


def warped(value: np.ndarray, rule: dict) -> np.ndarray:
    """Logits after the warpers of a rule, in the order in which `generate` of transformers has them."""
    chosen = LogitsProcessorList([WARPERS[name][0](number) for name, number in rule.items()])
    apply = lambda: chosen(torch.zeros((len(value), 1), dtype=torch.long), torch.from_numpy(value)).numpy()
    with mock.patch.object(torch, "sort", functools.partial(torch.sort, stable=True)):
        found = apply()
    np.testing.assert_array_equal(np.sort(found), np.sort(apply()))
    return found


def sampling() -> dict[str, np.ndarray]:
    """Each warper at each number, and compositions, on all logits."""
    out = {f"logits {name}": value for name, value in logits().items()}
    rules = [{name: number} for name, (_, numbers) in WARPERS.items() for number in numbers]
    for rule in (*rules, *COMPOSED):
        out |= {f"{name} {json.dumps(rule)}": warped(value, rule) for name, value in logits().items()}
    return out


def perplexity() -> dict[str, np.ndarray]:
    """Sum of losses and number of tokens for each (length, stride), of a GPT-2 that reads 61 tokens."""
    model = GPT2LMHeadModel._from_config(GPT2Config(**FIELDS), attn_implementation="eager").eval().double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(drawn.weight(name, tuple(parameter.shape))))
    ids = torch.from_numpy(drawn.tokens("perplexity", 1, 61, FIELDS["vocab_size"]))
    rows = [(length, stride, *strided(model, ids, length, stride)) for length, stride in WINDOWS]
    return {"config": np.array(model.config.to_json_string()), "tokens": ids.numpy()[0], "rows": np.array(rows)}


def strided(model: GPT2LMHeadModel, ids: torch.Tensor, length: int, stride: int) -> tuple[float, int]:
    """The sum of the losses of the labels that the windows keep, and the number of these labels."""
    total, count, before = 0.0, 0, 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + length, ids.shape[1])
        labels = ids[:, begin:end].clone()
        labels[:, : before - end] = -100
        found = int((labels[:, 1:] != -100).sum())
        with torch.no_grad():
            total += float(model(ids[:, begin:end], labels=labels).loss) * found
        count, before = count + found, end
        if end == ids.shape[1]:
            break
    return total, count


if __name__ == "__main__":
    np.savez_compressed(ARRAYS / "sampling.npz", **sampling())
    with double():
        np.savez_compressed(ARRAYS / "perplexity.npz", **perplexity())
