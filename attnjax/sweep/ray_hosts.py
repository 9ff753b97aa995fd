"""Several tasks of Ray that train one model together: a bundle of a placement group for each, and where the first listens.

Each task runs `attnjax work` with `--coordinator`, `--processes` and `--process-id`, as a task of a SLURM step does. A task in
the bundle of process 0 finds a free port there, and its result is an argument of all others: Ray starts none of them before it
is known. Another program can take the port until process 0 listens; then all are started again, with another port.
"""

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from attnjax.config.mesh import MeshShape
from attnjax.sweep.profiles import Profile

GRACE = 10.0
"""Seconds between the end of a process and the cancelling of those that have not ended: each ends by itself where it can."""
PORT_TAKEN = "--coordinator: port "
"""How the sentence of `attnjax work` about its port begins, behind "attnjax: error: "."""
End = int | str | None
"""How a task ended: the exit status of its process, why it was lost, or None where it was cancelled."""


def check_mesh(profile: Profile, mesh: MeshShape) -> None:
    """Raise ValueError where the processes of a profile cannot have as many devices of a mesh each.

    Example:
      >>> check_mesh(Profile(processes=2), MeshShape(data=16))
    """
    if mesh.devices % profile.processes:
        raise ValueError(
            f"--mesh must name a multiple of {profile.processes} devices, as many of each of the {profile.processes} "
            f"processes of the profile; got {str(mesh) or 'one device'}"
        )


def free_address() -> str:
    """The task of process 0: HOST:PORT of the node that it runs on, with a port that nobody listens at."""
    import ray

    host = ray.util.get_node_ip_address()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Placement:
    """A placement group with a bundle for each process: on a node each, or all on one, as the profile says.

    Args:
      ray: the package, connected.
      needs: what a process takes of a node, in Ray's words.
      profile: how many processes there are, and where.
    """

    def __init__(self, ray: Any, needs: Mapping[str, float], profile: Profile):
        self._ray = ray
        self._group = ray.util.placement_group([dict(needs)] * profile.processes, strategy=profile.placement)

    def of(self, number: int) -> Any:
        """Where Ray has to start process `number`."""
        strategies = self._ray.util.scheduling_strategies
        return strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)

    def remove(self) -> None:
        """Give the nodes back. Ray ends tasks that still wait for one."""
        self._ray.util.remove_placement_group(self._group)


def lacking(nodes: Sequence[Mapping[str, Any]], needs: Mapping[str, float], profile: Profile | None = None) -> str:
    """A sentence where the nodes that are alive do not have what a worker takes, "" where they do.

    Args:
      nodes: as Ray lists them.
      needs: what each process of a worker takes of a node.
      profile: how many processes a worker has, and where they run; one if left out.

    Example:
      >>> lacking([{"Alive": True, "Resources": {"CPU": 2.0}}], {"CPU": 1, "GPU": 1})
      'no node has what each takes (CPU 1, GPU 1)'
      >>> lacking([{"Alive": True, "Resources": {"CPU": 2.0}}], {"CPU": 1})
      ''
    """
    profile = Profile() if profile is None else profile
    spread = profile.processes > 1 and profile.placement == "STRICT_SPREAD"
    share = 1 if spread else profile.processes
    takes = {name: amount * share for name, amount in needs.items()}
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    able = sum(all(has.get(name, 0) >= amount for name, amount in takes.items()) for has in alive)
    listed = ", ".join(f"{name} {amount:g}" for name, amount in takes.items())
    if spread and able < profile.processes:
        return f"each takes {profile.processes} nodes with {listed} on each of them; nodes that have it: {able}"
    return "" if able else f"no node has what each takes ({listed})"


def described(ends: Mapping[int, End]) -> str:
    """What became of the processes of a worker, for people.

    Example:
      >>> described({0: -9})
      'ended with exit status -9'
      >>> described({1: "was lost (the node died)", 0: 75})
      'ended: process 0 ended with exit status 75, process 1 was lost (the node died)'
    """
    each = {number: _said(ends[number]) for number in sorted(ends)}
    if len(each) == 1:
        return each[0]
    return "ended: " + ", ".join(f"process {number} {said}" for number, said in each.items())


def _said(end: End) -> str:
    if end is None:
        return "was cancelled"
    return end if isinstance(end, str) else f"ended with exit status {end}"
