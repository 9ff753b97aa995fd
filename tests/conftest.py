"""Settings of every test: strict JAX, eight CPU devices, quick compilation, and draws that repeat exactly.

Programs of tests are tiny, so that compiling them takes longer than all else together. They are compiled without
optimisation, and by the older of two code generators where JAX has two: what tests check is the program. What only the
compiler can break is compiled as users do (`OPTIMISED` in `cases.py`), and so it is in processes that tests start; the
second set of versions has one generator for all. `XLA_FLAGS= ./test` compiles everything as users do.
"""

import gc
import os
import pathlib
import signal
from collections.abc import Iterator

import hypothesis
import jax
import pytest

QUICK = "--xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):
    QUICK += " --xla_cpu_use_fusion_emitters=false"

CACHE = "CI" not in os.environ and "XLA_FLAGS" not in os.environ
"""Whether compiled programs are kept for the next run of the tests. CI compiles everything."""

# A shell starts what runs in its background with SIGINT ignored, and processes that tests start inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# These must be set before the first array is made, because that starts the backend.
jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or "cpu")
jax.config.update("jax_num_cpu_devices", 8)
# Processes that tests start have no cache of compiled programs.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
jax.config.update("jax_enable_compilation_cache", CACHE)
if CACHE:
    jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(__file__).parent.parent / "build" / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
if "XLA_FLAGS" not in os.environ:
    jax.config.update("jax_disable_most_optimizations", True)
    # Read once, when the backend starts; processes that tests start do not inherit it.
    os.environ["XLA_FLAGS"] = QUICK
    jax.devices()
    del os.environ["XLA_FLAGS"]

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Chosen by `--hypothesis-profile`; a failure seen in CI is then seen again by everybody, in any order of tests.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=25)
hypothesis.settings.register_profile("many", deadline=None, database=None, max_examples=500, print_blob=True)
hypothesis.settings.load_profile("ci")


def pytest_collection_finish() -> None:
    """What is imported stays: the collector need not walk it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """Programs of one module serve no other, and those of all take gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision inside one test, for comparisons far below the rounding of float32."""
    with jax.enable_x64(True):
        yield
