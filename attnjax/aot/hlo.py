"""What the text of an HLO module says: collectives with their bytes, and 16-bit operands that were widened.

Only the module's own text is read (`compiled.as_text()`), the form of which is the same for CPUs, GPUs and TPUs. Before it is
optimized (`lowered.as_text("hlo")`) types of parameters and signs before names are left out:

    %name (parameters) -> type {                            a computation, `ENTRY` before that of the program
      %x = f32[2,3]{1,0} dot(%a, %b), attributes            an instruction: name, type, operation, operands

Bodies of loops count as often as they run where the compiler knows it (`known_trip_count`).

What an operand of a product was made from is followed through moves, fusions, calls, branches, tuples and loops. Inside of
kernels nothing can be read.
"""

import collections
import math
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "reduce-scatter")
PRODUCTS = ("dot", "convolution")
LIBRARY_PRODUCTS = ("__cublas$", "__cudnn$conv", "__onednn$matmul", "__onednn$convolution")
"""How the targets of a `custom-call` begin in which a library multiplies its first two operands."""
MOVES = MappingProxyType(
    dict.fromkeys(("bitcast", "broadcast", "copy", "opt-barrier", "pad", "reshape", "reverse", "transpose"), (0,))
    | dict.fromkeys(("dynamic-slice", "gather", "slice"), (0,))
    | dict.fromkeys(("all-gather", "all-to-all", "collective-permute"), (0,))
    | {"dynamic-update-slice": (0, 1), "select": (1, 2)}
)
"""Operations that pass numbers on as they are, and the operands from which they come; `concatenate` has any number."""
CALLS = ("async-start", "call", "conditional", "fusion")
HALVES = ("bf16", "f16")

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?)\s([a-z][a-z0-9\-]*)\((.*)$")
ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
CALLED = re.compile(r"\b(?:calls|body|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
ELEMENT = re.compile(r"\bindex=(\d+)")
TARGET = re.compile(r'\bcustom_call_target="([^"]*)"')
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


class Value(NamedTuple):
    """The result of an instruction, or where that is a tuple the element at the end of this path.

    `calls`: through which calls, each a computation and an instruction, the result of this computation was asked for. Its
    parameters are what these gave, and without any what all callers give.
    """

    computation: str
    name: str
    path: tuple[int, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()


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
            if _is_product(instruction):
                # A library may be given more: what is added to the product, and memory to work in.
                factors = (Value(name, operand) for operand in instruction.operands[:2])
                if any(_widened(module, callers, factor) for factor in factors):
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
            names = re.findall(r"%([\w.\-]+)" if "%" in inside else r"([\w.\-]+)", inside)
            instructions[own] = Instruction(own, type_, operation, tuple(names), rest)
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


def _is_product(instruction: Instruction) -> bool:
    if instruction.operation != "custom-call":
        return instruction.operation in PRODUCTS
    target = TARGET.search(instruction.rest)
    return target is not None and target[1].startswith(LIBRARY_PRODUCTS)


def _callers(module: Mapping[str, Computation]) -> Mapping[str, list[tuple[str, str]]]:
    """What calls each computation with operands or a state of its own: a computation and an instruction."""
    found = collections.defaultdict(list)
    for name, computation in module.items():
        for instruction in computation.instructions.values():
            if instruction.operation in (*CALLS, "while"):
                for called in _called(instruction):
                    found[called].append((name, instruction.name))
    return found


def _widened(module: Mapping[str, Computation], callers: Mapping[str, list], value: Value) -> bool:
    """Whether a 16-bit array that was converted to a wider type is among what the value was made from."""
    waiting, seen = [value], set[Value]()
    while waiting:
        value = waiting.pop()
        computation, name = value[:2]
        if value in seen or computation not in module or name not in module[computation].instructions:
            continue
        seen.add(value)
        instructions = module[computation].instructions
        if instructions[name].operation == "convert" and _widens(instructions, instructions[name]):
            return True
        waiting += _origins(module, callers, value)
    return False


def _widens(instructions: Mapping[str, Instruction], convert: Instruction) -> bool:
    operand = instructions.get(convert.operands[0]) if convert.operands else None
    source, target = ARRAY.search(operand.type if operand else ""), ARRAY.search(convert.type)
    if source is None or target is None:
        return False
    return source[1] in HALVES and _bits(target[1]) > _bits(source[1])


def _origins(module: Mapping[str, Computation], callers: Mapping[str, list], value: Value) -> Iterator[Value]:
    """The values that an instruction passes on as they are, or as the element of a tuple that `value` asks for."""
    instruction, path = module[value.computation].instructions[value.name], value.path
    operation, operands = instruction.operation, instruction.operands

    def of(operand: str, path: tuple[int, ...] = ()) -> Value:
        return value._replace(name=operand, path=path)

    if operation.endswith("-done") and operands:
        yield of(operands[0])
    elif operation.removesuffix("-start") in MOVES:
        yield from (of(operands[i], path) for i in MOVES[operation.removesuffix("-start")] if i < len(operands))
    elif operation == "concatenate":
        yield from (of(operand, path) for operand in operands)
    elif operation == "tuple" and path and path[0] < len(operands):
        yield of(operands[path[0]], path[1:])
    elif operation == "get-tuple-element" and operands and (element := ELEMENT.search(instruction.rest)):
        yield of(operands[0], (int(element[1]), *path))
    elif operation == "parameter":
        index = int(_until_closed(instruction.rest))
        for where, caller in [value.calls[-1]] if value.calls else callers.get(value.computation, ()):
            yield from _given(module, value, index, module[where].instructions[caller], where)
    elif operation in (*CALLS, "while"):
        yield from (of(first, path) for first in operands[:1] if operation == "while")
        for called in _called(instruction):
            if called in module:
                through = (*value.calls, (value.computation, value.name))
                yield Value(called, module[called].root, path, through)


def _given(
    module: Mapping[str, Computation], value: Value, index: int, caller: Instruction, where: str
) -> Iterator[Value]:
    """What a caller in the computation `where` gives as a parameter: in a loop the first state, and what each step leaves."""
    if caller.operation == "while":
        index = 0
        yield value._replace(name=module[value.computation].root)
    if caller.operation == "conditional":
        # The first operand chooses, and every branch has one of the others.
        index = _called(caller).index(value.computation) + 1
    if index < len(caller.operands):
        yield Value(where, caller.operands[index], value.path, value.calls[:-1])
