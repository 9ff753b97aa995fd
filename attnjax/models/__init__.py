"""Published architectures, built from `attnjax.modules`, and folders of their weights: load, complete a text, save.

    loaded = load("models/gpt2")                     a folder with config.json and safetensors, as downloaded
    logits = loaded.model(tokens)
    more   = complete_batch(loaded, [[464, 3616]], 20)      token ids; prompts may differ in length
    texts  = complete_texts(loaded, load_tokenizer("models/gpt2"), ["The cat"], 20)
    save(loaded, "models/mine")                      a folder that Hugging Face transformers loads

Every mistake in a folder is a ValueError, most a `ModelError`; a file that is not there is an OSError.
"""

from attnjax.models.architectures import MODELS
from attnjax.models.base import Architecture, Spec, Weight, with_fields
from attnjax.models.completion import Drawing, complete_batch, complete_texts
from attnjax.models.files import ModelError
from attnjax.models.loading import Loaded, load
from attnjax.models.saving import save
from attnjax.models.tokens import Tokenizer, load_tokenizer

__all__ = [
    "MODELS",
    "Architecture",
    "Drawing",
    "Loaded",
    "ModelError",
    "Spec",
    "Tokenizer",
    "Weight",
    "complete_batch",
    "complete_texts",
    "load",
    "load_tokenizer",
    "save",
    "with_fields",
]
