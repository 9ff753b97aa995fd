"""The parser of the command line: verbs, their options and their help texts."""

import argparse
import pathlib
import re
from collections.abc import Callable
from typing import Any, NoReturn

from attnjax.cli import argument_types as types, compiling, evaluating, listing, reading, training
from attnjax.config.names import EXTENSION_NAMES, nearest
from attnjax.registry import SUITES
from attnjax.sweep.live import FORMATS
from attnjax.sweep.worker import TRAINER

CODES = """
exit status:
  0    everything is done
  1    a run failed, is damaged, or has not ended: other processes still work on it, or its end could not be written
  2    the command, the config or the folder is wrong: one line says what, and nothing was trained
  130  stopped by a signal (Ctrl-C, SIGTERM, SIGUSR1, SIGUSR2) after saving; the same command continues
"""
START = (
    "list configs",
    "show rope_vs_sinusoidal",
    "run rope_vs_sinusoidal --workers 2 --report",
    "explore rope_vs_sinusoidal/task=copy,encoding=rope,seed=0",
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors name the nearest valid choice, and that takes no abbreviated options: `--seed` is not `--seeds`."""

    def __init__(self, *arguments: Any, **options: Any):
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(*arguments, allow_abbrev=False, formatter_class=raw, **options)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and exit with status 2."""
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        hint = nearest(found[1], re.findall(r"[\w-]+", found[2])) if found else ""
        super().error(message + hint)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; `command` is the function to call with what it parsed."""
    text = "How does a Transformer know where a token is, and what happens past the training length?"
    top = Parser("attnjax", description=text, epilog=_examples(*START) + CODES)
    top.add_argument("--traceback", action="store_true", help="print the traceback of an error")
    verbs = top.add_subparsers(required=True, metavar="COMMAND")

    def verb(name: str, command: Callable[..., int], text: str, *examples: str, **more: Any) -> argparse.ArgumentParser:
        """Return the parser of a verb, which calls `command`."""
        made = verbs.add_parser(name, help=text, description=text, epilog=_examples(*examples), **more)
        made.set_defaults(command=command)
        return made

    for add in (_add_run, _add_work, _add_report, _add_list, _add_show, _add_compile, _add_evaluate, _add_explore):
        add(verb)
    return top


_Verb = Callable[..., argparse.ArgumentParser]
"""Makes the parser of one verb from its name, function, text and examples."""


def _examples(*lines: str) -> str:
    return "\n".join(["examples:", *(f"  attnjax {line}" for line in lines), ""])


def _add_run(verb: _Verb) -> None:
    run = verb(
        "run",
        training.run,
        "train and evaluate all runs that a config declares; the same command resumes them",
        "run rope_vs_sinusoidal --workers 2 --report",
        "run stdlib_lm --over model.layers=2,4 --seeds 3 --out runs/deeper",
        "run theta seed=0 model.encoding.options.theta=500     # one run",
        "run theta --executor slurm --workers 8 --cluster partition=gpu --cluster time=04:00:00",
        aliases=["sweep"],
    )
    add = run.add_argument
    _add_config(run)
    text = "one run for each value, instead of the values that the sweep sets; quote texts with commas, put lists in brackets"
    add("--over", action="append", default=[], metavar="KEY=A,B,...", help=text)
    add("--seeds", type=types.count, metavar="N", help="use the seeds 0 .. N-1, instead of those that the sweep sets")
    add("--no-tune", action="store_false", dest="tune", help="do not choose among the candidates of tune() first")
    add("--out", type=types.folder, metavar="DIR", help="folder of results; default: runs/NAME")
    add("--extend", action="store_true", help="add the runs to the sweep that the folder already holds")
    add("--retry-failed", action="store_true", help="train failed runs again")
    add("--report", action="store_true", help="write figures, tables and a page at the end")
    what = run.add_mutually_exclusive_group()
    text = "check the runs, list them, say how many are done, and change nothing"
    what.add_argument("--dry-run", action="store_true", help=text)
    text = "make the folder with all runs, and train none: that is left to `attnjax work`"
    what.add_argument("--plan", action="store_true", help=text)
    add("--workers", type=types.count, metavar="N", help="processes that train; default: this one")
    text = "who starts the workers: this command, SLURM as an array of jobs, or Ray as tasks; default: local"
    add("--executor", choices=("local", "slurm", "ray"), default="local", help=text)
    text = "an option of sbatch, or setup=LINE of its script; address, num_cpus, num_gpus or a resource of Ray"
    add("--cluster", action="append", default=[], type=types.pair, metavar="KEY=VALUE", help=text)
    _add_training(run)


def _add_work(verb: _Verb) -> None:
    text = "train the open runs of a planned sweep, as one worker among others"
    work = verb("work", training.work, text, "run theta --plan", "work theta", "work theta --wait --patience 300")
    work.add_argument("folder", metavar="NAME", help="a sweep: its folder, or its name in runs")
    _add_training(work)
    _add_imports(work)
    work.set_defaults(workers=None, executor="local", retry_failed=False)


def _add_report(verb: _Verb) -> None:
    text = "make figures, tables and a page from the records of a sweep"
    report = verb("report", reading.report, text, "report rope_vs_sinusoidal", "report huang_short --out results/huang")
    report.add_argument("folder", metavar="NAME", help="a sweep: its folder, or its name in runs")
    text = "where to write; default: report in its folder"
    report.add_argument("--out", metavar="DIR", help=text)


def _add_list(verb: _Verb) -> None:
    examples = ("list", "list encodings rope", "list runs rope_vs_sinusoidal")
    command = verb("list", listing.list_, "list encodings, tasks, configs, or runs", *examples)
    kinds = [what for what, _, _ in listing.WHAT]
    text = f"{', '.join(kinds)}; without it, print what can be listed"
    command.add_argument("what", nargs="?", choices=kinds, metavar="WHAT", help=text)
    text = "the one to describe; of runs a sweep: its folder, or its name in runs"
    command.add_argument("name", nargs="?", metavar="NAME", help=text)


def _add_show(verb: _Verb) -> None:
    text = "print the resolved config, its runs and the size of the model, without training"
    show = verb("show", reading.show, text, "show theta", "show ruoss:short model.encoding=alibi --no-model")
    _add_config(show)
    show.add_argument("--no-model", action="store_true", help="leave out the size of the model, which needs JAX")


def _add_compile(verb: _Verb) -> None:
    text = "compile the training step for accelerators that are not here, and print its memory and collectives"
    examples = ("compile rope_vs_sinusoidal --topology v5e:2x4", "compile heads_lm --topology h100:8 train.batch=64")
    command = verb("compile", compiling.compile_, text, *examples)
    _add_config(command)
    command.add_argument("--topology", required=True, metavar="KIND:SIZES", help="such as v5e:4x4, v6e:2x4 or h100:8")
    text = "devices along each axis, as for run; default: all along data"
    command.add_argument("--mesh", type=types.mesh, metavar="AXIS=N,...", help=text)


def _add_evaluate(verb: _Verb) -> None:
    evaluate = verb(
        "evaluate",
        evaluating.evaluate,
        "measure a trained run or a published model past its training length, on tasks of RULER or a text",
        "evaluate models/smollm --lengths 1k,2k,4k",
        "evaluate stdlib_lm/rope/0 --lengths 512,1k --tasks niah_single_1,fwe",
        "evaluate models/gpt2 --perplexity book.txt --lengths 512,1k --stride 256",
        "evaluate models/pythia-70m --lengths 2k,4k,8k --extend rerope+log_n --option window=256",
    )
    add = evaluate.add_argument
    add("model", metavar="MODEL_OR_RUN", help="a folder with config.json and safetensors, or a run as for `explore`")
    text = "lengths in tokens (bytes for runs on text), the answer included; k is 1024; default: 1k,2k,4k, or the run's"
    add("--lengths", type=types.lengths, metavar="N,...", help=text)
    add("--tasks", type=types.words, metavar="NAME,...", help=f"some of {', '.join(SUITES['long'])}; default: all")
    add("--samples", type=types.count, default=20, metavar="N", help="of each task at each length; default: 20")
    add("--seed", type=types.seed, default=0, metavar="S", help="seed of the samples; default: 0")
    text = f"read past the trained length by one of {', '.join(EXTENSION_NAMES)}; NAME+log_n scales logits as well"
    add("--extend", metavar="NAME", help=text)
    text = "a size of --extend in place of its default, such as window=512; may be given several times"
    add("--option", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "the trained length for --extend, where config.json does not say it or to try another"
    add("--trained", type=types.count, metavar="L", help=text)
    text = "perplexity of a text: a file, a folder or stdlib; alone, unless --tasks is given"
    add("--perplexity", metavar="SOURCE", help=text)
    text = "tokens from one window of --perplexity to the next, less than every length; default: half the length"
    add("--stride", type=types.count, metavar="N", help=text)
    text = "which windows of --perplexity begin with the tokens that the tokenizer puts before a text; default: first"
    add("--bos", choices=("first", "every"), help=text)
    _add_imports(evaluate)
    add("--out", type=pathlib.Path, metavar="DIR", help="default: evaluated/NAME")


def _add_explore(verb: _Verb) -> None:
    explore = verb(
        "explore",
        reading.explore,
        "write an interactive page about attention and about trained runs",
        "explore",
        "explore theta/025bc18d",
        'explore heads_lm/rope/0 heads_lm/sinusoidal/0 --text "for i in range(10):"',
    )
    add = explore.add_argument
    text = (
        "one or two trained runs: folders, or NAME/RUN: RUN is the beginning of a hash, KEY=VALUE,... or ENCODING/SEED"
    )
    add("runs", nargs="*", metavar="RUN", help=text)
    text = "show this text (names of tokens, for other tasks) instead of held-out examples; may be given several times"
    add("--text", action="append", default=[], metavar="TEXT", help=text)
    _add_imports(explore)
    add("--layer", type=types.index, default=0, metavar="L", help="layer to show first, from 0")
    add("--head", type=types.index, default=0, metavar="N", help="head to show first, from 0")
    add("--out", type=pathlib.Path, default=pathlib.Path("explore.html"), metavar="FILE", help="default: explore.html")


def _add_config(command: argparse.ArgumentParser) -> None:
    text = "a .py or .json file, or a name from `attnjax list configs`; NAME:VARIANT for a config with variants"
    command.add_argument("config", metavar="CONFIG", help=text)
    text = "change a field in every run, as model.encoding=alibi; `attnjax show CONFIG` prints all fields"
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=text)


def _add_imports(command: argparse.ArgumentParser) -> None:
    text = "import (and so execute) a module of which a run names a class, as package.module:Class"
    command.add_argument("--import", action="append", default=[], dest="imports", metavar="MODULE", help=text)


def _add_training(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--population", type=types.count, metavar="N", help="largest number of runs that train together")
    add("--trainer", default=TRAINER, metavar="MODULE:FUNCTION", help="a training function of your own")
    text = "devices to train on, such as population=4,data=2,sequence=1: members, examples, tokens"
    add("--mesh", type=types.mesh, default=types.mesh(""), metavar="AXIS=N,...", help=text)
    text = "wait for runs that other processes train, and take over those whose process dies"
    add("--wait", action="store_true", help=text)
    text = "seconds without a heartbeat after which a process elsewhere counts as dead; default: 60"
    add("--patience", type=types.seconds, default=60.0, metavar="S", help=text)
    text = "deaths of its process in a row, without a checkpoint between them, after which a run has failed; default: 5"
    add("--attempts", type=types.count, default=5, metavar="N", help=text)
    text = "write live curves as well, to live in its folder, for TensorBoard or Weights & Biases"
    add("--log", choices=FORMATS, default="", help=text)
    text = "train each model in several processes, one on each host: where process 0 listens"
    add("--coordinator", type=types.coordinator, metavar="HOST:PORT", help=text)
    text = "how many processes there are; default: as the cluster says, as tasks of a SLURM step"
    add("--processes", type=types.count, metavar="N", help=text)
    text = "which one this is, from 0; default: as the cluster says"
    add("--process-id", type=types.index, metavar="I", help=text)
