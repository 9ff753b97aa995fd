"""Measures trained and published models: long contexts, perplexity, reading past the trained length, and what heads look at.

* `loaded_model`: a trained run as functions of tokens
* `heads`: all scores of all heads, from `weights`, `patterns` and `counts`
* `extension`: a model read past its trained length without training, by a method of `methods`; `factors` of LongRoPE
* `suite`: the tasks of RULER (`ruler`, `samples`) for models that read text (`subjects`); `perplexity` of a text (`sources`)
* `results`: tables and figures of what `attnjax evaluate` measures
"""

from attnjax.evaluation.heads import HeadOverview, head_scores
from attnjax.evaluation.loaded_model import LoadedModel, load

__all__ = ["HeadOverview", "LoadedModel", "head_scores", "load"]
