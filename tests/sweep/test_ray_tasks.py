"""Workers as tasks of Ray without a cluster: the task itself, when a worker starts again, profiles, and errors in sentences."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import types

import hanging
import pytest
from checks import until
from test_work import REQUEUE

from attnjax.cli import main
from attnjax.records import status
from attnjax.sweep import ray_tasks, seeds
from attnjax.sweep.executors import News, attend
from attnjax.sweep.profiles import Profile, profile
from attnjax.sweep.ray_hosts import free_address, lacking
from attnjax.sweep.ray_tasks import RayTasks, connected, work
from attnjax.sweep.stop import Stop


class Ray:
    """The functions of the package ray that are used, where each task has ended when it is looked at, as `ends` says."""

    class exceptions:
        class RayError(Exception):
            pass

        class TaskCancelledError(RayError):
            pass

        class RayTaskError(RayError):
            cause = None

    def __init__(self, *ends):
        self.ends, self.given, self.options, self.cancelled = list(ends), [], [], []

    def get_runtime_context(self):
        return types.SimpleNamespace(get_job_id=lambda: "07")

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 8.0, "GPU": 1.0, "fast": 1.0}}]

    def remote(self, **options):
        self.options.append(options)
        return lambda function: types.SimpleNamespace(remote=lambda *given: self._begin(function, given))

    def _begin(self, function, given):
        assert function is work
        self.given.append(given)
        return len(self.given)

    def wait(self, references, num_returns, timeout):
        return (references[:num_returns] if self.ends else []), []

    def get(self, reference):
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    def cancel(self, reference, *, force):
        assert not force
        self.cancelled.append(reference)


LOST, CANCELLED = Ray.exceptions.RayError("the node died\nmore"), Ray.exceptions.TaskCancelledError("cancelled")


@pytest.fixture
def tasks(make, monkeypatch):
    """Makes the executor for one worker with what its tasks come to, in order."""

    def made(*ends, workers=1, **fields):
        ray, told = Ray(*ends), []
        monkeypatch.setattr(ray_tasks, "library", lambda: ray)
        store = make(seeds(1))
        command = ["python", "-m", "attnjax", "work", str(store.root)]
        return RayTasks(store, command, workers, Profile(**fields), told.append), ray, told

    return made


@pytest.mark.parametrize(
    ("ends", "starts", "words"),
    [
        ((0,), 1, []),
        ((3,), 1, []),
        ((1,), 1, ["worker 1 ended with exit status 1; the last line of its log"]),
        ((75, 0), 2, ["worker 1 ended with exit status 75, and is started again"]),
        ((-9, 0), 2, ["worker 1 ended with exit status -9, and is started again"]),
        (
            (LOST, 75, 0),
            3,
            ["worker 1 was lost (the node died), and is started again", "worker 1 ended with exit status 75"],
        ),
        ((CANCELLED,), 1, []),
        (
            (75, 75, 75, 75),
            4,
            ["worker 1 ended with"] * 3
            + ["worker 1 ended with exit status 75; it was started again 3 times, and is not now"],
        ),
    ],
)
def test_which_ends_start_a_worker_again(tasks, ends, starts, words):
    executor, ray, told = tasks(*ends, restarts=3)
    name = executor.submit()
    while executor.poll(name):
        pass
    assert len(ray.given) == starts
    assert len(told) == len(words)
    assert all(one.startswith(word) for one, word in zip(told, words))
    lost = [ends[number] in (LOST, -9) for number in range(starts - 1)]
    assert [given[0][-1] == "--wait" for given in ray.given] == [False, *lost]


def test_what_a_worker_gets(tasks):
    fields = {"cpus": 2, "gpus": 1, "resources": {"fast": 0.5}, "environment": {"NPROC": "4", "A": "b=c d"}}
    executor, ray, _ = tasks(**fields)
    assert executor.submit() == "07"
    assert executor.poll("07") == executor.poll("07_1") == {"waiting": 1}
    assert executor.poll("07_2") == {}
    words, environment, folder, log = ray.given[0]
    assert words == ["-m", "attnjax", "work", words[3], "--attached"]
    assert folder == os.getcwd()
    given = dict(one.split("=", 1) for one in environment)
    assert given.pop("PYTHONPATH").split(os.pathsep)[-1] == os.path.abspath(sys.path[-1])
    assert given == {"NPROC": "4", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "A": "b=c d"}
    assert ray.options == [
        {"num_cpus": 2, "num_gpus": 1, "resources": {"fast": 0.5}, "max_retries": 0, "scheduling_strategy": "SPREAD"}
    ]
    with open(log, "w"):
        assert executor.poll("07") == {"running": 1}


CALLS = {"REDUCE", "BUILD", "NEWOBJ", "NEWOBJ_EX", "INST", "OBJ"}
"""Instructions of a pickle that make objects or call functions. Naming a function is none of them."""
CARRIED = """
import json, pickletools
from ray import cloudpickle
from attnjax.sweep.ray_hosts import free_address
from attnjax.sweep.ray_tasks import work
for value in (work, free_address, lambda: 0):
    found = [*pickletools.genops(cloudpickle.dumps(value))]
    print(json.dumps([[one.name for one, _, _ in found], [text for _, text, _ in found if isinstance(text, str)]]))
"""
"""In a process of its own, because Ray reads its environment where it is imported."""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="NOT RUN: needs Ray: pip install 'attnjax[ray]'")
@pytest.mark.slow
def test_ray_carries_functions_by_their_names():
    environment = {**os.environ, "PYTHONPATH": hanging.PATHS}
    done = subprocess.run([sys.executable, "-c", CARRIED], env=environment, capture_output=True, text=True, check=True)
    *named, unnamed = map(json.loads, done.stdout.splitlines())
    assert [texts for _, texts in named] == [[one.__module__, one.__name__] for one in (work, free_address)]
    assert all(CALLS.isdisjoint(calls) for calls, _ in named)
    assert not CALLS.isdisjoint(unnamed[0])  # a function without a name would travel as its code


def test_what_a_task_is_given_are_strings(tasks):
    executor, ray, _ = tasks(environment={"A": "b"}, workers=2)
    executor.submit()
    assert len(ray.given) == 2
    parts = [part for given in ray.given for one in given for part in (one if type(one) is list else [one])]
    assert {type(part) for part in parts} == {str}


def test_a_worker_that_was_stopped_is_not_started_again(tasks):
    executor, ray, told = tasks(workers=2)
    name = executor.submit()
    executor.stop(f"{name}_2")
    executor.stop(name)
    assert sorted(ray.cancelled) == [1, 2]
    ray.ends = [75, LOST]
    assert executor.poll(name) == {}
    assert len(ray.given) == 2
    assert told == []


def test_what_ends_the_driver(tasks):
    error = Ray.exceptions.RayTaskError("ray::work()")
    error.cause = FileNotFoundError(2, "No such file or directory", "/nowhere")
    executor, _, _ = tasks(error)
    with pytest.raises(
        ValueError, match=r"^a worker could not be started by Ray: .* No such file or directory: '/nowhere'$"
    ):
        executor.poll(executor.submit())
    executor, ray, _ = tasks(2)
    name = executor.submit()
    with open(ray.given[0][3], "w") as log:
        log.write("more\nattnjax: error: no training function\n")
    with pytest.raises(
        ValueError, match=r"exit status 2; the last line of its log is: attnjax: error: no training function$"
    ):
        executor.poll(name)
    executor, _, _ = tasks(gpus=8)
    with pytest.raises(ValueError, match=r"^no worker can be started: no node has what each takes \(CPU 1, GPU 8\)$"):
        executor.submit()
    executor, _, told = tasks(gpus=8, address="10.0.0.1:6379")
    executor.submit()
    assert told == ["workers wait: no node has what each takes (CPU 1, GPU 8)"]


def test_resources_of_dead_nodes_do_not_count():
    assert lacking([{"Alive": False, "Resources": {"CPU": 8}}], {"CPU": 1}) == "no node has what each takes (CPU 1)"


class Scheduler:
    """An executor whose only worker ends at the third look, or at the first after it was stopped."""

    def __init__(self, at_second):
        self.looks, self.stopped, self.at_second = 0, 0, at_second

    def submit(self):
        return "1"

    def poll(self, workers):
        self.looks += 1
        if self.looks == 2:
            self.at_second()
        return {"running": 1} if self.looks < 3 and not self.stopped else {}

    def stop(self, workers):
        self.stopped += 1


@pytest.mark.slow
def test_the_driver_passes_on_what_the_folder_says_and_stops_at_a_failure(make, monkeypatch):
    monkeypatch.setattr("attnjax.sweep.executors.LOOK", 0.01)
    store, events, stop = make(seeds(2)), [], Stop()
    first, second = (entry.run for entry in store.runs)
    status.write(store.directory(first), status.Status("running", 2))
    status.write(store.directory(first), status.Status("done", 10))
    status.write(store.directory(second), status.Status("running", 2))
    fails = lambda: status.write(store.directory(second), status.Status("failed", 4, "broken"))
    scheduler = Scheduler(fails)
    attend(scheduler, store, events.append, stop, fail_fast=True)
    assert [(event.run, event.state, event.step, event.reason) for event in events] == [(second, "failed", 4, "broken")]
    assert stop.reason == f"run {second} failed"
    assert scheduler.stopped == 1
    assert News(store).tell(events.append) == []
    broken = Scheduler(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        attend(broken, store, events.append, Stop())
    assert broken.stopped == 1


TASK = """\
import sys
from attnjax.sweep.ray_tasks import work
try:
    code = work({words}, ["A=b c"], {folder!r}, {log!r}, {coordinator!r})
except KeyboardInterrupt:
    code = "cancelled"
print(code)
"""


def task(folder, words, coordinator=""):
    """The task in a process of its own, as in a worker process of Ray."""
    code = TASK.format(words=words, folder=str(folder), log=str(folder / "log.txt"), coordinator=coordinator)
    environment = {**os.environ, "PYTHONPATH": hanging.PATHS}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def test_the_task_returns_the_exit_status_of_its_worker_and_keeps_what_it_prints(tmp_path):
    worker = (
        "import os, sys; print(os.environ['A'], os.getcwd(), flush=True); print('so', file=sys.stderr); os._exit(75)"
    )
    told, _ = task(tmp_path, ["-c", worker]).communicate(timeout=60)
    assert told == "75\n"
    assert (tmp_path / "log.txt").read_text() == f"b c {tmp_path}\nso\n"
    told, _ = task(tmp_path, ["-c", "import os; os.kill(os.getpid(), 9)"]).communicate(timeout=60)
    assert told == "-9\n"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "why"), [("SIGINT", "SIGTERM"), ("SIGKILL", "the process that started this one")])
def test_a_worker_saves_when_its_task_is_cancelled_or_dies(make, tmp_path, number, why):
    """Ray cancels with KeyboardInterrupt. A task that dies cannot tell its worker: the end of its standard input does."""
    store = make(seeds(1), task={"options": {"work": 1_000_000}})
    run = store.runs[0].run
    process = task(
        tmp_path, ["-m", "attnjax", "work", str(store.root), "--trainer", "fake_training:train", "--attached"]
    )
    until(lambda: (store.directory(run) / "checkpoints/last").exists())
    process.send_signal(getattr(signal, number))
    told, _ = process.communicate(timeout=60)
    assert told == ("cancelled\n" if number == "SIGINT" else "")
    until(lambda: store.status(run).state != "running")
    assert store.status(run).state == "preempted"
    assert store.status(run).reason.startswith(why)
    until(lambda: "the same command continues" in (tmp_path / "log.txt").read_text())


@pytest.mark.slow
def test_an_attached_worker_asks_to_be_started_again(make):
    store = make(seeds(1), task={"options": {"work": 1_000_000}})
    command = [
        sys.executable,
        "-m",
        "attnjax",
        "work",
        str(store.root),
        "--trainer",
        "fake_training:train",
        "--attached",
    ]
    environment = {**os.environ, "PYTHONPATH": hanging.PATHS}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    until(lambda: (store.directory(store.runs[0].run) / "checkpoints/last").exists())
    process.stdin.close()
    assert process.wait(60) == REQUEUE


def test_without_ray_one_sentence_and_nothing_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("USAGE_STATS_ENABLED", "ENABLE_WINDOWS_OR_OSX_CLUSTER", "AUTH_MODE", "AUTH_TOKEN"):
        monkeypatch.setenv(f"RAY_{name}", "0")  # what the command sets ends with the test
    assert main(["sweep", "rope_vs_sinusoidal", "--executor", "ray", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("attnjax: error: Ray is not installed: pip install 'attnjax[ray]' (")
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_cannot_be_reached_is_one_sentence():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(ValueError, match=rf"^no Ray cluster at {address}: Connection refused$"):
                connected(Profile(address=address)).__enter__()
    for address in ("here", "here:x", ":6379", "here:70000", "https://a/b"):
        with pytest.raises(ValueError, match=r"^address must be host:port, ray://host:port or auto, got '"):
            connected(Profile(address=address)).__enter__()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[slurm]", r"has no table \[ray\]"),
        (
            "[ray]\npartition = 'a'",
            "unknown field 'partition'; choose from gpus, cpus, restarts, address, resources, environment, processes, "
            "placement",
        ),
        ("[ray]\naddress = 'a b'", "address must be one word, got 'a b'"),
        ("[ray]\nresources = 3", "resources must be a table, got 3"),
        ("[ray]\nresources = {a = 0}", "resources must give names numbers above 0"),
        ("[ray]\nresources = {a = true}", "resources must give names numbers above 0"),
        ("[ray]\nresources = {a = nan}", "resources must give names numbers above 0"),
        ("[ray]\nenvironment = {A = 1}", "environment must give variables lines of text"),
        ('[ray]\nenvironment = {A = "a\\nb"}', "environment must give variables lines of text"),
        ('[ray]\nenvironment = {"A=B" = "c"}', "environment must give variables lines of text"),
    ],
)
def test_profiles_that_are_none(tmp_path, text, words):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        profile(path, "ray")


def test_a_profile_of_every_field(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(
        '[slurm]\npartition = "gpu"\n[ray]\naddress = "10.0.0.1:6379"\ngpus = 1\ncpus = 4\nrestarts = 7\n'
        'resources = {fast = 0.5, slow = 1}\nenvironment = {A = "b c"}\n'
    )
    resources, environment = {"fast": 0.5, "slow": 1}, {"A": "b c"}
    assert profile(path, "ray") == Profile(
        address="10.0.0.1:6379", gpus=1, cpus=4, restarts=7, resources=resources, environment=environment
    )
    assert profile(path, "slurm") == Profile(partition="gpu")
    assert profile(None, "ray") == Profile()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--executor", "ray", "--threads", "2"], "--threads needs --executor local"),
        (["--profile", "x.toml"], "--profile needs --executor slurm or ray"),
        (["--executor", "slurm", "--report"], "--report needs --executor local or ray"),
    ],
)
def test_options_that_do_not_go_together(capsys, options, words):
    assert main(["sweep", "rope_vs_sinusoidal", *options]) == 2
    assert capsys.readouterr().err.startswith(f"attnjax: error: {words}")
