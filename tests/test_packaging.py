"""What installs and releases the package: environments, pinned versions, the check of a release, and the wheel."""

import concurrent.futures
import pathlib
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import attnjax
from attnjax.sweep import manifest
from scripts import release, setup_env

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Environments --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch):
    """The script installs nothing here; returns the interpreters of the environments that it made, and what it installed."""
    made, installed = [], []

    def create(venv, executable):
        pathlib.Path(venv, "bin").mkdir(parents=True, exist_ok=True)
        pathlib.Path(venv, "bin", "python").touch()
        time.sleep(0.05)
        made.append(executable)

    monkeypatch.setattr(setup_env, "create", create)
    monkeypatch.setattr(setup_env.shutil, "which", lambda name: None)
    monkeypatch.setattr(setup_env.subprocess, "check_call", lambda command, **_: installed.append(command))
    return made, installed


@pytest.fixture
def ensure(tmp_path):
    """Makes the environment `tmp_path/venv`, and answers with its interpreter."""
    return lambda extra="dev", python="/usr/bin/python3": setup_env.ensure(
        str(tmp_path / "venv"), (3, 12, 1), python, extra
    )


def test_an_activated_environment_is_described_as_the_python_behind_it(tmp_path):
    """Else an environment would be made anew, in the place of that which runs, at every change of the shell."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    inside = setup_env.describe(str(tmp_path / "venv" / "bin" / "python"))
    assert inside is not None
    assert inside == setup_env.describe(sys.executable)
    assert inside[0] == sys.version_info[:3]
    assert setup_env.describe(str(tmp_path / "nowhere")) is None


@pytest.mark.parametrize("pip", [True, False])
def test_an_environment_is_made_once_and_what_tests_need_is_added(made, ensure, tmp_path, pip):
    python = str(tmp_path / "venv" / "bin" / "python")
    assert ensure("plot") == ensure("plot") == python
    if pip:
        (tmp_path / "venv" / "lib" / "python3.12" / "site-packages" / "pip").mkdir(parents=True)
    made[1].clear()
    assert ensure("dev") == ensure("dev") == ensure("plot") == python
    assert made[0] == ["/usr/bin/python3"], "nothing is cleared"
    (command,) = made[1]
    own = [python, "-m", "pip"] if pip else ["/usr/bin/python3", "-m", "pip", "--python", python]
    fetched = ["--require-hashes", "--only-binary", ":all:", "-r", str(ROOT / "requirements-dev.txt")]
    assert command == [*own, "install", "-qq", "--no-compile", *fetched]
    ensure("plot", "/usr/bin/python3.13")
    assert made[0] == ["/usr/bin/python3", "/usr/bin/python3.13"], "another interpreter needs another environment"
    assert [path.name for path in tmp_path.iterdir()] == ["venv"]


@pytest.mark.parametrize("extras", [("dev", "dev", "dev"), ("plot", "dev", "plot")])
def test_of_several_first_calls_at_once_one_makes_the_environment(made, ensure, extras):
    with concurrent.futures.ThreadPoolExecutor() as threads:
        assert len(set(threads.map(ensure, extras))) == 1
    assert len(made[0]) == 1
    assert ensure("dev")
    assert len(made[0]) == 1


@pytest.mark.parametrize("when", ["created", "installed"])
def test_an_environment_that_was_cut_short_is_made_again(made, ensure, tmp_path, monkeypatch, when):
    def stopped(*_, **__):
        (tmp_path / "venv" / "bin").mkdir(exist_ok=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*((setup_env, "create") if when == "created" else (setup_env.subprocess, "check_call")), stopped)
        with pytest.raises(KeyboardInterrupt):
            ensure()
    before = len(made[0])
    assert ensure() == str(tmp_path / "venv" / "bin" / "python")
    assert len(made[0]) == before + 1


def test_an_environment_of_somebody_else_is_left_alone(made, ensure, tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    with pytest.raises(SystemExit, match="was not made by this script"):
        ensure()
    assert not made[0]
    assert [path.name for path in (tmp_path / "venv").iterdir()] == ["bin"]


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([(3, 15, 0), (3, 14, 2), (3, 12, 1)], (3, 14, 2)),
        ([(3, 10, 9), (3, 16, 1), (3, 11, 0)], (3, 11, 0)),
        ([(3, 15, 0), (4, 0, 0), (3, 10, 9)], None),
    ],
)
def test_a_python_without_packages_is_passed_over(monkeypatch, capsys, found, chosen):
    versions = {f"/python{number}": version for number, version in enumerate(found)}
    monkeypatch.setattr(setup_env, "candidates", lambda: versions)
    monkeypatch.setattr(setup_env.os, "access", lambda *_: True)
    monkeypatch.setattr(setup_env, "describe", lambda path: (versions[path], path))
    monkeypatch.setattr(setup_env, "ensure", lambda venv, version, *_: str(version))
    monkeypatch.setattr(sys, "argv", ["setup_env.py"])
    if chosen:
        setup_env.main()
        assert capsys.readouterr().out == f"{chosen}\n"
    else:
        with pytest.raises(SystemExit, match=r"needs Python 3\.11 to 3\.14"):
            setup_env.main()


# Pinned versions -----------------------------------------------------------------------------------------------------------


def requirements(name: str) -> list[tuple[Requirement, list[str]]]:
    """Every package of a file of requirements with the hashes below it."""
    text = re.sub(r"^(#|-r ).*\n", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    blocks = [block.rstrip("\n").split(" \\\n") for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]]
    return [(Requirement(first), hashes) for first, *hashes in blocks]


FILES = {extra: requirements(name) for extra, name in setup_env.LISTS.items()}


def versions(listed: list[Requirement], python: str) -> dict[str, str]:
    """Version of each package of a list on a Python for Linux; none may have two."""
    place = default_environment() | {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
    }
    found = [one for one in listed if one.marker is None or one.marker.evaluate(place)]
    chosen = {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in found}
    assert len(chosen) == len(found)
    return chosen


def declared(extra: str) -> list[Requirement]:
    """The dependencies of pyproject.toml, with those of an extra, which may name another."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [Requirement(text) for text in project["dependencies"]]
    for one in map(Requirement, project["optional-dependencies"][extra]):
        if one.marker is None or one.marker.evaluate():
            found += [more for name in one.extras for more in declared(name)] if one.name == project["name"] else [one]
    return found


def test_every_package_has_one_version_and_hashes_and_no_address():
    for one, hashes in [line for lines in FILES.values() for line in lines]:
        assert re.fullmatch(r"==[\w.]+", str(one.specifier)), one
        assert one.url is None, one
        assert hashes, one
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line) for line in hashes), one


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_versions_are_those_of_the_constraints_and_allowed_by_what_is_declared(python):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints = [Requirement(line) for line in lines if not line.startswith("#")]
    allowed = versions(constraints, python)
    # The lists of other extras go on from that of "plot".
    found = {extra: versions([one for name in {"plot", extra} for one, _ in FILES[name]], python) for extra in FILES}
    for extra, pinned in found.items():
        assert pinned.items() <= allowed.items()
        assert [one for one in declared(extra) if not one.specifier.contains(pinned[canonicalize_name(one.name)])] == []
    # JAX would look for their devices whenever it starts.
    assert not {"libtpu", "jax-cuda12-plugin"} & found["dev"].keys()
    assert allowed["jax-cuda12-plugin"] == allowed["jax-cuda12-pjrt"] == allowed["jax"]


# Releases ------------------------------------------------------------------------------------------------------------------


def test_version_changelog_and_citation_agree():
    changelog, version = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), attnjax.__version__
    assert release.version() == version
    assert release.problem(f"v{version}", version, changelog) == ""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version
    assert f"## [{version}] - {citation['date-released']}\n" in changelog
    assert release.problem(version, version, changelog), "a tag begins with v"
    assert release.problem("v9.9.9", "9.9.9", changelog), "which is not in the changelog"
    with pytest.raises(SystemExit, match=r"v9\.9\.9"):
        release.main(["check", "v9.9.9"])


# The wheel -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> pathlib.Path:
    """The files of a wheel, built from a copy of this checkout, because building writes beside the sources."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("attnjax", "configs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    # What pip does with `--no-build-isolation`, without pip, which some environments lack. Nothing is fetched.
    code = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=True)
    folder, (wheel,) = tmp_path_factory.mktemp("installed"), (copy / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    return folder


def test_a_wheel_holds_the_package_and_the_configs_and_nothing_else(installed):
    files = lambda folder: {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    package = {path for path in files(ROOT / "attnjax") if "__pycache__" not in path.parts}
    configs = {pathlib.Path("configs", path.name) for path in (ROOT / "configs").glob("*.py")}
    assert files(installed / "attnjax") == package | configs
    assert [path.suffix for path in installed.iterdir()] in (["", ".dist-info"], [".dist-info", ""])


def test_the_code_of_a_wheel_has_the_hash_of_its_checkout(installed, monkeypatch, tmp_path):
    mine, copy = manifest.code_hash(), shutil.copytree(installed / "attnjax", tmp_path / "attnjax")
    monkeypatch.setattr(manifest.attnjax, "__file__", str(copy / "__init__.py"))
    assert manifest.code_hash() == mine
    (copy / "registry.py").write_text("")
    assert manifest.code_hash() != mine
