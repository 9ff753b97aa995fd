"""Looking at trained models. `load(run)` gives what every function here takes, `head_scores(run)` all scores of its heads.

* `overview`: all of the next two in one call
* `weights`: entropy, distance, sinks and divergence of attention weights
* `patterns`, `counting`, `scores`: what heads look at, with baselines and intervals

Probes of positions and rotary frequencies in use lie in `experiments/reading_positions`, importance and pruning in
`experiments/head_pruning`.
"""

from attnjax.analysis.overview import HeadOverview, head_scores
from attnjax.analysis.subject import Subject, load

__all__ = ["HeadOverview", "Subject", "head_scores", "load"]
