"""A SLURM of two nodes on this machine, for as long as a block lasts: its controller, two daemons, and commands that ask it.

    with Cluster(folder) as slurm:
        slurm.run("sbatch", "job.sh")

Needs root and Debian's packages slurmctld, slurmd and slurm-client. Nothing outside the folder is written, and the daemons
listen on the loopback address alone. There is no accounting and no authentication: it is for one user, of one machine.
"""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import time
from typing import Self

import psutil

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "squeue", "sinfo")
CONFIG = """\
ClusterName=attnjax
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
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
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]):
            with (self._folder / f"{'-'.join(command)}.out").open("wb") as log:
                self._daemons.append(
                    subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
                )
        deadline = time.monotonic() + 60
        while self.run("sinfo", "-h", "-N", "-o", "%T", "-p", "low", check=False).split() != ["idle"] * 2:
            if time.monotonic() > deadline:
                raise RuntimeError(f"SLURM did not start: {self.logs()}")
            time.sleep(0.5)
        return self

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
