"""The ways to read past the trained length that are compared, by their names in `attnjax.evaluation.methods`.

Each puts another encoding in place of RoPE, for the same weights; `attnjax/evaluation/methods.py` has formulas and sizes.
"""

LABELS = {
    "none": "RoPE as trained",
    "pi": "PI",
    "ntk": "NTK",
    "dynamic_ntk": "dynamic NTK",
    "yarn": "YaRN",
    "longrope": "LongRoPE",
    "p_rope": "p-RoPE",
    "drope": "DroPE",
    "resonance": "Resonance YaRN",
    "self_extend": "Self-Extend",
    "rerope+log_n": "ReRoPE + log n",
    "leaky_rerope+log_n": "Leaky ReRoPE + log n",
    "dual_chunk": "Dual chunk",
    "lm_infinite": "LM-Infinite",
    "streaming_llm": "StreamingLLM",
    "log_n": "log n",
    "rerope": "ReRoPE",
    "leaky_rerope": "Leaky ReRoPE",
}
"""Names in the order of all tables; the last two, without log-n scaling, only for SmolLM2."""
METHODS = tuple(LABELS)[:-2]
FREQUENCIES = METHODS[: METHODS.index("self_extend")]
"""Methods that change frequencies, which are fine-tuned too; the others remap positions, and are not trained with."""
WINDOWED = ("streaming_llm", "lm_infinite")
"""Methods that see the first tokens and about as many of the last as were trained."""
