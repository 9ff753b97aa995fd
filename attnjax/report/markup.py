"""Safe HTML: the one function that makes elements escapes every text.

element("td", name, title=ids)      name and ids are text, whatever they contain
element("tr", [cell, cell])         what `element` returned is markup already
"""

import html
import json
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, TypeAlias

VOID = ("br", "col", "circle", "line", "meta", "path", "rect")
"""Elements without an end tag, or, in SVG, that close themselves."""


class Markup(str):
    """Text that is HTML already. Only this module makes it, and the templates of the page."""

    __slots__ = ()


Content: TypeAlias = "str | Iterable[Content] | None"


def content(value: Content) -> Markup:
    """Any content as HTML: text escaped, markup as it is, several things one after the other, None as nothing."""
    if value is None:
        return Markup("")
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return Markup(html.escape(value, quote=True))
    return Markup("".join(map(content, value)))


def element(tag: str, *children: Content, **attributes: str | int | float | bool | None) -> Markup:
    """`<tag attributes>children</tag>`. In names of attributes "_" stands for "-", and one at the end is dropped
    (class_).

    An attribute that is None or False is left out, and one that is True has no value.
    """
    given = [(name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items()]
    shown = "".join(
        f" {name}" if value is True else f' {name}="{content(str(value))}"'
        for name, value in given
        if value is not None and value is not False
    )
    if tag in VOID and not children:
        return Markup(f"<{tag}{shown}/>")
    return Markup(f"<{tag}{shown}>{content(children)}</{tag}>")


def script_json(value: Any) -> Markup:
    """A value as JSON that can stand inside a script element: nothing in it can end that element or begin a comment."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def table(
    header: Iterable[Content],
    rows: Iterable[Iterable[Content]],
    label: str,
    sources: Iterable[str | None] = (),
    **attributes: str,
) -> Markup:
    """A table that scrolls by itself on a narrow screen. The first cell of a row names it; a cell may be a `td`.

    `sources` says, row by row, which records the numbers were made from; it is shown under the pointer.
    """
    head = element("thead", element("tr", [element("th", cell, scope="col") for cell in header]))
    titled = zip_longest(rows, sources)
    body = element("tbody", [element("tr", table_cells(row), title=source) for row, source in titled])
    inner = element("table", head, body, **attributes)
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=label)


def table_cells(row: Iterable[Content]) -> Iterable[Markup]:
    """The cells of a row, wrapped where they are not `td` yet."""
    for place, cell in enumerate(row):
        if isinstance(cell, Markup) and cell.startswith("<td"):
            yield cell
        else:
            yield element("td", cell) if place else element("th", cell, scope="row")
