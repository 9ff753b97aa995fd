"""The table of architectures, by the `model_type` of their config.json."""

from attnjax.models.base import Architecture
from attnjax.models.bert import BERT
from attnjax.models.bloom import BLOOM
from attnjax.models.gpt2 import GPT2
from attnjax.models.gpt_neox import GPT_NEOX
from attnjax.models.llama import LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3
from attnjax.models.t5 import T5
from attnjax.models.transformer import TRANSFORMER

MODELS: dict[str, Architecture] = {
    "transformer": TRANSFORMER,
    "bert": BERT,
    "gpt2": GPT2,
    "t5": T5,
    "bloom": BLOOM,
    "gpt_neox": GPT_NEOX,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "smollm3": SMOLLM3,
}
