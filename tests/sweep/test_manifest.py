"""What a manifest says of the code: of the files of the package alone, and nothing where git says nothing."""

import subprocess

import pytest

from attnjax.sweep import manifest


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package of a checkout without commits."""
    root = tmp_path / "attnjax"
    (root / "sweep").mkdir(parents=True)
    for name in ("__init__.py", "sweep/plan.py"):
        (root / name).write_text(f"# {name}")
    monkeypatch.setattr(manifest.attnjax, "__file__", str(root / "__init__.py"))
    return root


def test_what_an_editor_leaves_in_the_package_is_no_code(package):
    whole = manifest.code_hash()
    (package / ".#plan.py").symlink_to("somebody@there.123:456")
    (package / "sweep" / ".plan.py").write_text("1")
    (package / ".checkpoints").mkdir()
    (package / ".checkpoints" / "plan.py").write_text("1")
    (package / "gone.py").symlink_to("nowhere.py")
    (package / "folder.py").mkdir()
    assert manifest.code_hash() == whole
    (package / "sweep" / "plan.py").write_text("# another")
    assert manifest.code_hash() != whole


def test_whether_files_differ_from_the_commit_is_not_known_where_git_does_not_answer(package, monkeypatch):
    of = lambda: [manifest.of_machine()[name] for name in ("commit", "commit_dirty")]
    assert of() == [None, None]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        command = ["git", "-C", package.parent, "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(command, check=True, capture_output=True)
    commit, dirty = of()
    assert (len(commit), dirty) == (40, False)
    (package / "__init__.py").write_text("1")
    assert of() == [commit, True]
    monkeypatch.setattr(manifest.shutil, "which", lambda program: "false")
    assert of() == [None, None]
