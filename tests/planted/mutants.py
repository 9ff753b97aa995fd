"""Makes bugs automatically: one expression or statement of the package is changed, as a slip of a programmer would.

The sites are chosen anew from the sources as they stand: of each folder a few kinds of bug, and one site of each kind, by the
sha256 of the seed, the folder, the function and the text of the site. A change elsewhere in a file moves no site.
"""

import ast
import copy
import hashlib
import pathlib
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

CORE = ("attention", "modules", "positions")
"""Folders with twice as many bugs."""
LARGEST = 8
"""Larger numbers are mostly sizes and limits, where one more or less changes nothing."""
NO_CODE = {"annotation", "returns", "decorator_list", "type_params"}
NO_NUMBER = re.compile(r"['\"]|^\[|folder|root|directory|path|here|temporary")
"""A sum of texts or lists, or a quotient that is the path of a file."""
HARMLESS = {"strict", "durable", "daemon", "indent", "stacklevel", "timeout", "maxsize", "keepdims", "prevent_cse"}
"""Keyword arguments whose value hardly changes a result."""
SYMMETRIC = {"isinstance", "issubclass", "getattr", "hasattr", "suppress", "max", "min", "maximum", "minimum", "gcd"}
"""Functions whose two arguments may change places, or cannot without a TypeError."""
REDUCTIONS = {"sum", "mean", "max", "min", "any", "all", "prod", "cumsum", "argmax", "argmin", "squeeze"}
AXES = {"0": "1", "1": "0", "2": "1", "-1": "-2", "-2": "-1", "-3": "-2"}
RETURNED = {"True": "False", "False": "True", "0": "1", "1": "0", "0.0": "1.0", "1.0": "0.0", "None": "0"}
RETURNED |= {"''": "' '", "()": "(0,)", "[]": "[0]", "{}": "{0: 0}"}
OPPOSITE = {"min": "max", "minimum": "maximum", "argmin": "argmax", "any": "all"}
OPPOSITE |= {value: key for key, value in OPPOSITE.items()}
OPERATORS = {
    "flipped sign": {ast.Add: ast.Sub, ast.Sub: ast.Add},
    "product for quotient": {ast.Div: ast.Mult},
    "and for or": {ast.And: ast.Or, ast.Or: ast.And},
    "strictness": {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    "reversed comparison": {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE},
    "negated comparison": {
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.In: ast.NotIn,
    },
}


class Bug(NamedTuple):
    """`text`: the source of `file`, below attnjax/, with the bug; None where the text to replace is not there once."""

    file: str
    kind: str
    breaks: str
    text: str | None


def mutants(package: pathlib.Path, seed: int, each: int) -> list[Bug]:
    """Returns `each` bugs of different kinds for each folder of the package, twice as many for those of `CORE`."""
    folders = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        if path.name != "__main__.py":
            folders[path.relative_to(package).parts[0] if path.parent != package else ""].append(path)
    return [bug for name in sorted(folders) for bug in _of_folder(package, name, folders[name], seed, each)]


def _of_folder(package: pathlib.Path, name: str, files: list[pathlib.Path], seed: int, each: int) -> list[Bug]:
    rank = lambda *words: hashlib.sha256(" ".join([str(seed), name, *words]).encode()).digest()
    kinds = defaultdict(list)
    for path in files:
        source, file = path.read_text(encoding="utf-8"), path.relative_to(package).as_posix()
        for where, node in visited(ast.parse(source)):
            for kind, old, new in changes(node):
                if ast.unparse(old) == ast.unparse(new):
                    continue
                kinds[kind].append((rank(file, where, kind, ast.unparse(old)), file, source, where, old, new))
    made: list[Bug] = []
    for kind in sorted(kinds, key=rank)[: each * (1 + (name in CORE))]:
        used = {bug.file for bug in made}
        _, file, source, where, old, new = min(kinds[kind], key=lambda site: (site[1] in used, site[0]))
        before, after = (" ".join(ast.unparse(node).split())[:60] for node in (old, new))
        made.append(Bug(file, kind, f"{where}: `{before}` becomes `{after}`", _replaced(source, old, new)))
    return made


def visited(node: ast.AST, where: str = "module") -> Iterator[tuple[str, ast.AST]]:
    """Yields (name of the function or class, node) for every node whose change can change a result."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if field in NO_CODE or not isinstance(child, ast.AST) or _is_skipped(child):
                continue
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            inside = f"{where}.{child.name}".removeprefix("module.") if named else where
            yield inside, child
            if not isinstance(child, ast.Raise):
                yield from visited(child, inside)


def _is_skipped(node: ast.AST) -> bool:
    """Returns whether a node is a message, a check of our own, an import, or runs only where something is not installed."""
    match node:
        case ast.If():
            return any(word in ast.unparse(node.test) for word in ("TYPE_CHECKING", "__name__"))
        case ast.ExceptHandler(type=ast.expr()):
            return "ImportError" in ast.unparse(node.type)
        case ast.Call():
            return re.match(r"assert_|warn|add_argument|.*Error$", _called(node)) is not None
        case ast.keyword():
            return node.arg in HARMLESS
        case ast.FunctionDef():
            return node.name in ("__repr__", "__str__")
    return isinstance(node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)


def changes(node: Any) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yields (kind of bug, node to replace, what replaces it) for each way in which a slip could change this node."""
    first, *rest = getattr(node, "ops", None) or [getattr(node, "op", None)]
    for kind, table in OPERATORS.items():
        if type(first) in table and not (kind in list(OPERATORS)[:2] and NO_NUMBER.search(ast.unparse(node))):
            new = table[type(first)]()
            yield kind, node, _with(node, ops=[new, *rest], op=new)
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "dropped minus", node, operand
        case ast.UnaryOp(op=ast.Not()):
            yield "dropped not", node, node.operand
        case ast.Constant(value=bool()):
            yield "flipped flag", node, ast.Constant(not node.value)
        case ast.Constant(value=int()) if node.value <= LARGEST:
            yield "off by one", node, ast.Constant(node.value + 1)
        case ast.keyword(arg="axis", value=axis) if ast.unparse(axis) in AXES:
            yield "swapped axis", axis, _parsed(AXES[ast.unparse(axis)]).value
        case ast.Call(func=ast.Attribute(attr=name), args=[axis]) if name in REDUCTIONS and ast.unparse(axis) in AXES:
            yield "swapped axis", axis, _parsed(AXES[ast.unparse(axis)]).value
        case ast.Call(args=[ast.Name() as one, ast.Name() as two]) if _called(node) not in SYMMETRIC:
            yield "swapped arguments", node, _with(node, args=[two, one])
        case ast.IfExp() if not any(isinstance(part, ast.JoinedStr) for part in (node.body, node.orelse)):
            yield "swapped branches", node, _with(node, body=node.orelse, orelse=node.body)
        case ast.If():
            yield "negated condition", node.test, ast.UnaryOp(ast.Not(), node.test)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) in RETURNED:
            yield "wrong returned default", node, _parsed(f"return {RETURNED[ast.unparse(value)]}")
        case ast.Raise() if "NotImplementedError" not in ast.unparse(node):
            yield "swallowed error", node, ast.Pass()
        case ast.Expr(value=ast.Call()):
            yield "dropped call", node, ast.Pass()
        case ast.Continue():
            yield "loop left early", node, ast.Break()
    if isinstance(node, ast.Call) and _called(node) in OPPOSITE:
        name = OPPOSITE[_called(node)]
        yield "minimum for maximum", node.func, _with(node.func, attr=name, id=name)


def _called(node: ast.Call) -> str:
    """Returns the last name of the function that is called."""
    return ast.unparse(node.func).rpartition(".")[2]


def _parsed(text: str) -> Any:
    return ast.parse(text).body[0]


def _with(node: Any, **fields: Any) -> Any:
    """Returns a copy of a node with those of these fields replaced that it has."""
    made = copy.copy(node)
    for name in node._fields:
        setattr(made, name, fields.get(name, getattr(node, name)))
    return made


def _replaced(source: str, old: Any, new: ast.AST) -> str:
    """Returns the source with one node replaced; positions of `ast` are in bytes."""
    lines, text = source.encode().split(b"\n"), ast.unparse(new)
    begin, end = (
        sum(len(one) + 1 for one in lines[: line - 1]) + column
        for line, column in ((old.lineno, old.col_offset), (old.end_lineno, old.end_col_offset))
    )
    wrong = f"({text})" if isinstance(new, ast.expr) else text
    return (source.encode()[:begin] + wrong.encode() + source.encode()[end:]).decode()
