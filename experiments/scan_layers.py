"""What `scan_layers` saves: time to compile a training step, and its temporary memory, for few and many layers.

    python -m experiments.scan_layers 2 12 48

prints the table of `attnjax/modules/layers.py`. A step is the loss, its gradients and AdamW. Seconds are those that the
processor worked, on all cores, so that other programs of the machine do not count; of each program XLA says its own memory.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from attnjax import RoPE
from attnjax.modules import Decoder, TransformerConfig

BATCH, LENGTH = 8, 128


def measure(layers: int, scan: bool, remat: bool) -> dict[str, float]:
    """Seconds to trace and to compile a training step, and MiB of its temporary memory."""
    sizes = {"vocab": 256, "model": 256, "heads": 4, "hidden": 1024}
    config = TransformerConfig(**sizes, layers=layers, encoding=RoPE(), scan_layers=scan, remat=remat)
    graph, params = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))), graph=False)
    optimizer = optax.adamw(1e-3)

    def step(params, state, tokens):
        def loss(params):
            logits = nnx.merge(graph, params)(tokens)
            return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

        gradients = jax.grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    shapes = (params, jax.eval_shape(optimizer.init, params), jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32))
    start = time.process_time()
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(*shapes)
    traced = time.process_time()
    program = lowered.compile()
    done = time.process_time()
    memory = program.memory_analysis()
    assert memory is not None
    return {
        "trace": traced - start,
        "compile": done - traced,
        "MiB": memory.temp_size_in_bytes / 2**20,
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", type=int, default=[2, 12, 48])
    print("| layers | | remat | trace [s] | compile [s] | memory [MiB] |\n|---|---|---|---|---|---|")
    for layers in parser.parse_args().layers:
        for remat in (False, True):
            for scan in (False, True):
                found = measure(layers, scan, remat)
                kind, again = "scanned" if scan else "unrolled", "yes" if remat else "no"
                seconds = f"{found['trace']:.1f} | {found['compile']:.1f}"
                print(f"| {layers} | {kind} | {again} | {seconds} | {found['MiB']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
