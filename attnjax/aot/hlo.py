"""What the text of an optimized HLO module says: collectives with their bytes, and 16-bit operands that were widened.

Only the module's own text is read (`compiled.as_text()`), the form of which is the same for CPUs, GPUs and TPUs:

    %name (parameters) -> type {                            a computation, `ENTRY` before that of the program
      %x = f32[2,3]{1,0} dot(%a, %b), attributes            an instruction: name, type, operation, operands

Bodies of loops count as often as they run where the compiler knows it (`known_trip_count`).
"""

import collections
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "reduce-scatter")
PRODUCTS = ("dot", "convolution")
MOVES = ("bitcast", "copy", "reshape", "transpose", "broadcast", "slice", "dynamic-slice", "pad")
"""Operations that pass numbers on as they are."""
HALVES = ("bf16", "f16")

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?)\s([a-z][a-z0-9\-]*)\((.*)$")
ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
CALLED = re.compile(r"\b(?:calls|body|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
ORIGIN = re.compile(r'op_name="([^"]*)"')
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class Instruction(NamedTuple):
    """One instruction; `rest` holds its operands and attributes as they are written."""

    name: str
    type: str
    operation: str
    operands: tuple[str, ...]
    rest: str


class Computation(NamedTuple):
    """Instructions by name, and which of them is the result."""

    instructions: Mapping[str, Instruction]
    root: str


class Collective(NamedTuple):
    """How often a kind of collective runs, and how many bytes each device hands to it in all.

    `at_least`: it is in a loop whose number of steps the compiler does not know, and one step is counted.
    """

    kind: str
    count: int
    bytes: int
    at_least: bool


def collectives(text: str) -> tuple[Collective, ...]:
    """Return the collectives of a module by kind, in alphabetical order.

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
    module, entry = parse(text)
    counts: collections.Counter[str] = collections.Counter()
    sizes: collections.Counter[str] = collections.Counter()
    unsure = set()
    for computation, times, known in _executions(module, entry):
        for instruction in module[computation].instructions.values():
            kind = instruction.operation.removesuffix("-start")
            if kind in COLLECTIVES:
                own = module[computation].instructions
                counts[kind] += times
                sizes[kind] += times * sum(size_of(own[name].type) for name in instruction.operands if name in own)
                unsure |= set() if known else {kind}
    return tuple(Collective(kind, counts[kind], sizes[kind], kind in unsure) for kind in sorted(counts))


def widened_products(text: str) -> tuple[str, ...]:
    """Return the products of which an operand is a 16-bit array that was made float32 before: where they come from in the
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
    module, _ = parse(text)
    callers = _callers(module)
    found = []
    for name, computation in module.items():
        for instruction in computation.instructions.values():
            if instruction.operation in PRODUCTS:
                sources = (_source(module, callers, name, operand) for operand in instruction.operands)
                if any(source in HALVES for source in sources):
                    origin = ORIGIN.search(instruction.rest)
                    found.append(origin[1] if origin else instruction.name)
    return tuple(found)


def size_of(type_: str) -> int:
    """Return the bytes of an array or a tuple of arrays, by its type.

    Example:
        >>> size_of("(bf16[2,3]{1,0}, s32[])")
        16
    """
    return sum(
        math.prod(int(n) for n in dims.split(",") if n) * _bits(dtype) // 8 for dtype, dims in ARRAY.findall(type_)
    )


def parse(text: str) -> tuple[dict[str, Computation], str]:
    """Return the computations of a module by name, and the name of the first that runs. Raises ValueError without one."""
    module: dict[str, Computation] = {}
    entry = name = root = ""
    instructions: dict[str, Instruction] = {}
    for line in text.splitlines():
        if header := COMPUTATION.match(line):
            name, instructions, root = header[2], {}, ""
            entry = name if header[1] else entry
        elif line.startswith("}") and name:
            module[name] = Computation(instructions, root)
            name = ""
        elif name and (found := INSTRUCTION.match(line)):
            is_root, own, type_, operation, rest = found.groups()
            inside = _until_closed(rest)
            instructions[own] = Instruction(own, type_, operation, tuple(re.findall(r"%([\w.\-]+)", inside)), rest)
            root = own if is_root else root
    if entry not in module:
        raise ValueError("this is no text of an HLO module: it has no ENTRY computation")
    return module, entry


def _bits(dtype: str) -> int:
    digits = re.match(r"[a-z]+(\d+)", dtype)
    return int(digits[1]) if digits else 8 * (dtype == "pred")


def _until_closed(rest: str) -> str:
    """The text up to the parenthesis that closes one which was open before."""
    depth = 1
    for i, letter in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth:
            return rest[:i]
    return rest


def _called(instruction: Instruction) -> list[str]:
    names = CALLED.findall(instruction.rest)
    for branches in BRANCHES.findall(instruction.rest):
        names += [name.strip().lstrip("%") for name in branches.split(",")]
    return names


def _executions(module: Mapping[str, Computation], entry: str) -> Iterator[tuple[str, int, bool]]:
    """Computations with how often they run for each call, and whether that is known; of branches each counts as taken."""
    waiting = [(entry, 1, True)]
    while waiting:
        name, times, known = waiting.pop()
        yield name, times, known
        for instruction in module[name].instructions.values():
            trips = TRIPS.search(instruction.rest) if instruction.operation == "while" else None
            sure = known and (instruction.operation != "while" or trips is not None)
            more = times * (int(trips[1]) if trips else 1)
            waiting += [(called, more, sure) for called in _called(instruction) if called in module]


def _callers(module: Mapping[str, Computation]) -> dict[str, tuple[str, Instruction]]:
    """The computation and the instruction that call each fused computation."""
    return {
        called: (name, instruction)
        for name, computation in module.items()
        for instruction in computation.instructions.values()
        if instruction.operation in ("fusion", "call")
        for called in _called(instruction)
    }


def _source(module: Mapping[str, Computation], callers: Mapping, computation: str, name: str) -> str:
    """The type from which an operand was converted to a wider one, through moves and fusions; "" where it was not."""
    for _ in range(len(module) * 4):
        instruction = module[computation].instructions.get(name)
        if instruction is None:
            return ""
        if instruction.operation == "convert":
            operand = module[computation].instructions.get(instruction.operands[0]) if instruction.operands else None
            source = ARRAY.search(operand.type) if operand is not None else None
            target = ARRAY.search(instruction.type)
            return source[1] if source and target and _bits(target[1]) > _bits(source[1]) else ""
        if instruction.operation in MOVES and instruction.operands:
            name = instruction.operands[0]
        elif instruction.operation == "parameter" and computation in callers:
            index = int(_until_closed(instruction.rest))
            computation, caller = callers[computation]
            if index >= len(caller.operands):
                return ""
            name = caller.operands[index]
        elif instruction.operation in ("fusion", "call") and (called := _called(instruction)):
            computation = called[0]
            if computation not in module:
                return ""
            name = module[computation].root
        else:
            return ""
    return ""
