"""Accelerators to compile for, by name: `v5e:4x4`, `v5p:2x2x2`, `v6e:2x4`, `h100:8`, `h100:2x8` (hosts x GPUs).

JAX compiles for the devices of a `jax.experimental.topologies.TopologyDescription` without having one of them. For TPUs the
compiler is in `libtpu`; for NVIDIA GPUs it is in the CUDA plugin and its assembler in `nvidia-cuda-nvcc`. Both come with
`pip install 'attnjax[compile]'`.

What this proves: the program lowers, partitions and passes the compiler; that of a TPU fits the memory of the chip, or is
refused. What it does not prove: that it runs, its numbers, its speed; and on a GPU the memory is only counted.
"""

import math
import os
import re
from typing import Any, NamedTuple

import jax

NAME = re.compile(r"([a-z]\w*):(\d+(?:x\d+)*)")
GIB = 2**30


class Chip(NamedTuple):
    """One kind of accelerator: its name, the platform it is lowered for, its memory in bytes, and how many sizes a topology
    of it may have.
    """

    name: str
    platform: str
    memory: int
    sizes: tuple[int, ...]


CHIPS = (
    Chip("v5e", "tpu", 16 * GIB, (2,)),
    Chip("v5p", "tpu", 95 * GIB, (3,)),
    Chip("v6e", "tpu", 32 * GIB, (2,)),
    Chip("h100", "cuda", 84_942_979_072, (1, 2)),
)
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 0 } device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""What the compiler asks of an H100: the figures of `h100_sxm.txtpb` in openxla/xla."""


class Topology(NamedTuple):
    """Devices to compile for: their name, the platform, and the memory of one of them in bytes."""

    name: str
    platform: str
    devices: tuple[Any, ...]
    memory: int


def topology(name: str) -> Topology:
    """Return the devices of a topology that is not here.

    Raises:
      ValueError: for a name of another form, a kind of chip that is not known, a topology that does not exist, and where the
        compiler is not installed.
    """
    found = NAME.fullmatch(name)
    chip = next((chip for chip in CHIPS if found is not None and chip.name == found[1]), None)
    if found is None or chip is None:
        kinds = ", ".join(chip.name for chip in CHIPS)
        raise ValueError(f"topology {name!r} must be KIND:SIZES such as v5e:4x4 or h100:8, of {kinds}")
    sizes = [int(n) for n in found[2].split("x")]
    if math.prod(sizes) < 1:
        raise ValueError(f"topology {name!r} has no devices")
    if len(sizes) not in chip.sizes:
        shape = (
            "GPUs, or hosts x GPUs of each" if chip.platform == "cuda" else f"{'x'.join('ABC'[: chip.sizes[0]])} chips"
        )
        raise ValueError(f"topology {name!r} must be {shape}")
    devices = _gpus(name, sizes) if chip.platform == "cuda" else _tpus(name)
    return Topology(name, chip.platform, tuple(devices), chip.memory)


def _gpus(name: str, sizes: list[int]) -> list[Any]:
    from jax.experimental import topologies

    shape = "x".join(map(str, [1, *([1] if len(sizes) == 1 else []), *sizes]))
    try:
        return topologies.get_topology_desc(platform="cuda", target_config=H100, topology=shape).devices
    except (RuntimeError, NotImplementedError) as error:
        raise _missing(name, error) from error


def _tpus(name: str) -> list[Any]:
    from jax.experimental import topologies

    # Without these libtpu asks a server of the cloud which machine it is on, and waits.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    try:
        return topologies.get_topology_desc(name, "tpu").devices
    except (RuntimeError, NotImplementedError, ValueError) as error:
        absent = ("libtpu", "unknown platform", "not found", "not installed")
        if any(words in str(error).lower() for words in absent):
            raise _missing(name, error) from error
        raise ValueError(f"topology {name!r} does not exist: {str(error).splitlines()[0]}") from error


def _missing(name: str, error: Exception) -> ValueError:
    told = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ValueError(
        f"the compiler for {name} is not here ({told}): pip install 'attnjax[compile]', with jax {jax.__version__}"
    )
