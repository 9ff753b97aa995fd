"""Brackets and names of small sources: offsets counted by hand, as bytes."""

import ast
import sys
import tokenize

import pytest

from experiments.head_specialization.names import name_links
from experiments.head_specialization.source import Lines, Link, bracket_links, inside, parse


def brackets(text: str) -> list[tuple[int, int]]:
    """(closing byte, opening byte) of every pair."""
    links = bracket_links(text.encode())
    assert all(link.stop == link.start + 1 for link in links)
    return [(link.row, link.start) for link in links]


def names(text: str | bytes) -> list[tuple[int, int, int]]:
    data = text.encode() if isinstance(text, str) else text
    return [tuple(link) for link in name_links(data, parse(data))]


def linked(text: str) -> list[tuple[str, int, int]]:
    """(name, its number among all occurrences of the name's letters, that of its definition)."""
    data, found = text.encode(), []
    for row, start, stop in names(text):
        word = data[start:stop]
        assert data[row + 1 - len(word) : row + 1] == word
        found.append((word.decode(), data[: row + 1].count(word), data[:stop].count(word)))
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(a[0])\n", [(5, 3), (6, 1)]),
        ("x = {1: (2, 3)}\n", [(13, 8), (14, 4)]),
        ("f('(', \")]\")  # (((\n", [(11, 1)]),
        ("f('''(\n(''')\n", [(11, 1)]),
        ("f(\n  b'(',\n)\n", [(11, 1)]),
        # "ä" is two bytes and "€" three, in a string, a name and a comment before the brackets.
        ("ä = '€'; g(ä)\n", [(16, 13)]),
        ("# €€\nf()\n", [(11, 10)]),
        ("x = f'({a[0]})' + g()\n", [(20, 19)]),
        ("x = rf'{a!r:{b(1)}}', (f'{{' 'x')\n", [(32, 22)]),
        ("\ufeff(1)\n", [(5, 3)]),
        ("a = (\r\n  1)\r\n", [(10, 4)]),
        ("\x0c\n(1)", [(4, 2)]),
        ("", []),
    ],
)
def test_brackets_by_hand(text, expected):
    assert brackets(text) == expected
    for closing, opening in expected:
        pair = text.encode()[opening : opening + 1] + text.encode()[closing : closing + 1]
        assert pair in (b"()", b"[]", b"{}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # use (last byte), definition (first byte, byte behind)
        ("ab = 1\nab\n", [(8, 0, 2)]),
        ("ä = 1\nä\n", [(8, 0, 2)]),
        ("'€'; a = 1; a\n", [(14, 7, 8)]),
        ("\ufeffa = 1\na\n", [(9, 3, 4)]),
        ("def f(x, y=1):\n    return x\n", [(26, 6, 7)]),
        ("import os\nos.sep\n", [(11, 7, 9)]),
        ("a = 1\r\na\r\n", [(7, 0, 1)]),
    ],
)
def test_names_by_hand(text, expected):
    assert names(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\nx = x + 1\nx\n", [("x", 3, 1), ("x", 4, 2)]),
        ("x = y = 1\ny\nx\n", [("y", 2, 1), ("x", 2, 1)]),
        ("q: int = 1\nq\n", [("q", 2, 1)]),
        ("q: int\nq\n", []),
        ("q = 1\nq += 1\nq\n", [("q", 3, 2)]),
        ("for q in [q for q in p]:\n    q\n", [("q", 4, 1)]),
        ("for q in p:\n    q\n", [("q", 2, 1)]),
        ("with p as q:\n    q\n", [("q", 2, 1)]),
        ("try:\n    pass\nexcept (A, B) as q:\n    q\n", [("q", 2, 1)]),
        ("try:\n    pass\nexcept (A) as q:\n    q\n", [("q", 2, 1)]),
        ("if (q := p) and q:\n    q\n", [("q", 2, 1), ("q", 3, 1)]),
        ("from p import z as q, w\nq; w\n", [("q", 2, 1), ("w", 2, 1)]),
        ("import z.q as p, w.v\nw; p\n", [("w", 2, 1), ("p", 3, 2)]),
        ("from p import *\n", []),
        ("def q():\n    pass\nq()\n", [("q", 2, 1)]),
        ("@p\nasync def  q():\n    pass\nq()\n", [("q", 2, 1)]),
        ("class Q(Q):\n    pass\nQ\n", [("Q", 3, 1)]),
        ("def g(q, *z, w=1, **v):\n    q, z, w, v\n", [("q", 2, 1), ("z", 2, 1), ("w", 2, 1), ("v", 2, 1)]),
        # A parameter's default is read around the function.
        ("q = 1\ndef g(q=q):\n    q\n", [("q", 3, 1), ("q", 4, 2)]),
        # Other scopes are not linked: a function does not see the names of its module here.
        ("q = 1\ndef g():\n    return q\n", []),
        ("class G:\n    q = 1\n    w = q\n    def v(p):\n        q\n", [("q", 2, 1)]),
        ("q = 1\ndef g():\n    global q\n    q = 2\n    q\nq\n", [("q", 5, 1)]),
        # Comprehensions and lambdas: their own names inside, those of the scope around them otherwise.
        ("q = w = 1\n[q for z in w if z]\n", [("q", 2, 1), ("w", 2, 1), ("z", 2, 1)]),
        ("q = 1\n[q for q in p]\nq\n", [("q", 4, 1)]),
        ("{q: v for q in p for v in q if v}\n", [("q", 3, 2), ("v", 3, 2)]),
        ("q = 1\nlambda v: v + q\n", [("v", 2, 1), ("q", 2, 1)]),
        ("lambda q: [q for v in p]\n", [("q", 2, 1)]),
        ("[(q := v) for v in p]\nq\n", [("q", 2, 1)]),
        # Use before definition, attributes, keywords and f-strings are no uses of a name defined before.
        ("q\nq = 1\n", []),
        ("q = 1\np.q\nf(q=2)\nf'{q}'\n", []),
        ("self = 1\nself.q = self\n", [("self", 2, 1), ("self", 3, 1)]),
        ("del q\n", []),
    ],
)
def test_definitions(text, expected):
    assert linked(text) == expected


def test_letters_that_python_normalises_are_left_out():
    # The ligature fi is read as the letters f and i: the bytes of use and definition differ from the name.
    assert names("\ufb01 = 1\nfi\n") == []


def test_lines_count_bytes():
    lines = Lines("a\nä€b\r\n\n".encode())
    assert lines.starts == [0, 2, 10, 11]
    assert lines.character(2, 2) == 7
    assert lines.byte(2, 5) == 7
    assert Lines(b"").starts == [0, 0]


def test_links_inside_a_window():
    links = [Link(9, 3, 4), Link(6, 2, 5), Link(12, 8, 9)]
    assert inside(links, 3, 10) == [Link(6, 0, 1)]
    assert inside(links, 2, 13) == [Link(7, 1, 2), Link(4, 0, 3), Link(10, 6, 7)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"def f(:\n", "is no Python: .*line 1"),
        (b"if x:\npass\n", "is no Python: expected an indented block"),
        (b"x = '\xff'\n", "is no Python"),
        (b"# coding: latin-1\nx = 1\n", "is written in iso-8859-1, not UTF-8"),
        (b"x = 1\0\n", "null bytes"),
        (b"(" * 3000 + b")" * 3000, "is no Python: too many nested parentheses|is too deeply nested"),
    ],
)
def test_what_is_no_python_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        parse(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"(]\n", r"is no Python|has a '\]' on line 1 that closes nothing"),
        (b"x)\n", r"is no Python|has a '\)' on line 1 that closes nothing"),
        (b"(\n", "is no Python"),
        (b"a\rb", "has a carriage return that ends no line"),
    ],
)
def test_brackets_that_do_not_match_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        bracket_links(data)


def test_an_escape_that_python_warns_of_is_read():
    assert names("a = '\\d'\na\n") == [(9, 0, 1)]


def test_every_name_and_bracket_of_this_module_is_where_it_says():
    """A longer source: links join equal words, and brackets that fit; nothing is linked forwards."""
    for module in (sys.modules[__name__], ast, tokenize):
        with open(module.__file__, "rb") as file:
            data = file.read()
        for row, start, stop in names(data):
            assert data[start:stop] == data[row + 1 - (stop - start) : row + 1]
            assert stop <= row
        pairs = bracket_links(data)
        assert {data[link.start : link.stop] + data[link.row : link.row + 1] for link in pairs} <= {b"()", b"[]", b"{}"}
        assert len(pairs) > 100
