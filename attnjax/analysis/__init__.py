"""Looking at trained models. `load(run)` gives what every function here takes, `head_scores(run)` all scores of its heads.

* `overview`: all of the next two in one call
* `weights`: entropy, distance, sinks and divergence of attention weights
* `patterns`, `counting`, `scores`: what heads look at, with baselines and intervals

Probes of positions and rotary frequencies in use lie in `experiments/reading_positions`, importance and pruning in
`experiments/head_pruning`.
"""

from attnjax.analysis.loaded_model import LoadedModel, load
from attnjax.analysis.overview import HeadOverview, head_scores

__all__ = ["HeadOverview", "LoadedModel", "head_scores", "load"]
