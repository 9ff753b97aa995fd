"""Does the factor 1/sqrt(d_k) matter?

Question: Vaswani et al. divide the product of query and key by sqrt(d_k), since its variance grows like d_k and a softmax of
large numbers has small gradients. With (model.scale=null) and without it (model.scale=1.0), for heads of 8, 32 and 128
channels: from which size on does training suffer, and does a length past the trained one?

Paper: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1 and its footnote on the variance.
Command: attnjax run scale_factor --workers 2
Run time: about 6 minutes on two cores.
Expected: at the start logits have a deviation of about sqrt(d_k) without the factor, 2.8, 5.7 and 11.3, and 1 with it (the
footnote). So no difference for 8 channels, and a slower start for 128; the paper prints no number for training without it.
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary


def get_config():
    """Two heads per layer, whose size does not depend on the width of the model."""
    config = defaults()
    config.name = "scale_factor"
    config.task.update({"name": "text", "length_min": 64, "length_max": 64})
    config.model.update({"layers": 2, "model": 64, "heads": 2, "head": 32, "hidden": 256})
    config.model.encoding.name = "rope"
    config.train.update({"steps": 300, "batch": 32, "learning_rate": 3e-3, "warmup": 20, "clip": 1.0})
    config.train.update({"log_every": 25, "checkpoint_every": 300})
    config.evaluate.update({"lengths": (48, 64, 96, 128, 200, 256), "validation_lengths": (64,)})
    config.evaluate.update({"count": 64, "batch": 32, "bucket_sizes": (64, 256)})
    return config


def sweep():
    """With and without the factor, three sizes of heads, two seeds."""
    return product(vary("model.scale", (None, 1.0)), vary("model.head", (8, 32, 128)), seeds(2))
