"""Writes the page: one HTML file with the style and the content security policy of a report, and the scripts of `web/`.

Its policy forbids every network request. Data from runs is in a JSON block, which no browser executes; the scripts turn it
into text nodes.
"""

import importlib
import json
import pathlib
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any

from attnjax import safety
from attnjax.explore.contents import Explored, table
from attnjax.report import page as report

SCRIPTS = ("math", "forward", "widgets", "cards", "notebook", "maps", "scores", "panel", "main")
"""In the order in which they are joined: a file comes after the files whose functions it calls while it loads."""
TITLE = "Attention, interactively"
MOST_RUNS = 2
FOR_RUNS = ("nav", "trained")
"""Parts of the body that are there with runs alone."""


def build(
    runs: Sequence[str | pathlib.Path] = (),
    out: str | pathlib.Path = "explore.html",
    texts: Sequence[bytes] = (),
    layer: int = 0,
    head: int = 0,
) -> pathlib.Path:
    """Writes the page, with up to two trained runs, each shown on `texts` or on held-out examples; returns its path.

    Without runs JAX is not imported. Raises ValueError for more than two runs, texts without a run, runs that cannot be
    shown (see `run.explore`); OSError for a file that cannot be written.
    """
    if len(runs) > MOST_RUNS:
        raise ValueError(f"explore compares at most {MOST_RUNS} runs, got {len(runs)}")
    if not runs and (texts or layer or head):
        raise ValueError("a text, a layer and a head are for trained runs: give the folder of a run")
    out = pathlib.Path(out)
    explore = lambda run: importlib.import_module("attnjax.explore.run").explore(pathlib.Path(run), texts, layer, head)
    found = tuple(map(explore, runs))
    out.parent.mkdir(parents=True, exist_ok=True)
    safety.write(out.parent.resolve() / out.name, page(found, layer, head).encode(), durable=False)
    return out


def page(runs: tuple[Explored, ...] = (), layer: int = 0, head: int = 0) -> str:
    """Returns the page with four words to edit, and the runs if there are any; `layer` and `head`, from 0, are shown first."""
    style, code = stylesheet(), script()
    return Template(read("page.html")).substitute(
        policy=report.policy(style, code),
        title=TITLE,
        style=style,
        body=Template(read("body.html")).substitute({name: read(f"{name}.html") if runs else "" for name in FOR_RUNS}),
        data=script_json(table(runs, layer, head)),
        script=code,
    )


def stylesheet() -> str:
    """Returns the style of reports and the style of this page."""
    return report.read("page.css") + read("explore.css")


def script_json(value: Any) -> str:
    """Returns a value as JSON that can stand inside a script element: nothing in it can end that element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script(names: tuple[str, ...] = SCRIPTS) -> str:
    """Returns these files of `web/`, joined to one script in strict mode."""
    return '"use strict";\n' + "\n".join(read(f"{name}.js") for name in names)


def read(name: str) -> str:
    """Returns the text of a file of `web/`."""
    return resources.files("attnjax.explore").joinpath("web", name).read_text(encoding="utf-8")
