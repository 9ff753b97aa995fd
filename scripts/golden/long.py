"""Makes long.npz and long.json: sequences and prompts by the authors' generators of the long-context tasks.

They are run unchanged, but with stand-ins for what they only import, such as dataset libraries, and for tokenizers (one token
is one character), word lists, and the one draw from NumPy in variable tracking, which comes from Python's generator, so that
one seed makes a whole prompt.
"""

import collections
import json
import os
import random
import sys
import types
from pathlib import Path
from unittest import mock

import numpy as np
import scipy.sparse  # extension modules cannot be loaded again after `load` has taken its stand-ins away
import scipy.special  # noqa: F401
import torch
import tqdm  # noqa: F401

from scripts.golden.common import ARRAYS, Arrays, load

ADJECTIVES, NOUNS = [f"{c}ar" for c in "bcdfghjklm"], [f"{c}ine" for c in "bcdfghjklmnpqrst"]
SEED = 42


def mqar() -> Arrays:
    """Inputs and labels of both kinds of filler, with the keys, values and gaps that they were made of."""
    segment = collections.namedtuple("DataSegment", ("inputs", "labels", "slices"))
    stubs = {"zoology.config": mock.MagicMock(DataSegmentConfig=object)}
    stubs["zoology.data.utils"] = mock.MagicMock(DataSegment=lambda x, y, slices: segment(x, y, slices))
    zoology = load("HazyResearch/zoology/zoology/data/multiquery_ar.py", "multiquery_ar", stubs)
    drawn, choice = [], np.random.choice

    def recorded(*args, **options):
        drawn.append(choice(*args, **options))
        return drawn[-1]

    sizes = {"vocab_size": 64, "num_examples": 5, "input_seq_len": 32, "num_kv_pairs": 4, "seed": SEED}
    with mock.patch("numpy.random.choice", recorded):
        plain = zoology.multiquery_ar(**sizes, random_non_queries=False)
    keys, values, gaps = np.array(drawn).reshape(3, 5, 4)
    torch.manual_seed(SEED)
    noisy = zoology.multiquery_ar(**sizes)
    many = zoology.multiquery_ar(64, 20_000, 32, SEED, num_kv_pairs=4, power_a=0.3, random_non_queries=False)
    places = np.nonzero(many.labels.numpy() != -100)[1]
    out = {"keys": keys, "values": values, "gaps": gaps, "inputs": plain.inputs.numpy(), "labels": plain.labels.numpy()}
    out |= {"noisy": noisy.inputs.numpy(), "counts": np.bincount((places - 8) // 2, minlength=12)}
    return {f"mqar_{name}": x for name, x in out.items()}


def word_problems() -> Arrays:
    """Elements of both groups in the authors' order, words, and their products."""
    sys.path.insert(0, f"{os.environ['REFERENCES']}/alreich/abstract_algebra/src")
    algebra = load("alreich/abstract_algebra/src/finite_algebras.py", "finite_algebras")
    stubs = {name: mock.MagicMock() for name in ("fire", "polars", "pyrootutils")}
    stubs |= {"abstract_algebra": mock.MagicMock(), "abstract_algebra.finite_algebras": algebra}
    code = load("jopetty/word-problem/src/generate_data.py", "generate_data", stubs)
    out = {}
    for name in ("A5", "S5"):
        group = code.generate_group((name[0], 5))
        words = np.random.default_rng(SEED).integers(len(group.elements), size=(4, 12))
        products = []
        for word in words.tolist():
            acc = 0
            products.append([acc := code.group_reduce(lhs=acc, rhs=x, G=group) for x in word])
        elements = [[int(c) for c in element if c.isdigit()] for element in group.elements]
        out |= {f"{name}_elements": np.array(elements), f"{name}_words": words, f"{name}_products": np.array(products)}
    return out


def posgen() -> Arrays:
    """Sequences of 40 tokens by each rule, with 3 near and 2 far tokens modulo 17."""
    stubs = {name: mock.MagicMock() for name in ("datasets", "transformers", "src.utils")}
    stubs["src.models.components.tokenizers.number_tokenizer"] = mock.MagicMock()
    path = "sheryc/resonance_rope/src/data/components/"
    base = load(f"{path}base_sequence_dataset.py", "base", stubs)
    out = {}
    for rule in ("recurrent", "cot", "semi_recurrent"):
        code = load(f"{path}{rule}_sequence.py", rule, {"src.data.components.base_sequence_dataset": base})
        kind = next(x for x in vars(code).values() if isinstance(x, type) and x.__module__ == rule)
        one = object.__new__(kind)
        one.modular, one.near_count, one.far_count, one.total_dependency_count = 17, 3, 2, 5
        one.arith_task = "mod_addition"
        out[f"posgen_{rule}"] = np.array(one._extend_sequence([3, 1, 4, 11, 5], 40))
    return out


def ruler(task: str, length: int, *options: str) -> types.ModuleType:
    """A script of RULER, loaded with these options and without its main program."""
    path = f"NVIDIA/RULER/scripts/data/synthetic/{task}.py"
    constants = load("NVIDIA/RULER/scripts/data/synthetic/constants.py", "constants")
    told = constants.TASKS["niah" if task == "niah" else task]
    template = told["template"] + told["answer_prefix"]
    tokenizer = mock.MagicMock(select_tokenizer=lambda *_: types.SimpleNamespace(text_to_tokens=list))
    lists = {"nounlist.txt": NOUNS, "adjectivelist.txt": ADJECTIVES, "verblist.txt": []}
    words = types.SimpleNamespace(random_word=types.SimpleNamespace(_get_words_from_text_file=lists.__getitem__))
    stubs = {"constants": constants, "tokenizer": tokenizer, "wonderwords": words}
    stubs |= {name: mock.MagicMock() for name in ("manifest_utils", "nltk", "nltk.tokenize")}
    argv = [task, "--save_dir=.", "--save_name=x", "--tokenizer_path=x", f"--max_seq_length={length}"]
    argv += ["--tokens_to_generate=10", "--num_samples=1", f"--random_seed={SEED}", f"--template={template}", *options]
    with mock.patch.object(sys, "argv", argv):
        return load(path, task, stubs)


def prompts() -> dict[str, object]:
    """Prompts, with the answer prefix at their end, and answers: a list of (seed, size, prompt, answers) for each task."""
    out: dict[str, object] = {"adjectives": ADJECTIVES, "nouns": NOUNS}
    needles = {
        "niah_single_1": ("noise", "words", "numbers"),
        "niah_multikey_2": ("needle", "words", "numbers"),
        "niah_multikey_3": ("needle", "uuids", "uuids"),
    }
    for name, (haystack, key, value) in needles.items():
        options = (f"--type_haystack={haystack}", f"--type_needle_k={key}", f"--type_needle_v={value}")
        out[name] = made(ruler("niah", 4096, *options).generate_input_output, (3, 6))
    vt = ruler("variable_tracking", 4096)
    draw = lambda low, end: random.randint(low, end - 1)  # noqa: S311 (the generator of the authors)
    vt.np = types.SimpleNamespace(random=types.SimpleNamespace(randint=draw))
    out["vt"] = made(lambda size: vt.generate_input_output(size, 1, 4), (5, 8))
    out["vt_example"] = made(lambda size: vt.generate_input_output(size, 1, 4, is_icl=True), (5,))
    english = Path(os.environ["REFERENCES"]) / "NVIDIA/RULER/scripts/data/synthetic/json/english_words.json"
    english.parent.mkdir(exist_ok=True)
    english.write_text(
        json.dumps({str(i): f"{a}{b}" for i, (a, b) in enumerate(zip(ADJECTIVES * 8, NOUNS * 5, strict=True))})
    )
    for length in (1024, 4096):
        cwe = ruler("common_words_extraction", length)
        # Those of wonderwords are fewer than 40, so the list of RULER's own words would be used.
        out["words"] = cwe.words = cwe.randle_words
        out[f"cwe_{length}"] = made(cwe.generate_input_output, (15, 42))
    fwe = ruler("freq_words_extraction", 4096)
    out["fwe"] = made(lambda size: fwe.generate_input_output(10**9, num_words=size, vocab_size=20)[:2], (60, 200))
    score = load("NVIDIA/RULER/scripts/eval/synthetic/constants.py", "metrics").string_match_all
    told = (["The Alpha and beta.", "nothing", "GAMMA 12"], [["alpha", "BETA"], ["x", "y"], ["gamma", "13", "12"]])
    out["string_match_all"] = [*told, score(*told)]
    return out


def made(generate, sizes) -> list[list[object]]:
    """What a generator makes of each size, right after its seed was set."""
    out = []
    for seed, size in enumerate(sizes):
        random.seed(seed)
        out.append([seed, size, *generate(size)])
    return out


if __name__ == "__main__":
    np.savez(ARRAYS / "long.npz", **mqar(), **word_problems(), **posgen())
    (ARRAYS / "long.json").write_text(json.dumps(prompts(), indent=1) + "\n", encoding="utf-8")
