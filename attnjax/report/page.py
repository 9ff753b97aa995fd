"""One self-contained HTML page: charts, tables, method, configs and what was skipped, readable for years from one file.

It makes no network request, and could not: its content security policy allows the one style and the one script
whose hashes it names, and nothing else. Style and script are the same for every report but for the colours; what comes
from records stands in elements made by `markup`, or in a JSON block that no browser runs.
"""

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from string import Template

from attnjax.report import appendix, charts, sections
from attnjax.report.charts import Chart
from attnjax.report.markup import Markup, content, element, script_json
from attnjax.report.metrics import Metric
from attnjax.report.scales import length_scale, value_scale
from attnjax.report.style import color_classes
from attnjax.report.summary import Positions, Summary, Task, is_cut, levels_of, positions_of


def page(
    summary: Summary, links: Mapping[str, str], published: Markup | None = None, tuning: Markup | None = None
) -> str:
    """The page. `links` leads from the id of a run to its folder; `published` and `tuning` are sections before the method."""
    drawn = {chart.name: chart for number, task in enumerate(summary.tasks) for chart in task_charts(number, task)}
    figures = {name: charts.figure(chart) for name, chart in drawn.items()}
    more = [("published", "Published")] * (published is not None) + [("tuning", "Tuning")] * (tuning is not None)
    body = [sections.header(summary), sections.navigation(summary, more), sections.glance(summary)]
    body += [sections.task(number, task, figures, links) for number, task in enumerate(summary.tasks)]
    body += [sections.overall(summary), published, tuning, appendix.method(), appendix.protocol(summary.sweep)]
    body += [appendix.configs(summary.sweep), appendix.manifests(summary.sweep)]
    body += [appendix.runs(summary, links), appendix.skipped(summary.sweep)]
    style, script = read("page.css") + colors(), read("page.js")
    return Template(read("page.html")).substitute(
        policy=policy(style, script),
        title=content(summary.sweep.name),
        style=style,
        body=content([element("main", body)]),
        data=script_json({name: charts.data(chart) for name, chart in drawn.items()}),
        script=script,
    )


def read(name: str) -> str:
    """The text of a file in the folder of this module."""
    return resources.files("attnjax.report").joinpath(name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """The content security policy: this style, this script, no network, no forms."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    allowed = "style-src 'sha256-{}'; script-src 'sha256-{}'".format(*hashes)
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def colors() -> str:
    """The colours of the encodings on a light and on a dark screen."""
    looks = color_classes().items()
    light = "".join(f".{name} {{ --c: {look.color}; }}\n" for name, look in looks)
    dark = "".join(f"  .{name} {{ --c: {look.dark}; }}\n" for name, look in looks)
    return f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


def task_charts(number: int, task: Task) -> list[Chart]:
    """The charts of one task: every metric against length, loss and accuracy by position, and the training loss."""
    found = [length_chart(f"t{number}-m{place}", task, metric) for place, metric in enumerate(task.metrics)]
    for name, positions in positions_of(task).items():
        found.append(position_chart(f"t{number}-positions-{name}", task, name, positions))
    if any(len(curve.x) for curve in task.learning):
        found.append(learning_chart(f"t{number}-learning", task))
    return found


def length_chart(name: str, task: Task, metric: Metric) -> Chart:
    """One metric against length."""
    curves = tuple(row.curve for row in task.rows[metric.key])
    lengths = task.rows[metric.key][0].scored.lengths
    levels = levels_of(task, metric)
    values = [float(x) for curve in curves for ends in (curve.low, curve.high) for x in ends]
    values += [float(x) for at in task.baselines.get(metric.key, {}).values() for x in at]
    return Chart(
        name=name,
        title=f"{task.panel.label}: {metric.label}",
        x=length_scale("length", lengths, charts.LEFT, charts.RIGHT, task.panel.trained[1]),
        y=value_scale(metric.short, values, charts.BOTTOM, charts.TOP, share=metric.share),
        curves=curves,
        longest=task.panel.trained[1],
        levels=tuple((name, tuple(zip(lengths, map(float, at), strict=True))) for name, at in levels.items()),
        grey=task.unfitted,
        cut=is_cut(metric),
    )


def position_chart(name: str, task: Task, metric: str, positions: Positions) -> Chart:
    """The loss or accuracy at each position of the longest windows."""
    curves = tuple(curve for _, curve in positions.curves)
    places = sorted({float(x) for curve in curves for x in curve.x})
    values = [float(x) for curve in curves for ends in (curve.low, curve.high) for x in ends]
    return Chart(
        name=name,
        title=f"{task.panel.label}: {metric} by position in windows of {positions.length}",
        x=length_scale("position", places, charts.LEFT, charts.RIGHT),
        y=value_scale(metric, values, charts.BOTTOM, charts.TOP, share=False),
        curves=curves,
        longest=task.panel.trained[1],
        grey=frozenset(number for number, (place, _) in enumerate(positions.curves) if place in task.unfitted),
    )


def learning_chart(name: str, task: Task) -> Chart:
    """The training loss against steps."""
    steps = sorted({float(x) for curve in task.learning for x in curve.x})
    values = [float(x) for curve in task.learning for ends in (curve.low, curve.high) for x in ends]
    x = length_scale("step", steps, charts.LEFT, charts.RIGHT)
    y = value_scale("training loss", values, charts.BOTTOM, charts.TOP, share=False)
    return Chart(name, f"{task.panel.label}: training loss", x, y, task.learning)
