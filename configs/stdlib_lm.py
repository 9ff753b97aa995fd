"""A language model over bytes, past the length it was trained at, under every encoding.

Question: trained on windows of 64 bytes, how does the loss of each encoding grow up to 512 bytes? The text is the
source of Python's own standard library, which every machine has (its bytes differ from one Python version to the next:
compare runs with the same sha256 in the manifest), or any file or folder: task.options.path=FOLDER, and for a folder
task.options.pattern="*.txt". Both losses are recorded, over whole windows and over the last 32 bytes of each, since only the
second tells a longer context from fewer bytes with a short one.

Paper: Press et al. 2022 (arXiv:2108.12409), WikiText-103, trained at 512 tokens.
Command: attnjax run stdlib_lm --workers 2                  (three seeds: --seeds 3)
Run time: about 9 minutes on two cores for one seed when there were 13 encodings; there are 22 now.
Expected: their validation perplexity at 512 and at 3512 tokens, in windows (appendix, table 2): sinusoidal 20.05 and 178.97,
rotary 20.07 and 35.54, T5 19.65 and 22.91, ALiBi 19.73 and 18.40. Sliding by one token, at 512 and 3072 (tables 13 to 15):
sinusoidal 18.35 and 360.12, T5 17.92 and 30.77, ALiBi 17.98 and 18.30. So ALiBi flat, and sinusoidal worst.
"""

from attnjax.config import ENCODING_NAMES, defaults
from attnjax.registry import ENCODINGS
from attnjax.sweep import vary

LONGEST = 512


def get_config():
    """Two layers of width 64 with four heads, trained on 600,000 bytes."""
    config = defaults()
    config.name = "stdlib_lm"
    config.task.update({"name": "text", "length_min": 64, "length_max": 64})
    config.model.update({"layers": 2, "model": 64, "heads": 4, "hidden": 256})
    config.train.update({"steps": 300, "batch": 32, "learning_rate": 3e-3, "warmup": 20, "clip": 1.0})
    config.train.update({"log_every": 50, "checkpoint_every": 300})
    config.evaluate.update({"lengths": (48, 64, 96, 128, 200, 256, 400, 512), "validation_lengths": (64,)})
    config.evaluate.update({"count": 64, "batch": 32, "bucket_sizes": (64, 128, 512), "sliding_stride": 32})
    return config


def sweep():
    """Every encoding that models are made with; a learned table has a row for each tested position, most of them untrained."""
    options = {"learned": {"length": LONGEST}}
    trained = [name for name in ENCODING_NAMES if not ENCODINGS[name].untrained]
    return vary("model.encoding", [{"name": name, "options": options.get(name, {})} for name in trained])
