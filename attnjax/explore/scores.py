"""What `analysis.head_scores` found for every head of a run, in the words and the rounding of the page."""

import math
from types import MappingProxyType

import numpy as np

from attnjax.analysis.loaded_model import LoadedModel
from attnjax.analysis.overview import HeadOverview, head_scores
from attnjax.analysis.patterns import POSITIONAL
from attnjax.analysis.scores import HeadScores, stands_out
from attnjax.explore.contents import HeadGrid

PATTERNS = MappingProxyType(
    {
        "previous_token": "the token before the query",
        "next_token": "the token after the query",
        "first_token": "the first token",
        "same_token": "earlier occurrences of the query's own token",
        "separator": "earlier tokens that separate, such as white space",
        "induction": "the tokens that followed earlier occurrences of the query's own token",
    }
)
"""The targets of each pattern that is made from the tokens alone (`analysis/patterns.py`)."""
MEANS = MappingProxyType(
    {
        "entropy": "Entropy of the attention in nats: 0 where a head looks at one token alone.",
        "distance": "Mean distance between the query and the tokens that the head looks at, in tokens.",
        "sink": "Share of the attention on the first token, by queries after it.",
    }
)
"""What the means of `HeadOverview` are."""


def head_grids(subject: LoadedModel) -> tuple[tuple[HeadGrid, ...], str]:
    """A grid for each score that `head_scores` gives the heads of a trained run, and a sentence on what was read.

    Without grids the sentence says why there are none.
    """
    try:
        found = head_scores(subject)
    except ValueError as error:
        return (), f"{subject.name}: no scores. {str(error)[:1].upper()}{str(error)[1:]}."
    rows, length = found.tokens.shape
    scored = [_pattern(name, one) for name, one in found.patterns.items() if one.rows]
    return (*scored, *_means(found)), f"Means over {rows} held-out sequences of {length} tokens."


def _pattern(name: str, found: HeadScores) -> HeadGrid:
    rule = (
        "its interval lies above 1/2"
        if name in POSITIONAL
        else "it is above the best fixed offset and above chance by more than the noise between documents"
    )
    offset = f"{found.baseline:.3f} for the best fixed offset (i - j = {found.offset}), "
    baseline = offset if math.isfinite(found.baseline) else ""
    targets = PATTERNS.get(name, f"the targets of {name}")
    about = (
        f"Share of the attention on {targets}, by {found.rows:,} queries that have such a token. For "
        f"comparison: {baseline}{found.chance:.3f} for equal attention to all visible tokens. A star marks a head that "
        f"stands out: {rule}."
    )
    return HeadGrid(name, about, True, rounded(found.score), tuple(map(tuple, stands_out(name, found).tolist())))


def _means(found: HeadOverview) -> list[HeadGrid]:
    plain = tuple((False,) * found.entropy.shape[1] for _ in found.entropy)
    return [HeadGrid(name, MEANS[name], name == "sink", rounded(getattr(found, name)), plain) for name in MEANS]


def rounded(values: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Rows of layers, to six decimals: the page shows three, and must not round a rounded number."""
    return tuple(tuple(round(float(value), 6) for value in row) for row in values)
