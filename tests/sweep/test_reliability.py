"""Faults of a disk, of processes and of records, and folders that somebody else made: the table of docs/reliability.md.

Each row damages a sweep of three runs: the first is done, the second was stopped at step 5 of 10, the third has not begun. The
sweep is listed, the same command continues it, the damage is taken away, and the command is given once more.
"""

import errno
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import fake_training
import pytest
from checks import check_complete

from attnjax import safety
from attnjax.cli import main
from attnjax.sweep import ExecutionConfig, Stop, load, manifest, plan, prepare, run_here, seeds
from attnjax.sweep.claim import FILE, Owner

SETTINGS = {"name": "small", "train": {"steps": 10, "checkpoint_every": 2}, "evaluate": {"lengths": [10, 20]}}
SETTINGS |= {"task": {"options": {"work": 1}}}
DONE, STOPPED, PENDING = range(3)


class World(NamedTuple):
    """The sweep, how to change functions of the system, and a folder that nothing may touch."""

    root: pathlib.Path
    patch: pytest.MonkeyPatch
    outside: pathlib.Path

    def run(self, number: int) -> pathlib.Path:
        """The folder of a run."""
        return self.root / load(self.root).runs[number].run

    def at(self, number: int, name: str) -> pathlib.Path:
        """A file of the records of a run, or its config; of the sweep, for a name that begins with a slash."""
        if name.startswith("/"):
            return self.root / name[1:]
        folder = self.run(number) if name == "config.json" else load(self.root).folder(self.run(number).name)
        return folder / name


Plant = Callable[[World], Any]


class Row(NamedTuple):
    """What is planted, what the commands say, the exit status of the second one, and the runs that stay damaged."""

    plant: Plant
    told: str
    status: int = 0
    lost: tuple[int, ...] = ()
    options: tuple[str, ...] = ()
    trainer: Callable[..., None] = fake_training.train


def full(world: World) -> None:
    """The disk takes no new file."""

    def refuse(path, data, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    world.patch.setattr(safety, "write", refuse)


def full_from(moment: int, name: str = "") -> Plant:
    """The disk takes no file of this name from some replacement on."""

    def plant(world: World) -> None:
        count, real = [0], os.replace

        def replace(source, target, **named):
            count[0] += str(target).endswith(name)
            if count[0] >= moment and str(target).endswith(name):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
            real(source, target, **named)

        world.patch.setattr(os, "replace", replace)

    return plant


def claimed(age: float = 0.0, **fields: Any) -> Plant:
    """A claim on the run that was stopped, whose last heartbeat is so many seconds old."""

    def plant(world: World) -> Callable[[], None]:
        path = world.run(STOPPED) / FILE
        owner = Owner("0009-aa", "far", "another", 7)._replace(**fields)
        path.write_text(json.dumps(owner._asdict()))
        os.utime(path, (time.time() - age,) * 2)
        return lambda: path.unlink(missing_ok=True)

    return plant


def newest(world: World) -> pathlib.Path:
    """The largest file of the newest checkpoint, beside its digests."""
    state = world.at(STOPPED, "checkpoints/5") / "state"
    return max((path for path in state.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def edited(number: int, name: str, change: Callable[[bytes], bytes]) -> Plant:
    """Another content of a file; it is put back unless its folder has become another one."""

    def plant(world: World) -> Callable[[], None]:
        path = world.at(number, name)
        before = path.read_bytes()
        path.write_bytes(change(before))
        return lambda: path.write_bytes(before) if path.exists() else 0

    return plant


def text(number: int, name: str, new: str) -> Plant:
    """Nothing but a text in a file."""
    return edited(number, name, lambda _: new.encode("latin-1"))


def huge(number: int, name: str) -> Plant:
    """A file that claims to have a terabyte; it has no blocks on the disk."""

    def plant(world: World) -> Callable[[], None]:
        heal = edited(number, name, lambda data: data)(world)
        os.truncate(world.at(number, name), 2**40)
        return heal

    return plant


def checkpoint(change: Callable[[bytes], bytes]) -> Plant:
    """A change of the largest file of the newest checkpoint, which stays."""
    return lambda world: newest(world).write_bytes(change(newest(world).read_bytes())) and None


def cut(data: bytes) -> bytes:
    """Most of a file."""
    return data[: 9 * len(data) // 10]


def replaced(number: int, name: str, make: Callable[[pathlib.Path, pathlib.Path], None]) -> Plant:
    """Something else in place of a file or folder of a run, "" for the run itself, which is moved outside."""

    def plant(world: World) -> Callable[[], None]:
        path = world.at(number, name) if name else world.run(number)
        moved = world.outside / path.name
        path.rename(moved)
        make(path, moved)
        kept = contents(world.outside)

        def heal() -> None:
            assert contents(world.outside) == kept
            path.unlink()
            moved.rename(path)

        return heal

    return plant


LINK = lambda path, moved: path.symlink_to(moved)
PIPE = lambda path, moved: os.mkfifo(path)


def foreign(world: World) -> None:
    """What no sweep writes, in every folder."""
    for folder in (world.root, world.run(STOPPED), world.run(PENDING)):
        (folder / "notes.txt").write_text("mine")
        (folder / "data").mkdir()
        (folder / "data" / "junk.bin").write_bytes(b"\0\xff")


def code(world: World) -> Callable[[], None]:
    """Modules beside the records, and a run that names one of them."""
    config = json.dumps({"schema": 1, "task": {"name": "evil:Task"}}, sort_keys=True)
    run = world.root / hashlib.sha256(config.encode()).hexdigest()[:16]
    run.mkdir()
    (run / "config.json").write_text(config)
    for folder in (world.root, run, world.run(STOPPED)):
        for name in ("evil.py", "sitecustomize.py", "conftest.py", "attnjax.py"):
            (folder / name).write_text(f"import pathlib\npathlib.Path({str(world.outside / 'ran')!r}).touch()\n")
    return lambda: shutil.rmtree(run)


def not_a_folder(world: World) -> Callable[[], None]:
    moved = world.root.with_name("moved")
    world.root.rename(moved)
    world.root.write_text("x")
    return lambda: (world.root.unlink(), moved.rename(world.root))


def without_checkpoints(world: World) -> None:
    for path in world.at(STOPPED, "checkpoints").rglob("SHA256SUMS"):
        path.write_text("")


def torn(world: World) -> None:
    """A process was killed while it wrote the line of step 5, whose checkpoint was not begun."""
    world.at(STOPPED, "checkpoints/5").unlink()
    edited(STOPPED, "metrics.jsonl", cut)(world)


def linked_result(world: World) -> Callable[[], None]:
    (world.run(STOPPED) / "result").symlink_to(world.outside)
    return (world.run(STOPPED) / "result").unlink


def half_saved(world: World) -> None:
    partial = world.at(STOPPED, "checkpoints") / "partial-6-ab"
    partial.mkdir()
    (partial / "w").write_text("half")


SOUND = fake_training.sound
ROWS = {
    "a disk that is full": Row(full, "cannot be written to .*: No space left on device", 2),
    "a file in place of the folder": Row(not_a_folder, "cannot be written to .*: File exists", 2),
    "a disk that fills when a run begins": Row(full_from(3), "No space left on device", 1),
    "a disk that fills while a run trains": Row(full_from(9), "No space left on device", 1),
    "a disk that fills when a run ends": Row(full_from(3, "status.json"), r"\(done\) .*: disk full", 1),
    "another sweep on the folder": Row(
        lambda world: None, "train.batch is 9 instead of 32", 2, options=("train.batch=9",)
    ),
    "a second command on the folder": Row(claimed(), "process 7 on far", 1),
    "a machine that is lost": Row(claimed(age=999), "3 done"),
    "a run that killed its workers 5 times in a row": Row(claimed(age=999, deaths=4, step=5), "died 5 times", 1),
    "a checkpoint cut in half": Row(checkpoint(cut), "checkpoint of step 5 is damaged", trainer=SOUND),
    "a flipped bit in a checkpoint": Row(
        checkpoint(lambda data: bytes([data[0] ^ 1]) + data[1:]), "checkpoint of step 5 is damaged", trainer=SOUND
    ),
    "no sound checkpoint": Row(without_checkpoints, "checkpoint of step 4 is damaged", trainer=SOUND),
    "a checkpoint of a terabyte": Row(
        lambda world: os.truncate(newest(world), 2**40), "checkpoint of step 5 is damaged: it is larger", trainer=SOUND
    ),
    "a save that was killed": Row(half_saved, "3 done", trainer=SOUND),
    "a torn last line of a log": Row(torn, r"line 5 is not JSON \(a torn last line\)"),
    "a cut results.jsonl of a run that is done": Row(edited(DONE, "results.jsonl", cut), "not JSON", 0, (DONE,)),
    "nonsense in a log": Row(
        edited(STOPPED, "metrics.jsonl", lambda data: data + b"nonsense\n\xff\n"), "line 6 is not JSON"
    ),
    "a log line of a newer version": Row(
        edited(STOPPED, "metrics.jsonl", lambda data: data + b'{"schema": 9}\n'), "Update attnjax", 1, (STOPPED,)
    ),
    "a damaged status": Row(text(STOPPED, "status.json", "{"), r"status\.json is damaged", 1),
    "a damaged config": Row(text(STOPPED, "config.json", "\xff"), r"config\.json", 1),
    "a config that was changed after planning": Row(
        edited(STOPPED, "config.json", lambda data: data.replace(b"0.001", b"0.002")), r"config\.json.* changed", 1
    ),
    "a damaged manifest": Row(text(STOPPED, "manifest.json", "{"), r"manifest\.json"),
    "a damaged plan": Row(text(DONE, "/sweep.json", "{"), r"sweep\.json is damaged", 2),
    "a plan that names a folder outside": Row(
        edited(DONE, "/sweep.json", lambda text: re.sub(rb'"run": "\w+"', b'"run": "../../outside"', text, count=1)),
        r"sweep\.json is damaged: entry 0 ",
        2,
    ),
    "a plan of a terabyte": Row(huge(DONE, "/sweep.json"), r"sweep\.json is larger than", 2),
    "a log of a terabyte": Row(huge(STOPPED, "metrics.jsonl"), r"metrics\.jsonl.*is larger than", 1),
    "a link in place of a run": Row(replaced(STOPPED, "", LINK), "is a link", 2),
    "a link in place of a result": Row(linked_result, "result is a link", 1),
    "a link in place of checkpoints": Row(replaced(STOPPED, "checkpoints", LINK), "checkpoints is a link", 1),
    "a link in place of a log": Row(replaced(STOPPED, "metrics.jsonl", LINK), r"metrics\.jsonl is a link", 1),
    "a pipe in place of a log": Row(replaced(STOPPED, "metrics.jsonl", PIPE), r"metrics\.jsonl is no regular file", 1),
    "files and folders that no sweep writes": Row(foreign, "notes.txt"),
    "code in a folder of results": Row(
        code, "evil:Task belongs to a module that is not imported|names no task or no encoding"
    ),
    "control characters in records": Row(
        text(STOPPED, "status.json", '{"schema": 1, "state": "preempted", "step": 5, "reason": "\\u001b[31mred"}'),
        "red",
    ),
}


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_size < 2**20 and not path.is_symlink()
    }


@functools.cache
def begun(trainer: Callable[..., None]) -> pathlib.Path:
    """The sweep of the text of the module, made once for each trainer."""
    root = pathlib.Path(tempfile.mkdtemp()) / "out"
    store, stop = prepare(root, "small", plan(SETTINGS, seeds(3))), Stop()

    def told(run: str, step: int) -> None:
        if (run, step) == (store.runs[STOPPED].run, 5):
            stop.set("enough")

    run_here(store, fake_training.watched(trainer, told), ExecutionConfig(population=1), stop=stop)
    assert [store.status(entry.run).state for entry in store.runs] == ["done", "preempted", "pending"]
    return root


def command(capsys, *words: str) -> tuple[int, str]:
    """The exit status of a command, and what it says."""
    capsys.readouterr()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        status = main([*words])
    said = capsys.readouterr()
    return status, "\n".join([said.out, said.err, *(str(one.message) for one in told)])


@pytest.mark.parametrize("name", ROWS)
def test_damage_is_told_and_nothing_is_lost(tmp_path, monkeypatch, capsys, name):
    # Git, the hash of the code, and waiting for the disk take half of the time.
    monkeypatch.setattr(manifest, "of_machine", dict)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    row, root, config = ROWS[name], tmp_path / "out", tmp_path / "small.json"
    config.write_text(json.dumps(SETTINGS))
    again = ["sweep", str(config), "--seeds", "3", "--out", str(root), "--population", "1"]
    again += ["--trainer", f"fake_training:{row.trainer.__name__}"]
    shutil.copytree(begun(row.trainer), root)
    (tmp_path / "outside").mkdir()
    with monkeypatch.context() as patch:
        world = World(root, patch, tmp_path / "outside")
        sound = {} if DONE in row.lost else contents(world.run(DONE))
        heal = row.plant(world)
        before = contents(root)
        _, listed = command(capsys, "list", "runs", str(root))
        assert contents(root) == before, "who looks changes nothing"
        status, said = command(capsys, *again, *row.options)
        assert status == row.status
        assert re.search(row.told, listed + said)
        assert "Traceback" not in listed + said
        assert "\x1b" not in listed + said
    if heal is not None:
        heal()
    command(capsys, *again, "--retry-failed")
    assert not sound or contents(world.run(DONE)) == sound
    assert not (world.outside / "ran").exists()
    load_state = fake_training.load if row.trainer is fake_training.train else fake_training.restored
    check_complete(load(root), except_for=[load(root).runs[number].run for number in row.lost], load=load_state)
