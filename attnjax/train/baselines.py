"""What n-gram models score on the windows that a text is tested on: a floor for context.

They are counted in the training bytes of a text, and in the window itself for Markov chains, which differ between windows.

They are recorded in the manifests of runs, so that a report shows them without the corpus.
"""

import numpy as np

from attnjax import tasks
from attnjax.config import RunConfig
from attnjax.tasks.base import Task
from attnjax.tasks.ngrams import NGrams
from attnjax.train.evaluate import Evaluator
from attnjax.typing import Bool, Float

Levels = dict[str, dict[str, dict[str, float]]]
"""By length (as text, for JSON), metric and name of the model."""


def ngram_levels(run: RunConfig, task: Task, evaluator: Evaluator) -> Levels | None:
    """Return the losses of n-gram models at every test length, means over the windows as a run's own are.

    None for a task that is neither text nor Markov chains, and for a text of fewer than three bytes.
    """
    if isinstance(task, tasks.Markov):
        model: NGrams | tasks.Markov = task
    elif isinstance(task, tasks.Text) and len(np.asarray(task.data)) >= 3:
        model = NGrams.of(np.asarray(task.data))
    else:
        return None
    found: Levels = {}
    for length in run.evaluate.lengths:
        parts: dict[str, dict[str, list[float]]] = {}
        for _, made, counted in evaluator.batches(length, "test"):
            tokens, targets, mask = (np.asarray(x)[counted] for x in (made.tokens, made.targets, made.mask))
            last = np.cumsum(mask, axis=1) > mask.sum(axis=1, keepdims=True) - run.evaluate.sliding_stride
            for name, nats in model.nats(tokens, targets).items():
                for metric, kept in (("loss_nonoverlapping", mask), ("loss_sliding", mask & last)):
                    parts.setdefault(metric, {}).setdefault(name, []).extend(means(nats, kept))
        found[str(length)] = {metric: {k: float(np.mean(x)) for k, x in by.items()} for metric, by in parts.items()}
    return found


def means(nats: Float[np.ndarray, "W T"], kept: Bool[np.ndarray, "W T"]) -> list[float]:
    """Return the mean of each window over what is kept."""
    return list(np.where(kept, nats, 0).sum(axis=1) / np.maximum(kept.sum(axis=1), 1))
