"""No command waits for connections: what it shows is files, and what its processes say to each other goes through pipes.

`tests/test_architecture.py` looks for servers in the sources; here the kernel tells of sockets that a library opens.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests.train import killing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not pathlib.Path("/proc/net/tcp").exists(), reason="sockets are looked up in /proc"),
]


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it ended meanwhile
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def listening(pid: int) -> set[str]:
    """Inodes of the TCP and Unix sockets of a process on which it listens."""
    process = pathlib.Path("/proc") / str(pid)
    try:
        links = {os.readlink(link) for link in (process / "fd").iterdir()}
        waiting = set()
        for name in ("tcp", "tcp6"):
            rows = [line.split() for line in (process / "net" / name).read_text().splitlines()[1:]]
            waiting |= {row[9] for row in rows if row[3] == "0A"}  # TCP_LISTEN
        rows = [line.split() for line in (process / "net" / "unix").read_text().splitlines()[1:]]
        waiting |= {row[6] for row in rows if int(row[3], 16) & 1 << 16}  # __SO_ACCEPTCON
    except OSError:  # it ended, or closed a file, meanwhile: it is looked at again
        return set()
    return {inode for inode in waiting if f"socket:[{inode}]" in links}


def test_no_command_listens_on_a_socket(tmp_path):
    listens = "import socket; server = socket.create_server(('127.0.0.1', 0)); print(flush=True); input()"
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", listens], text=True, **pipes) as process:
        process.stdout.readline()
        assert listening(process.pid), "a socket would be seen"
        process.communicate("\n")
    small = {**killing.CONFIG, "train": {**killing.CONFIG["train"], "steps": 4}}
    (tmp_path / "config.json").write_text(json.dumps(small))
    run = ("run", "config.json", "--out", "one")
    two = ("run", "config.json", "--over", "train.learning_rate=1e-3,1e-4", "--workers", "2", "--population", "1")
    commands = [run, (*two, "--out", "two"), ("report", "one"), ("explore", "RUN", "--out", "page.html")]
    environment = killing.environment(tmp_path / "cache")
    for words in commands:
        known = [str(killing.the_run(tmp_path / "one")) if word == "RUN" else word for word in words]
        command = [sys.executable, "-m", "attnjax", *known]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
        processes = set()
        while process.poll() is None:
            processes |= {*family(process.pid)}
            assert not {one for pid in processes for one in listening(pid)}, words
            time.sleep(0.1)
        assert process.returncode == 0
        assert len(processes) >= (3 if "--workers" in words else 1)
    assert (tmp_path / "one" / "report" / "report.html").is_file()
    assert (tmp_path / "page.html").is_file()
