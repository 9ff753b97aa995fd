"""The rules of CONTRIBUTING.md that a machine can check: who may import whom, no hidden state, nothing that runs code.

Most of them read the syntax tree, so they hold for files that no test imports.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnjax

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "attnjax"

CHAIN = ("typing", "positions", "attention", "modules", "models", "train", "sweep", "report", "cli")
"""A part may import those before it."""

SIDES = {
    "aot": ({"typing"}, {"cli"}),
    "safety": (set(), {"models", "train", "sweep", "report", "cli"}),
    "records": ({"config", "safety"}, {"sweep", "report", "cli"}),
    "registry": (set(), {"positions", "tasks", "sweep", "report", "cli"}),
    "tasks": ({"typing", "positions", "registry"}, {"train", "sweep", "report", "cli"}),
    "config": ({"registry", "safety"}, {"modules", "models", "train", "sweep", "report", "cli"}),
    "evaluation": ({*CHAIN[: CHAIN.index("cli")], "tasks", "config", "safety", "records", "registry"}, {"cli"}),
    "explore": ({*CHAIN[: CHAIN.index("cli")], "tasks", "config", "safety", "records", "evaluation"}, {"cli"}),
}
"""Parts that hang off the side: what each may import, and who may import it."""

FIELDS = "attnjax.config.kinds"
"""The ranges of fields, which encodings and tilings check too. It imports neither JAX nor another part."""

STATE = re.compile(r"list|dict|set|bytearray|defaultdict|deque|OrderedDict|Counter|ChainMap|Weak\w+|local|ContextVar")
TABLES = {
    "__all__",
    "DENSE_BYTES",
    "ENCODINGS",
    "EXTENSIONS",
    "FAMILIES",
    "MODELS",
    "SCALINGS",
    "SUITES",
    "TASKS",
}
"""The explicit tables of choices: one dict per family, never written to after its module is loaded."""
LAZY = {"_NAMES", "_HOME", "_MODULES"}
"""Where the public names of the package itself live."""

RUNS_CODE = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "yaml.load"}
RUNS_CODE |= {"yaml.unsafe_load", "yaml.full_load", "pandas.read_pickle", "pd.read_pickle"}
RUNS_CODE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}

SERVERS = ("http.server", "socketserver", "asyncio", "multiprocessing.managers", "xmlrpc.server", "wsgiref", "flask.")
WAITS = {"listen", "accept", "create_server", "start_server", "serve_forever"}

HEAVY = ("flax", "optax", "orbax", "ml_collections", "matplotlib")


def sources(*folders: str) -> list[Path]:
    """Every Python file under these folders of the project."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a name or an attribute, "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


class File:
    """What the syntax tree of a file says, read once; each list has (place, what stands there)."""

    def __init__(self, path: Path):
        self.path, self.name = path, str(path.relative_to(ROOT))
        self.part = path.relative_to(ROOT).parts[1].removesuffix(".py")
        self.imports: list[tuple[str, str]] = []
        self.names: list[tuple[str, str]] = []
        self.calls: list[tuple[str, ast.Call]] = []
        self.texts: list[tuple[str, str]] = []
        self.tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        folder = path.relative_to(ROOT).with_suffix("").parts[:-1]
        for node in ast.walk(self.tree):
            where = f"{self.name}:{getattr(node, 'lineno', 1)}"
            if isinstance(node, ast.Import):
                self.imports += [(where, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = folder[: len(folder) - node.level + 1] if node.level else ()
                module = ".".join([*base, *([node.module] if node.module else [])])
                self.imports += [(where, f"{module}.{alias.name}") for alias in node.names]
            elif isinstance(node, ast.Attribute | ast.Name):
                self.names.append((where, dotted(node)))
            elif isinstance(node, ast.Call):
                self.calls.append((where, node))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.texts.append((where, node.value))


@pytest.fixture(scope="module")
def package() -> list[File]:
    """The files of the package."""
    return [File(path) for path in sources("attnjax")]


def allowed(importer: str) -> set[str]:
    """The parts that a part may import, itself included."""
    if importer in SIDES:
        return SIDES[importer][0] | {importer}
    before = CHAIN[: CHAIN.index(importer) + 1]
    return {*before, *(side for side, (_, users) in SIDES.items() if importer in users)}


def test_imports_point_one_way(package):
    wrong = []
    for file in package:
        if file.part in {"__init__", "__main__"}:
            continue
        assert file.part in {*CHAIN, *SIDES}, "say in CHAIN or SIDES where it belongs"
        for where, name in [*file.imports, *file.names]:
            package_name, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            public = target and not target.startswith("__")
            fields = name.startswith(FIELDS) and file.part in ("positions", "attention")
            if package_name == "attnjax" and public and not fields and target not in allowed(file.part):
                wrong.append(f"{where} uses {name}")
    assert wrong == []


def test_the_package_does_not_know_its_users(package):
    users = {"configs", "experiments", "tests", "scripts"}
    known = [found for file in package for found in file.imports if found[1].partition(".")[0] in users]
    known += [found for file in package for found in file.texts if found[1].startswith("experiments.")]
    assert known == []


def test_pure_parts_import_only_the_core_dependencies(package):
    pure = [file for file in package if file.part in ("positions", "attention", "typing", "tasks")]
    assert [found for file in pure for found in file.imports if found[1].partition(".")[0] in HEAVY] == []


def test_every_public_name_is_there():
    assert [name for name in attnjax.__all__ if not hasattr(attnjax, name)] == []


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is loaded, those inside `if`, `try`, `with` and classes included."""
    for node in body:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from top_level(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from top_level(handler.body)


def mutable(value: ast.AST | None) -> bool:
    """Whether an expression makes an object that can be changed afterwards."""
    if isinstance(value, ast.BinOp):
        return mutable(value.left) or mutable(value.right)
    if isinstance(value, ast.Call):
        return STATE.fullmatch(dotted(value.func).rpartition(".")[2]) is not None
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def test_no_module_level_state_and_no_caches(package):
    wrong = []
    for file in package:
        names = TABLES | LAZY if file.path == PACKAGE / "__init__.py" else TABLES
        for node in top_level(file.tree.body):
            if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if mutable(node.value) and not {dotted(target) for target in targets} <= names:
                wrong.append(f"{file.name}:{node.lineno}")
        caches = {"functools.cache", "functools.lru_cache"}
        wrong += [where for where, name in [*file.imports, *file.names] if name in caches]
    assert wrong == []


def test_no_function_asks_which_backend_is_the_default(package):
    """Arrays of a CPU may live beside a GPU: what runs where is decided when a program is lowered, or by an argument."""
    # The manifest of a run records it, and nothing follows from it.
    files = [file for file in package if file.path != PACKAGE / "sweep" / "manifest.py"]
    asked = [found for file in files for found in [*file.imports, *file.names] if "default_backend" in found[1]]
    assert asked == []


def test_nothing_runs_code_that_it_reads(package):
    wrong = []
    for file in [*package, *map(File, sources("experiments", "configs", "scripts"))]:
        wrong += [where for where, name in file.imports if name.partition(".")[0] in RUNS_CODE_MODULES]
        for where, call in file.calls:
            flags = {one.arg for one in call.keywords if getattr(one.value, "value", None) is not False}
            if dotted(call.func) in RUNS_CODE or flags & {"allow_pickle", "shell"}:
                wrong.append(where)
    assert wrong == []


def test_no_module_waits_for_connections(package):
    """What commands show is files, and what their processes say to each other goes through pipes."""
    found = [one for file in package for one in file.imports if any(one[1].startswith(name) for name in SERVERS)]
    calls = [(where, dotted(call.func)) for file in package for where, call in file.calls]
    assert found + [one for one in calls if one[1].rpartition(".")[2] in WAITS] == []


def test_no_file_is_too_long_to_read():
    """Files of tests may be longer: one table of cases is read faster than its parts in several files."""
    files = sources("attnjax", "experiments", "configs", "scripts")
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}


def test_no_path_or_package_index_of_somebodys_machine():
    home = re.compile(r"/(home|root|Users)/\w|[A-Z]:\\Users|index[-]url|find[-]links")
    kinds = {".py", ".md", ".toml", ".txt", ".yaml", ".cff", ".csv", ".json", ".html", ""}
    folders = (ROOT / name for name in ("attnjax", "experiments", "configs", "scripts", "tests", "docs", ".ci"))
    files = [*ROOT.glob("*"), ROOT / ".pre-commit-config.yaml", *(path for one in folders for path in one.rglob("*"))]
    texts = {path: path.read_text("utf-8", "replace") for path in files if path.is_file() and path.suffix in kinds}
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if home.search(text)] == []
