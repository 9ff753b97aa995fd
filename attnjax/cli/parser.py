"""What the commands are called, what they take, and their help."""

import argparse
import pathlib
import re
from collections.abc import Callable
from typing import NoReturn

from attnjax.cli import benchmark, commands, execution, exploring
from attnjax.config.names import nearest

TRAINER = "attnjax.train:train"
CODES = """
exit status:
  0    all is done (failed runs of a sweep are recorded, listed, and counted in its last line)
  1    the run failed; a sweep: with --strict or --fail-fast if a run failed, else if none succeeded; or records are damaged;
       bench: a suite failed, or with --smoke a peer's numbers differ from ours
  2    a mistake in the command, the config or the folder: said in one line, before anything was trained
  130  stopped by Ctrl-C after saving (a second Ctrl-C stops at once)
  143  stopped by SIGTERM after saving
"""
EXAMPLES = """
examples:
  attnjax list configs
  attnjax show rope_vs_sinusoidal
  attnjax run rope_vs_sinusoidal model.encoding=alibi train.steps=500
  attnjax sweep rope_vs_sinusoidal --workers 2
  attnjax report runs/rope_vs_sinusoidal
"""
OVERRIDES = """
KEY=VALUE changes a field of the config: train.steps=500, model.encoding=alibi, model.encoding.options.theta=500000,
evaluate.lengths=40,80,160, model.kv_heads=none. `attnjax show CONFIG` prints all fields.
"""
RUN = """
examples:
  attnjax run copy train.steps=200 seed=3
  attnjax run configs/copy.py --out results/copy

The same command again resumes what was stopped, and does nothing where all is done.
"""
SWEEP = """
examples:
  attnjax sweep rope_vs_sinusoidal --workers 2 --report
  attnjax sweep copy --over model.encoding=rope,alibi,nope --over train.learning_rate=1e-3,3e-4 --seeds 3 --workers 2
  attnjax sweep copy --dry-run

Runs are those of the config's sweep() times every --over and --seeds. The same command again does what is missing, also
after kill -9. Runs with equal shapes train together as one population.
"""

BENCH = """
examples:
  attnjax bench
  attnjax bench attention memory --out results/attention
  attnjax bench --smoke
  attnjax bench --torch .venv-torch/bin/python
  attnjax bench --render runs/bench

Writes speed.jsonl, a row as soon as it is measured, then speed.md and, where matplotlib is installed, speed.png and
speed.svg. Let nothing else run meanwhile. What an earlier run left is kept as speed.before.jsonl.
"""


EXPLORE = """
examples:
  attnjax explore
  attnjax explore runs/stdlib_lm/0123456789abcdef
  attnjax explore runs/stdlib_lm/0123456789abcdef runs/stdlib_lm/fedcba9876543210 --text "for i in range(10):"

Writes one file that asks the network for nothing. Without runs it is the notebook alone: four words, two heads, and an
encoding. With one run or two it also shows the weights of every head on a few texts, and the loss by position past the
training length. For tasks other than text, --text takes names of tokens with white space between them.
"""


class Parser(argparse.ArgumentParser):
    """With the nearest choice in its complaints."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and end with status 2."""
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        hint = nearest(found[1], re.findall(r"[\w-]+", found[2])) if found else ""
        super().error(message + hint)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; `command` is the function to call with what it parsed."""
    text = "How does a Transformer know where a token is, and what happens past the training length?"
    top = Parser("attnjax", description=text, epilog=EXAMPLES + CODES, formatter_class=_Raw)
    top.add_argument("--traceback", action="store_true", help="show where in the code an error arose")
    add = top.add_subparsers(required=True, metavar="COMMAND").add_parser
    for one in (_add_run, _add_sweep, _add_report, _add_list, _add_show, _add_bench, _add_explore):
        one(add)
    return top


_Raw = argparse.RawDescriptionHelpFormatter
_Add = Callable[..., argparse.ArgumentParser]
"""Makes the parser of one command."""


def _add_run(add: _Add) -> None:
    run = add("run", help="train and evaluate one config", epilog=OVERRIDES + RUN, formatter_class=_Raw)
    _add_config(run)
    _add_execution(run)
    run.set_defaults(command=execution.run)


def _add_sweep(add: _Add) -> None:
    sweep = add("sweep", help="train and evaluate all runs of a sweep", epilog=OVERRIDES + SWEEP, formatter_class=_Raw)
    _add_config(sweep)
    over = "one more factor of the sweep; texts with commas in quotes, lists in brackets"
    sweep.add_argument("--over", action="append", default=[], metavar="KEY=A,B,...", help=over)
    sweep.add_argument("--seeds", type=_count, metavar="N", help="N seeds of each cell, for parameters and data alike")
    _add_execution(sweep)
    sweep.add_argument("--workers", type=_count, metavar="N", help="processes to train in; default: this one alone")
    sweep.add_argument("--threads", type=_count, metavar="N", help="threads of each worker; default: cores / workers")
    sweep.add_argument("--fail-fast", action="store_true", help="stop at the first run that fails")
    sweep.add_argument("--strict", action="store_true", help="exit with 1 if any run failed")
    sweep.add_argument("--extend", action="store_true", help="add the runs to another sweep in the folder")
    sweep.add_argument("--report", action="store_true", help="write figures, tables and a page in the end")
    sweep.add_argument("--dry-run", action="store_true", help="list the runs and do nothing")
    sweep.set_defaults(command=execution.sweep)


def _add_report(add: _Add) -> None:
    text = "figures, tables and a page from the records of a folder"
    report = add("report", help=text, description=text)
    report.add_argument("folder", type=pathlib.Path, metavar="DIR", help="the folder of a sweep")
    report.add_argument("--out", type=pathlib.Path, metavar="DIR", help="where to write; default: DIR/report")
    report.add_argument("--published", action="store_true", help="set our cells beside the published ones")
    report.set_defaults(command=commands.report)


def _add_list(add: _Add) -> None:
    text = "list what there is: encodings, tasks, configs, or the runs in a folder"
    listing = add("list", help=text, description=text)
    listing.add_argument("what", choices=("encodings", "tasks", "configs", "runs"))
    text = (
        "for runs: the folder of a sweep; for tasks: one of them, to print its data card (definition, chance, lengths)"
    )
    listing.add_argument("name", nargs="?", metavar="NAME", help=text)
    listing.set_defaults(command=commands.list_)


def _add_show(add: _Add) -> None:
    text = "print the resolved config, its runs, and the model's size, without training"
    show = add("show", help=text, description=text, epilog=OVERRIDES, formatter_class=_Raw)
    _add_config(show)
    show.add_argument("--no-model", action="store_true", help="leave out the model's size, which needs JAX")
    show.set_defaults(command=commands.show)


def _add_bench(add: _Add) -> None:
    text = "measure speed and memory against other libraries, on this machine, in one run"
    bench = add("bench", help=text, description=text, epilog=BENCH, formatter_class=_Raw)
    bench.add_argument("suites", nargs="*", metavar="SUITE", help="what to measure, see --list; default: all")
    bench.add_argument("--list", action="store_true", help="list the suites and do nothing")
    bench.add_argument("--smoke", action="store_true", help="smallest sizes: agreement, bytes and programs, not times")
    bench.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder of results; default: runs/bench")
    bench.add_argument("--torch", metavar="PYTHON", help="interpreter of an environment that has PyTorch")
    bench.add_argument("--rounds", type=_count, metavar="N", help="most rounds of a comparison; default: 15")
    bench.add_argument(
        "--seconds", type=_seconds, metavar="S", help="time after which no new round starts; default: 30"
    )
    text = "write table and figure of the record in a folder again, without measuring"
    bench.add_argument("--render", type=pathlib.Path, metavar="DIR", help=text)
    bench.set_defaults(command=benchmark.bench)


def _add_explore(add: _Add) -> None:
    text = "write a page to play with attention and to look into trained runs"
    explore = add("explore", help=text, description=text, epilog=EXPLORE, formatter_class=_Raw)
    explore.add_argument("runs", nargs="*", metavar="RUN", help="folders of one or two trained runs: runs/NAME/ID")
    text = "a text to show, instead of held-out examples; may be given several times"
    explore.add_argument("--text", action="append", default=[], metavar="TEXT", help=text)
    text = "the same, from a file"
    explore.add_argument("--file", action="append", default=[], type=pathlib.Path, metavar="FILE", help=text)
    explore.add_argument("--layer", type=_index, default=0, metavar="L", help="layer to show first, from 0")
    explore.add_argument("--head", type=_index, default=0, metavar="N", help="head to show first, from 0")
    out = pathlib.Path("explore.html")
    explore.add_argument("--out", type=pathlib.Path, default=out, metavar="FILE", help="default: explore.html")
    explore.set_defaults(command=exploring.explore)


def _add_config(command: argparse.ArgumentParser) -> None:
    text = "a .py or .json file, or a name from `attnjax list configs`; NAME:WORD where the config takes a word"
    command.add_argument("config", metavar="CONFIG", help=text)
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes of the config, see below")


def _add_execution(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder of results; default: runs/<name>")
    command.add_argument("--retry-failed", action="store_true", help="try runs again that failed before")
    command.add_argument("--population", type=_count, metavar="N", help="most runs that train together")
    command.add_argument("--trainer", default=TRAINER, metavar="MODULE:FUNCTION", help="your own training function")


def _count(text: str) -> int:
    return _whole(text, 1)


def _index(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.isascii() or not text.isdecimal() or not least <= int(text[:9]) == int(text[:10]):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text[:40]!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text[:40]!r}")
    return value
