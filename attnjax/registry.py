"""The encodings and tasks of attnjax, a row each, readable without JAX: configs, the command line, sweeps, figures read it.

A new encoding is a file in `positions/` and a row here, a new task a file in `tasks/` and a row here.
`attnjax.positions.ENCODINGS` and `attnjax.tasks.TASKS` have the classes themselves.
"""

import difflib
import importlib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

SOLID = ()
DASHED = (5.0, 2.0)
DOTTED = (1.2, 1.6)
MIXED = (6.0, 2.0, 1.2, 2.0)

ROTARY = ("theta", "keep", "scaling")
"""What of RoPE enters through its frequencies and its factor alone."""


class Look(NamedTuple):
    """How curves of an encoding are drawn: colour on white, colour on black, dash pattern, marker; see `report/style.py`."""

    color: str
    dark: str
    dash: tuple[float, ...]
    marker: str


class EncodingRow(NamedTuple):
    """Where the class of an encoding is, "module:Class"; the label of its curves, and their look; what the planner asks.

    look: None for encodings that papers compare seldom, which share a few.
    numeric: options that enter through constants alone, so that runs which differ in them train in one program.
    optional: it has constants with which it changes nothing, so that runs with it and without it train in one program.
    axes: positions have several coordinates, which no task makes, so that configs cannot name it.
    untrained: it changes what a trained model does past its trained length, and is not made to be trained with.
    """

    path: str
    label: str
    look: Look | None = None
    numeric: tuple[str, ...] = ()
    optional: bool = False
    axes: bool = False
    untrained: bool = False

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.path.partition(":")[2]


ENCODINGS = {
    "nope": EncodingRow("attnjax.positions.base:NoPE", "NoPE", Look("#272727", "#f2f2f2", SOLID, "X"), optional=True),
    "sinusoidal": EncodingRow(
        "attnjax.positions.absolute:Sinusoidal",
        "Sinusoidal",
        Look("#9a3104", "#f66231", SOLID, "s"),
        numeric=("theta",),
        optional=True,
    ),
    "learned": EncodingRow("attnjax.positions.absolute:Learned", "Learned", Look("#ab9004", "#f3d335", DASHED, "D")),
    "rope": EncodingRow(
        "attnjax.positions.rope:RoPE",
        "RoPE",
        Look("#074a8d", "#4092f5", SOLID, "o"),
        numeric=ROTARY,
        optional=True,
    ),
    "xpos": EncodingRow(
        "attnjax.positions.xpos:XPos", "XPos", Look("#4a95d4", "#d4e8fd", DASHED, "v"), numeric=("theta",)
    ),
    "alibi": EncodingRow(
        "attnjax.positions.alibi:ALiBi",
        "ALiBi",
        Look("#049f69", "#26d87a", SOLID, "^"),
        numeric=("slopes",),
        optional=True,
    ),
    "t5": EncodingRow("attnjax.positions.t5:T5Bias", "T5 bias", Look("#d270ad", "#f082c2", SOLID, "P")),
    "kerple": EncodingRow("attnjax.positions.kerple:Kerple", "Kerple", Look("#407448", "#93e1a0", DASHED, "<")),
    "fire": EncodingRow("attnjax.positions.fire:FIRE", "FIRE", Look("#7e2427", "#db626f", DOTTED, "p")),
    "transformer_xl": EncodingRow(
        "attnjax.positions.transformer_xl:TransformerXL", "Transformer-XL", Look("#733cb3", "#bb98f3", DASHED, "*")
    ),
    "cope": EncodingRow("attnjax.positions.whole_table:CoPE", "CoPE", Look("#91612b", "#c79053", DOTTED, "h")),
    "sandwich": EncodingRow("attnjax.positions.sandwich:Sandwich", "Sandwich", Look("#037a84", "#49b5c4", DOTTED, ">")),
    "pope": EncodingRow(
        "attnjax.positions.pope:PoPE", "PoPE", Look("#232b8c", "#596ff3", DOTTED, "d"), numeric=("theta",)
    ),
    "fox": EncodingRow("attnjax.positions.gates:FoX", "FoX", Look("#10125e", "#685da5", MIXED, "$F$")),
    "cable": EncodingRow("attnjax.positions.gates:Cable", "Cable", Look("#4739db", "#6e4ef7", DASHED, "$C$")),
    "repo": EncodingRow("attnjax.positions.repo:RePo", "RePo", Look("#58115b", "#89548e", DOTTED, "$R$")),
    "selective_rope": EncodingRow(
        "attnjax.positions.selective_rope:SelectiveRoPE", "Selective RoPE", Look("#b88733", "#f29112", MIXED, "$S$")
    ),
    "ssmax": EncodingRow("attnjax.positions.query_scale:SSMax", "SSMax", Look("#e0108e", "#b5799b", DASHED, "$N$")),
    "llama4_temperature": EncodingRow(
        "attnjax.positions.query_scale:Llama4Temperature",
        "Llama 4 temperature",
        Look("#8a4ff2", "#daaffe", MIXED, "$L$"),
    ),
    "axial_rope": EncodingRow("attnjax.positions.axes:AxialRoPE", "Axial RoPE", axes=True),
    "mixed_rope": EncodingRow("attnjax.positions.axes:MixedRoPE", "RoPE-Mixed", axes=True),
    "mrope": EncodingRow("attnjax.positions.axes:MRoPE", "M-RoPE", axes=True),
    "dape": EncodingRow("attnjax.positions.whole_table:DAPE", "DAPE"),
    "stick_breaking": EncodingRow("attnjax.positions.whole_table:StickBreaking", "Stick-breaking"),
    "path": EncodingRow("attnjax.positions.path:PaTH", "PaTH"),
    "bam": EncodingRow("attnjax.positions.bam:BAM", "BAM"),
    "nape": EncodingRow("attnjax.positions.alibi:NAPE", "NAPE"),
    "grape": EncodingRow("attnjax.positions.grape:GRAPE", "GRAPE-M"),
    "fope": EncodingRow("attnjax.positions.fope:FoPE", "FoPE"),
    "wall": EncodingRow("attnjax.positions.wall:WallAttention", "Wall attention"),
    "inkling": EncodingRow("attnjax.positions.inkling:Inkling", "Inkling's bias"),
    "tra": EncodingRow("attnjax.positions.sparse:TRA", "TRA"),
    "asentmax": EncodingRow("attnjax.positions.sparse:ASEntmax", "ASEntmax"),
    "self_extend": EncodingRow("attnjax.positions.remapped:SelfExtend", "Self-Extend", numeric=ROTARY, untrained=True),
    "rerope": EncodingRow("attnjax.positions.remapped:ReRoPE", "ReRoPE", numeric=ROTARY, untrained=True),
    "leaky_rerope": EncodingRow(
        "attnjax.positions.remapped:LeakyReRoPE", "Leaky ReRoPE", numeric=ROTARY, untrained=True
    ),
    "dual_chunk": EncodingRow("attnjax.positions.remapped:DualChunk", "Dual chunk", numeric=ROTARY, untrained=True),
    "lm_infinite": EncodingRow("attnjax.positions.remapped:LMInfinite", "LM-Infinite", numeric=ROTARY, untrained=True),
    "streaming_llm": EncodingRow(
        "attnjax.positions.remapped:StreamingLLM", "StreamingLLM", numeric=ROTARY, untrained=True
    ),
    "log_n": EncodingRow("attnjax.positions.query_scale:LogN", "Log-n scaling", untrained=True),
}

TASKS = {
    "even_pairs": "attnjax.tasks.chomsky:EvenPairs",
    "modular_arithmetic": "attnjax.tasks.chomsky:ModularArithmetic",
    "parity_check": "attnjax.tasks.chomsky:ParityCheck",
    "cycle_navigation": "attnjax.tasks.chomsky:CycleNavigation",
    "stack_manipulation": "attnjax.tasks.chomsky:StackManipulation",
    "reverse_string": "attnjax.tasks.chomsky:ReverseString",
    "modular_arithmetic_brackets": "attnjax.tasks.chomsky:ModularArithmeticBrackets",
    "solve_equation": "attnjax.tasks.chomsky:SolveEquation",
    "duplicate_string": "attnjax.tasks.chomsky_sensitive:DuplicateString",
    "missing_duplicate_string": "attnjax.tasks.chomsky_sensitive:MissingDuplicateString",
    "odds_first": "attnjax.tasks.chomsky_sensitive:OddsFirst",
    "binary_addition": "attnjax.tasks.chomsky_sensitive:BinaryAddition",
    "binary_multiplication": "attnjax.tasks.chomsky_sensitive:BinaryMultiplication",
    "compute_sqrt": "attnjax.tasks.chomsky_sensitive:ComputeSqrt",
    "bucket_sort": "attnjax.tasks.chomsky_sensitive:BucketSort",
    "binary_majority": "attnjax.tasks.huang:BinaryMajority",
    "majority": "attnjax.tasks.huang:Majority",
    "interleaved_majority": "attnjax.tasks.huang:InterleavedMajority",
    "parity": "attnjax.tasks.huang:Parity",
    "sort": "attnjax.tasks.huang:Sort",
    "unique_copy": "attnjax.tasks.huang:UniqueCopy",
    "repeated_copy": "attnjax.tasks.huang:RepeatedCopy",
    "big_endian_addition": "attnjax.tasks.huang:BigEndianAddition",
    "copy": "attnjax.tasks.copying:Copy",
    "reverse": "attnjax.tasks.copying:Reverse",
    "addition": "attnjax.tasks.addition:Addition",
    "associative_recall": "attnjax.tasks.recall:AssociativeRecall",
    "induction": "attnjax.tasks.recall:Induction",
    "mqar": "attnjax.tasks.recall:MQAR",
    "flip_flop": "attnjax.tasks.state_tracking:FlipFlop",
    "word_problem": "attnjax.tasks.state_tracking:WordProblem",
    "posgen": "attnjax.tasks.posgen:PosGen",
    "markov": "attnjax.tasks.markov:Markov",
    "text": "attnjax.tasks.text:Text",
}
"""Where the class of each task is, "module:Class"."""


EXTENSIONS = {
    "pi": "PI",
    "ntk": "NTK",
    "dynamic_ntk": "dynamic NTK",
    "yarn": "YaRN",
    "longrope": "LongRoPE",
    "resonance": "Resonance YaRN",
    "p_rope": "p-RoPE",
    "drope": "DroPE",
    "log_n": "log-n scaling",
    "self_extend": "Self-Extend",
    "rerope": "ReRoPE",
    "leaky_rerope": "Leaky ReRoPE",
    "dual_chunk": "Dual chunk",
    "lm_infinite": "LM-Infinite",
    "streaming_llm": "StreamingLLM",
}
"""Methods that read past the trained length, and what tables call them; see `attnjax.evaluation.methods`."""


class SuiteRow(NamedTuple):
    """A task of a suite of texts: its label, its smallest haystack, and what is left for its answer.

    tokens: left for the answer with a tokenizer, as its authors do.
    bytes: left for the answer where a token is a byte.
    """

    label: str
    smallest: int
    tokens: int
    bytes: int


SUITES = {
    "long": {
        "niah_single_1": SuiteRow("Needle in noise (passkey)", 1, 128, 32),
        "niah_multikey_2": SuiteRow("Needle among needles", 1, 128, 32),
        "niah_multikey_3": SuiteRow("UUID among UUIDs", 1, 128, 64),
        "vt": SuiteRow("Variable tracking", 5, 30, 64),
        "cwe": SuiteRow("Common words", 14, 120, 200),
        "fwe": SuiteRow("Frequent words", 73, 50, 64),
    }
}
"""The tasks of each suite of `attnjax evaluate`: those of RULER that need no corpus."""


def load_class(path: str) -> Any:
    """The class of a path "module:Class", whose module is imported."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def make(kind: str, classes: Mapping[str, type], name: str, options: Mapping[str, Any]) -> Any:
    """An object of the class of this name, with these options; `kind` is what errors call it.

    Raises ValueError for an unknown name or option, with the choices, and for one that is missing.
    """
    if name not in classes:
        raise ValueError(f"unknown {kind} {name!r}{nearest(name, classes)}; choose from {', '.join(classes)}")
    known = inspect.signature(classes[name]).parameters
    for option in options:
        if option not in known:
            choices = ", ".join(known) or "none"
            raise ValueError(f"{kind} {name!r} has no option {option!r}{nearest(option, known)}; it has: {choices}")
    missing = [key for key, p in known.items() if p.default is p.empty and key not in options]
    if missing:
        raise ValueError(f"{kind} {name!r} needs the option {missing[0]!r}")
    return classes[name](**options)


def nearest(word: object, choices: Iterable[str]) -> str:
    """` (did you mean 'rope'?)` for the choice nearest to a misspelt word, "" where none is near."""
    choices = list(choices)
    word = str(word)[:100]
    alike = lambda word: difflib.get_close_matches(word, choices, n=1)
    close = _initials(word, choices) or alike(word) or alike(word.lower()) or _abbreviated(word, choices)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _initials(word: str, choices: list[str]) -> list[str]:
    """lr for learning_rate."""
    return [choice for choice in choices if "_" in choice and word == "".join(part[:1] for part in choice.split("_"))]


def _abbreviated(word: str, choices: list[str]) -> list[str]:
    """Choices of which `word` leaves letters out: ckpt_every for checkpoint_every."""
    if len(word) < 2:
        return []
    pattern = re.compile(".*".join(map(re.escape, word[:40])))
    return [choice for choice in choices if pattern.match(choice)]
