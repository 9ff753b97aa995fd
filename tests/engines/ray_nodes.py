"""A Ray of two nodes on this machine, for as long as a block lasts: two raylets on the loopback device, without a dashboard.

with Nodes(cpus=1) as nodes:
    ...
    nodes.lose()
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import Self

ROOT = pathlib.Path(__file__).parents[2]
MEMORY = 80 << 20


def missing() -> str:
    """What is not installed, "" where the nodes can be started."""
    return "" if importlib.util.find_spec("ray") else "the package ray"


class Nodes:
    """See the module's text. The head has as many CPUs as the other node. A process of their own starts them: Ray forks."""

    def __init__(self, cpus: int):
        self._cpus = cpus

    def __enter__(self) -> Self:
        # Read while ray is imported, here as there: all addresses are those of the loopback device.
        os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.ray_nodes", str(self._cpus)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._told("address")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=120)

    def lose(self) -> None:
        """Kill the raylet of the node that is not the head, and start another node in its place."""
        assert self._process.stdin is not None
        self._process.stdin.write("lose\n")
        self._process.stdin.flush()
        self._told("lost")

    def _told(self, what: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == what:
                return rest
        raise RuntimeError(f"the nodes of Ray ended with {self._process.wait()}")


def main(cpus: int) -> None:
    """Start the nodes, tell their address, and lose one at each line of standard input, whose end is theirs."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": cpus, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    other = cluster.add_node(**node)
    print(f"address {cluster.address}", flush=True)
    try:
        for _ in sys.stdin:
            other.kill_raylet()
            lost, other = other, cluster.add_node(wait=False, **node)
            cluster.remove_node(lost, allow_graceful=False)
            print("lost", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
