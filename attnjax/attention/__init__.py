"""Attention. `attend.py` is the entrance (`attend`), `call.py` the checks, `reference.py` the page to read first."""

from attnjax.attention.attend import (
    attend as attend,
    attend_with_lse as attend_with_lse,
    attention_weights as attention_weights,
    explain as explain,
)
from attnjax.attention.blockwise import Tiling as Tiling
from attnjax.attention.cache import KVCache as KVCache
from attnjax.attention.choice import Explanation as Explanation
from attnjax.attention.combine import combine as combine, gate_heads as gate_heads
from attnjax.attention.dropin import attention_fn as attention_fn, process_heads as process_heads
from attnjax.attention.masks import Mask as Mask
from attnjax.attention.record import Dropout as Dropout
from attnjax.attention.reference import reference_attention as reference_attention
