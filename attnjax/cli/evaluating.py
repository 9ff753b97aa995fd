"""The verb `evaluate`: a suite of tasks, or the perplexity of a text, for a trained run or a published model."""

import argparse
import json
import pathlib
from typing import Any

from attnjax import safety
from attnjax.cli.compilation_cache import keep_programs
from attnjax.config.names import EXTENSION_NAMES, check_name
from attnjax.config.outside import import_modules
from attnjax.config.overrides import read_value, split_override
from attnjax.records.runs import read_config
from attnjax.sweep import find_run
from attnjax.sweep.find import RUNS

LENGTHS = (1024, 2048, 4096)
"""What is measured unless lengths are given; of a run with a task of its own, the lengths of its tests."""
NEEDS = (("stride", "perplexity"), ("bos", "perplexity"), ("option", "extend"), ("trained", "extend"))
"""Options that say more about another one."""
OF_TEXTS = (("tasks", None), ("perplexity", None), ("extend", None), ("seed", 0))
"""Options about texts, with what they are where they are not given."""
Rows = list[dict[str, Any]]


def evaluate(arguments: argparse.Namespace) -> int:
    """`attnjax evaluate MODEL_OR_RUN --lengths 1k,2k,4k`."""
    import_modules(arguments.imports)
    _check_options(arguments)
    keep_programs()
    from attnjax.evaluation import suite, text_model
    from attnjax.tasks import Text
    from attnjax.train.loop import make_task

    folders = (pathlib.Path(arguments.model), RUNS / arguments.model)
    published = next((one for one in folders if text_model.is_published(one)), None)
    place = published or find_run(arguments.model)
    if published or isinstance(make_task(read_config(place)), Text):
        told, rows = _of_texts(arguments, place)
    else:
        _refuse_text_options(arguments)
        rows = suite.own_task(place, arguments.lengths or read_config(place).evaluate.lengths, arguments.samples)
        told = [f"{place.name} on its own task:\n\n{suite.table(rows)}"]
    name = place.name if arguments.extend is None else f"{place.name}-{arguments.extend}"
    return _write(arguments.out or pathlib.Path("evaluated") / name, "\n\n".join(told), rows)


def _of_texts(arguments: argparse.Namespace, place: pathlib.Path) -> tuple[list[str], Rows]:
    """Returns the tables and rows of a model that reads texts."""
    from attnjax.evaluation import perplexity, suite, text_model

    subject, lengths, text = text_model.load(place), arguments.lengths or LENGTHS, None
    part = ""
    if arguments.perplexity is not None:
        data, part = perplexity.read_source(arguments.perplexity, subject.trained_on)
        text = perplexity.tokens_of(subject, data)
    if arguments.extend is not None:
        options = {key: read_value(value, Any) for key, value in map(split_override, arguments.option)}
        subject = text_model.read_past(subject, arguments.extend, max(lengths), trained=arguments.trained, **options)
    told, rows = [], []
    if text is None or arguments.tasks:
        rows += suite.evaluate(
            subject, lengths, arguments.tasks or tuple(suite.TASKS), number=arguments.samples, seed=arguments.seed
        )
        told.append(suite.suite_table(subject.name, rows))
    if text is not None:
        options = {"stride": arguments.stride, "each_window": arguments.bos == "every"}
        measured = [perplexity.at_length(subject, text, length, **options) for length in lengths]
        title = f"Perplexity of {arguments.perplexity} under {subject.name}{part and ': '}{part}.\n"
        told.append(f"{title}\n{suite.table(measured)}")
        rows += measured
    if all("problem" in row for row in rows):
        reasons = "; ".join(dict.fromkeys(row["problem"] for row in rows))
        raise ValueError(f"nothing could be measured: {reasons}")
    return [*told, *([subject.note] if subject.note else [])], rows


def _check_options(arguments: argparse.Namespace) -> None:
    """Raises ValueError for options that do not fit together."""
    for name, other in NEEDS:
        if getattr(arguments, name) and getattr(arguments, other) is None:
            raise ValueError(f"--{name} needs --{other}")
    smallest = min(arguments.lengths or LENGTHS)
    if arguments.stride is not None and arguments.stride >= smallest:
        raise ValueError(f"--stride must be below every length, the smallest is {smallest}, got {arguments.stride}")
    if arguments.extend is not None:
        check_name("--extend", arguments.extend.partition("+")[0], EXTENSION_NAMES)


def _refuse_text_options(arguments: argparse.Namespace) -> None:
    """Raises ValueError for options that are about texts, where the run has a task of its own."""
    for name, unset in OF_TEXTS:
        if getattr(arguments, name) != unset:
            raise ValueError(
                f"--{name} is for models that read text; {arguments.model} was trained on another task, at which it is measured"
            )


def _write(out: pathlib.Path, table: str, rows: Rows) -> int:
    """Prints the table, and writes it and the rows to a folder."""
    safety.write_all(out, {"table.md": f"{table}\n", "scores.json": json.dumps(rows, indent=1) + "\n"})
    print(table)
    print(f"\n{out}: table.md, scores.json")
    return 0
