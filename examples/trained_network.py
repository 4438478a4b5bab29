"""An early-stopped ReLU network with three intervals: the picture of docs/trained-network.md.

Run it from the root of the repository: ``python examples/trained_network.py``.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import vhat

PICTURE = Path("docs/images/trained-network.png")
DELTA = 0.1
NOISE = 0.25
BLUE, ORANGE, GREEN, INK = "#0072B2", "#D55E00", "#009E73", "#333333"
STYLE = {"font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8}


def truth(x: np.ndarray) -> np.ndarray:
    """Return the true function."""
    return np.sin(2.2 * x) + 0.3 * x


def sample(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw inputs from two intervals with a gap between them, and their responses."""
    left = rng.uniform(-2.2, -0.5, n)
    right = rng.uniform(0.9, 2.2, n)
    x = np.where(rng.random(n) < 0.6, left, right)
    y = truth(x) + NOISE * rng.normal(size=n)
    return x[:, None], y


def train(X: np.ndarray, y: np.ndarray, X_val: np.ndarray, y_val: np.ndarray) -> torch.nn.Module:
    """Train by mini-batch Adam, and keep the parameters with the smallest error on the validation rows."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(1, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
    )
    inputs, responses = torch.as_tensor(X).float(), torch.as_tensor(y).float()[:, None]
    val_inputs, val_responses = torch.as_tensor(X_val).float(), torch.as_tensor(y_val).float()[:, None]
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    best, best_error, waited = copy.deepcopy(module.state_dict()), np.inf, 0
    for _ in range(400):
        for batch in torch.randperm(len(inputs)).split(32):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(module(inputs[batch]), responses[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            error = float(torch.nn.functional.mse_loss(module(val_inputs), val_responses))
        waited += 1
        if error < best_error:
            best, best_error, waited = copy.deepcopy(module.state_dict()), error, 0
        if waited > 30:
            break
    module.load_state_dict(best)
    return module.eval()


def panel(axes: Axes, title: str, grid: np.ndarray, lower: np.ndarray, upper: np.ndarray, colour: str) -> None:
    """Draw one interval on the common axes."""
    axes.fill_between(grid, lower, upper, color=colour, alpha=0.25, linewidth=0)
    axes.set_title(title, loc="left", fontsize=9.5, color=colour, fontweight="bold")
    axes.set_xlim(grid[0], grid[-1])
    axes.set_ylim(-2.3, 2.9)
    axes.set_xlabel("x")


def main() -> None:
    """Train the network, compute three intervals and draw them."""
    rng = np.random.default_rng(3)
    X, y = sample(60, rng)
    X_val, y_val = sample(60, rng)
    module = train(X, y, X_val, y_val)
    grid = np.linspace(-3.2, 3.2, 400)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vhat.VhatWarning)
        fitted = vhat.from_torch(module, X, y[:, None], weight_decay=1e-4, validation=(X_val, y_val[:, None]))
        tangent = fitted.linearised()
        head = vhat.from_torch(
            module, X, y[:, None], weight_decay=1e-4, parameters="last", validation=(X_val, y_val[:, None])
        ).polish()
        bands = {
            "linearised()": (tangent.interval(grid[:, None], DELTA, target="observation"), BLUE),
            'parameters="last"': (head.interval(grid[:, None], DELTA, target="observation"), GREEN),
        }
    # Split conformal prediction: the (1 - delta)(n + 1)-th smallest validation error is the half width everywhere.
    center = fitted.predict(grid[:, None])[:, 0]
    errors = np.sort(np.abs(y_val - fitted.predict(X_val)[:, 0]))
    half = errors[int(np.ceil((1 - DELTA) * (len(errors) + 1))) - 1]
    mpl.rcParams.update(STYLE)
    figure = Figure(figsize=(9.0, 3.1), layout="constrained", dpi=150)
    axes = figure.subplots(1, 3, sharey=True)
    for each, (title, (band, colour)) in zip(axes, bands.items(), strict=False):
        panel(each, title, grid, band.lower[:, 0], band.upper[:, 0], colour)
        each.plot(grid, band.center[:, 0], color=colour, linewidth=1.4)
    panel(axes[2], "split conformal", grid, center - half, center + half, ORANGE)
    axes[2].plot(grid, center, color=ORANGE, linewidth=1.4)
    for each in axes:
        each.plot(X[:, 0], y, ".", color=INK, markersize=2.5, alpha=0.6)
        each.plot(grid, truth(grid), color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes[0].set_ylabel("y")
    figure.savefig(PICTURE)
    print(f"written: {PICTURE}")


if __name__ == "__main__":
    main()
