"""What setup_env.py installs is named by version and SHA-256, complete, and what constraints.txt says."""

import importlib.metadata
import importlib.util
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PLAIN, MORE, COMPILERS = (ROOT / f"requirements{more}.txt" for more in ("", "-dev", "-compile"))
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("linux", "darwin", "win32")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}")


def packages(path: Path) -> Iterator[tuple[Requirement, list[str]]]:
    """Every package of a file of requirements with the lines below it."""
    text = re.sub(r"^(#|-r ).*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]:
        first, *lines = block.rstrip("\n").split(" \\\n")
        yield Requirement(first), lines


def pins(requirements: Iterable[Requirement], python: str, platform: str) -> dict[str, str]:
    """Version of every package on a Python and a platform; no package may have two."""
    environment = default_environment() | {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": platform,
    }
    found = [one for one in requirements if one.marker is None or one.marker.evaluate(environment)]
    chosen = {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in found}
    assert len(chosen) == len(found)
    return chosen


def installed(*more: Path) -> list[Requirement]:
    """With what is in more files than the first, unless given what tests and linters need."""
    return [one for path in (PLAIN, *(more or [MORE])) for one, _ in packages(path)]


def constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def declared(*extras: str) -> list[Requirement]:
    """The dependencies of pyproject.toml, with those of some extras; one extra may name another."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [Requirement(text) for text in project["dependencies"]]
    for extra in extras:
        for one in map(Requirement, project["optional-dependencies"][extra]):
            if one.marker is None or one.marker.evaluate():
                found += declared(*one.extras) if one.name == project["name"] else [one]
    return found


@pytest.mark.parametrize("path", [PLAIN, MORE, COMPILERS], ids=["plain", "dev", "compile"])
def test_every_package_has_one_version_and_hashes_and_no_address(path):
    listed = list(packages(path))
    assert len(listed) > (10 if path == COMPILERS else 30)
    for one, lines in listed:
        assert re.fullmatch(r"==[\w.]+", str(one.specifier)), one
        assert one.url is None, one
        assert lines, f"{one} has no hash"
        assert all(HASH.fullmatch(line) for line in lines), one
    text = path.read_text(encoding="utf-8").split("\n", 1)[1]
    assert "/" not in text
    assert re.findall(r"^-.*", text, flags=re.MULTILINE) == ([] if path == PLAIN else ["-r requirements.txt"])


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_versions_are_those_of_the_constraints(python, platform):
    allowed = pins(constraints(), python, platform)
    found = pins(installed(), python, platform) | pins(installed(COMPILERS), python, platform)
    assert found.items() <= allowed.items()
    if platform == "linux":
        assert found.keys() == allowed.keys()


@pytest.mark.parametrize("python", PYTHONS)
def test_what_the_project_declares_is_in_the_files(python):
    plain = pins((one for one, _ in packages(PLAIN)), python, "linux")
    of_dev, of_compilers = (pins(installed(path), python, "linux") for path in (MORE, COMPILERS))
    for wanted, found in (
        (declared("plot"), plain),
        (declared("dev"), of_dev),
        (declared("compile"), of_compilers),
    ):
        assert len(wanted) > 9
        for one in wanted:
            assert one.specifier.contains(found[canonicalize_name(one.name)]), one
    assert "pytest" not in plain
    assert "libtpu" in of_compilers
    # JAX would look for their devices whenever it starts.
    assert not {"libtpu", "jax-cuda12-plugin"} & of_dev.keys()
    assert of_compilers["jax-cuda12-plugin"] == of_compilers["jax-cuda12-pjrt"] == plain["jax"]
    assert "setuptools" in plain  # builds the package itself


def test_this_environment_has_the_versions_of_the_files():
    """Those of everything that the project needs, and that its needs need."""
    environment = default_environment()
    expected = pins(installed(), environment["python_version"], environment["sys_platform"])
    todo, seen = declared("dev"), {}
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        if (name, frozenset(one.extras)) in seen:
            continue
        seen[name, frozenset(one.extras)] = importlib.metadata.version(name)
        for text in importlib.metadata.requires(name) or []:
            need = Requirement(text)
            extras = one.extras or {""}
            if need.marker is None or any(need.marker.evaluate(environment | {"extra": extra}) for extra in extras):
                todo.append(need)
    found = {name: version for (name, _), version in seen.items()}
    assert len(found) > 60
    assert found == {name: expected[name] for name in found}


@pytest.mark.parametrize(
    ("extra", "name"),
    [("plot", "requirements.txt"), ("dev", "requirements-dev.txt"), ("compile", "requirements-compile.txt")],
)
def test_nothing_is_fetched_without_a_hash(extra, name):
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "scripts" / "setup_env.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    fetching, building = script.installations(extra)
    assert fetching == ["--require-hashes", "--only-binary", ":all:", "-r", str(ROOT / name)]
    assert building == ["--no-deps", "--no-build-isolation", "-e", str(ROOT)]
