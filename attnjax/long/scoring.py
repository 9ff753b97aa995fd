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
Endings = Callable[[Sequence[int], Sequence[Sequence[int]], int], Sequence[Float[np.ndarray, " n"]]]
"""A model: the losses of the tokens of each ending of a prompt, in nats, from (prompt, endings, tokens of the longest row)."""


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
    endings: Endings, prompt: Sequence[int], candidates: Sequence[Sequence[int]], bytes_of: Sequence[int], size: int
) -> int:
    """Return which candidate has the smallest loss per byte, -1 where several have, or where losses are not finite.

    Args:
      endings: the model; `by_rows` makes it of losses.
      prompt: the tokens before an answer.
      candidates: the tokens of prompt and answer together, for each answer. Where a tokenizer merges the end of the prompt
        with an answer, all tokens that differ from the prompt are the answer's.
      bytes_of: the number of bytes of each answer.
      size: the most tokens of prompt and answer together.

    Raises:
      ValueError: for a candidate with more tokens than `size`.
    """
    longest = max(map(len, candidates))
    if longest > size:
        raise ValueError(f"an answer and its prompt have {longest} tokens, and at most {size} are allowed")
    same = [max(_shared(prompt, candidate), 1) for candidate in candidates]
    begin = min(same)  # the answers of all candidates come after it
    found = endings(prompt[:begin], [candidate[begin:] for candidate in candidates], size)
    costs = [
        float(np.asarray(loss, np.float64)[first - begin :].sum()) / count
        for loss, first, count in zip(found, same, bytes_of, strict=True)
    ]
    best = int(np.argmin(costs))
    return best if np.isfinite(costs).all() and costs.count(costs[best]) == 1 else -1


def by_rows(losses: Losses) -> Endings:
    """Return a model of endings that reads each with its whole prompt, padded on the right with token 0.

    A causal model ignores the padding, unless its encoding depends on the length (`DynamicNTK`, `LongRoPE`): then all losses
    are those of a text of `size` tokens.
    """

    def endings(prompt: Sequence[int], told: Sequence[Sequence[int]], size: int) -> Sequence[Float[np.ndarray, " n"]]:
        rows = [[*prompt, *one] for one in told]
        tokens = np.array([row + [0] * (size - len(row)) for row in rows], np.int32)
        found = np.asarray(losses(tokens), np.float64)
        return [loss[len(prompt) - 1 : len(row) - 1] for loss, row in zip(found, rows, strict=True)]

    return endings


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens at the start of two lists are the same."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


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
