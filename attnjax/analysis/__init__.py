"""Looking at trained models. `load(run)` gives what every function here takes, `head_scores(run)` all scores of its heads.

* `overview`: all of the next two in one call
* `weights`: entropy, distance, sinks and divergence of attention weights
* `patterns`, `counting`, `scores`: what heads look at, with baselines and intervals
* `probes`: positions read from hidden states
* `importance`, `pruning`: which heads matter, and how many can go
* `rotary`, `curves`: frequencies in use, learned biases against distance
* `maps`: figures
"""

from attnjax.analysis.overview import HeadOverview, head_scores
from attnjax.analysis.subject import Subject, load

__all__ = ["HeadOverview", "Subject", "head_scores", "load"]
