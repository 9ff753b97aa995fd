"""Compiles for accelerators that are not here, and reads what the compiled program says of itself.

A topology is named `v5e:4x4`, `v5p:2x2x2`, `v6e:2x4`, `h100:8` or `h100:2x8` (hosts x GPUs). JAX compiles for its devices, of
`jax.experimental.topologies`, without having one of them. For TPUs the compiler is in `libtpu`; for NVIDIA GPUs it is in the
CUDA plugin and its assembler in `nvidia-cuda-nvcc`. Both come with `pip install 'attnjax[compile]'`.

What this proves: the program lowers, partitions and passes the compiler; that of a TPU fits the memory of the chip, or is
refused. What it does not prove: that it runs, its numbers, its speed; and on a GPU the memory is only counted.

Collectives, with their bytes, and products of 16-bit operands that were made float32 first are read from the text of the HLO
module, the form of which is the same for CPUs, GPUs and TPUs. Before it is optimized (`lowered.as_text("hlo")`) types of
parameters and signs before names are left out:

    %name (parameters) -> type {                            a computation, `ENTRY` before that of the program
      %x = f32[2,3]{1,0} dot(%a, %b), attributes            an instruction: name, type, operation, operands

Bodies of loops count as often as they run where the compiler knows it (`known_trip_count`). What an operand of a product was
made from is followed through moves, fusions, calls, branches, tuples and loops. Inside of kernels nothing can be read.
"""

import collections
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from attnjax.typing import PyTree

# Devices ------------------------------------------------------------------------------------------------------------------

GIB = 2**30
CHIPS = MappingProxyType(
    {
        "v5e": ("tpu", 16 * GIB),
        "v5p": ("tpu", 95 * GIB),
        "v6e": ("tpu", 32 * GIB),
        "h100": ("cuda", 84_942_979_072),
    }
)
"""Of each kind of chip the platform it is lowered for, and its memory in bytes."""
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
    """Returns the devices of a topology that is not here.

    Raises:
      ValueError: for a name of another form, a kind of chip that is not known, a topology that does not exist, and where the
        compiler is not installed.
    """
    from jax.experimental import topologies

    found = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", name)
    if found is None or found[1] not in CHIPS:
        raise ValueError(f"topology {name!r} must be KIND:SIZES such as v5e:4x4 or h100:8, of {', '.join(CHIPS)}")
    platform, memory = CHIPS[found[1]]
    # Without this libtpu asks a server of the cloud which machine it is on, and waits.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    options = {"topology_name": name}
    if platform == "cuda":
        sizes = found[2].split("x")
        options = {"target_config": H100, "topology": "x".join(["1"] * (3 - len(sizes)) + sizes)}
    try:
        made = topologies.get_topology_desc(platform=platform, **options)
        return Topology(name, platform, tuple(made.devices), memory)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        told = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"topology {name!r} cannot be made: {told}; its compiler comes with pip install 'attnjax[compile]', for jax "
            f"{jax.__version__}"
        ) from error


def mesh_of(topology: Topology, axes: Mapping[str, int]) -> jax.sharding.Mesh:
    """Returns a mesh of these axes over all devices of a topology. Raises ValueError unless their product is its size."""
    count = len(topology.devices)
    if math.prod(axes.values()) != count:
        told = ", ".join(f"{name}={size}" for name, size in axes.items())
        raise ValueError(f"{topology.name} has {count} devices, and the mesh {told} is for {math.prod(axes.values())}")
    kinds = (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.sharding.Mesh(np.array(topology.devices).reshape(*axes.values()), tuple(axes), axis_types=kinds)


# Compiling ----------------------------------------------------------------------------------------------------------------

NO_TILES = "Couldn't find output tile sizes"
"""What XLA says of a product whose sizes suit no kernel of Triton. On a GPU it measures and takes that of cuBLAS; without
one it takes Triton's unmeasured, so that cuBLAS must be asked for."""


class Collective(NamedTuple):
    """How often a kind of collective runs, and how many bytes each device hands to it in all.

    `at_least`: it is in a loop whose number of steps the compiler does not know, and one step is counted.
    """

    kind: str
    count: int
    bytes: int
    at_least: bool


class Compiled(NamedTuple):
    """What is known of a program without running it; sizes are bytes on one device.

    `seconds`: to lower and to compile. `memory`: all that the program needs: arguments, outputs that do not take their place,
    temporary arrays and code. `widened`: products with a 16-bit operand that was made float32 first.
    """

    seconds: float
    memory: int
    arguments: int
    temporary: int
    collectives: tuple[Collective, ...]
    widened: tuple[str, ...]


class TooLarge(Exception):
    """The compiler says that the program does not fit the memory of a device."""


def compile_for(
    topology: Topology,
    mesh: jax.sharding.Mesh,
    function: Callable[..., Any],
    arguments: tuple[PyTree, ...],
    specs: tuple[PyTree, ...],
    **options: Any,
) -> Compiled:
    """Compiles `function` for a topology, with arguments of these shapes laid out on the mesh as `specs` say.

    Args:
      topology, mesh: the devices, and a mesh over them.
      function: what to compile; `options` are those of `jax.jit`.
      arguments: trees of `jax.ShapeDtypeStruct`, or of arrays, whose shapes alone count.
      specs: a `jax.sharding.PartitionSpec` for each argument, or a tree of them.

    Raises:
      TooLarge: where the compiler says so, or on a GPU, whose compiler does not look, more bytes are needed than it has.
    """

    def place(spec: jax.sharding.PartitionSpec, tree: PyTree) -> PyTree:
        """Returns the shapes of a tree, laid out on the mesh."""
        sharding = jax.sharding.NamedSharding(mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    placed = jax.tree.map(place, specs, arguments, is_leaf=lambda one: isinstance(one, jax.sharding.PartitionSpec))
    start = time.perf_counter()
    try:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            lowered = jax.jit(function, **options).trace(*placed).lower(lowering_platforms=(topology.platform,))
            compiled = _compiled(lowered)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise TooLarge(str(error).splitlines()[0]) from error
    seconds, sizes, text = time.perf_counter() - start, compiled.memory_analysis(), compiled.as_text()
    arguments_size, temporary = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
    results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    memory = arguments_size + results + temporary + sizes.generated_code_size_in_bytes
    if memory > topology.memory:
        raise TooLarge(f"{memory} bytes are needed on each device, and {topology.name} has {topology.memory}")
    return Compiled(seconds, memory, arguments_size, temporary, collectives(text), widened_products(text))


def _compiled(lowered: jax.stages.Lowered) -> Any:
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if NO_TILES not in str(error):
            raise
        return lowered.compile({"xla_gpu_enable_triton_gemm": False})


# The text of an HLO module --------------------------------------------------------------------------------------------------

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "reduce-scatter")
PRODUCTS = ("dot", "convolution")
LIBRARY_PRODUCTS = ("__cublas$", "__cudnn$conv", "__onednn$matmul", "__onednn$convolution")
"""How the targets of a `custom-call` begin in which a library multiplies its first two operands."""
MOVES = ("bitcast", "broadcast", "copy", "opt-barrier", "pad", "reshape", "reverse", "transpose")
MOVES += ("dynamic-slice", "gather", "slice", "all-gather", "all-to-all", "collective-permute")
"""Operations that pass the numbers of their first operand on as they are."""
JOINS = MappingProxyType({"dynamic-update-slice": slice(2), "select": slice(1, 3), "concatenate": slice(None)})
"""Operations that pass on numbers of these operands."""
CALLS = ("async", "call", "fusion")
NARROW = ("bf16", "f16")

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?)\s([a-z][a-z0-9\-]*)\((.*)$")
ARRAY = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")
CALLED = re.compile(r"\b(?:calls|body|to_apply|true_computation|false_computation|branch_computations)=(\{[^}]*\}|\S+)")
ATTRIBUTES = re.compile(r"\)(?:, \w+=|$)")
"""Where operands end. Layouts may have parentheses too, as may types of tuples."""
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')

Paths = frozenset[tuple[int, ...]]
"""Where in the result of an instruction a widened array is: () for an array, (1,) for element 1 of a tuple."""


class Instruction(NamedTuple):
    """One instruction; `called` are computations, and `rest` holds its operands and attributes as they are written."""

    name: str
    type: str
    operation: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    rest: str
    is_root: bool


Module = dict[str, dict[str, Instruction]]
"""The instructions of each computation by name."""


def collectives(text: str) -> tuple[Collective, ...]:
    """Returns the collectives of a module by kind, in alphabetical order.

    Example:
        >>> text = '''
        ... ENTRY %main (x: f32[8]) -> f32[8] {
        ...   %x = f32[8]{0} parameter(0)
        ...   ROOT %y = f32[8]{0} all-reduce(%x), to_apply=%add
        ... }
        ... '''
        >>> collectives(text)
        (Collective(kind='all-reduce', count=1, bytes=32, at_least=False),)
    """
    module, entry = _parsed(text)
    counts: collections.Counter[str] = collections.Counter()
    sizes: collections.Counter[str] = collections.Counter()
    unsure: set[str] = set()

    def visit(name: str, times: int, known: bool) -> None:
        """Counts a computation that runs so often, if that is known; of branches each counts as taken."""
        own = module[name]
        for one in own.values():
            kind = one.operation.removesuffix("-start")
            if kind in COLLECTIVES:
                counts[kind] += times
                sizes[kind] += times * sum(size_of(own[operand].type) for operand in one.operands if operand in own)
                unsure.update(() if known else (kind,))
            trips = TRIPS.search(one.rest) if one.operation == "while" else None
            for called in one.called:
                if called in module:
                    sure = known and (one.operation != "while" or trips is not None)
                    visit(called, times * int(trips[1]) if trips else times, sure)

    visit(entry, 1, True)
    return tuple(Collective(kind, counts[kind], sizes[kind], kind in unsure) for kind in sorted(counts))


def widened_products(text: str) -> tuple[str, ...]:
    """Returns the products of which an operand is a 16-bit array that was made float32 before: where they come from in the
    program, or their names in the module where it does not say.

    Example:
        >>> text = '''
        ... ENTRY %main (x: bf16[2,2]) -> f32[2,2] {
        ...   %x = bf16[2,2]{1,0} parameter(0)
        ...   %wide = f32[2,2]{1,0} convert(%x)
        ...   ROOT %product = f32[2,2]{1,0} dot(%wide, %wide), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ... }
        ... '''
        >>> widened_products(text)
        ('product',)
    """
    module, entry = _parsed(text)
    found: dict[str, str] = {}
    _spread(module, entry, [], found)
    return tuple(found.values())


def size_of(type_: str) -> int:
    """Returns the bytes of an array or a tuple of arrays, by its type.

    Example:
        >>> size_of("(bf16[2,3]{1,0}, s32[])")
        16
    """
    bits = lambda kind, digits: int(digits) if digits else 8 * (kind == "pred")
    found = ARRAY.findall(type_)
    return sum(math.prod(int(n) for n in dims.split(",") if n) * bits(kind, n) // 8 for kind, n, dims in found)


def _parsed(text: str) -> tuple[Module, str]:
    """Returns the computations of a module by name, and the name of the first that runs."""
    module: Module = {}
    entry = name = ""
    for line in text.splitlines():
        if header := COMPUTATION.match(line):
            name = header[2]
            module[name], entry = {}, name if header[1] else entry
        elif name and (found := INSTRUCTION.match(line)):
            root, own, type_, operation, rest = found.groups()
            inside = ATTRIBUTES.split(rest)[0]
            operands = re.findall(r"%([\w.\-]+)" if "%" in inside else r"([\w.\-]+)", inside)
            called = [one for names in CALLED.findall(rest) for one in re.findall(r"[\w.\-]+", names)]
            module[name][own] = Instruction(own, type_, operation, tuple(operands), tuple(called), rest, bool(root))
    return module, entry


def _spread(module: Module, name: str, given: list[Paths], found: dict[str, str]) -> Paths:
    """Returns where the result of a computation is widened, for arguments that are widened at `given`.

    The products that it meets with a widened operand are added to `found`, by their names.
    """
    own: dict[str, Paths] = {}
    for one in module[name].values():  # operands come first
        of = [own.get(operand, frozenset()) for operand in one.operands]
        if one.operation == "parameter":
            index = int(ATTRIBUTES.split(one.rest)[0])
            own[one.name] = given[index] if index < len(given) else frozenset()
        elif one.operation == "convert":
            source = module[name].get(one.operands[0])
            own[one.name] = frozenset({()}) if source and _widens(source.type, one.type) else frozenset()
        else:
            own[one.name] = _passed_on(module, one, of, found)
        target = re.search(r'\bcustom_call_target="([^"]*)"', one.rest) if one.operation == "custom-call" else None
        # A library may be given more than two operands: what is added to the product, and memory to work in.
        if (one.operation in PRODUCTS or (target and target[1].startswith(LIBRARY_PRODUCTS))) and any(of[:2]):
            origin = re.search(r'op_name="([^"]*)"', one.rest)
            found[f"{name}/{one.name}"] = origin[1] if origin else one.name
    return next(own[one.name] for one in module[name].values() if one.is_root)


def _widens(before: str, after: str) -> bool:
    source, made = ARRAY.search(before), ARRAY.search(after)
    return bool(source and made and source[1] + source[2] in NARROW and int(made[2] or 0) > 16)


def _passed_on(module: Module, one: Instruction, of: list[Paths], found: dict[str, str]) -> Paths:
    """Returns where the result of an instruction is widened, for operands that are widened at `of`."""
    operation = one.operation.removesuffix("-start").removesuffix("-done")
    called = [inner for inner in one.called if inner in module]
    if operation == "tuple":
        return frozenset((i, *path) for i, paths in enumerate(of) for path in paths)
    if operation == "get-tuple-element" and (element := re.search(r"\bindex=(\d+)", one.rest)):
        return frozenset(path[1:] for path in of[0] if path[:1] == (int(element[1]),))
    if operation == "while":
        state: Paths = of[0]
        while not (after := state.union(*(_spread(module, body, [state], found) for body in called))) <= state:
            state = after
        return state
    if operation == "conditional":  # the first operand chooses, and every branch has one of the others
        return frozenset().union(*(_spread(module, inner, [of[i]], found) for i, inner in enumerate(called, 1)))
    if operation in CALLS and called:
        return frozenset().union(*(_spread(module, inner, of, found) for inner in called))
    passed = of[:1] if operation in MOVES or one.operation.endswith("-done") else of[JOINS.get(operation, slice(0))]
    return frozenset().union(*passed)
