"""The parser of the command line: commands, their arguments and their help texts."""

import argparse
import pathlib
import re
from collections.abc import Callable
from typing import Any, NoReturn

from attnjax.cli import (
    argument_types as types,
    commands,
    compiling,
    evaluating,
    examples,
    execution,
    exploring,
    listing,
)
from attnjax.config.names import EXTENSION_NAMES, nearest
from attnjax.registry import SUITES
from attnjax.sweep.live import FORMATS

TRAINER = "attnjax.train:train"


class Parser(argparse.ArgumentParser):
    """A parser whose errors name the nearest valid choice, and that takes no abbreviated options: `--seed` is not `--seeds`."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and exit with status 2."""
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        hint = nearest(found[1], re.findall(r"[\w-]+", found[2])) if found else ""
        super().error(message + hint)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; `command` is the function to call with what it parsed."""
    text = "How does a Transformer know where a token is, and what happens past the training length?"
    top = Parser("attnjax", description=text, epilog=examples.EXAMPLES + examples.CODES, formatter_class=_Raw)
    top.add_argument("--traceback", action="store_true", help="print the traceback of an error")
    add = top.add_subparsers(required=True, metavar="COMMAND").add_parser
    known = (
        _add_run,
        _add_sweep,
        _add_work,
        _add_report,
        _add_list,
        _add_show,
        _add_compile,
        _add_evaluate,
        _add_explore,
    )
    for one in known:
        one(add)
    return top


_Raw = argparse.RawDescriptionHelpFormatter
_Add = Callable[..., argparse.ArgumentParser]
"""Makes the parser of one command."""


def _add_run(add: _Add) -> None:
    text = "train and evaluate one config"
    run = add("run", help=text, description=text, epilog=examples.OVERRIDES + examples.RUN, formatter_class=_Raw)
    _add_config(run)
    _add_execution(run)
    _add_hosts(run)
    run.set_defaults(command=execution.run)


def _add_sweep(add: _Add) -> None:
    text = "train and evaluate all runs of a sweep"
    sweep = add("sweep", help=text, description=text, epilog=examples.OVERRIDES + examples.SWEEP, formatter_class=_Raw)
    _add_config(sweep)
    over = "one run for each value, instead of the values that the sweep sets; quote texts with commas, put lists in brackets"
    sweep.add_argument("--over", action="append", default=[], metavar="KEY=A,B,...", help=over)
    sweep.add_argument(
        "--seeds",
        type=types.count,
        metavar="N",
        help="use the seeds 0 .. N-1 in each cell, instead of the seeds of the config",
    )
    _add_execution(sweep)
    sweep.add_argument(
        "--workers",
        type=types.count,
        metavar="N",
        help="number of processes that train; default: train in this process",
    )
    sweep.add_argument(
        "--threads", type=types.count, metavar="N", help="threads of each worker; default: number of cores / workers"
    )
    text = "who starts the workers: this command, SLURM as an array of jobs, or Ray as tasks; default: local"
    sweep.add_argument("--executor", choices=("local", "slurm", "ray"), default="local", help=text)
    text = "what a cluster wants to know of a worker: an option of sbatch, or address, num_cpus, num_gpus of Ray; see below"
    sweep.add_argument("--cluster", action="append", default=[], type=types.pair, metavar="KEY=VALUE", help=text)
    sweep.add_argument("--fail-fast", action="store_true", help="stop at the first run that fails")
    sweep.add_argument("--extend", action="store_true", help="add the runs to the sweep that the folder already holds")
    sweep.add_argument("--report", action="store_true", help="write figures, tables and a page at the end")
    text = "choose among the candidates of tune() in the config first; default: if it has that function"
    sweep.add_argument("--tune", action=argparse.BooleanOptionalAction, default=None, help=text)
    what = sweep.add_mutually_exclusive_group()
    text = "check the sweep, list its runs and how many are done, and change nothing"
    what.add_argument("--dry-run", action="store_true", help=text)
    text = "make the folder of the sweep with all its runs, and train none: that is left to `attnjax work`"
    what.add_argument("--plan", action="store_true", help=text)
    sweep.set_defaults(command=execution.sweep)


def _add_work(add: _Add) -> None:
    text = "train the open runs of a sweep that was planned before, as one worker among others"
    work = add("work", help=text, description=text, epilog=examples.WORK, formatter_class=_Raw)
    work.add_argument("folder", type=types.folder, metavar="DIR", help="the folder of a sweep")
    _add_training(work)
    _add_hosts(work)
    work.add_argument("--fail-fast", action="store_true", help="stop at the first run that fails")
    text = "import (and so execute) a module of which the runs name a class, as package.module:Class"
    work.add_argument("--import", action="append", default=[], dest="imports", metavar="MODULE", help=text)
    work.set_defaults(command=execution.work)


def _add_report(add: _Add) -> None:
    text = "make figures, tables and a page from the records of a sweep"
    report = add("report", help=text, description=text, epilog=examples.REPORT, formatter_class=_Raw)
    report.add_argument("folder", metavar="DIR", help="the folder of a sweep, or its URL, as gs://BUCKET/NAME")
    text = "where to write, on this machine; default: DIR/report, and ./report-NAME for a URL"
    report.add_argument("--out", metavar="DIR", help=text)
    report.add_argument("--published", action="store_true", help="show the published results beside ours")
    report.set_defaults(command=commands.report)


def _add_list(add: _Add) -> None:
    text = "list encodings, tasks, configs, or the runs in a folder"
    command = add("list", help=text, description=text, epilog=examples.LIST, formatter_class=_Raw)
    text = f"{', '.join(what for what, _, _ in listing.WHAT)}; without it, print what can be listed"
    command.add_argument("what", nargs="?", choices=[what for what, _, _ in listing.WHAT], metavar="WHAT", help=text)
    text = "for runs, the folder of a sweep or its URL; otherwise the one to describe in detail"
    command.add_argument("name", nargs="?", metavar="NAME", help=text)
    text = "for runs, print counts, rate and what is left every S seconds (default: 10) until all have ended"
    command.add_argument("--watch", type=types.seconds, nargs="?", const=10.0, metavar="S", help=text)
    text = "with --watch, seconds without a heartbeat after which a process elsewhere counts as gone; default: 60"
    command.add_argument("--patience", type=types.seconds, metavar="S", help=text)
    command.set_defaults(command=listing.list_)


def _add_show(add: _Add) -> None:
    text = "print the resolved config, its runs and the size of the model, without training"
    show = add("show", help=text, description=text, epilog=examples.OVERRIDES + examples.SHOW, formatter_class=_Raw)
    _add_config(show)
    show.add_argument("--no-model", action="store_true", help="leave out the size of the model, which needs JAX")
    show.set_defaults(command=commands.show)


def _add_compile(add: _Add) -> None:
    text = "compile the training step for accelerators that are not here, and print its memory and collectives"
    command = add("compile", help=text, description=text, epilog=examples.COMPILE, formatter_class=_Raw)
    _add_config(command)
    command.add_argument("--topology", required=True, metavar="KIND:SIZES", help="such as v5e:4x4, v6e:2x4 or h100:8")
    text = "devices along each axis, as for run; default: all along data"
    command.add_argument("--mesh", type=types.mesh, metavar="AXIS=N,...", help=text)
    command.set_defaults(command=compiling.compile_)


def _add_evaluate(add: _Add) -> None:
    text = "measure a trained run or a published model on a suite of long-context tasks"
    evaluate = add("evaluate", help=text, description=text, epilog=examples.EVALUATE, formatter_class=_Raw)
    text = "a run as for `attnjax explore`, or a folder of config.json, safetensors and tokenizer.json"
    evaluate.add_argument("model", metavar="MODEL_OR_RUN", help=text)
    evaluate.add_argument("--suite", choices=tuple(SUITES), help="default: long, unless --perplexity is given")
    text = "lengths in tokens (bytes for runs on text), the answer included; k is 1024; default: 1k,2k,4k, or the run's"
    evaluate.add_argument("--lengths", type=types.lengths, metavar="N,...", help=text)
    text = f"some of {', '.join(SUITES['long'])}; default: all"
    evaluate.add_argument("--tasks", type=types.words, metavar="NAME,...", help=text)
    text = "samples of each task at each length; default: 20"
    evaluate.add_argument("--samples", type=types.count, default=20, metavar="N", help=text)
    evaluate.add_argument("--seed", type=types.seed, default=0, metavar="S", help="seed of the samples; default: 0")
    text = "worked examples before the question of vt and cwe; default: 1, as published"
    evaluate.add_argument("--shots", type=int, choices=(0, 1), default=1, help=text)
    text = "noise, stdlib (the standard library's source), a file or a folder; default: noise"
    evaluate.add_argument("--haystack", default="noise", metavar="SOURCE", help=text)
    text = f"read past the trained length by one of {', '.join(EXTENSION_NAMES)}; NAME+log_n scales logits as well"
    evaluate.add_argument("--extend", metavar="NAME", help=text)
    text = "a size of --extend in place of its default, such as window=512; may be given several times"
    evaluate.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "the trained length for --extend, where config.json does not say it or to try another"
    evaluate.add_argument("--trained", type=types.count, metavar="L", help=text)
    text = (
        "search the factors of --extend longrope on a text: a file, a folder or stdlib, other than that of --perplexity"
    )
    evaluate.add_argument("--search", metavar="TEXT", help=text)
    text = "put the needle of niah_single_1 at N depths, from the beginning to the end, instead of all tasks"
    evaluate.add_argument("--depths", type=types.count, metavar="N", help=text)
    text = "perplexity and LongPPL of a text: a file, a folder or stdlib; alone, unless --suite, --tasks or --depths is given"
    evaluate.add_argument("--perplexity", metavar="SOURCE", help=text)
    text = "tokens from one window of --perplexity to the next, less than every length; default: half the length"
    evaluate.add_argument("--stride", type=types.count, metavar="N", help=text)
    text = "which windows of --perplexity begin with the tokens that the tokenizer puts before a text; default: first"
    evaluate.add_argument("--bos", choices=("first", "every"), help=text)
    text = "import (and so execute) a module of which the run names a class, as package.module:Class"
    evaluate.add_argument("--import", action="append", default=[], dest="imports", metavar="MODULE", help=text)
    evaluate.add_argument("--out", type=pathlib.Path, metavar="DIR", help="default: evaluated/NAME")
    evaluate.set_defaults(command=evaluating.evaluate)


def _add_explore(add: _Add) -> None:
    text = "write an interactive page about attention and about trained runs"
    explore = add("explore", help=text, description=text, epilog=examples.EXPLORE, formatter_class=_Raw)
    text = "one or two trained runs: folders, beginnings of hashes, NAME/ENCODING/SEED or NAME/KEY=VALUE,..., see below"
    explore.add_argument("runs", nargs="*", metavar="RUN", help=text)
    text = "show this text instead of held-out examples; may be given several times"
    explore.add_argument("--text", action="append", default=[], metavar="TEXT", help=text)
    text = "show the text of this file; may be given several times"
    explore.add_argument("--file", action="append", default=[], type=pathlib.Path, metavar="FILE", help=text)
    text = "import (and so execute) a module of which the runs name a class, as package.module:Class"
    explore.add_argument("--import", action="append", default=[], dest="imports", metavar="MODULE", help=text)
    explore.add_argument("--layer", type=types.index, default=0, metavar="L", help="layer to show first, from 0")
    explore.add_argument("--head", type=types.index, default=0, metavar="N", help="head to show first, from 0")
    out = pathlib.Path("explore.html")
    explore.add_argument("--out", type=pathlib.Path, default=out, metavar="FILE", help="default: explore.html")
    explore.set_defaults(command=exploring.explore)


def _add_config(command: argparse.ArgumentParser) -> None:
    text = "a .py or .json file, or a name from `attnjax list configs`; NAME:VARIANT for a config with variants"
    command.add_argument("config", metavar="CONFIG", help=text)
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="change a field of the config, see below")


def _add_execution(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=types.folder, metavar="DIR", help="folder of results; default: runs/<name>")
    command.add_argument("--retry-failed", action="store_true", help="train failed runs again")
    _add_training(command)


def _add_training(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--population", type=types.count, metavar="N", help="largest number of runs that train together"
    )
    command.add_argument(
        "--trainer", default=TRAINER, metavar="MODULE:FUNCTION", help="a training function of your own"
    )
    text = "devices to train on, such as population=4,data=2,sequence=1: members, examples, tokens"
    command.add_argument("--mesh", type=types.mesh, default=types.mesh(""), metavar="AXIS=N,...", help=text)
    text = "wait for runs that other processes train, and take over those whose process dies"
    command.add_argument("--wait", action="store_true", help=text)
    text = "seconds without a heartbeat after which a process elsewhere counts as dead; default: 60"
    command.add_argument("--patience", type=types.seconds, default=60.0, metavar="S", help=text)
    text = "deaths of its process in a row, without a checkpoint between them, after which a run has failed; default: 5"
    command.add_argument("--attempts", type=types.count, default=5, metavar="N", help=text)
    text = "write live curves as well, to DIR/live, for TensorBoard or Weights & Biases"
    command.add_argument("--log", choices=FORMATS, default="", help=text)
    text = "write the stack traces of all threads after S seconds without a step; default: 600"
    command.add_argument("--stall", type=types.seconds, default=600.0, metavar="S", help=text)


def _add_hosts(command: argparse.ArgumentParser) -> None:
    text = "train one model in several processes, a process on each host: where process 0 listens"
    command.add_argument("--coordinator", type=types.coordinator, metavar="HOST:PORT", help=text)
    text = "how many processes there are; default: as the cluster says, as tasks of a SLURM step"
    command.add_argument("--processes", type=types.count, metavar="N", help=text)
    text = "which one this is, from 0; default: as the cluster says"
    command.add_argument("--process-id", type=types.index, metavar="I", help=text)
