"""Where compiled programs are kept: in a folder that nobody else can write to, unless the user said otherwise."""

import os

import pytest

from attnjax.cli.compilation_cache import FOLDER, SMALL, keep_programs


def test_the_folder_is_the_users_alone(tmp_path):
    environ = {"HOME": str(tmp_path)}
    folder = keep_programs(environ)
    assert folder == tmp_path / ".cache" / "attnjax" / "programs"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert environ == {"HOME": str(tmp_path), FOLDER: str(folder), **dict(SMALL)}


def test_another_place_for_caches_is_taken(tmp_path):
    environ = {"HOME": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)}
    assert keep_programs(environ) == tmp_path / "attnjax" / "programs"


@pytest.mark.parametrize(
    "choice",
    [
        {FOLDER: "/mine"},
        {"JAX_ENABLE_COMPILATION_CACHE": "false"},
        {"JAX_ENABLE_COMPILATION_CACHE": "0"},
        {"XDG_CACHE_HOME": "relative"},
    ],
)
def test_a_users_choice_stands(tmp_path, choice):
    environ = {"HOME": str(tmp_path), **choice}
    assert keep_programs(environ) is None
    assert environ == {"HOME": str(tmp_path), **choice}
    assert not list(tmp_path.iterdir())


def test_limits_that_are_set_stay(tmp_path):
    name = SMALL[0][0]
    environ = {"HOME": str(tmp_path), name: "7"}
    keep_programs(environ)
    assert environ[name] == "7"


@pytest.mark.parametrize("which", ["attnjax", "attnjax/programs"])
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_no_cache_where_others_could_write_programs(tmp_path, which, mode):
    (tmp_path / "attnjax" / "programs").mkdir(parents=True, mode=0o700)
    (tmp_path / which).chmod(mode)
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert keep_programs(environ) is None
    assert FOLDER not in environ


def test_no_cache_through_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "attnjax").mkdir()
    (tmp_path / "attnjax" / "programs").symlink_to(tmp_path / "elsewhere")
    assert keep_programs({"XDG_CACHE_HOME": str(tmp_path)}) is None


def test_no_cache_where_no_folder_can_be_made(tmp_path):
    (tmp_path / "attnjax").write_text("a file")
    assert keep_programs({"XDG_CACHE_HOME": str(tmp_path)}) is None
    assert keep_programs({}) is None


def test_old_programs_are_removed(tmp_path):
    folder = keep_programs({"XDG_CACHE_HOME": str(tmp_path)})
    for name in ("old", "new"):
        (folder / name).write_bytes(b"x")
    os.utime(folder / "old", (0, 0))
    keep_programs({"XDG_CACHE_HOME": str(tmp_path)})
    assert [path.name for path in folder.iterdir()] == ["new"]
