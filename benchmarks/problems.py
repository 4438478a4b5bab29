"""The problems that are measured: the study's data, networks trained by the paper's recipe, kept between runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import vhat
from vhat.fit import AdamW, Network, VarianceScaling, glorot
from vhat.study import MaternTruth, sample

CACHE = Path(__file__).parent / ".cache"


@dataclass(frozen=True)
class Setting:
    """A network and its training data.

    Attributes:
        n: Training rows.
        hidden: Units of each hidden layer.
        d: Inputs.
        activation: "relu", as in the paper, or a smooth one.
        lam: Weight decay.
        steps: Full-batch steps of AdamW, learning rate 1e-3 on a cosine; 0 leaves the first parameters.
        polished: Whether the parameters are moved on to a certified minimum.
    """

    n: int = 1000
    hidden: tuple[int, ...] = (1024,)
    d: int = 10
    activation: str = "relu"
    lam: float = 1e-3
    steps: int = 10_000
    polished: bool = False

    @property
    def network(self) -> Network:
        initial = glorot() if self.d > 1 else VarianceScaling(scale=1.0, mode="fan_in")
        return Network((self.d, *self.hidden, 1), self.activation, initial=initial)

    @property
    def name(self) -> str:
        units = "x".join(map(str, self.hidden))
        end = "-polished" if self.polished else ""
        return f"d{self.d}-n{self.n}-{self.activation}{units}-lam{self.lam:g}-steps{self.steps}{end}"

    @property
    def recipe(self) -> AdamW:
        return AdamW(self.network, weight_decay=self.lam, steps=self.steps)

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Training data; in one dimension the gap takes many rows out, so more are drawn and n kept."""
        truth = MaternTruth(dimension=self.d, amplitude=0.1 if self.d > 1 else 1.0, seed=0)
        data = sample(truth, self.n if self.d > 1 else 2 * self.n, seed=1)
        return data.X[: self.n], data.y[: self.n]

    def __str__(self) -> str:
        layers = "-".join(map(str, (self.d, *self.hidden, 1)))
        return f"{layers} {self.activation} (p = {self.network.parameters:,}), n = {self.n:,}, lam = {self.lam:g}"


@dataclass(frozen=True, eq=False)
class Trained:
    """A setting with its data and its parameters.

    Attributes:
        setting: Where it comes from.
        network: One object for all fitted models, so that they share compilations.
        X: Training inputs.
        y: Training responses.
        params: Parameters, float32 as trained.
    """

    setting: Setting
    network: Network
    X: np.ndarray
    y: np.ndarray
    params: Any

    def fitted(self) -> vhat.FittedModel:
        """A fitted model that has worked out nothing yet."""
        return vhat.from_jax(self.network, self.params, self.X, self.y, weight_decay=self.setting.lam)

    def points(self, m: int) -> np.ndarray:
        """Test inputs N(0, I), the first m of one sequence."""
        return np.random.default_rng(99).standard_normal((m, self.setting.d))


def load(setting: Setting) -> Trained:
    """Return the trained network, from the cache or by training it."""
    file = CACHE / f"{setting.name}.npz"
    if not file.exists():
        X, y = setting.draw()
        save(setting, X, y, _train(setting, X, y))
    with np.load(file) as kept:
        layers = range(len(setting.hidden) + 1)
        params = tuple({"w": kept[f"w{i}"], "b": kept[f"b{i}"]} for i in layers)
        return Trained(setting, setting.network, kept["X"], kept["y"], params)


def _train(setting: Setting, X: np.ndarray, y: np.ndarray) -> Any:
    if setting.polished:
        return load(replace(setting, polished=False)).fitted().polish().params
    return setting.recipe(X, y, seed=0).params if setting.steps else setting.network.init(0)


def save(setting: Setting, X: np.ndarray, y: np.ndarray, params: Any) -> None:
    """Put a trained network into the cache."""
    CACHE.mkdir(exist_ok=True)
    leaves = {f"{key}{i}": np.asarray(layer[key]) for i, layer in enumerate(params) for key in ("w", "b")}
    np.savez(CACHE / f"{setting.name}.npz", X=X, y=y, **leaves)
