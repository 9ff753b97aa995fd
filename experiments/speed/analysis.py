"""Tables and figure of README.md, from records.csv and runs.csv."""

from pathlib import Path
from typing import Any

import pandas as pd

from experiments.study import label, markdown

HERE = Path(__file__).parent
ATTENTION = (
    ("forward, nope", "jax.nn xla", "forward, against `jax.nn` (xla)"),
    ("forward, nope", "flax linen", "forward, against Flax"),
    ("forward, nope", "PyTorch SDPA", "forward, against PyTorch's own kernel"),
    ("gradients, nope", "jax.nn xla", "with gradients, against `jax.nn` (xla)"),
    ("gradients, nope", "flax linen", "with gradients, against Flax"),
    ("gradients, nope", "PyTorch SDPA", "with gradients, against PyTorch's own kernel"),
    ("gradients, t5", "PyTorch SDPA, float mask", "with gradients, T5's bias, against PyTorch with a float mask"),
)
LONG = (1024, 2048, 4096)
OTHER = (
    ("training", "2 layers, D = 64, 20 steps", "training, 2 layers, D = 64, mixed lengths", "a plain loop"),
    ("training", "4 layers, D = 128, 20 steps", "the same, 4 layers, D = 128", "a plain loop"),
    (
        "training_torch",
        "2 layers, d 64, one step, steady state",
        "training, 2 layers, D = 64",
        "x-transformers, compiled",
    ),
    (
        "training_torch",
        "4 layers, d 128, one step, steady state",
        "the same, 4 layers, D = 128",
        "x-transformers, compiled",
    ),
    ("population", "32 runs, 400 steps each, compilation included", "32 runs as one program", "one after another"),
    (
        "evaluation",
        "500 lengths, 64 examples each, compilation included",
        "a test of 500 lengths",
        "a program per length",
    ),
    ("generation", "2,047 tokens after 1, per token", "2,047 tokens of a LLaMA of 8 layers", "transformers"),
    ("start", "2 layers, d 64, process to first step", "process to first step, full cache", "the first start"),
)

COLORS = {"attnjax": "#0072B2", "jax.nn xla": "#D55E00", "flax linen": "#009E73", "PyTorch SDPA": "#666666"}


def read(folder: Path = HERE) -> pd.DataFrame:
    """Returns all rows, with what runs.csv says of the machine."""
    return pd.read_csv(folder / "records.csv").merge(pd.read_csv(folder / "runs.csv", dtype={"commit": str}), on="run")


def tables() -> dict[str, str]:
    """Returns the tables of the README by name."""
    rows = read()
    cpu, gpu = rows[rows.device == "cpu"], rows[rows.device != "cpu"]
    plain = cpu[cpu.case.isin(["forward, nope", "gradients, nope"]) & cpu["T"].isin(LONG)]
    cudnn = gpu[gpu.case.str.contains("nope") & (gpu.peer == "jax.nn cudnn")]
    return {
        "attention": attention(cpu),
        "encodings": encodings(cpu),
        "memory": memory(cpu),
        "short": short(cpu),
        "other": other(cpu),
        **on_gpu(gpu),
        "runs": runs(rows),
        "jax": ends(plain[plain.peer.isin(["jax.nn xla", "flax linen"])], 1),
        "torch": ends(plain[plain.peer == "PyTorch SDPA"], 2),
        "cudnn": ends(cudnn, 2),
    }


def ends(rows: pd.DataFrame, digits: int) -> str:
    """The smallest and the largest ratio."""
    return f"{rows.ratio.min():.{digits}f} to {rows.ratio.max():.{digits}f}"


def attention(rows: pd.DataFrame) -> str:
    """Ratios of long sequences by length."""
    rows = rows[rows["T"].isin(LONG)]
    found = rows.pivot_table(index=["case", "peer"], columns="T", values="ratio")
    lines = [[title, *found.loc[[(case, peer)]].to_numpy()[0]] for case, peer, title in ATTENTION]
    return markdown(pd.DataFrame(lines, columns=["", *(f"T = {T:,.0f}" for T in found)]), times)


def encodings(rows: pd.DataFrame) -> str:
    """The smallest and the largest time of a gradient under an encoding, in times of that without one."""
    chosen = rows[(rows.suite == "encodings") & (rows["T"] == 2048) & (rows.case == "gradients")]
    cost = (1 / chosen.set_index("ours").ratio).sort_values()
    first, *_, last = [f"{value:.2f} ({label(str(name))})" for name, value in cost.items()]
    return f"{first} to {last}"


def memory(rows: pd.DataFrame) -> str:
    """Temporary memory of a gradient with and without a table of scores."""
    chosen = rows[(rows.suite == "memory") & (rows["T"] == 16_384) & (rows.peer == "jax.nn xla")].iloc[0]
    return f"{chosen.figure / 2**20:.0f} MiB where `jax.nn` takes {chosen.peer_figure / 2**30:.0f} GiB"


def short(rows: pd.DataFrame) -> str:
    """How many of the short cases are slower than `jax.nn`, and the slowest."""
    said = []
    for T in (64, 128):
        cases = rows[(rows.suite == "attention") & (rows["T"] == T) & (rows.peer == "jax.nn xla")]
        slower, worst = int((cases.ratio < 1).sum()), cases.sort_values("ratio").iloc[0]
        name = worst.case.removeprefix("gradients, ")
        said.append(
            f"at T = {T}, {slower} of {len(cases)} encodings (the slowest, {name}: {times(float(worst.ratio))})"
        )
    return "; ".join(said)


def other(rows: pd.DataFrame) -> str:
    """Training, populations, evaluation, generation and start."""
    lines = [
        [title, peer, rows[(rows.suite == suite) & (rows.case == case)].ratio.iloc[0]]
        for suite, case, title, peer in OTHER
    ]
    return markdown(pd.DataFrame(lines, columns=["work", "compared with", "times as fast"]), times)


def on_gpu(rows: pd.DataFrame) -> dict[str, str]:
    """Ratios on a GPU beside cuDNN's kernel, by encoding and direction, of the last run that has them; and beside others."""
    parts = rows.case.str.extract(r"(?P<way>\w+), (?P<encoding>\w+), (?P<width>H = \d+)")
    rows = rows.join(parts).drop_duplicates(["case", "peer"], keep="last")
    found = rows.pivot_table(index=["encoding", "way"], columns=["peer", "width"], values="ratio", sort=False)
    found = found[["jax.nn cudnn", "jax.nn cudnn, no bias"]].sort_index(axis=1, level="width", ascending=False)
    found.columns = [f"{peer.removeprefix('jax.nn ')}, {width}" for peer, width in found.columns]
    told = lambda peer: ends(rows[rows.peer == peer], 2)
    return {"gpu": markdown(found.reset_index(), times), "tokamax": told("tokamax"), "sdpa": told("PyTorch SDPA")}


def runs(rows: pd.DataFrame) -> str:
    """Where the rows were measured, and when."""
    place = rows.device.where(rows.device != "cpu", rows.cores.astype(str) + " cores of an " + rows.processor)
    groups = rows.assign(place=place + " on {} with jax " + rows.jax).groupby("place", sort=False).date.unique()
    return "; ".join(str(name).format(", ".join(dates)) for name, dates in groups.items())


def times(ratio: float) -> str:
    """A ratio with three digits."""
    return f"{ratio:#.3g}x"


def figure() -> Any:
    """Time of attention with gradients, and its temporary memory, against length."""
    from matplotlib.figure import Figure

    rows = read()
    made = Figure(figsize=(10, 4), layout="constrained")
    left, right = made.subplots(1, 2)
    timed = rows[(rows.case == "gradients, nope") & rows["T"].ge(1024) & (rows.device == "cpu") & (rows.unit == "s")]
    held = rows[(rows.suite == "memory") & (rows.case == "gradient, nope against T")]
    for axis, found, unit in ((left, timed, 1e3), (right, held, 2**-20)):
        names = [
            ("attnjax", "figure", found.drop_duplicates("T")),
            *((p, "peer_figure", r) for p, r in found.groupby("peer")),
        ]
        for name, column, lines in names:
            lines = lines.sort_values("T")
            width = 2.6 if name == "attnjax" else 1.5
            axis.plot(lines["T"], lines[column] * unit, marker="o", linewidth=width, color=COLORS[str(name)])
            axis.annotate(
                name, (lines["T"].iloc[-1], lines[column].iloc[-1] * unit), (6, 0), textcoords="offset points"
            )
        axis.set(xscale="log", yscale="log", xlabel="T, tokens", xlim=(None, found["T"].max() * 2.2))
        ticks = sorted(found["T"].unique())
        axis.set_xticks(ticks, [f"{T / 1024:g}k" for T in ticks])
        axis.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    left.set_title("attention with gradients, ms")
    right.set_title("memory of the gradient, MiB")
    return made
