"""Scores of long-context evaluation: string match, effective length, likelihood ranking, and perplexity of key tokens.

    string_match_all     mean share of a sample's answers that the prediction contains, in percent (RULER)
    effective_length     the last length whose score is at least 85.6, that of Llama-2-7B at 4,096 tokens (RULER)
    best_candidate       which of several answers a model finds likeliest, per byte
    long_ppl             exp(mean loss of the tokens that profit from a long context) (LongPPL)

References: Hsieh et al. 2024, arXiv:2404.06654 (RULER); Fang et al. 2024, "What is Wrong with Perplexity for Long-context
Language Modeling?", arXiv:2410.23771 (LongPPL), and their code, NVIDIA/RULER and PKU-ML/LongPPL.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attnjax.typing import Bool, Float, Int

THRESHOLD = 85.6
"""Percent from which on RULER calls a length effective."""
Losses = Callable[[Int[np.ndarray, "B T"]], Float[np.ndarray, "B T-1"]]
"""A model: the loss of each token but the first, given all before it, in nats."""


def string_match_all(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Return the mean share of answers that a prediction contains, upper and lower case alike, in percent.

    Example:
      >>> string_match_all(["It is 12, and B.", ""], [["12", "b", "c"], ["x"]])
      33.33
    """
    shares = [
        sum(answer.lower() in text.lower() for answer in mine) / len(mine)
        for text, mine in zip(predictions, answers, strict=True)
    ]
    return round(100 * sum(shares) / len(shares), 2)


def effective_length(scores: Mapping[int, float], threshold: float = THRESHOLD) -> int | None:
    """Return the largest length whose score, in percent, is at least `threshold`; None where no score is.

    Example:
      >>> effective_length({1024: 99.0, 2048: 85.6, 4096: 40.0})
      2048
    """
    return max((length for length, score in scores.items() if score >= threshold), default=None)


def best_candidate(
    losses: Losses, prompt: Sequence[int], candidates: Sequence[Sequence[int]], bytes_of: Sequence[int], size: int
) -> int:
    """Return which candidate has the smallest loss per byte, -1 where several have, or where losses are not finite.

    Args:
      losses: the model.
      prompt: the tokens before an answer.
      candidates: the tokens of prompt and answer together, for each answer. Where a tokenizer merges the end of the prompt
        with an answer, all tokens that differ from the prompt are the answer's.
      bytes_of: the number of bytes of each answer.
      size: the length to pad to, on the right; the model is causal, so padding changes nothing.

    Raises:
      ValueError: for a candidate with more tokens than `size`.
    """
    longest = max(map(len, candidates))
    if longest > size:
        raise ValueError(f"an answer and its prompt have {longest} tokens, and at most {size} are allowed")
    tokens = np.zeros((len(candidates), size), np.int32)
    for row, candidate in zip(tokens, candidates, strict=True):
        row[: len(candidate)] = candidate
    found, costs = np.asarray(losses(tokens), np.float64), []
    for loss, candidate, count in zip(found, candidates, bytes_of, strict=True):
        same = next((i for i, (a, b) in enumerate(zip(prompt, candidate, strict=False)) if a != b), len(prompt))
        costs.append(loss[max(same, 1) - 1 : len(candidate) - 1].sum() / count)
    best = int(np.argmin(costs))
    return best if np.isfinite(costs).all() and costs.count(costs[best]) == 1 else -1


def short_losses(losses: Losses, tokens: Int[np.ndarray, " T"], context: int, stride: int) -> Float[np.ndarray, " T"]:
    """Return the loss of each token given context .. context + stride - 1 tokens before it; NaN for the first `context` tokens.

    All windows of a text are one batch for the model; `stride` tokens share their context.
    """
    starts = np.arange(0, len(tokens) - context, stride)
    places = starts[:, None] + np.arange(context + stride)
    found = np.asarray(losses(np.append(tokens, 0)[np.minimum(places, len(tokens))].astype(np.int32)), np.float64)
    out = np.full(len(starts) * stride + context, np.nan)
    out[context:] = found[:, context - 1 :].reshape(-1)
    return out[: len(tokens)]


def key_tokens(
    full: Float[np.ndarray, " T"], short: Float[np.ndarray, " T"], gain: float = 2.0, most: float = 2.0
) -> Bool[np.ndarray, " T"]:
    """Return which tokens lose more than `gain` nats with the short context, and cost less than `most` with the full one.

    These are LongPPL's alpha = 2 and beta = -2. NaN is no key token.

    Example:
      >>> key_tokens(np.array([0.5, 0.5, 3.0]), np.array([3.0, 1.0, 9.0])).tolist()
      [True, False, False]
    """
    return (short - full > gain) & (full < most)


def long_ppl(losses: Float[np.ndarray, " T"], key: Bool[np.ndarray, " T"]) -> float | None:
    """Return exp of the mean loss of key tokens; None where there is none.

    Example:
      >>> long_ppl(np.log([2.0, 8.0, 100.0]), np.array([True, True, False]))
      4.0
    """
    return round(float(np.exp(losses[key].mean())), 9) if key.any() else None
