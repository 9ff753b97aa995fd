"""From the use of a name to its definition, in the same scope of one file.

    use          a name that is read. The link begins at its last byte, where a model has read all of it.
    definition   the last binding of that name, in the text before the use, in the scope of the use: a parameter, the target
                 of an assignment, `for`, `with`, `except` or `:=`, a `def`, a `class` or an import. The link ends at the
                 bytes of the name there.
    scope        a module, a function, or the body of a class. Comprehensions and lambdas belong to the scope around them, but
                 what they bind is seen only inside.

A binding counts from where it takes effect: `x = x + 1` reads an earlier x. Left out: names declared `global` or `nonlocal`,
names of an outer scope, names inside f-strings (older Pythons do not tell where they stand), and captures of `match`.
"""

import ast
import re
from typing import NamedTuple

from experiments.head_specialization.source import Lines, Link

IDENTIFIER = rb"([A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)"
DEFINITION = re.compile(rb"(?:async\s+)?(?:def|class)\s+" + IDENTIFIER)
EXCEPTION = re.compile(rb"[\s)]*as\s+" + IDENTIFIER)


class Binding(NamedTuple):
    """The bytes of a name where it is bound, and from where on the binding holds."""

    start: int
    stop: int
    since: int


class Use(NamedTuple):
    """A name that is read at start .. stop - 1."""

    name: str
    scope: "Scope"
    start: int
    stop: int


class Scope:
    """The bindings of one scope. What an inner one (a comprehension or a lambda) does not bind is looked up around it."""

    def __init__(self, parent: "Scope | None" = None, *, inner: bool = False):
        self.parent, self.inner = parent, inner
        self.bindings: dict[str, list[Binding]] = {}
        self.elsewhere: set[str] = set()

    def find(self, name: str, place: int) -> Binding | None:
        """The last binding of a name that holds at a place; None where this scope has none before it."""
        if name in self.elsewhere:
            return None
        if name in self.bindings:
            holding = [binding for binding in self.bindings[name] if binding.since <= place]
            return max(holding, default=None)
        return self.parent.find(name, place) if self.inner and self.parent is not None else None


def name_links(data: bytes, tree: ast.Module) -> list[Link]:
    """From each use of a name to its definition, in the order of the uses. `tree` is `source.parse(data)`."""
    finder = _Finder(data)
    try:
        finder.visit(tree)
    except RecursionError:
        raise ValueError("is too deeply nested: RecursionError") from None
    found = ((use, use.scope.find(use.name, use.start)) for use in finder.uses)
    return sorted(Link(use.stop - 1, binding.start, binding.stop) for use, binding in found if binding is not None)


class _Finder(ast.NodeVisitor):
    """Collects uses and bindings, scope by scope."""

    def __init__(self, data: bytes):
        self.data, self.lines = data, Lines(data)
        self.scope, self.uses = Scope(), []
        self.since = 0

    def visit_Name(self, node: ast.Name) -> None:
        start, stop = self._span(node)
        if isinstance(node.ctx, ast.Load) and self._is(node.id, start, stop):
            self.uses.append(Use(node.id, self.scope, start, stop))
        elif isinstance(node.ctx, ast.Store):
            self._bind(self.scope, node.id, start)

    def visit_JoinedStr(self, node: ast.AST) -> None:
        """An f-string: left out."""

    visit_TemplateStr = visit_JoinedStr

    def visit_Assign(self, node: ast.Assign | ast.AugAssign) -> None:
        self._visit_until(self._span(node)[1], *(node.targets if isinstance(node, ast.Assign) else [node.target]))
        self.visit(node.value)

    visit_AugAssign = visit_Assign

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self._visit_until(self._span(node)[1], node.target)
            self.visit(node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        around, self.scope = self.scope, self._outer()
        self._visit_until(self._span(node)[1], node.target)
        self.scope = around
        self.visit(node.value)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._visit_until(self._span(node.iter)[1], node.target)
        self._visit_all(node.iter, *node.body, *node.orelse)

    visit_AsyncFor = visit_For

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self.visit(node.type)
            self._bind_match(EXCEPTION, node.name, self._span(node.type)[1])
        self._visit_all(*node.body)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            start, stop = self._span(alias)
            name = alias.asname or alias.name.partition(".")[0]
            self._bind(self.scope, name, stop - len(name.encode()) if alias.asname else start)

    visit_ImportFrom = visit_Import

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.scope.elsewhere.update(node.names)

    visit_Nonlocal = visit_Global

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_all(*node.decorator_list)
        self._visit_defaults(node.args)
        self._visit_all(
            *filter(None, (arg.annotation for arg in _parameters(node.args))), *filter(None, [node.returns])
        )
        self._bind_match(DEFINITION, node.name, self._span(node)[0], self._span(node.body[0])[0])
        self._enter(node.args, node.body, inner=False)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_defaults(node.args)
        self._enter(node.args, [node.body], inner=True)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(*node.decorator_list, *node.bases, *node.keywords)
        self._bind_match(DEFINITION, node.name, self._span(node)[0], self._span(node)[1])
        self._enter(None, node.body, inner=False)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        first, *others = node.generators
        self.visit(first.iter)
        around, self.scope = self.scope, Scope(self.scope, inner=True)
        for generator in node.generators:
            self._visit_until(self._span(generator.iter)[1], generator.target)
        self._visit_all(*first.ifs, *(part for other in others for part in (other.iter, *other.ifs)))
        self._visit_all(*([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]))
        self.scope = around

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def _enter(self, args: ast.arguments | None, body: list, *, inner: bool) -> None:
        around, self.scope = self.scope, Scope(self.scope, inner=inner)
        for arg in _parameters(args) if args is not None else []:
            self._bind(self.scope, arg.arg, self._span(arg)[0])
        self._visit_all(*body)
        self.scope = around

    def _visit_defaults(self, args: ast.arguments) -> None:
        self._visit_all(*args.defaults, *filter(None, args.kw_defaults))

    def _visit_all(self, *nodes: ast.AST) -> None:
        for node in nodes:
            self.visit(node)

    def _visit_until(self, place: int, *targets: ast.AST) -> None:
        """Visit targets whose bindings hold from `place` on."""
        before, self.since = self.since, place
        self._visit_all(*targets)
        self.since = before

    def _outer(self) -> Scope:
        """The scope that `:=` binds in: that around all comprehensions."""
        scope = self.scope
        while scope.inner and scope.parent is not None:
            scope = scope.parent
        return scope

    def _span(self, node: ast.expr | ast.stmt | ast.arg | ast.alias) -> tuple[int, int]:
        end = self.lines.byte(node.end_lineno or node.lineno, node.end_col_offset or 0)
        return self.lines.byte(node.lineno, node.col_offset), end

    def _is(self, name: str, start: int, stop: int) -> bool:
        """Whether the bytes are the name: Python may have normalised its letters."""
        return self.data[start:stop] == name.encode()

    def _bind(self, scope: Scope, name: str, start: int, since: int = 0) -> None:
        stop = start + len(name.encode())
        if self._is(name, start, stop):
            scope.bindings.setdefault(name, []).append(Binding(start, stop, max(stop, since, self.since)))

    def _bind_match(self, pattern: re.Pattern[bytes], name: str | None, start: int, since: int = 0) -> None:
        """Bind the name that stands behind a keyword, whose place the tree does not give."""
        found = pattern.match(self.data, start)
        if found and name is not None:
            self._bind(self.scope, name, found.start(1), since)


def _parameters(args: ast.arguments) -> list[ast.arg]:
    return [*args.posonlyargs, *args.args, *filter(None, [args.vararg]), *args.kwonlyargs, *filter(None, [args.kwarg])]
