"""One program, compiled for devices that may not be here, and what the compiler says of it."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from attnjax.aot.hlo import Collective, collectives, widened_products
from attnjax.aot.topologies import Topology
from attnjax.typing import PyTree


class Compiled(NamedTuple):
    """What is known of a program without running it; sizes are bytes on one device.

    `seconds`: to lower and to compile. `flops`: as the compiler counts them, with one step of each loop; None where it does
    not. `widened`: products with a 16-bit operand that was made float32 first.
    """

    seconds: float
    arguments: int
    outputs: int
    aliased: int
    temporary: int
    code: int
    flops: float | None
    collectives: tuple[Collective, ...]
    widened: tuple[str, ...]

    @property
    def memory(self) -> int:
        """Bytes that the program needs on each device: arguments, outputs that do not take their place, and the rest."""
        return self.arguments + self.outputs - self.aliased + self.temporary + self.code


NO_TILES = "Couldn't find output tile sizes"
"""What XLA says of a product whose sizes suit no kernel of Triton. On a GPU it measures and takes that of cuBLAS; without
one it takes Triton's unmeasured, so that cuBLAS must be asked for."""


class TooLarge(Exception):
    """The compiler says that the program does not fit the memory of a device."""


def mesh_of(topology: Topology, axes: Mapping[str, int]) -> jax.sharding.Mesh:
    """Return a mesh of these axes over all devices of a topology. Raises ValueError unless their product is its size."""
    count = len(topology.devices)
    if math.prod(axes.values()) != count:
        told = ", ".join(f"{name}={size}" for name, size in axes.items())
        raise ValueError(f"{topology.name} has {count} devices, and the mesh {told} is for {math.prod(axes.values())}")
    kinds = (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.sharding.Mesh(np.array(topology.devices).reshape(*axes.values()), tuple(axes), axis_types=kinds)


def compile_for(
    topology: Topology,
    mesh: jax.sharding.Mesh,
    function: Callable[..., Any],
    arguments: tuple[PyTree, ...],
    specs: tuple[PyTree, ...],
    **options: Any,
) -> Compiled:
    """Compile `function` for a topology, with arguments of these shapes laid out on the mesh as `specs` say.

    Args:
      topology, mesh: the devices, and a mesh over them.
      function: what to compile; `options` are those of `jax.jit`.
      arguments: trees of `jax.ShapeDtypeStruct`, or of arrays, whose shapes alone count.
      specs: a `jax.sharding.PartitionSpec` for each argument, or a tree of them.

    Raises:
      TooLarge: where the compiler says so, or on a GPU, whose compiler does not look, more bytes are needed than it has.
    """
    placed = tuple(_placed(mesh, tree, spec) for tree, spec in zip(arguments, specs, strict=True))
    start = time.perf_counter()
    try:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            lowered = jax.jit(function, **options).trace(*placed).lower(lowering_platforms=(topology.platform,))
            compiled = _compiled(lowered)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise TooLarge(str(error).splitlines()[0]) from error
    found = described(compiled, time.perf_counter() - start)
    if found.memory > topology.memory:
        raise TooLarge(f"{found.memory} bytes are needed on each device, and {topology.name} has {topology.memory}")
    return found


def _compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if NO_TILES not in str(error):
            raise
        return lowered.compile({"xla_gpu_enable_triton_gemm": False})


def described(compiled: Any, seconds: float) -> Compiled:
    """What a `jax.stages.Compiled` says of itself."""
    sizes, text, cost = compiled.memory_analysis(), compiled.as_text(), compiled.cost_analysis() or {}
    return Compiled(
        seconds,
        sizes.argument_size_in_bytes,
        sizes.output_size_in_bytes,
        sizes.alias_size_in_bytes,
        sizes.temp_size_in_bytes,
        sizes.generated_code_size_in_bytes,
        cost.get("flops"),
        collectives(text),
        widened_products(text),
    )


def _placed(mesh: jax.sharding.Mesh, tree: PyTree, spec: PyTree) -> PyTree:
    one = lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=jax.sharding.NamedSharding(mesh, spec))
    if isinstance(spec, jax.sharding.PartitionSpec):
        return jax.tree.map(lambda x: one(x, spec), tree)
    return jax.tree.map(one, tree, spec)
