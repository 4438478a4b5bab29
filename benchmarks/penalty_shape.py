"""The shape of the ridge penalty beside real retraining: ``python -m benchmarks.penalty_shape``.

Made networks of eight kinds, trained by Adam and stopped early, without weight decay. The responses of the training
rows are drawn again twenty times, and the network is trained again from the same start with the same mini-batches. The
standard deviation of its predictions is what ``sigma sqrt(V/n)`` of the linearised network stands for.

Three shapes of the penalty are compared: one number for all parameters, one for each array of parameters (the library's
default), and one for each entry. Each is scaled in two ways: so that the degrees of freedom are those of the twenty
retrainings, which shows the shape alone, and by the validation rows, which is what a user gets. The kinds of network
are not those of ``benchmarks/retraining.py``, on which nothing is chosen.

Writes ``penalty_shape.md`` and its table in the documentation. It takes two to three minutes of CPU time.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

import vhat
from benchmarks.early_stopping import Recipe, Rows, train
from benchmarks.report import write_between

HERE = Path(__file__).parent
SEEDS = range(6)
REDRAWS = 20
POINTS = 200
NOISE = 0.4
PLACES = ("in distribution", "gap", "end")
SHAPES = ("one number", "each array", "each entry")
SCALES = ("retraining", "validation rows")
DEAD = 1e-6
"""Share of the mean squared gradient below which the penalty of an entry is not let fall."""


@dataclass(frozen=True)
class Kind:
    """A kind of network and of data.

    Attributes:
        activation: "tanh" or "relu".
        hidden: Units of each hidden layer.
        columns: Inputs.
        rows: Training rows.
        held: Validation rows.
        noise: "normal", "laplace", "t3" or "unequal".
        truth: Number of the regression function.
    """

    activation: str
    hidden: tuple[int, ...]
    columns: int
    rows: int
    held: int
    noise: str
    truth: int

    @property
    def recipe(self) -> Recipe:
        """How its networks are trained."""
        return Recipe(self.hidden, self.activation, step=5e-3, batch=32, epochs=400, patience=30)

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Return the regression function."""
        waves = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2]
        bent = np.abs(X[:, 0]) + 0.7 * np.cos(2 * X[:, 1]) + 0.3 * X[:, 2]
        step = np.tanh(2 * X[:, 0] + X[:, 1]) + 0.4 * X[:, 2] ** 2
        found: np.ndarray = (waves, bent, step)[self.truth]
        return found

    def noise_levels(self, X: np.ndarray) -> np.ndarray:
        """Return the standard deviation of the noise of each row."""
        if self.noise == "unequal":
            found: np.ndarray = NOISE * (0.6 + 0.4 * np.abs(X[:, 1]) / 0.75)
            return found
        return np.full(len(X), NOISE)

    def draw(self, rng: np.random.Generator, X: np.ndarray, draws: int) -> np.ndarray:
        """Draw responses, (draws, rows)."""
        shape = (draws, len(X))
        if self.noise == "t3":
            z = rng.standard_t(3, size=shape) / np.sqrt(3.0)
        elif self.noise == "laplace":
            z = rng.laplace(size=shape) / np.sqrt(2.0)
        else:
            z = rng.standard_normal(shape)
        drawn: np.ndarray = self.mean(X) + self.noise_levels(X) * z
        return drawn


KINDS = (
    Kind("tanh", (20,), 4, 300, 100, "normal", 0),
    Kind("relu", (30,), 5, 400, 150, "normal", 1),
    Kind("tanh", (15, 15), 4, 500, 200, "laplace", 2),
    Kind("relu", (20, 20), 5, 600, 200, "normal", 0),
    Kind("relu", (50,), 6, 800, 300, "t3", 2),
    Kind("tanh", (40,), 5, 200, 100, "unequal", 1),
    Kind("relu", (40,), 4, 200, 100, "normal", 2),
    Kind("tanh", (30,), 6, 800, 400, "t3", 0),
)


def inputs(rng: np.random.Generator, rows: int, columns: int, place: str) -> np.ndarray:
    """Draw inputs: the first one in two pieces beside a gap, in the gap, or beyond the end."""
    X = rng.uniform(-1.5, 1.5, size=(rows, columns))
    first = {
        "in distribution": rng.uniform(0.5, 2.0, size=rows) * rng.choice((-1.0, 1.0), size=rows),
        "gap": rng.uniform(-0.5, 0.5, size=rows),
        "end": rng.uniform(2.0, 2.6, size=rows),
    }
    X[:, 0] = first[place]
    return X


def arrays(module: nn.Module) -> list[slice]:
    """Return where each array of parameters stands in the flat vector."""
    stops = np.cumsum([0, *(each.numel() for each in module.parameters())]).tolist()
    return [slice(start, stop) for start, stop in pairwise(stops)]


def shape_of(name: str, module: nn.Module, squares: np.ndarray) -> np.ndarray:
    """Return the penalty of each parameter up to a factor, from the mean squared gradient of each, (p,)."""
    if name == "one number":
        return np.ones_like(squares)
    if name == "each entry":
        return np.maximum(squares, DEAD * squares.mean())
    shape = np.empty_like(squares)
    for where in arrays(module):
        shape[where] = squares[where].mean()
    return shape


def scaled_to(freedom: float, shape: np.ndarray, J: np.ndarray) -> np.ndarray:
    """Return the multiple of a shape under which the refit has so many degrees of freedom."""
    values = np.linalg.svd(J / np.sqrt(shape * len(J)), compute_uv=False) ** 2
    lams = values.max() * np.logspace(-12, 4, 1600)
    freedoms = np.sum(values / (values + lams[:, None]), axis=1)
    lam = np.exp(np.interp(-freedom, -freedoms, np.log(lams)))
    scaled: np.ndarray = lam * shape
    return scaled


def measure(kind: Kind, seed: int) -> np.ndarray:
    """Return median ratios to retraining, (shapes, scales, places)."""
    rng = np.random.default_rng([11, seed, KINDS.index(kind)])
    X = inputs(rng, kind.rows, kind.columns, PLACES[0])
    X_held = inputs(rng, kind.held, kind.columns, PLACES[0])
    y_held = kind.draw(rng, X_held, 1)[0]
    y = kind.draw(rng, X, 1 + REDRAWS)
    points = np.concatenate([inputs(rng, POINTS, kind.columns, place) for place in PLACES])
    stack = train(kind.recipe, Rows(X, y), Rows(X_held, y_held), [seed] * len(y))
    retrained = stack.predict(points)[1:].std(axis=0, ddof=1)
    noise = kind.noise_levels(X)
    freedom = generalised_freedom(stack.predict(X)[1:], y[1:], noise)

    # Trained on the first draw, which is not among those whose standard deviation is taken.
    module = nn.Sequential(*stack.modules()[0], nn.Flatten(0))
    names = [name for name, _ in module.named_parameters()]
    shapes = [tuple(each.shape) for each in module.parameters()]
    plain = vhat.from_torch(module, X, y[0], weight_decay=0.0)
    problem = plain.workspace.problem
    with problem.scope():
        J = problem.numpy(problem.gradients(problem.X))
    found = np.empty((len(SHAPES), len(SCALES), len(PLACES)))
    for i, name in enumerate(SHAPES):
        shape = shape_of(name, module, np.mean(J**2, axis=0))
        # The penalty of a linearisation has the shape of the model's own weight decay, where all parameters have one.
        decay = {
            each: shape[where].reshape(size) for each, where, size in zip(names, arrays(module), shapes, strict=True)
        }
        fitted = vhat.from_torch(module, X, y[0], weight_decay=decay)
        refits = (
            plain.linearised(scaled_to(freedom, shape, J)),
            fitted.linearised(validation=(X_held, y_held)),
        )
        for j, refit in enumerate(refits):
            error = np.sqrt(refit.weighted_norm(points).value / kind.rows) * np.sqrt(np.mean(noise**2))
            found[i, j] = [np.median(part) for part in np.split(error / retrained, len(PLACES))]
    return found


def generalised_freedom(predictions: np.ndarray, responses: np.ndarray, noise: np.ndarray) -> float:
    """Return ``sum_i cov(f_i, y_i) / sigma_i^2`` over the redraws."""
    f = predictions - predictions.mean(axis=0)
    y = responses - responses.mean(axis=0)
    return float(np.sum(f * y / noise**2) / (len(f) - 1))


def markdown(ratios: np.ndarray) -> str:
    """Return the table of ratios (networks, shapes, scales, places)."""
    sizes = [kind.rows for kind in KINDS]
    lines = [
        "# The shape of the penalty beside retraining",
        "",
        f"{len(ratios)} networks of {len(KINDS)} kinds ({min(sizes)} to {max(sizes)} rows, Adam, stopped early,",
        f"no weight decay). Of each, the median over {POINTS} points of `sigma sqrt(V/n)` over the standard deviation",
        f"of {REDRAWS} retrainings; of all, the tenth percentile, the median and the 90th percentile. *Retraining*:",
        "degrees of freedom as those retrainings had. *Validation rows*: as `linearised(validation=...)` chooses.",
        "",
        f"| penalty | degrees of freedom by | {' | '.join(PLACES)} | below .8 in distribution |",
        "|---|---|" + "---|" * (len(PLACES) + 1),
    ]
    for i, shape in enumerate(SHAPES):
        for j, scale in enumerate(SCALES):
            part = ratios[:, i, j]
            cells = ["{:.2f}, {:.2f}, {:.2f}".format(*np.quantile(part[:, k], (0.1, 0.5, 0.9))) for k in range(3)]
            below = f"{np.mean(part[:, 0] < 0.8):.0%}"
            lines.append(f"| {shape} | {scale} | {' | '.join(cells)} | {below} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all networks and write the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", vhat.VhatWarning)
    found = []
    for seed in SEEDS:
        for kind in KINDS:
            found.append(measure(kind, seed))
        print(f"seed {seed}: {len(found)} of {len(SEEDS) * len(KINDS)} networks", flush=True)
    text = markdown(np.array(found))
    (HERE / "penalty_shape.md").write_text(text)
    write_between(HERE.parent / "docs" / "benchmarks.md", "penalty shape", text.partition("\n")[2])


if __name__ == "__main__":
    main()
