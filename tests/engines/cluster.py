"""A SLURM of two nodes on this machine, for as long as a block lasts: its controller, two daemons, and commands that ask it.

    with Cluster(folder) as slurm:
        slurm.run("sbatch", "job.sh")

Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge. Nothing outside the folder is written, and the
daemons listen on the loopback address alone. They authenticate each other and the commands by a MUNGE of this cluster alone,
whose key and socket are in the folder. There is no accounting.
"""

import contextlib
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Self

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "squeue", "sinfo")
INSTALL = "apt-get install slurmctld slurmd slurm-client munge"
CONFIG = """\
ClusterName=attnjax
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=20
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=batch_sched_delay=1,sched_interval=1,bf_interval=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=low Nodes=n1,n2 Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=10 MaxTime=60
PartitionName=sudden Nodes=n1,n2 PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 MaxTime=60
PartitionName=high Nodes=n1,n2 PriorityTier=10 PreemptMode=OFF MaxTime=60
"""


def missing() -> str:
    """Which of its programs are not installed, "" where the cluster can be started."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(absent)} of SLURM" if absent else "" if os.geteuid() == 0 else "root"


class Cluster:
    """See the module's text."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        config = folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(config)}
        for name in ("state", "spool-n1", "spool-n2"):
            (folder / name).mkdir(parents=True)
        config.write_text(CONFIG.format(folder=folder, host=socket.gethostname().split(".")[0], ports=_ports(3)))

    def __enter__(self) -> Self:
        own = {name: self._folder / f"munge.{name}" for name in ("key", "socket", "pid", "seed")}
        own["key"].write_bytes(secrets.token_bytes(128))
        own["key"].chmod(0o600)
        files = [f"--{name}-file={path}" for name, path in own.items() if name != "socket"]
        self._start("munged", "--foreground", "--force", f"--socket={own['socket']}", *files)
        self._wait(own["socket"].is_socket)
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]):
            self._start(*command)
        self._wait(lambda: self.run("sinfo", "-h", "-N", "-o", "%T", "-p", "low", check=False).split() == ["idle"] * 2)
        return self

    def _start(self, *command: str) -> None:
        with (self._folder / f"{command[0]}-{len(self._daemons)}.out").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
            )

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"SLURM did not start: {self.logs()}")
            time.sleep(0.5)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--user=root", check=False)
            self.run("scancel", "--user=root", "--signal=KILL", "--full", check=False)
        for daemon in self._daemons:
            daemon.terminate()
        for daemon in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()

    def run(self, *command: str, check: bool = True) -> str:
        """What a command of SLURM prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{command}: {done.stderr}")
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """State of each job of all arrays, as ARRAY_NUMBER: by its own number one of them would be the whole array."""
        told = self.run("squeue", "--array", "--noheader", "--format=%i %T")
        return dict(line.split() for line in told.splitlines())

    def logs(self) -> str:
        """The last lines of its logs."""
        files = sorted(self._folder.glob("*.log")) + sorted(self._folder.glob("*.out"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in files)


def job_of(process: psutil.Process) -> str:
    """The job of an array that a process belongs to, as `Cluster.jobs` calls it; "" where it is of none, or has ended."""
    try:
        found = process.environ()
    except psutil.Error:
        return ""
    return f"{found['SLURM_ARRAY_JOB_ID']}_{found['SLURM_ARRAY_TASK_ID']}" if "SLURM_ARRAY_JOB_ID" in found else ""


def _ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
