"""The page: one HTML file with the style and the content security policy of a report, and the scripts of `web/`.

Its policy forbids every network request. Data from runs is in a JSON block, which no browser executes; the scripts turn it
into text nodes.
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
"""In the order in which they are joined: a file comes after the files whose functions it calls while it loads."""
TITLE = "Attention, interactively"


def page(runs: tuple[Explored, ...] = (), layer: int = 0, head: int = 0) -> str:
    """The page with four words to edit, and the runs if there are any; `layer` and `head`, from 0, are shown first."""
    return render(table(runs, layer, head))


def render(data: dict[str, Any]) -> str:
    """The page with this data for its script."""
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
    """The style of reports, the colours of the encodings, and the style of this page."""
    return report.read("page.css") + report.colors() + read("explore.css")


def script(names: tuple[str, ...] = SCRIPTS) -> str:
    """These files of `web/`, joined to one script in strict mode."""
    return '"use strict";\n' + "\n".join(read(f"{name}.js") for name in names)


def read(name: str) -> str:
    """The text of a file of `web/`."""
    return resources.files("attnjax.explore").joinpath("web", name).read_text(encoding="utf-8")


def body(with_runs: bool) -> list[Markup]:
    """The parts of the page that do not need the script."""
    parts = [
        element("h1", TITLE),
        element(
            "p",
            "Attention weights are a softmax of the products of queries and keys. The page computes the example below itself, "
            "in double precision, by the formulas of attnjax.",
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
            "Channels 0 and 1 of X distinguish cat from sat; channels 2 and 3 distinguish The from down. The line between "
            "them shows where X is split into heads. Queries and values are X itself, keys are X\u00a0W_K. Edit the words, "
            "move them or change W_K. Each other word has a random vector, which is always the same for the same word.",
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
