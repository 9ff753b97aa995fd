"""Settings of every test: strict JAX, four CPU devices, no cache on disk, and property tests that repeat exactly."""

import os
from collections.abc import Iterator

import hypothesis
import jax
import pytest

# These must be set before the first array is made, because that starts the backend.
jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or "cpu")
jax.config.update("jax_num_cpu_devices", 4)
# A test that passes thanks to a program compiled by an earlier run would prove nothing; processes that tests start inherit it.
jax.config.update("jax_enable_compilation_cache", False)
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Chosen by `--hypothesis-profile`; a failure seen in CI is then seen again by everybody, in any order of tests.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=25)
hypothesis.settings.register_profile("nightly", deadline=None, database=None, max_examples=500, print_blob=True)
hypothesis.settings.load_profile("ci")


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision inside one test, for comparisons far below the rounding of float32."""
    with jax.enable_x64(True):
        yield
