"""Trained networks on made data: ``python -m benchmarks.trained_networks [--seeds 5] [--repeats 3]``.

Three generators, written down before anything was tuned on them; every draw of one is the same function with fresh
inputs and noise, and ``seed`` tells the draws apart. Networks of one and of two hidden layers are trained by mini-batch
Adam and stopped early. Each is measured in a process of its own, on one thread:

- CPU seconds from ``vhat.from_torch(...).linearised(validation=...)`` to the intervals of 1000 new responses;
- coverage and Winkler score of 90% intervals, before and after ``calibrate``, beside split conformal prediction on the
  same calibration rows;
- whether parameters and predictions are still those of the module, and every warning.

What is finished is kept in ``.cache`` (run it again to go on); writes ``trained_networks.json`` and, with the tables,
``trained_networks.md``.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
KEPT = HERE / ".cache" / "trained_networks.json"
"""All measurements, with the score of every test row."""
NETWORKS = {"ReLU 50": (50,), "ReLU 128-64": (128, 64)}
DELTA = 0.1
VALIDATION = 0.25
"""Validation rows, as a share of the training rows: they stop the training, and choose lam and the noise."""
CALIBRATION = 1000
"""Rows that only ``calibrate`` and split conformal prediction see."""
TEST = 1000
"""Rows for which intervals are asked."""


@dataclass(frozen=True)
class Generator:
    """A made regression problem.

    Attributes:
        name: As it is printed.
        rows: Training rows.
        columns: Inputs.
        mean: The regression function, from (rows, columns) to (rows,).
        noise: Draws the noise of rows.
        inputs: Draws the inputs of rows.
    """

    name: str
    rows: int
    columns: int
    mean: Callable[[np.ndarray], np.ndarray]
    noise: Callable[[np.ndarray, np.random.Generator], np.ndarray]
    inputs: Callable[[int, np.random.Generator], np.ndarray]

    def draw(self, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return inputs and responses of ``train``, ``validation``, ``calibration`` and ``test``, standardised."""
        rng = np.random.default_rng([self.rows, self.columns, seed])
        sizes = {
            "train": self.rows,
            "validation": int(VALIDATION * self.rows),
            "calibration": CALIBRATION,
            "test": TEST,
        }
        X = self.inputs(sum(sizes.values()), rng)
        y = self.mean(X) + self.noise(X, rng)
        # Scaled by the training rows alone, as a practitioner would.
        fitted = slice(0, self.rows)
        X = (X - X[fitted].mean(axis=0)) / X[fitted].std(axis=0)
        y = (y - y[fitted].mean()) / y[fitted].std()
        ends = np.cumsum(list(sizes.values()))
        parts = zip(np.split(X, ends[:-1]), np.split(y, ends[:-1]), strict=True)
        return dict(zip(sizes, parts, strict=True))


def _correlated(columns: int) -> Callable[[int, np.random.Generator], np.ndarray]:
    """Normal inputs with correlation 0.5^|i - j|, as measurements of one thing have."""
    distance = np.abs(np.subtract.outer(np.arange(columns), np.arange(columns)))
    root = np.linalg.cholesky(0.5**distance)
    return lambda rows, rng: rng.standard_normal((rows, columns)) @ root.T


def _mixed(columns: int) -> Callable[[int, np.random.Generator], np.ndarray]:
    """Half normal inputs; of the others two are binary, one has heavy skew and the rest are uniform."""

    def draw(rows: int, rng: np.random.Generator) -> np.ndarray:
        X = rng.standard_normal((rows, columns))
        half = columns // 2
        X[:, half:] = rng.uniform(-1.7, 1.7, size=(rows, columns - half))
        X[:, half : half + 2] = rng.integers(0, 2, size=(rows, 2))
        X[:, half + 2] = rng.lognormal(0.0, 0.7, size=rows)
        return X

    return draw


def _homoscedastic_mean(X: np.ndarray) -> np.ndarray:
    wave = np.sin(1.5 * X[:, 0] + X[:, 1])
    return wave + 0.5 * X[:, 2] * X[:, 3] + 0.7 * np.abs(X[:, 4]) + 0.4 * X[:, 5] - 0.3 * X[:, 6]


def _heteroscedastic_mean(X: np.ndarray) -> np.ndarray:
    wave = 1.5 * np.sin(2.0 * X[:, 0]) * (0.5 + X[:, 8])
    return wave + np.tanh(X[:, 1] * X[:, 2]) + 0.6 * np.log1p(X[:, 10]) + 0.5 * X[:, 12] ** 2 + 0.3 * X[:, 3]


def _heavy_tailed_mean(X: np.ndarray) -> np.ndarray:
    distance = np.sqrt(X[:, 0] ** 2 + X[:, 1] ** 2)
    return 2.0 * np.cos(1.5 * distance) + X[:, 2] * np.maximum(X[:, 3], 0.0) + 0.5 * X[:, 4]


def _constant_noise(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return 0.6 * rng.standard_normal(len(X))


def _growing_noise(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Normal noise; its standard deviation goes from 0.2 to 1.2 with two of the inputs."""
    level = 0.2 + 1.0 / (1.0 + np.exp(-2.0 * X[:, 0] - X[:, 13]))
    return level * rng.standard_normal(len(X))


def _student_noise(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Student's t with three degrees of freedom: finite variance, infinite fourth moment."""
    return 0.5 * rng.standard_t(3, size=len(X))


GENERATORS = (
    Generator("homoscedastic", 1_200, 11, _homoscedastic_mean, _constant_noise, _correlated(11)),
    Generator("heteroscedastic", 13_000, 17, _heteroscedastic_mean, _growing_noise, _mixed(17)),
    Generator("heavy-tailed", 20_000, 8, _heavy_tailed_mean, _student_noise, _correlated(8)),
)


# -- one measurement, in a process of its own --------------------------------------------------
def measure(generator: Generator, network: str, seed: int) -> dict[str, Any]:
    """Train a network, ask for intervals, and return what they cost and what they are worth."""
    import torch

    import vhat
    from benchmarks.early_stopping import Recipe, Rows, train

    torch.set_num_threads(1)
    data = generator.draw(seed)
    recipe = Recipe(hidden=NETWORKS[network], batch=128, step=1e-3, patience=20)
    module = train(recipe, Rows(*data["train"]), Rows(*data["validation"]), [seed]).modules()[0]
    module = torch.nn.Sequential(*module, torch.nn.Flatten(0))
    before = copy.deepcopy(module.state_dict())
    X_test, y_test = data["test"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        began = time.process_time()
        fitted = vhat.from_torch(module, *data["train"], weight_decay=0.0).linearised(validation=data["validation"])
        chosen = time.process_time()
        band = fitted.interval(X_test, DELTA, target="observation")
        seconds = time.process_time() - began
        calibrated = fitted.calibrate(*data["calibration"]).interval(X_test, DELTA)
    refit = fitted.workspace.refit
    errors = np.abs(fitted.predict(data["calibration"][0]) - data["calibration"][1])
    conformal = np.sort(errors)[int(np.ceil((1 - DELTA) * (len(errors) + 1))) - 1]
    ends = {
        "linearised": (band.lower, band.upper),
        "calibrated": (calibrated.lower, calibrated.upper),
        "split conformal": (band.center - conformal, band.center + conformal),
    }
    double = copy.deepcopy(module).double()(torch.as_tensor(X_test)).detach().numpy()
    return {
        "seconds": seconds,
        "of it for lam": chosen - began,
        "p": fitted.problem.p,
        "lam": float(refit.weight_decay.max()),
        "identified": refit.identified,
        "bit-equal": _unchanged(before, module, fitted.params),
        "center error": float(np.max(np.abs(band.center - double))),
        "warnings": sorted({f"{w.category.__name__}: {w.message}" for w in said}),
        "solver": str(band.solver) if hasattr(band, "solver") else "",
        "scores": {name: _scores(*both, y_test) for name, both in ends.items()},
    }


def _unchanged(before: Any, module: Any, params: Any) -> bool:
    """Say whether module and fitted model have the parameters that training left, to the last bit."""
    now = module.state_dict()
    told = {name: params[name] for name in before}
    return all(bool((before[name] == now[name]).all() and (told[name] == now[name].double()).all()) for name in before)


def _scores(lower: np.ndarray, upper: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return the coverage, the mean width and each row's Winkler score."""
    missed = np.maximum(lower - y, 0.0) + np.maximum(y - upper, 0.0)
    return {
        "coverage": float(np.mean(missed == 0)),
        "width": float(np.mean(upper - lower)),
        "winkler": [round(float(w), 5) for w in upper - lower + 2 / DELTA * missed],
    }


# -- all of them, and the tables ---------------------------------------------------------------
def gather(seeds: int, repeats: int) -> list[dict[str, Any]]:
    """Measure what the results do not have yet: each seed once, the first one several times for its CPU seconds."""
    KEPT.parent.mkdir(exist_ok=True)
    found = json.loads(KEPT.read_text()) if KEPT.exists() else []
    done = {(each["generator"], each["network"], each["seed"], each["repeat"]) for each in found}
    wanted = [(seed, repeat) for repeat in range(repeats) for seed in range(seeds) if repeat == 0 or seed == 0]
    wanted.sort(key=lambda pair: pair[0] + 1.5 * pair[1])  # some of both kinds are there early
    todo = [
        (generator.name, network, seed, repeat)
        for seed, repeat in wanted
        for network in NETWORKS
        for generator in GENERATORS
    ]
    todo.sort(key=lambda key: key[1] == "ReLU 128-64" and key[0] != "homoscedastic")  # those that take minutes, last
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for number, key in enumerate(todo, 1):
        if key in done:
            continue
        command = [sys.executable, "-m", "benchmarks.trained_networks", "--one", *map(str, key[:3])]
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        one = json.loads(run.stdout.splitlines()[-1])
        if key[3] > 0:  # a repetition is for its time
            one["scores"] = None
        named = dict(zip(("generator", "network", "seed", "repeat"), key, strict=True))
        found.append(named | one)
        KEPT.write_text(json.dumps(found))
        print(f"{number} of {len(todo)}: {', '.join(map(str, key))}: {one['seconds']:.1f} CPU s", flush=True)
        for line in one["warnings"]:
            print(f"    {line}", flush=True)
    return found


def _without_rows(found: list[dict[str, Any]]) -> str:
    """Return the measurements as JSON, one a line, with mean Winkler scores in place of every row's."""
    lines = []
    for each in found:
        scores = {} if each["scores"] is None else each["scores"]
        means = {name: own | {"winkler": float(np.mean(own["winkler"]))} for name, own in scores.items()}
        lines.append(json.dumps(each | {"scores": means}))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> None:
    """Measure one, or all and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="draws of data and network")
    parser.add_argument("--repeats", type=int, default=3, help="how often the first one is timed")
    parser.add_argument("--report", action="store_true", help="write the tables of what is measured, and no more")
    parser.add_argument("--one", nargs=3, metavar=("GENERATOR", "NETWORK", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, network, seed = options.one
        chosen = next(each for each in GENERATORS if each.name == name)
        print(json.dumps(measure(chosen, network, int(seed))))
        return
    from benchmarks.report import write_between
    from benchmarks.trained_networks_report import markdown

    found = json.loads(KEPT.read_text()) if options.report else gather(options.seeds, options.repeats)
    (HERE / "trained_networks.json").write_text(_without_rows(found))
    text = markdown(found)
    (HERE / "trained_networks.md").write_text(text)
    write_between(HERE.parent / "docs" / "benchmarks.md", "trained networks", text.partition("\n")[2])


if __name__ == "__main__":
    main()
