"""Positional encodings: pure functions of explicit positions, one file each. `base.py` is the interface."""

from typing import Any

from attnjax import registry
from attnjax.positions.absolute import Learned as Learned, Sinusoidal as Sinusoidal, embed as embed
from attnjax.positions.alibi import NAPE as NAPE, ALiBi as ALiBi
from attnjax.positions.axes import AxialRoPE as AxialRoPE, MixedRoPE as MixedRoPE, MRoPE as MRoPE
from attnjax.positions.bam import BAM as BAM
from attnjax.positions.base import (
    NoPE as NoPE,
    PositionEncoding as PositionEncoding,
    Sizes as Sizes,
    Tile as Tile,
    learns as learns,
    resolve as resolve,
)
from attnjax.positions.compose import Compose as Compose, compose as compose
from attnjax.positions.contextual import context_positions as context_positions
from attnjax.positions.fire import FIRE as FIRE
from attnjax.positions.fope import FoPE as FoPE
from attnjax.positions.gates import Cable as Cable, FoX as FoX
from attnjax.positions.grape import GRAPE as GRAPE
from attnjax.positions.inkling import Inkling as Inkling
from attnjax.positions.kerple import Kerple as Kerple
from attnjax.positions.path import PaTH as PaTH
from attnjax.positions.pope import PoPE as PoPE
from attnjax.positions.population import (
    program as program,
    shared_program as shared_program,
    stacked_constants as stacked_constants,
)
from attnjax.positions.query_scale import Llama4Temperature as Llama4Temperature, LogN as LogN, SSMax as SSMax
from attnjax.positions.remapped import (
    DualChunk as DualChunk,
    LeakyReRoPE as LeakyReRoPE,
    LMInfinite as LMInfinite,
    Remapped as Remapped,
    ReRoPE as ReRoPE,
    SelfExtend as SelfExtend,
    StreamingLLM as StreamingLLM,
)
from attnjax.positions.repo import RePo as RePo
from attnjax.positions.rope import RoPE as RoPE
from attnjax.positions.sandwich import Sandwich as Sandwich
from attnjax.positions.scaling import (
    DynamicNTK as DynamicNTK,
    Llama3 as Llama3,
    LongRoPE as LongRoPE,
    NTKAware as NTKAware,
    PositionInterpolation as PositionInterpolation,
    Resonance as Resonance,
    YaRN as YaRN,
)
from attnjax.positions.selective_rope import SelectiveRoPE as SelectiveRoPE
from attnjax.positions.sparse import TRA as TRA, ASEntmax as ASEntmax
from attnjax.positions.t5 import T5Bias as T5Bias
from attnjax.positions.transformer_xl import TransformerXL as TransformerXL
from attnjax.positions.wall import WallAttention as WallAttention
from attnjax.positions.whole_table import DAPE as DAPE, CoPE as CoPE, StickBreaking as StickBreaking
from attnjax.positions.xpos import XPos as XPos

ENCODINGS: dict[str, type[PositionEncoding]] = {
    name: registry.load_class(row.path) for name, row in registry.ENCODINGS.items()
}


def encoding(name: str, **options: Any) -> PositionEncoding:
    """Returns the encoding of this name with these options. Raises ValueError for an unknown name or option, with the choices.

    Example:
        >>> encoding("kerple", kind="power")
        Kerple(kind='power')
    """
    return registry.make("encoding", ENCODINGS, name, options)
