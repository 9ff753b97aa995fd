"""Measures trained and published models: long contexts, perplexity, reading past the trained length, and what heads look at.

* `loaded_model`: a trained run as functions of tokens
* `heads`: all scores of all heads, from `weights` and `counts`
* `extension`: a model read past its trained length without training, by a method of `methods`
* `suite`: RULER's tasks (`samples`, `ruler`) for models that read text (`text_model`); a run's own task at other lengths
* `perplexity`: of a text
"""

from attnjax.evaluation.heads import HeadOverview, head_scores
from attnjax.evaluation.loaded_model import LoadedModel, load

__all__ = ["HeadOverview", "LoadedModel", "head_scores", "load"]
