"""No command waits for connections: what it shows is files, and what its processes say to each other goes through pipes.

Python tells of every bind, in the command and in every process that it starts; the kernel tells of sockets that a library
opens behind Python's back.
"""

import ast
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests.train import killing

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "attnjax"
HOOK = """
import os, sys

def hear(event, arguments):
    if event == "socket.bind":
        with open(os.environ["HEARD"], "a") as file:
            print(event, *arguments, file=file)

sys.addaudithook(hear)
with open(os.environ["HEARD"], "a") as file:
    print("process", os.getpid(), file=file)
"""
LISTENS = """
import socket, sys
server = socket.socket({family})
server.bind({address})
server.listen()
print("ready", flush=True)
sys.stdin.read()
"""
SERVERS = {"http.server", "socketserver", "asyncio", "multiprocessing.managers", "xmlrpc.server", "wsgiref", "flask"}
WAITS = {"listen", "accept", "create_server", "start_server", "serve_forever"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not pathlib.Path("/proc/net/tcp").exists(), reason="sockets are looked up in /proc"),
]


class Watched:
    """A process whose sockets, and those of the processes under it, are looked at until it ends."""

    def __init__(self, folder: pathlib.Path, command: list[str]):
        hooks = folder / "hooks"
        hooks.mkdir(exist_ok=True)
        (hooks / "sitecustomize.py").write_text(HOOK)
        self.heard = folder / "heard"
        self.heard.write_text("")
        environment = killing.environment(folder / "cache")
        environment |= {"PYTHONPATH": f"{hooks}{os.pathsep}{killing.ROOT}", "HEARD": str(self.heard)}
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.process = subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes)

    def sockets(self) -> set[str]:
        """Those on which one of the processes listens now."""
        return {socket for pid in family(self.process.pid) for socket in listening(pid)}

    def finish(self) -> tuple[list[str], set[str], int]:
        """What Python told, all sockets that were ever seen, and how many Python processes there were."""
        seen, deadline = set(), time.monotonic() + killing.PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"not over after {killing.PATIENCE} s"
            seen |= self.sockets()
            time.sleep(0.1)
        output, _ = self.process.communicate()
        assert self.process.returncode == 0, output
        told = self.heard.read_text().splitlines()
        events = [line for line in told if not line.startswith("process ")]
        return events, seen, len(told) - len(events)


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sockets")


@pytest.fixture(scope="module")
def run(folder):
    """What was seen of the run of a config, on which the other commands then work."""
    small = {**killing.CONFIG, "train": {**killing.CONFIG["train"], "steps": 4}}
    (folder / "config.json").write_text(json.dumps(small))
    return command(folder, "run", "config.json", "--out", "one")


def command(folder: pathlib.Path, *words: str) -> tuple[list[str], set[str], int]:
    return Watched(folder, [sys.executable, "-m", "attnjax", *words]).finish()


def test_a_run_listens_on_no_socket(run):
    events, sockets, processes = run
    assert (events, sockets) == ([], set())
    assert processes >= 1


def test_a_sweep_and_its_workers_listen_on_no_socket(folder, run):
    over = ("--over", "train.learning_rate=1e-3,1e-4", "--workers", "2", "--population", "1")
    events, sockets, processes = command(folder, "sweep", "config.json", *over, "--out", "two")
    assert (events, sockets) == ([], set())
    assert processes >= 3  # the hook is in the workers too


def test_a_report_listens_on_no_socket(folder, run):
    assert command(folder, "report", "one")[:2] == ([], set())
    assert (folder / "one" / "report" / "report.html").is_file()


def test_the_explorer_is_a_file_and_listens_on_no_socket(folder, run):
    one = killing.the_run(folder / "one")
    assert command(folder, "explore", str(one), "--out", "page.html")[:2] == ([], set())
    assert (folder / "page.html").is_file()


def test_no_module_waits_for_connections():
    """For the commands that are too long to be run here."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
                found += [f"{path.name}: {name}" for name in names & SERVERS]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
                found.append(f"{path.name}:{node.lineno}: {node.func.attr}")
    assert not found


@pytest.mark.parametrize(
    ("family", "address"),
    [("socket.AF_INET", ("127.0.0.1", 0)), ("socket.AF_INET6", ("::1", 0)), ("socket.AF_UNIX", "here")],
)
def test_a_process_that_listens_is_found_out(tmp_path, family, address):
    """Or the tests above would prove nothing."""
    child = LISTENS.format(family=family, address=repr(address))
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    watched = Watched(tmp_path, [sys.executable, "-c", parent])
    assert watched.process.stdout.readline() == "ready\n"
    assert len(watched.sockets()) == 1
    watched.process.stdin.close()
    watched.process.stdin = None
    events, _, processes = watched.finish()
    assert [event.split()[0] for event in events] == ["socket.bind"]
    assert processes == 2
