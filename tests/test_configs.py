"""Every config in every variant: it parses, its cells differ, it can be built, and `paper` is the published protocol."""

import csv
import functools
import importlib.util
import itertools
import pathlib

import pytest

from attnjax.config import cell_id, load, override, parse, to_dict
from attnjax.config.files import opening
from attnjax.sweep import population_key
from attnjax.tasks import task
from attnjax.train import describe
from experiments.published.analysis import published

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "configs").glob("*.py"))
ALL = [f"{path.stem}:{one}" if one else path.stem for path in FILES for one in opening(path)[1] or [""]]


@functools.cache
def changes(name):
    """What the sweep sets, run by run."""
    return list(load(name).sweep())


@functools.cache
def cells(name):
    """The resolved config of the first run of each task, encoding and policy."""
    config, found = load(name).config, {}
    for change in changes(name):
        keys = ("task", "task.name", "task.options", "model.encoding", "model.embed_scale", "positions.policy")
        found.setdefault(repr([change.get(key) for key in keys]), change)
    # Checking hundreds of lengths in each of hundreds of cells takes a while, and says nothing new.
    few = {"evaluate.lengths": [60]} if len(found) > 50 else {}
    return [parse(override(config, {**few, **change})) for change in found.values()]


def values(sweep, key):
    return sorted({change[key] for change in sweep})


@pytest.mark.parametrize("name", [one for one in ALL if one != "length_table:pilot"])
def test_a_config_is_explained_and_parses_and_its_cells_differ(name):
    stem, _, variant = name.partition(":")
    text, variants = opening(ROOT / "configs" / f"{stem}.py")
    assert text
    assert not variant or variants[variant]
    runs = cells(name)
    assert len({cell_id(run) for run in runs}) == len(runs)
    assert len({run.name for run in runs}) == 1
    for run in runs:
        shortest = 1 if run.task.name == "text" else task(run.task.name, **run.task.options).minimum_length
        assert run.task.length_min >= shortest
        assert min(run.evaluate.lengths) >= shortest
        if name != "heads_lm:prune":  # which prunes heads at the trained length
            assert run.task.length_max < max(run.evaluate.lengths)


# The published protocols

PROTOCOLS = {
    "ruoss": {
        "task": {"length_min": 1, "length_max": 40, "length_per": "batch", "tail": False},
        "model": {"residual_dropout": 0.1},
        "positions": {"at_test": "same", "sample_per": "example"},
        "train": {"steps": 1_000_000, "batch": 128, "schedule": "constant", "b1": 0.9, "b2": 0.999, "epsilon": 1e-8},
        "evaluate": {"lengths": list(range(1, 501)), "count": 512, "batch": 64, "dropout": False},
    },
    "huang": {
        "task": {"length_max": 50, "begin": True},
        "positions": {"at_test": "arange"},
        "train": {"steps": 30_000, "batch": 64, "schedule": "linear", "weight_decay": 0.01, "b2": 0.999, "warmup": 0},
    },
    "kazemnejad": {
        "task": {"length_min": 2, "length_max": 20},
        "model": {"layers": 12, "model": 768, "heads": 12, "hidden": 3072, "activation": "relu", "norm": "rms"},
        "train": {"learning_rate": 3e-5, "weight_decay": 0.05, "batch": 64, "steps": 40_000, "warmup": 2400},
    },
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_paper_is_the_published_protocol(name):
    config = to_dict(parse(load(f"{name}:paper").config))
    for table, wanted in PROTOCOLS[name].items():
        assert {key: config[table][key] for key in wanted} == wanted


def test_the_sweep_of_ruoss_and_the_quirks_of_its_code():
    sweep, faithful = changes("ruoss:paper"), changes("ruoss:paper-faithful")
    assert len(sweep) == len(faithful) == 15 * 11 * 3 * 10
    assert values(sweep, "train.learning_rate") == [0.0001, 0.0003, 0.0005]
    assert values(sweep, "seed") == values(sweep, "data_seed") == list(range(10))
    both = {"sinusoidal", "learned", "rope", "alibi", "transformer_xl"}
    kinds = {(c["model.encoding"]["name"], c.get("positions.policy", "arange")) for c in sweep}
    assert kinds == {("nope", "arange"), *itertools.product(both, ("arange", "randomized"))}
    assert {c["positions.maximum"] for c in sweep if "positions.maximum" in c} == {2048}
    plain, config = (parse(load(f"ruoss:paper{rest}").config) for rest in ("", "-faithful"))
    assert set(plain.evaluate.lengths) - set(config.evaluate.lengths) == {41}
    assert (config.train.steps, config.task.tail, config.evaluate.dropout) == (1_000_001, True, True)
    found = {(c["model.encoding"]["name"], "positions.policy" in c): c for c in faithful}
    assert found["transformer_xl", True]["model.encoding"]["options"] == {"table": "clamped", "length": 2048}
    assert found["transformer_xl", False]["model.encoding"]["options"] == {}
    layers = {name for (name, drawn), c in found.items() if drawn and c["positions.sample_per_layer"]}
    assert layers == both - {"sinusoidal", "learned"}
    assert {name for (name, _), c in found.items() if c["model.embedding_dropout"]} == {"sinusoidal", "learned"}
    alike = [c for c in sweep if c["task.name"] == "parity_check" and c["model.encoding"]["name"] == "nope"]
    assert len(alike) == 30
    assert len({population_key(parse(override({}, c))) for c in alike}) == 1, "seeds and rates train in one program"


def test_the_sweep_of_huang():
    sweep = changes("huang:paper")
    models = {tuple(c[f"model.{k}"] for k in ("layers", "heads", "model")) for c in sweep}
    assert models == {*itertools.product((1, 2, 4), (1, 2, 4), (16, 64, 256)), (12, 12, 768)}
    # 54 models of 8 tasks in 2 cells, then 5 seeds of the 16 chosen ones.
    assert len(sweep) == 54 * 8 * 2 + 16 * 5
    big = [c for c in sweep if c["model.layers"] == 12]
    assert {(c["train.steps"], c["train.warmup"]) for c in big} == {(60_000, 3000)}
    assert values(big, "train.learning_rate") == [3e-5, 1e-4]
    lengths = parse(load("huang:paper").config).evaluate
    for low, high in ((51, 100), (101, 150)):
        assert sum(low <= n <= high for n in lengths.lengths) * lengths.count == 2000
    # One position less than their n_positions, which has one for the last token too.
    places = {c["task.name"]: c["positions.maximum"] for c in sweep if "positions.maximum" in c}
    assert places == {
        **dict.fromkeys(("binary_majority", "majority", "parity"), 153),
        **dict.fromkeys(("unique_copy", "repeated_copy", "sort"), 302),
        "interleaved_majority": 155,
        "big_endian_addition": 299,
    }


def test_the_sweep_of_kazemnejad():
    sweep = changes("kazemnejad:paper")
    assert len(sweep) == 9 * 5 * 3
    assert values(sweep, "seed") == values(sweep, "data_seed") == [146317, 234054, 256788]
    addition = next(c for c in sweep if c["task.name"] == "addition")
    assert addition["task.length_max"] == 8
    assert set(range(9, 17)) < set(addition["evaluate.lengths"])
    found = importlib.util.spec_from_file_location("kazemnejad", ROOT / "configs" / "kazemnejad.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    # Half of what 100,000 training examples leave of 19 lengths is validation: 7,494 and 7,057 in results/sanity_check.jsonl.
    assert module.SYMBOLS.keys() == {"rsc", "rsc2x", "rdc"}
    assert {(19 * module.SYMBOLS[name] - 100_000) // 2 for name in ("rsc", "rsc2x")} == {7494}
    assert (19 * module.SYMBOLS["rdc"] * (module.SYMBOLS["rdc"] - 1) - 100_000) // 2 == 7057


# Beside the published numbers


@pytest.mark.parametrize(("name", "paper"), [("huang", "Huang"), ("kazemnejad", "Kazemnejad")])
def test_every_published_number_has_its_cell(name, paper):
    have = {}
    for run in cells(f"{name}:paper"):
        options = " ".join(f"{k}={v}" for k, v in run.task.options.items() if k in ("variant", "order"))
        key = (run.task.name, options, run.model.encoding.name, run.positions.policy, str(run.task.length_max))
        have[key] = set(run.evaluate.lengths)
    with (ROOT / "experiments" / "published" / "published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["paper"].startswith(paper)]
    assert len(rows) > 30
    for row in rows:
        key = tuple(row[k] for k in ("task", "options", "encoding", "policy", "trained"))
        assert set(range(int(row["low"]), int(row["high"]) + 1)) <= have[key], key


def test_press_tests_at_the_published_multiples():
    """Every published length past 512 has one of ours within 5 % of its multiple, and none of ours is for nothing."""
    run = parse(load("press:cpu").config)
    near = lambda cell: [n for n in run.evaluate.lengths if 0.95 * cell.low <= 8 * n <= 1.05 * cell.low]
    found = [near(cell) for cell in published().itertuples() if cell.task == "text"]
    assert all(len(one) == 1 for one in found)
    assert {n for one in found for n in one} == set(run.evaluate.lengths) - {64}


RUOSS = 5 * (4 * 64 * 64 + 2 * 64 * 256 + 256 + 64 + 2 * 2 * 64) + 3 * 64 + 64 * 3 + 3
"""Five layers; 2 symbols and the empty token are read, and could be answered."""
HUANG = 4 * (16 * 16 + 16) + 2 * 16 * 64 + 64 + 16 + 2 * 32 + 32 + 6 * 16
"""A GPT-2 layer of width 16; 2 bits and 4 special tokens."""
KAZEMNEJAD = 12 * (4 * 768 * 768 + 2 * 768 * 3072 + 2 * 768) + 768 + 104 * 768
"""A T5-base body; 100 symbols and 4 special tokens."""


@pytest.mark.parametrize(
    ("name", "task_name", "encoding", "policy", "count"),
    [
        ("ruoss:short", "reverse_string", "transformer_xl", "arange", RUOSS + 5 * (4096 + 128)),
        ("ruoss:short", "reverse_string", "learned", "randomized", RUOSS + 2048 * 64),
        ("huang:smoke", "binary_majority", "learned", "offset", HUANG + 153 * 16),
        # One bias table of 12 heads x 32 buckets for all layers.
        ("kazemnejad:paper", "copy", "t5", "arange", KAZEMNEJAD + 12 * 32),
    ],
)
def test_parameters_are_as_many_as_by_hand(name, task_name, encoding, policy, count):
    wanted = (task_name, encoding, policy)
    found = [run for run in cells(name) if (run.task.name, run.model.encoding.name, run.positions.policy) == wanted]
    run = next(run for run in found if run.task.options.get("variant", "cmc") == "cmc")
    assert describe(run)["parameters"] == count
