"""Attention. `dispatch.py` is the entrance (`attend`), `problem.py` the checks, `tile.py` the arithmetic."""

from attnjax.attention.cache import KVCache
from attnjax.attention.combine import combine, gate_heads
from attnjax.attention.dispatch import attend, attend_with_lse, attention_weights, explain
from attnjax.attention.dropin import attention_fn, process_heads
from attnjax.attention.masks import Mask
from attnjax.attention.support import Explanation
from attnjax.attention.tile import Dropout
from attnjax.attention.tiling import Tiling

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
]
