"""A save that is interrupted at any operation on files leaves the old step or the new one, and never neither."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = [sys.executable, "-m", "tests.train.interrupted_saves"]
LEAST = 25
"""Operations that a save has at least: a hook that hears nothing would prove nothing."""


@pytest.mark.parametrize("mode", ["fail-once", "fail-from", "kill"])
def test_at_every_operation_of_a_save(tmp_path, mode):
    done = subprocess.run([*SCRIPT, tmp_path, mode], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    count, old, new = map(int, re.findall(r"\d+", done.stdout.splitlines()[-1]))
    assert count >= LEAST
    assert old + new == count
    assert min(old, new) > 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, which stops a process at its Nth system call")
@pytest.mark.parametrize("call", ["write", "rename", "mkdir", "fsync"])
def test_a_process_killed_at_its_nth_system_call(tmp_path, call):
    """Calls of C++ code too, which Python does not hear of."""
    code = "import pathlib, sys; from tests.train import interrupted_saves as s; f = pathlib.Path(sys.argv[1]); "
    again = code + "print('restored', s.check(f, (2, 3))); s.checkpoint.save(f, 4, s.state(4)); s.check(f, (4,))"
    names = {"rename": "rename,renameat,renameat2", "mkdir": "mkdir,mkdirat", "fsync": "fsync,fdatasync"}.get(
        call, call
    )
    for number in range(1, 200):
        folder = tmp_path / str(number) / "run" / "checkpoints"
        subprocess.run([sys.executable, "-c", code + "s.begin(f)", folder], cwd=ROOT, check=True)
        inject = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={names}", "-P", folder.parent, "-P", folder]
        inject += ["-e", f"inject={names}:signal=KILL:when={number}"]
        saving = [*inject, sys.executable, "-c", code + "s.checkpoint.save(f, 3, s.state(3))", folder]
        done = subprocess.run(saving, cwd=ROOT, check=False)
        found = subprocess.run(
            [sys.executable, "-c", again, folder], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert found.stdout.startswith("restored")
        if done.returncode == 0:
            return
        assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    raise AssertionError("a save has no end")
