"""The command `attnjax evaluate`: a suite of tasks for a trained run or a published model, as a table and a figure."""

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from attnjax import registry
from attnjax.cli.commands import provided
from attnjax.cli.compilation_cache import keep_programs
from attnjax.config.outside import import_modules
from attnjax.records.runs import read_config
from attnjax.sweep.find import find_run

LENGTHS = (1024, 2048, 4096)
"""What is measured unless lengths are given; of a run with a task of its own, the lengths of its tests."""
TRAINED = (4096, 64, 1024, 2**15, 2**18)
"""Trained lengths at which the options of a method are tried where none is given."""
BITS = "bits per byte"
"""The panel of a text's perplexity."""
SHARE = "share"
"""The panel of a run on a task of its own."""
ASKED = ("niah_single_1",)
"""What is asked at several depths."""
SERIES = (("o", "#074a8d"), ("s", "#9a3104"), ("^", "#049f69"), ("D", "#733cb3"), ("v", "#91612b"), ("P", "#037a84"))
"""Marker and colour of each task in turn."""


def evaluate(arguments: argparse.Namespace) -> int:
    """`attnjax evaluate MODEL_OR_RUN --suite long --lengths 1k,2k,4k`."""
    import_modules(arguments.imports)
    given, arguments.lengths = arguments.lengths, arguments.lengths or LENGTHS
    _check_stride(arguments)
    if arguments.depths and arguments.tasks and tuple(arguments.tasks) != ASKED:
        raise ValueError(f"--depths asks {', '.join(ASKED)} alone: leave out --tasks")
    provided("attnjax.report.drawing", "check_library")()
    keep_programs()
    from attnjax.long import own_task, perplexity, sources, subjects, suite

    extension = _extension(arguments)
    place = pathlib.Path(arguments.model) if subjects.is_published(arguments.model) else find_run(arguments.model)
    out = arguments.out or pathlib.Path("evaluated") / _name(place, arguments.extend)
    number = arguments.samples
    if not subjects.is_published(place) and not own_task.is_on_text(place):
        _refuse_text_options(arguments)
        records = own_task.at_lengths(place, given or read_config(place).evaluate.lengths, number)
        name = place.name
        curves = {
            str(metric): {int(one["length"]): float(one["value"]) for one in records if one["metric"] == metric}
            for metric in dict.fromkeys(one["metric"] for one in records)
            if not str(metric).startswith("loss")
        }
        return _write(out, own_task.table(name, records), records, {SHARE: curves})
    subject = subjects.of_path(place)
    words = sources.haystack(arguments.haystack, subject.trained_on)
    if extension is not None:
        subject = subjects.read_past(subject, extension, _searched_on(arguments, subject))
    options: dict[str, Any] = {"number": number, "seed": arguments.seed, "shots": arguments.shots, "haystack": words}
    text, part, tables, rows = None, "", [], []
    if arguments.perplexity is not None:
        data, part = sources.read_source(arguments.perplexity, subject.trained_on)
        text = perplexity.tokens_of(subject, data)
    if arguments.depths:
        depths = [i / max(arguments.depths - 1, 1) for i in range(arguments.depths)]
        at_depth = lambda depth: suite.evaluate(subject, arguments.lengths, ASKED, depth=depth, **options)
        rows = [{"depth": depth, **_row(one)} for depth in depths for one in at_depth(depth)]
        tables.append(_depth_table(rows))
    elif text is None or arguments.suite or arguments.tasks:
        scores = suite.evaluate(subject, arguments.lengths, arguments.tasks or suite.TASKS, **options)
        rows = [_row(one) for one in scores]
        tables.append(suite.table(subject.name, scores))
    if text is not None:
        told = [_of_text(subject, *text, n, arguments.stride) for n in arguments.lengths]
        title = f"Perplexity of {arguments.perplexity} under {subject.name}{part and ': '}{part}."
        tables.append(f"{title}\n\n{_perplexity_table(told)}")
        rows += told
    if subject.note:
        tables.append(subject.note)
    return _write(out, "\n\n".join(tables), rows, _curves(rows))


def _check_stride(arguments: argparse.Namespace) -> None:
    """Raise ValueError for a stride without a text, or one that is too large for a length."""
    if arguments.stride is not None and arguments.perplexity is None:
        raise ValueError("--stride is that of the windows of --perplexity SOURCE, which is not given")
    if arguments.stride is not None and arguments.stride >= arguments.lengths[0]:
        raise ValueError(
            f"--stride must be below every length, the smallest is {arguments.lengths[0]}, got {arguments.stride}"
        )


def _of_text(subject: Any, tokens: Sequence[int], size: int, length: int, stride: int | None) -> dict[str, Any]:
    """The perplexity and LongPPL of a text at a length, or why the model cannot read it there."""
    from attnjax.long import perplexity, suite

    try:
        found = perplexity.perplexity(subject.losses, tokens, size, length, stride)
        long = suite.text_long_ppl(subject, tokens, length)
    except ValueError as error:
        return {"length": length, "problem": str(error)}
    names = ("nats_per_token", "bits_per_byte", "tokens_per_byte", "tokens", "bytes", "stride")
    return {"length": length, "ppl": found.perplexity, **{name: getattr(found, name) for name in names}, **long}


def _name(place: pathlib.Path, extend: str | None) -> str:
    """The folder of the results: the name of the model's folder, of a run its id, and of the method that extends it."""
    return place.name if extend is None else f"{place.name}-{extend}"


def _extension(arguments: argparse.Namespace) -> Any:
    """How the model is read past its trained length; None where it is read as it is.

    Raises ValueError for options that need --extend.
    """
    if arguments.extend is None:
        for name in ("option", "trained", "search"):
            if getattr(arguments, name):
                raise ValueError(f"--{name} needs --extend NAME")
        return None
    from attnjax.config.overrides import read_value, split_override
    from attnjax.long.extending import Extension

    pairs = [split_override(text) for text in arguments.option]
    options = {key: read_value(value, Any) for key, value in pairs}
    found = Extension(arguments.extend, max(arguments.lengths), arguments.trained, options)
    _check_method(found)  # before the model, which takes longer
    if arguments.search is not None and found.method.partition("+")[0] != "longrope":
        raise ValueError(f"--search is for the factors of --extend longrope, got --extend {found.method}")
    if arguments.search is not None and "factors" in options:
        raise ValueError("--search finds the factors of longrope, and --option factors gives them: say one of the two")
    return found


def _check_method(extension: Any) -> None:
    """Raise ValueError for an unknown method or option, and for sizes that fit together at no trained length."""
    from attnjax.long.methods import extended_encoding
    from attnjax.positions import RoPE

    head_dim, refused = None if "factors" in extension.options else 64, []
    for length in (extension.trained,) if extension.trained else TRAINED:
        try:
            extended_encoding(extension.method, RoPE(), length, 2.0, head_dim=head_dim, **extension.options)
        except ValueError as error:
            refused.append(error)
        else:
            return
    raise refused[0]


def _searched_on(arguments: argparse.Namespace, subject: Any) -> Sequence[int] | None:
    """The tokens by which factors of LongRoPE are searched; None without --search.

    Raises ValueError for the text that is measured, whose perplexity the factors would be fitted to.
    """
    if arguments.search is None:
        return None
    from attnjax.long import perplexity, sources

    measured = arguments.perplexity
    data, _ = sources.read_source(arguments.search, subject.trained_on, "train")
    if measured is not None and sources.overlap(arguments.search, measured, subject.trained_on):
        raise ValueError(
            f"--search must be another text than --perplexity, whose numbers it would be fitted to: {measured}"
        )
    return perplexity.tokens_of(subject, data)[0]


def _row(score: Any) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(score).items() if value not in (None, "")}


def _refuse_text_options(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options that are about texts, where the run has a task of its own."""
    unset_options = (("tasks", None), ("depths", None), ("perplexity", None), ("haystack", "noise"), ("shots", 1))
    for name, unset in (*unset_options, ("extend", None), ("suite", None), ("seed", 0)):
        if getattr(arguments, name) != unset:
            raise ValueError(
                f"--{name} is for models that read text; {arguments.model} was trained on another task, at which it is measured"
            )


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[int, float]]]:
    """The lines of each panel: task (or depth) -> length -> percent; without tasks, bits per byte of the text."""
    bits = {row["length"]: row["bits_per_byte"] for row in rows if "bits_per_byte" in row}
    if not any("task" in row or "depth" in row for row in rows):
        return {BITS: {"text": bits} if bits else {}}
    panels: dict[str, dict[str, dict[int, float]]] = {"generation": {}, "ranking": {}}
    for row in rows:
        task = row.get("task")
        label = registry.SUITES["long"][task].label if task is not None else None
        name = f"depth {100 * row['depth']:.0f} %" if "depth" in row else label
        for kind, curves in panels.items():
            if name is not None and kind in row:
                curves.setdefault(str(name), {})[row["length"]] = row[kind]
    return panels


def _depth_table(rows: Sequence[Mapping[str, Any]]) -> str:
    lengths = sorted({row["length"] for row in rows})
    cells = {(row["depth"], row["length"]): row for row in rows}
    shown = lambda one: f"{one['generation']:.1f} / {one['ranking']:.1f}" if "ranking" in one else "-"
    depths = sorted({row["depth"] for row in rows})
    lines = [[f"{100 * depth:.0f} %", *(shown(cells[depth, n]) for n in lengths)] for depth in depths]
    return _with_notes(["depth of the needle", *(f"{n:,}" for n in lengths)], lines, rows)


def _perplexity_table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = ["length", "stride", "perplexity", "nats per token", "bits per byte", "tokens per byte", "tokens counted"]
    names += ["bytes counted", "LongPPL", "share of key tokens", "windows of LongPPL"]
    lines = []
    for row in rows:
        if "problem" in row:
            lines.append([f"{row['length']:,}", *["-"] * (len(names) - 1)])
            continue
        rates = [f"{row[name]:.4f}" for name in ("nats_per_token", "bits_per_byte", "tokens_per_byte")]
        key = "none" if row["long_ppl"] is None else f"{row['long_ppl']:.4g}"
        share = "none" if row["key_tokens"] is None else f"{row['key_tokens']:.2%}"
        read = f"{row['windows_read']:,} of {row['windows']:,}"
        counts = [f"{row[name]:,}" for name in ("tokens", "bytes")]
        start = [f"{row[name]:,}" for name in ("length", "stride")]
        lines.append([*start, f"{row['ppl']:.4g}", *rates, *counts, key, share, read])
    return _with_notes(names, lines, rows)


def _with_notes(header: Sequence[str], lines: Sequence[Sequence[str]], rows: Sequence[Mapping[str, Any]]) -> str:
    """A table, and under it why some numbers are missing."""
    from attnjax.report.formatting import markdown_table

    notes = dict.fromkeys(f"Note: {row['problem']}." for row in rows if "problem" in row)
    return "\n".join([markdown_table(header, lines).rstrip(), *notes])


def _write(
    out: pathlib.Path,
    table: str,
    records: Sequence[Mapping[str, Any]],
    panels: Mapping[str, Mapping[str, Mapping[int, float]]],
) -> int:
    """Print the table, and write it, the records and the figure to a folder."""
    from attnjax.report.placing import placed

    with placed(out) as folder:
        (folder / "table.md").write_text(table + "\n", encoding="utf-8")
        (folder / "scores.json").write_text(json.dumps(list(records), indent=1) + "\n", encoding="utf-8")
        _draw(folder / "scores", panels)
    print(table)
    print(f"\n{out}: table.md, scores.json, scores.png, scores.svg")
    return 0


def _compared_with(kind: str) -> list[tuple[float, str, str]]:
    """The percentages that scores of a panel are compared with, each with a name and a dash."""
    from attnjax.long.scoring import THRESHOLD
    from attnjax.long.suite import CANDIDATES

    effective, guessing = (THRESHOLD, "effective", "--"), (100 / CANDIDATES, "guessing", ":")
    return {"generation": [effective], "ranking": [effective, guessing]}.get(kind, [])


def _draw(path: pathlib.Path, panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> None:
    import numpy as np

    from attnjax.report.drawing import length_axis, new_figure, plain, save, settings

    with settings():
        figure, axes = new_figure(4.8 * len(panels), 3.4, 1, len(panels))
        for axis, (kind, curves) in zip(axes, panels.items(), strict=True):
            for (marker, color), (name, points) in zip(
                SERIES * (1 + len(curves) // len(SERIES)), curves.items(), strict=False
            ):
                lengths = sorted(points)
                values, open_mark = [points[n] for n in lengths], {"marker": marker, "markerfacecolor": "none"}
                axis.plot(lengths, values, color=color, label=plain(name), **open_mark)  # equal scores are all seen
            every = sorted({n for points in curves.values() for n in points})
            length_axis(axis, np.asarray(every, float), 0)
            if kind != SHARE:  # the tasks of runs count length in units of their own
                axis.set_xlabel("length, tokens")
            axis.set_title(kind)
            if kind == BITS:  # no share: it has no largest value
                axis.set_ylim(bottom=0)
            else:
                whole = 100 if len(panels) > 1 else 1
                axis.set_ylim(-0.03 * whole, 1.03 * whole)
            axis.set_ylabel("percent right" if len(panels) > 1 else kind)
            for value, name, dash in _compared_with(kind):
                axis.axhline(value, color="#666666", lw=0.8, ls=dash, label=f"{name} ({value:g} %)")
        found = {
            label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if any(panels.values()):
            figure.legend(found.values(), found.keys(), fontsize=8, loc="outside lower center", ncols=4)
        save(figure, path)
