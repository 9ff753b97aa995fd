"""What the commands are called, what they take, and their help."""

import argparse
import pathlib
import re
from collections.abc import Callable
from typing import NoReturn

from attnjax.cli import checkout, commands, examples, execution, exploring, exporting, generating, kinds, listing
from attnjax.config.names import ENCODING_NAMES, nearest
from attnjax.sweep.export import FORMATS

TRAINER = "attnjax.train:train"


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
    top = Parser("attnjax", description=text, epilog=examples.EXAMPLES + examples.CODES, formatter_class=_Raw)
    top.add_argument("--traceback", action="store_true", help="show where in the code an error arose")
    add = top.add_subparsers(required=True, metavar="COMMAND").add_parser
    known = (
        _add_run,
        _add_sweep,
        _add_report,
        _add_list,
        _add_show,
        _add_bench,
        _add_explore,
        _add_export,
        _add_generate,
        _add_parity,
    )
    for one in known:
        one(add)
    return top


_Raw = argparse.RawDescriptionHelpFormatter
_Add = Callable[..., argparse.ArgumentParser]
"""Makes the parser of one command."""


def _add_run(add: _Add) -> None:
    run = add(
        "run", help="train and evaluate one config", epilog=examples.OVERRIDES + examples.RUN, formatter_class=_Raw
    )
    _add_config(run)
    _add_execution(run)
    run.set_defaults(command=execution.run)


def _add_sweep(add: _Add) -> None:
    sweep = add(
        "sweep",
        help="train and evaluate all runs of a sweep",
        epilog=examples.OVERRIDES + examples.SWEEP,
        formatter_class=_Raw,
    )
    _add_config(sweep)
    over = "one run per value, in place of what the sweep sets there; texts with commas in quotes, lists in brackets"
    sweep.add_argument("--over", action="append", default=[], metavar="KEY=A,B,...", help=over)
    sweep.add_argument(
        "--seeds", type=kinds.count, metavar="N", help="the seeds 0 .. N-1 of each cell, in place of the config's"
    )
    _add_execution(sweep)
    sweep.add_argument(
        "--workers", type=kinds.count, metavar="N", help="processes to train in; default: this one alone"
    )
    sweep.add_argument(
        "--threads", type=kinds.count, metavar="N", help="threads of each worker; default: cores / workers"
    )
    sweep.add_argument("--fail-fast", action="store_true", help="stop at the first run that fails")
    sweep.add_argument("--strict", action="store_true", help="exit with 1 if any run failed")
    sweep.add_argument("--extend", action="store_true", help="add the runs to another sweep in the folder")
    sweep.add_argument("--report", action="store_true", help="write figures, tables and a page in the end")
    text = "list the runs and how many are done, refuse what would be refused, and change nothing"
    sweep.add_argument("--dry-run", action="store_true", help=text)
    sweep.set_defaults(command=execution.sweep)


def _add_report(add: _Add) -> None:
    text = "figures, tables and a page from the records of a folder"
    report = add("report", help=text, description=text, epilog=examples.REPORT, formatter_class=_Raw)
    report.add_argument("folder", type=pathlib.Path, metavar="DIR", help="the folder of a sweep")
    report.add_argument("--out", type=pathlib.Path, metavar="DIR", help="where to write; default: DIR/report")
    report.add_argument("--published", action="store_true", help="set our cells beside the published ones")
    report.set_defaults(command=commands.report)


def _add_list(add: _Add) -> None:
    text = "list what there is: encodings, tasks, configs, or the runs in a folder"
    command = add("list", help=text, description=text, epilog=examples.LIST, formatter_class=_Raw)
    text = f"{', '.join(what for what, _, _ in listing.WHAT)}; left out: what can be listed"
    command.add_argument("what", nargs="?", choices=[what for what, _, _ in listing.WHAT], metavar="WHAT", help=text)
    text = "for runs: the folder of a sweep; for all else: one of them, to say more about it"
    command.add_argument("name", nargs="?", metavar="NAME", help=text)
    command.set_defaults(command=listing.list_)


def _add_show(add: _Add) -> None:
    text = "print the resolved config, its runs, and the model's size, without training"
    show = add("show", help=text, description=text, epilog=examples.OVERRIDES + examples.SHOW, formatter_class=_Raw)
    _add_config(show)
    show.add_argument("--no-model", action="store_true", help="leave out the model's size, which needs JAX")
    show.set_defaults(command=commands.show)


def _add_bench(add: _Add) -> None:
    text = "measure speed and memory against other libraries, on this machine, in one run"
    bench = add("bench", help=text, description=text, epilog=examples.BENCH, formatter_class=_Raw)
    bench.add_argument("suites", nargs="*", metavar="SUITE", help="what to measure, see --list; default: all")
    bench.add_argument("--list", action="store_true", help="list the suites and do nothing")
    bench.add_argument("--smoke", action="store_true", help="smallest sizes: agreement, bytes and programs, not times")
    bench.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder of results; default: runs/bench")
    bench.add_argument("--torch", metavar="PYTHON", help="interpreter of an environment that has PyTorch")
    bench.add_argument("--rounds", type=kinds.count, metavar="N", help="most rounds of a comparison; default: 15")
    bench.add_argument(
        "--seconds", type=kinds.seconds, metavar="S", help="time after which no new round starts; default: 30"
    )
    text = "write table and figure of the record in a folder again, without measuring"
    bench.add_argument("--render", type=pathlib.Path, metavar="DIR", help=text)
    bench.set_defaults(command=checkout.bench)


def _add_explore(add: _Add) -> None:
    text = "write a page to play with attention and to look into trained runs"
    explore = add("explore", help=text, description=text, epilog=examples.EXPLORE, formatter_class=_Raw)
    text = "one or two trained runs: folders, beginnings of hashes, NAME/ENCODING/SEED or NAME/KEY=VALUE,..., see below"
    explore.add_argument("runs", nargs="*", metavar="RUN", help=text)
    text = "a text to show, instead of held-out examples; may be given several times"
    explore.add_argument("--text", action="append", default=[], metavar="TEXT", help=text)
    text = "the same, from a file"
    explore.add_argument("--file", action="append", default=[], type=pathlib.Path, metavar="FILE", help=text)
    text = "import a module that runs name as package.module:Class, which executes its code"
    explore.add_argument("--import", action="append", default=[], dest="imports", metavar="MODULE", help=text)
    explore.add_argument("--layer", type=kinds.index, default=0, metavar="L", help="layer to show first, from 0")
    explore.add_argument("--head", type=kinds.index, default=0, metavar="N", help="head to show first, from 0")
    out = pathlib.Path("explore.html")
    explore.add_argument("--out", type=pathlib.Path, default=out, metavar="FILE", help="default: explore.html")
    explore.set_defaults(command=exploring.explore)


def _add_export(add: _Add) -> None:
    text = "write recorded runs for TensorBoard or Weights & Biases, to files on this machine"
    export = add("export", help=text, description=text, epilog=examples.EXPORT, formatter_class=_Raw)
    export.add_argument("run", metavar="RUN", help="the folder of a sweep, or one run as for `attnjax explore`")
    export.add_argument("--to", choices=FORMATS, required=True, help="whose format; each needs the extra of its name")
    out = pathlib.Path("exported")
    export.add_argument("--out", type=pathlib.Path, default=out, metavar="DIR", help="default: exported")
    export.set_defaults(command=exporting.export_)


def _add_generate(add: _Add) -> None:
    text = "go on with a text, by a published model in a folder"
    generate = add("generate", help=text, description=text, epilog=examples.GENERATE, formatter_class=_Raw)
    generate.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="config.json, weights and tokenizer.json")
    generate.add_argument("prompt", metavar="PROMPT", help="the text to go on with")
    generate.add_argument("--tokens", type=kinds.count, default=32, metavar="N", help="most tokens to add; default: 32")
    text = "draw tokens from softmax(logits / T); default: 0, the likeliest token"
    generate.add_argument("--temperature", type=kinds.temperature, default=0.0, metavar="T", help=text)
    generate.add_argument("--top-k", type=kinds.count, metavar="K", help="draw from the K likeliest only")
    generate.add_argument("--seed", type=kinds.seed, default=0, metavar="S", help="of the draws; default: 0")
    types = ("float32", "bfloat16", "float16")
    generate.add_argument("--dtype", choices=types, help="of parameters and activations; default: that of the files")
    text = "another positional encoding than the model's; weights are kept where they fit"
    generate.add_argument("--encoding", choices=ENCODING_NAMES, metavar="NAME", help=text)
    text = "an option of --encoding, such as theta=500000; may be given several times"
    generate.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help=text)
    generate.add_argument("--ids", action="store_true", help="PROMPT and answer are token ids; no tokenizer is needed")
    generate.set_defaults(command=generating.generate)


def _add_parity(add: _Add) -> None:
    text = "compare output, loss and gradients of a folder of weights with transformers"
    command = add("parity", help=text, description=text, epilog=examples.PARITY, formatter_class=_Raw)
    command.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="config.json and weights")
    command.add_argument(
        "--tokens", type=kinds.count, default=32, metavar="N", help="length of the sequence; default: 32"
    )
    command.add_argument("--seed", type=kinds.seed, default=0, metavar="S", help="of the random tokens; default: 0")
    text = "of both sides; default: float32"
    command.add_argument("--dtype", choices=("float32", "float64"), default="float32", help=text)
    text = "largest relative difference allowed; default: 1e-3"
    command.add_argument("--tolerance", type=kinds.tolerance, default=1e-3, metavar="X", help=text)
    command.set_defaults(command=checkout.parity)


def _add_config(command: argparse.ArgumentParser) -> None:
    text = "a .py or .json file, or a name from `attnjax list configs`; NAME:WORD where the config takes a word"
    command.add_argument("config", metavar="CONFIG", help=text)
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes of the config, see below")


def _add_execution(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder of results; default: runs/<name>")
    command.add_argument("--retry-failed", action="store_true", help="try runs again that failed before")
    command.add_argument("--population", type=kinds.count, metavar="N", help="most runs that train together")
    command.add_argument("--trainer", default=TRAINER, metavar="MODULE:FUNCTION", help="your own training function")
    text = "stay until runs that other processes train have ended; take over those whose process dies"
    command.add_argument("--wait", action="store_true", help=text)
    text = "seconds without a step after which the stacks of all threads are written; default: 600"
    command.add_argument("--patience", type=kinds.seconds, default=600.0, metavar="S", help=text)
