"""The page: one HTML file with the look and the content security policy of a report, and the scripts of `web/` inside.

It asks the network for nothing, and could not. What comes from runs stands in a JSON block that no browser runs; the scripts
make it text nodes.
"""

from importlib import resources
from string import Template
from typing import Any

from attnjax.explore.contents import Explored, table
from attnjax.report import page as report
from attnjax.report.markup import Markup, content, element, script_json

SCRIPTS = (
    "math",
    "positions",
    "words",
    "forward",
    "widgets",
    "tables",
    "cards",
    "notebook",
    "maps",
    "scores",
    "panel",
    "curves",
    "main",
)
"""In the order in which they are joined: what a file calls while it loads stands before it."""
TITLE = "Attention, to play with"


def page(runs: tuple[Explored, ...] = (), layer: int = 0, head: int = 0) -> str:
    """The page with the notebook, and the runs if there are any; `layer` and `head`, from 0, are shown first."""
    return render(table(runs, layer, head))


def render(data: dict[str, Any]) -> str:
    """The page around what its script reads."""
    style, code = stylesheet(), script()
    return Template(report.read("page.html")).substitute(
        policy=report.policy(style, code),
        title=content(TITLE),
        style=style,
        body=content([element("main", body(bool(data["runs"])))]),
        data=script_json(data),
        script=code,
    )


def stylesheet() -> str:
    """The style of reports, the colours of the encodings, and what only this page has."""
    return report.read("page.css") + report.colors() + read("explore.css")


def script(names: tuple[str, ...] = SCRIPTS) -> str:
    """These files of `web/` as one strict script."""
    return '"use strict";\n' + "\n".join(read(f"{name}.js") for name in names)


def read(name: str) -> str:
    """A file of `web/`."""
    return resources.files("attnjax.explore").joinpath("web", name).read_text(encoding="utf-8")


def body(with_runs: bool) -> list[Markup]:
    """The parts that stand there before the script runs."""
    parts = [
        element("h1", TITLE),
        element(
            "p",
            "A softmax of products of queries and keys says how much each token takes from each other. Everything below is "
            "computed in this page, in double precision, by the formulas of attnjax.",
        ),
        element("noscript", element("p", "This page computes in the browser and needs JavaScript.", class_="notes")),
    ]
    if with_runs:
        links = [element("li", element("a", text, href=f"#{name}")) for name, text in _PLACES]
        parts.append(element("nav", element("ul", links), aria_label="Parts of the page"))
    parts += [
        element("h2", "Four words, two heads", id="words"),
        element(
            "p",
            "Channels 0 and 1 of X tell cat from sat; channels 2 and 3 tell The from down. The line between them is where X is "
            "split into heads. Queries and values are X itself, keys are X\u00a0W_K. Edit the words, move them, change W_K: a "
            "word that is not one of the four gets a vector of its own, always the same.",
        ),
        element("div", id="notebook"),
    ]
    if with_runs:
        parts += [
            element("h2", "Trained runs", id="trained"),
            element(
                "p",
                "Rows of a map are queries, columns are keys. Point at a map, tap it, or use its arrow keys, with Shift for "
                "eight tokens at a time. Choose a head in the grid of scores, or below its map, to see it. Layers and heads "
                "count from 0. The texts were chosen when the page was made: attnjax explore RUN --text TEXT.",
            ),
            element("div", id="runs"),
        ]
    return parts


_PLACES = (("words", "Four words, two heads"), ("trained", "Trained runs"))
