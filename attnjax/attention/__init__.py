"""Attention. `dispatch.py` is the entrance (`attend`), `inputs.py` the checks, `reference.py` the page to read first."""

from attnjax.attention.blockwise.sizes import Tiling
from attnjax.attention.cache import KVCache
from attnjax.attention.combine import combine, gate_heads
from attnjax.attention.dispatch import attend, attend_with_lse, attention_weights, explain
from attnjax.attention.dropin import attention_fn, process_heads
from attnjax.attention.dropout import Dropout
from attnjax.attention.masks import Mask
from attnjax.attention.reference import reference_attention
from attnjax.attention.support import Explanation

__all__ = [
    "Dropout",
    "Explanation",
    "KVCache",
    "Mask",
    "Tiling",
    "attend",
    "attend_with_lse",
    "attention_fn",
    "attention_weights",
    "combine",
    "explain",
    "gate_heads",
    "process_heads",
    "reference_attention",
]
