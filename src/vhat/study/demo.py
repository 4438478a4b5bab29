"""The demonstration: one input, a gap in the data, a network at a certified minimum, and its band."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from rich.console import Console
from rich.table import Table

from vhat.errors import InputError
from vhat.study import MaternTruth, Sample, sample
from vhat.variance.weighted_norm import shown_share

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from vhat.fitted.model import FittedModel
    from vhat.intervals.interval import Interval

__all__ = ["Demo", "run", "show"]

DRAWN = 160
"""Training points drawn; about 100 remain outside of the gap."""
NOISE = 0.1
"""Standard deviation of the noise."""
GAP = 0.5
"""Half the length of the interval about 0 without training points."""
DECAY = 3e-5
"""Weight decay."""
GRID = np.linspace(-3.5, 3.5, 281)
"""Points of the band."""
SHOWN = (-3.0, -1.5, -0.25, 0.0, 0.25, 1.5, 3.0)
"""Points of the printed table."""


@dataclass(frozen=True, eq=False)
class Demo:
    """The results of the demonstration.

    Attributes:
        data: The training data.
        fitted: The network at its minimum.
        grid: Points of the band, (points, 1).
        truth: The regression function on the grid.
        band: The interval on the grid, 95% for all points at once.
    """

    data: Sample
    fitted: FittedModel
    grid: np.ndarray
    truth: np.ndarray
    band: Interval


def run(seed: int = 0) -> Demo:
    """Draw the data, train, move to a certified minimum, and compute the band."""
    from vhat.fit import AdamW, Network, glorot, normal

    truth = MaternTruth(dimension=1, seed=seed)
    data = sample(truth, DRAWN, seed=seed, noise=NOISE, gap=GAP)
    # Wide first-layer weights and biases, so that the hidden units bend at different inputs, and steeply enough.
    network = Network((1, 64, 1), "tanh", initial=(normal(3.0), glorot()))
    recipe = AdamW(network, weight_decay=DECAY, steps=3_000, learning_rate=1e-2)
    fitted = recipe(data.X, data.y, seed=seed).polish()
    grid = GRID[:, None]
    return Demo(data, fitted, grid, truth(grid), fitted.interval(grid, delta=0.05, simultaneous=True))


def show(out: Path, *, seed: int = 0, console: Console | None = None) -> Path:
    """Run the demonstration, print its results and write ``band.png``.

    Args:
        out: Directory for the picture, created if it does not exist.
        seed: Seed of the truth, the data and the first parameters.
        console: Console to print to; None is standard output.

    Returns:
        The path of the picture.

    Raises:
        InputError: When ``out`` cannot be written to.
    """
    console = Console() if console is None else console
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out} cannot be used as a directory: {error.strerror}.") from None
    demo = run(seed)
    _report(demo, console)
    path = _draw(demo, out / "band.png")
    console.print(f"Picture: {path}", markup=False, highlight=False, soft_wrap=True)
    return path


def _report(demo: Demo, console: Console) -> None:
    """Print the problem, the audit, a few points, the guarantee and the coverage of the truth."""
    from vhat.metrics import coverage

    band = demo.band
    covered = coverage(band.lower, band.upper, demo.truth)
    parts = (
        f"A tanh network 1-64-1 fitted to {len(demo.data.X)} points with noise {NOISE}, "
        f"none of them in [-{GAP}, {GAP}], and moved to a minimum.",
        demo.fitted.audit(),
        _table(demo),
        f"Guarantee. {band.guarantee}",
        f"Noise {float(band.noise):.3f}, {band.noise_source}. The band holds the truth at {covered:.0%} of "
        f"{len(demo.grid)} grid points; it measures variance, and the network's bias is not in it.",
    )
    for part in parts:
        console.print(part, markup=not isinstance(part, str), highlight=False)
        console.print()


def _table(demo: Demo) -> Table:
    """Return a few points of the grid as a table."""
    table = Table(title="95% confidence, all grid points at once", title_justify="left")
    for name in ("x", "truth", "prediction", "lower", "upper", "unsupported"):
        table.add_column(name, justify="right")
    table.add_column("where")
    for x in SHOWN:
        i = int(np.abs(demo.grid[:, 0] - x).argmin())
        values = (demo.grid, demo.truth, demo.band.center, demo.band.lower, demo.band.upper)
        numbers = (f"{np.ravel(value)[i]:.2f}" for value in values)
        table.add_row(*numbers, f"{float(shown_share(demo.band.unsupported[i])):.0%}", _where(demo, x))
    return table


def _where(demo: Demo, x: float) -> str:
    """Return the position of a point relative to the data, as text."""
    if abs(x) < GAP:
        return "in the gap"
    inside = demo.data.X.min() <= x <= demo.data.X.max()
    return "among the data" if inside else "beyond the data"


def _draw(demo: Demo, path: Path) -> Path:
    """Write the picture, and return its path."""
    from vhat import plot

    ax = plot.band(
        demo.band,
        demo.grid,
        truth=demo.truth,
        data=(demo.data.X, demo.data.y),
        gap=(-GAP, GAP),
        label="95% confidence band",
    )
    try:
        cast("Figure", ax.figure).savefig(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None
    return path
