"""The rules of CONTRIBUTING.md that a machine can check: who may import whom, no hidden state, nothing that runs code.

Most of them read the syntax tree, so they hold for files that no test imports.
"""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    "ENCODINGS",
    "EXTENSIONS",
    "METHODS",
    "TASKS",
    "FAMILIES",
    "SCALINGS",
    "MODELS",
    "SUITES",
}
TABLES |= {"DENSE_BYTES"}
"""The explicit tables of choices: one dict per family, never written to after its module is loaded."""
LAZY = {"_NAMES", "_HOME", "_MODULES"}
"""Where the public names of the package itself live."""

RUNS_CODE = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "yaml.load"}
RUNS_CODE |= {"yaml.unsafe_load", "yaml.full_load", "pandas.read_pickle", "pd.read_pickle"}
RUNS_CODE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}

HEAVY = ("flax", "optax", "orbax", "ml_collections", "matplotlib")


def sources(*folders: str) -> list[Path]:
    """Every Python file under these folders of the project."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Every node of a file."""
    return list(ast.walk(parse(path)))


@pytest.fixture(scope="module", autouse=True)
def forget_trees() -> Iterator[None]:
    yield
    nodes.cache_clear()
    parse.cache_clear()


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def part(path: Path) -> str:
    """The part of the package that a file belongs to: `positions` for attnjax/positions/rope.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def allowed(importer: str) -> set[str]:
    """The parts that a part may import, itself included."""
    if importer in SIDES:
        return SIDES[importer][0] | {importer}
    before = CHAIN[: CHAIN.index(importer) + 1]
    return {*before, *(side for side, (_, users) in SIDES.items() if importer in users)}


def imported(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Every import of a file, wherever it stands, as an absolute dotted name."""
    folder = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node, f"{module}.{alias.name}") for alias in node.names)


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a name or an attribute, "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


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


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def test_every_part_has_its_place():
    parts = {part(path) for path in sources("attnjax")} - {"__init__", "__main__"}
    assert parts <= {*CHAIN, *SIDES}, "say in CHAIN or SIDES where it belongs"


def test_imports_point_one_way():
    wrong = []
    for path in sources("attnjax"):
        if part(path) in {"__init__", "__main__"}:
            continue
        attributes = ((node, dotted(node)) for node in nodes(path) if isinstance(node, ast.Attribute))
        for node, name in [*imported(path), *attributes]:
            package, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            public = target and not target.startswith("__")
            fields = name.startswith(FIELDS) and part(path) in ("positions", "attention")
            if package == "attnjax" and public and not fields and target not in allowed(part(path)):
                wrong.append(f"{where(path, node)} uses {name}")
    assert not wrong, "\n".join(wrong)


def test_library_does_not_import_its_users():
    users = {"configs", "experiments", "tests", "scripts"}
    wrong = [
        f"{where(path, node)} imports {name}"
        for path in sources("attnjax")
        for node, name in imported(path)
        if name.partition(".")[0] in users
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_knows_of_no_experiments():
    named = [
        str(path.relative_to(ROOT))
        for path in sources("attnjax")
        for node in nodes(path)
        if isinstance(node, ast.Constant) and re.match(r"experiments\.", str(node.value))
    ]
    assert named == []


def test_flax_is_imported_by_the_upper_half_only():
    lower = ("attnjax/positions", "attnjax/attention", "attnjax/typing.py", "attnjax/tasks")
    files = [path for path in sources("attnjax") if str(path.relative_to(ROOT)).startswith(lower)]
    wrong = [
        f"{where(path, node)} imports {name}"
        for path in files
        for node, name in imported(path)
        if name.partition(".")[0] in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_the_package_does_not_import_jax():
    assert run("import attnjax, sys; print('jax' in sys.modules or 'numpy' in sys.modules)") == "False"


@pytest.mark.parametrize("module", ["config", "records", "sweep", "report"])
def test_what_only_reads_and_plans_does_not_import_jax(module: str):
    files = sources(f"attnjax/{module}")
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    drawn = {"attnjax.report.drawing", "attnjax.report.figures"}  # they need matplotlib, which may be missing
    wanted = ", ".join(name for name in names if name not in drawn)
    assert run(f"import sys, {wanted}; print('jax' in sys.modules)") == "False"


def test_what_records_are_is_written_down_once():
    """The parts that write and read records share its names: none has its own reader, states, names of files or ids."""
    shared = {"records", "config"}
    folders = ("config", "records", "sweep", "report", "explore", "evaluation")
    files = sources(*(f"attnjax/{folder}" for folder in folders))
    readers = [
        f for f in files if part(f) not in shared and re.search(r"json\.loads|parse_json|crc32", f.read_text("utf-8"))
    ]
    # Own text, claims, and messages between processes.
    own = {"report/groups.py", "sweep/claim.py", "sweep/check.py", "sweep/pool.py"}
    assert {str(path.relative_to(PACKAGE)) for path in readers} == own
    known = {"STATES", "FINAL", "RUN", "SEEDS", "SWEEP_FILE", "TOLD"}
    known |= {"cell_id", "run_id", "jsonable", "printable", "clean", "real", "as_dict", "dotted", "Problem"}
    homes: dict[str, list[str]] = {}
    for path in files:
        for node in parse(path).body:
            targets = node.targets if isinstance(node, ast.Assign) else [node]
            for name in {getattr(target, "name", None) or dotted(target) for target in targets} & known:
                homes.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
    assert homes.keys() == known


@pytest.mark.parametrize("module", ["positions", "attention"])
def test_functions_need_only_the_core_dependencies(module: str):
    loaded = f"[name for name in {HEAVY} if name in sys.modules]"
    assert run(f"import attnjax, sys; attnjax.{module}; print({loaded})") == "[]"


def test_public_names_all_load():
    missing = "[name for name in attnjax.__all__ if not hasattr(attnjax, name)]"
    assert run(f"import attnjax; print({missing})") == "[]"


def test_no_module_level_state():
    wrong = []
    for path in sources("attnjax"):
        names = TABLES | LAZY if path == PACKAGE / "__init__.py" else TABLES
        for node in top_level(parse(path).body):
            if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if mutable(node.value) and not {dotted(target) for target in targets} <= names:
                wrong.append(where(path, node))
    assert not wrong, "\n".join(wrong)


def test_no_caches_and_no_global_statements():
    wrong = []
    for path in sources("attnjax"):
        wrong += [where(path, n) for n, name in imported(path) if name in {"functools.cache", "functools.lru_cache"}]
        for node in nodes(path):
            if isinstance(node, ast.Global) or dotted(node) in {"functools.cache", "functools.lru_cache"}:
                wrong.append(where(path, node))
    assert not wrong, "\n".join(wrong)


def test_no_function_asks_which_backend_is_the_default():
    """Arrays of a CPU may live beside a GPU: what runs where is decided when a program is lowered, or by an argument."""
    asks = lambda node: "default_backend" in (getattr(node, "name", ""), dotted(node).rpartition(".")[2])
    # The manifest of a run records it, and nothing follows from it.
    files = [path for path in sources("attnjax") if path != PACKAGE / "sweep" / "manifest.py"]
    assert [where(path, node) for path in files for node in nodes(path) if asks(node)] == []


def test_nothing_runs_code_that_it_reads():
    wrong = []
    for path in sources("attnjax", "experiments", "configs", "scripts"):
        wrong += [where(path, n) for n, name in imported(path) if name.partition(".")[0] in RUNS_CODE_MODULES]
        for node in nodes(path):
            if isinstance(node, ast.Call):
                flags = {k.arg for k in node.keywords if getattr(k.value, "value", None) is not False}
                if dotted(node.func) in RUNS_CODE or flags & {"allow_pickle", "shell"}:
                    wrong.append(where(path, node))
    assert not wrong, "\n".join(wrong)


def test_every_public_module_says_what_it_is():
    public = [path for path in sources("attnjax", "experiments", "configs", "scripts") if path.stem[0] != "_"]
    packages = [path for path in sources("attnjax") if path.name == "__init__.py"]
    assert [str(path.relative_to(ROOT)) for path in [*public, *packages] if not ast.get_docstring(parse(path))] == []


def test_no_file_is_too_long_to_read():
    """Files of tests may be longer: one table of cases is read faster than its parts in several files."""
    files = sources("attnjax", "experiments", "configs", "scripts")
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}


def test_no_path_or_package_index_of_somebodys_machine():
    home = re.compile(r"/(home|root|Users)/\w|[A-Z]:\\Users|index[-]url|find[-]links")
    kinds = {".py", ".md", ".toml", ".txt", ".yaml", ".cff", ".csv", ".json", ".html", ""}
    folders = (ROOT / name for name in ("attnjax", "experiments", "configs", "scripts", "tests", "docs", ".ci"))
    files = [
        *ROOT.glob("*"),
        ROOT / ".pre-commit-config.yaml",
        *(path for folder in folders for path in folder.rglob("*")),
    ]
    texts = {path: path.read_text("utf-8", "replace") for path in files if path.is_file() and path.suffix in kinds}
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if home.search(text)] == []


def test_citation_names_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    version = run("import attnjax; print(attnjax.__version__)")
    assert f"\nversion: {version}\n" in citation
