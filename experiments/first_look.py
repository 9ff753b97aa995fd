"""A first look: what does each encoding tell attention about distance, and does it depend on where we are?

One query and one key, the same vectors everywhere. For every encoding the logit of the query at position i on a key n
positions back is computed by `attention_weights` at two places, i = 256 and i = 1,256. An encoding is relative when the
two curves coincide; the table prints by how much they differ, and how much of a causal row's attention falls within 16
positions. Saves `first_look.png`. Takes seconds after installation.

    python -m experiments.first_look [--out FOLDER]
"""

import argparse
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import attnjax as aj

REACH, HERE, THERE = 256, 256, 1256
SIZES = aj.Sizes(model=128, heads=2, kv_heads=2, head_dim=64)
CHOICES = {
    "nope": aj.NoPE(),
    "sinusoidal": aj.Sinusoidal(),
    "learned": aj.Learned(length=2048),
    "rope": aj.RoPE(),
    "xpos": aj.XPos(),
    "alibi": aj.ALiBi(),
    "t5": aj.T5Bias(),
    "kerple": aj.Kerple(),
    "fire": aj.FIRE(),
    "transformer_xl": aj.TransformerXL(),
    "cope": aj.CoPE(),
    "sandwich": aj.Sandwich(),
    "pope": aj.PoPE(),
}


def curve(encoding: aj.PositionEncoding, place: int) -> np.ndarray:
    """Log attention weights of the query at `place` on the keys 0..REACH positions back, from the nearest, first head.

    Positions computed from content are those of equal content, counted from the first key.
    """
    return np.log(np.maximum(np.asarray(weights(encoding, jnp.int32(place))), np.finfo(np.float32).tiny))


@functools.partial(jax.jit, static_argnums=0)
def weights(encoding: aj.PositionEncoding, place: jax.Array) -> jax.Array:
    """The attention weights of which `curve` is the logarithm, [REACH + 1]."""
    pos = aj.indices.arange(REACH + 1) + (place - REACH)
    params = encoding.init(jax.random.key(1), SIZES)
    params = jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(2), leaf.shape), params)
    x = jnp.broadcast_to(jax.random.normal(jax.random.key(0), (SIZES.model,)), (1, REACH + 1, SIZES.model))
    x = aj.embed(encoding, params, x, pos)
    w_q, w_k = jax.random.normal(jax.random.key(3), (2, SIZES.model, SIZES.heads, SIZES.head_dim)) * SIZES.model**-0.5
    q, k = (jnp.einsum("btd,dnh->btnh", x, w) for w in (w_q, w_k))
    mask, rows = aj.Mask(causal=True, q_index=np.array([REACH])), slice(REACH, None)
    inside = encoding
    if isinstance(encoding, aj.Sinusoidal | aj.Learned):  # they act on embeddings alone
        inside, params = aj.NoPE(), None
    pos = aj.context_positions(inside, params, x, pos, SIZES)
    if inside.axes:  # every coordinate counts the same tokens
        pos = jnp.repeat(pos[:, None], inside.axes, axis=-1)
    q_pos = jax.tree.map(lambda one: one[:, :, rows] if one.ndim > 2 else one[rows], pos)
    table = aj.attention_weights(q[:, rows], k, encoding=inside, params=params, q_pos=q_pos, k_pos=pos, mask=mask)
    return table[0, 0, 0, ::-1]


def table(curves: dict[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """One row per encoding: the largest difference between the two places, and the mass on the nearest 16 keys."""
    lines = [f"{'encoding':<16}{'places differ by':>18}{'relative':>10}{'mass within 16':>16}"]
    for name, (here, there) in curves.items():
        gap = np.abs(here - there).max()
        relative = "yes" if gap < 1e-3 else "no"
        lines.append(f"{name:<16}{gap:>18.1e}{relative:>10}{np.exp(here[:16]).sum():>16.3f}")
    return "\n".join(lines)


def figure(curves: dict[str, tuple[np.ndarray, np.ndarray]], path: pathlib.Path) -> None:
    """Small multiples: log weight against distance, at both places."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(3, 5, figsize=(13, 7), layout="constrained")
    for axis in axes.flat[len(curves) :]:
        axis.axis("off")
    for axis, (name, (here, there)) in zip(axes.flat, curves.items(), strict=False):
        axis.plot(here, color="#0072B2", lw=2.2, label=f"query at position {HERE:,}")
        axis.plot(there, color="#D55E00", lw=1.0, ls="--", label=f"query at position {THERE:,}")
        axis.set_title(name, fontsize=10)
        axis.grid(alpha=0.3)
    fig.supxlabel("distance n = query position - key position")
    fig.supylabel("log attention weight (equal content everywhere)")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="lower right", frameon=False)
    fig.suptitle("The same query and key, at two places: a relative encoding cannot tell them apart")
    fig.savefig(path, dpi=110)


def main() -> None:
    """Print the table and save the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/first_look"), help="folder to write to")
    out = parser.parse_args().out
    curves = {name: (curve(encoding, HERE), curve(encoding, THERE)) for name, encoding in CHOICES.items()}
    print(table(curves))
    out.mkdir(parents=True, exist_ok=True)
    figure(curves, out / "first_look.png")
    print(f"\nfigure: {out / 'first_look.png'}")


if __name__ == "__main__":
    main()
