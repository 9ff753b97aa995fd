"""Compiling ahead of time: what is read from HLO, beside programs whose collectives and products are known."""

import re

import jax
import jax.numpy as jnp
import pytest

from attnjax import aot
from attnjax.aot import Topology
from attnjax.cli import main

P = jax.sharding.PartitionSpec
CONFIG = '''"""Does it fit?"""


def get_config():
    model = {"layers": 1, "model": 8, "heads": 1, "hidden": 8}
    return {"model": model, "task": {"name": "copy", "length_max": 4}, "train": {"batch": 8}, "evaluate": {"batch": 8}}


def sweep():
    for encoding in ("rope", "t5"):
        yield {"model.encoding": encoding}
'''


@pytest.fixture
def virtual():
    """Eight CPU devices in the place of a topology."""
    return Topology("virtual:8", "cpu", tuple(jax.devices()), 2**30)


def compiled(virtual, function, *arguments, specs, **options):
    mesh = aot.mesh_of(virtual, {"data": 8})
    return aot.compile_for(virtual, mesh, function, arguments, specs, **options)


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def test_a_sum_over_devices_is_one_all_reduce_of_its_bytes(virtual):
    found = compiled(virtual, lambda x: x.sum(0), shape(16, 100), specs=(P("data"),))
    assert found.collectives == (aot.Collective("all-reduce", 1, 400, at_least=False),)
    assert found.arguments == 2 * 100 * 4
    assert found.memory >= found.arguments + found.temporary


def test_a_loop_counts_as_often_as_it_runs(virtual):
    def loop(x):
        send = lambda x: jax.lax.ppermute(x, "data", [(i, (i + 1) % 8) for i in range(8)])
        return jax.lax.fori_loop(0, 5, lambda i, x: send(x) * 2, x)

    mesh = aot.mesh_of(virtual, {"data": 8})
    spread = jax.shard_map(loop, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    found = compiled(virtual, spread, shape(8, 25), specs=(P("data"),))
    assert found.collectives == (aot.Collective("collective-permute", 5, 500, at_least=False),)


def test_a_loop_of_unknown_length_counts_once_and_says_so():
    text = """
%body (b: f32[4,4]) -> f32[4,4] {
  %b = f32[4,4]{1,0} parameter(0)
  ROOT %sent = f32[4,4]{1,0} all-reduce(%b), to_apply=%add
}

ENTRY %outer (c: f32[4,4]) -> f32[4,4] {
  %c = f32[4,4]{1,0} parameter(0)
  ROOT %w = f32[4,4]{1,0} while(%c), body=%body
}
"""
    assert aot.collectives(text) == (aot.Collective("all-reduce", 1, 64, at_least=True),)


def test_products_that_triton_refuses_are_those_of_cublas(virtual, monkeypatch):
    """Without a GPU XLA does not try kernels, and fails where the one that it takes unseen cannot be made."""
    compile_, asked = jax.stages.Lowered.compile, []

    def refusing(lowered, options=None):
        asked.append(options)
        if options is None:
            raise jax.errors.JaxRuntimeError("INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.1")
        return compile_(lowered)

    monkeypatch.setattr(jax.stages.Lowered, "compile", refusing)
    assert compiled(virtual, lambda x: x + 1, shape(8), specs=(P("data"),)).arguments == 4
    assert asked == [None, {"xla_gpu_enable_triton_gemm": False}]
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_: (_ for _ in ()).throw(ValueError("another")))
    with pytest.raises(ValueError, match="another"):
        compiled(virtual, lambda x: x + 2, shape(8), specs=(P("data"),))


def test_an_aliased_argument_counts_once(virtual):
    step = lambda x: x + 1
    kept = compiled(virtual, step, shape(8, 1000), specs=(P("data"),))
    given = compiled(virtual, step, shape(8, 1000), specs=(P("data"),), donate_argnums=0)
    assert kept.memory - given.memory == 4000


# Products of widened operands, in modules written by hand --------------------------------------------------------------------

INNER = """HloModule m

%fused (p.0: f32[4,4], p.1: f32[4,4]) -> f32[4,4] {
  %p.0 = f32[4,4]{1,0} parameter(0)
  %p.1 = f32[4,4]{1,0} parameter(1)
  ROOT %inside = f32[4,4]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, metadata={op_name="jit(f)/dot_general"}
}

%turned (x: f32[4,4]) -> f32[4,4] {
  %x = f32[4,4]{1,0} parameter(0)
  ROOT %y = f32[4,4]{0,1} transpose(%x), dimensions={1,0}
}

%pair (p: f32[4,4], q: bf16[4,4]) -> (f32[4,4], f32[4,4]) {
  %p = f32[4,4]{1,0} parameter(0)
  %q = bf16[4,4]{1,0} parameter(1)
  %widened = f32[4,4]{1,0} convert(%q)
  ROOT %both = (f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(%p, %widened)
}

%step (state: (s32[], f32[4,4], f32[4,4])) -> (s32[], f32[4,4], f32[4,4]) {
  %state = (s32[], f32[4,4]{1,0}, /*index=2*/f32[4,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %carried = f32[4,4]{1,0} get-tuple-element(%state), index=1
  %sum = f32[4,4]{1,0} get-tuple-element(%state), index=2
  %of_carried = f32[4,4]{1,0} dot(%carried, %carried), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %of_sum = f32[4,4]{1,0} dot(%sum, %sum), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %more = f32[4,4]{1,0} add(%of_carried, %of_sum)
  ROOT %next = (s32[], f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(%i, %carried, %more)
}

%again (state.1: (s32[], f32[4,4], f32[4,4])) -> pred[] {
  %state.1 = (s32[], f32[4,4]{1,0}, f32[4,4]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

"""
"""Computations that the modules of the tests call."""


def widened(*lines):
    """The products found in a module of 16-bit a and c, b of float32, a made wide, and these lines, @ for f32[4,4]{1,0}.

    Where b takes the place of a, none is found, but for what the lines widen themselves.
    """
    first = ("%a = bf16[4,4]{1,0} parameter(0)", "%b = @ parameter(1)", "%c = bf16[4,4]{1,0} parameter(2)")
    own = "\n".join(f"  {line}" for line in (*first, "%wide = @ convert(%a)", *lines)).replace("@", "f32[4,4]{1,0}")
    text = f"{INNER}ENTRY %main (a: bf16[4,4], b: f32[4,4], c: bf16[4,4]) -> f32[4,4] {{\n{own}\n}}\n"
    if "%pair" not in own:
        assert aot.widened_products(text.replace("convert(%a)", "convert(%b)")) == ()
    return aot.widened_products(text)


LOOP = (
    "%loop = (s32[], @, @) while(%start), condition=%again, body=%step",
    "%last = @ get-tuple-element(%loop), index=1",
    "ROOT %dot = @ dot(%b, %last)",
)
START = ("%zero = s32[] constant(0)", "%start = (s32[], @, @) tuple(%zero, {}, {})")
CHOICE = "%which = pred[] constant(true)"
EITHER = "%either = @ conditional({}), true_computation=%turned, false_computation=%turned"
PASSED = {
    "select": ["%moved = @ select(%b, %b, %wide)"],
    "concatenate": ["%moved = f32[4,8]{1,0} concatenate(%b, %wide), dimensions={1}"],
    "update": ["%zero = s32[] constant(0)", "%moved = @ dynamic-update-slice(%b, %wide, %zero, %zero)"],
    "reverse": ["%moved = @ reverse(%wide), dimensions={0}"],
    "permute": ["%moved = @ collective-permute(%wide), source_target_pairs={{0,1},{1,0}}"],
    "asynchronous": [
        "%start = (@, @) collective-permute-start(%wide)",
        "%moved = @ collective-permute-done(%start)",
    ],
    "true branch": [CHOICE, EITHER.format("%which, %wide, %b"), "%moved = @ copy(%either)"],
    "false branch": [CHOICE, EITHER.format("%which, %b, %wide"), "%moved = @ copy(%either)"],
}


@pytest.mark.parametrize("name", PASSED)
def test_a_widened_operand_is_found_through_what_passes_it_on(name):
    assert widened(*PASSED[name], "ROOT %dot = @ dot(%b, %moved)") == ("dot",)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (
            (
                "%turn = f32[4,4]{0,1} transpose(%wide), dimensions={1,0}",
                "ROOT %out = @ fusion(%b, %turn), calls=%fused",
            ),
            ("jit(f)/dot_general",),
        ),
        # Of a state that a loop carries, the sums beside what is passed on are made in the loop.
        ((START[0], START[1].format("%wide", "%b"), *LOOP), ("of_carried", "dot")),
        ((START[0], START[1].format("%b", "%wide"), *LOOP), ("of_sum",)),
        # Each caller of a function has its own.
        (
            (
                "%one = @ call(%wide), to_apply=%turned",
                "%two = @ call(%b), to_apply=%turned",
                "%dot.1 = @ dot(%one, %b)",
                "ROOT %dot.2 = @ dot(%two, %b)",
            ),
            ("dot.1",),
        ),
        # An element of what a fusion makes is that element alone.
        (
            (
                "%fusion = (@, @) fusion(%b, %c), kind=kLoop, calls=%pair",
                "%first = @ get-tuple-element(%fusion), index=0",
                "%second = @ get-tuple-element(%fusion), index=1",
                "%dot.1 = @ dot(%first, %b)",
                "ROOT %dot.2 = @ dot(%second, %b)",
            ),
            ("dot.2",),
        ),
        # What makes other numbers, and what only chooses a branch, end the search.
        (("%half = @ multiply(%wide, %b)", "ROOT %dot = @ dot(%half, %b)"), ()),
        ((EITHER.format("%wide, %b, %b"), "ROOT %dot = @ dot(%either, %b)"), ()),
    ],
)
def test_what_is_widened_is_found_where_it_is_multiplied_and_nowhere_else(lines, found):
    assert widened(*lines) == found


TARGETS = ("__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8", "__cudnn$convForward", "__onednn$matmul")


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_of_a_library_counts_as_one(target):
    known = f'custom_call_target="{target}", metadata={{op_name="jit(f)/dot_general"}}'
    call = lambda *operands: f"ROOT %gemm = (@, s8[64]{{0}}) custom-call({', '.join(operands)}), {known}"
    assert widened(call("%b", "%wide")) == ("jit(f)/dot_general",)
    assert widened(call("%a", "%c")) == ()
    # The third is added to the product.
    assert widened(call("%b", "%b", "%wide")) == ()
    assert widened(call("%b", "%wide").replace(target, "Sharding")) == ()


def test_a_program_that_does_not_fit_is_refused(virtual):
    with pytest.raises(aot.TooLarge, match=r"\d{4,} bytes .*virtual:8 has 100$"):
        compiled(virtual._replace(memory=100), lambda x: x + 1, shape(8, 1000), specs=(P("data"),))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--mesh", "data=16"], "8 devices.*data=16.* 16"),
        (["train.batch=12"], "train.batch=12 .*8"),
        (["model.attention_dropout=0.1"], "dropout"),
        (["--mesh", "heads=8"], "'heads=8'"),
        (["--topology", "h100"], "topology 'h100' .*h100:8"),
        (["--topology", "v9:2x2"], "topology 'v9:2x2' .*v5e, v5p, v6e, h100"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_a_sentence(options, error, virtual, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(CONFIG)
    real = aot.topology
    monkeypatch.setattr(aot, "topology", lambda name: virtual if name == "h100:8" else real(name))
    try:
        status = main(["compile", "small.py", "--topology", "h100:8", *options])
    except SystemExit as ended:
        status = ended.code
    told = capsys.readouterr()
    assert (status, told.out) == (2, "")
    assert re.search(error, told.err.splitlines()[-1])


@pytest.mark.slow
def test_the_command_tells_of_every_program_of_a_config(virtual, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(CONFIG)
    monkeypatch.setattr(aot, "topology", lambda name: virtual)
    assert main(["compile", "small.py", "--topology", "h100:8"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"virtual:8: 8 devices of 1 GiB; mesh data=8; jax {jax.__version__}\n")
    assert told.count("1 runs of copy with ") == told.count("  compiled in ") == 2
    assert told.count("  all-reduce: at least 1, ") == told.count("product: none") == 2
    monkeypatch.setattr(aot, "topology", lambda name: virtual._replace(memory=1000))
    assert main(["compile", "small.py", "--topology", "h100:8", "--mesh", "population=4,data=2"]) == 1
    assert capsys.readouterr().out.count("  does not fit: ") == 2
    monkeypatch.setattr(aot, "topology", lambda name: virtual)
    assert main(["compile", "small.py", "--topology", "h100:8", "--mesh", "sequence=8", "train.batch=3"]) == 0
    assert capsys.readouterr().out.count("  collective-permute: at least ") == 2
