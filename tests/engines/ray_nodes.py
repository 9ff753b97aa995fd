"""A Ray of two nodes on this machine, for as long as a block lasts: two raylets on the loopback device, without a dashboard.

with Nodes(cpus=1) as nodes, connected(Profile(address=nodes.address)):
    ...
    nodes.lose()
"""

import importlib.util
import os
import pathlib
from typing import Any, Self

import psutil

MEMORY = 80 << 20


def missing() -> str:
    """What is not installed, "" where the nodes can be started."""
    return "" if importlib.util.find_spec("ray") else "the package ray"


class Nodes:
    """See the module's text. The head has as many CPUs as the other node."""

    def __init__(self, cpus: int):
        self._node: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": MEMORY, "include_dashboard": False}

    def __enter__(self) -> Self:
        os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0")
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args=self._node)
        self._other = self._cluster.add_node(**self._node)
        self.address = self._cluster.address
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()

    def lose(self) -> None:
        """Kill the raylet of the node that is not the head, and start another node in its place."""
        self._other.kill_raylet()
        lost, self._other = self._other, self._cluster.add_node(wait=False, **self._node)
        self._cluster.remove_node(lost, allow_graceful=False)


def workers(root: pathlib.Path) -> list[psutil.Process]:
    """The processes `attnjax work` of a sweep, in the order in which they began."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        words = process.info["cmdline"] or []
        if words[1:5] == ["-m", "attnjax", "work", str(root)]:
            found.append(process)
    return sorted(found, key=lambda process: process.info["create_time"])
