"""Networks as practitioners train them: mini-batch Adam, stopped where the error of validation rows was least.

Several networks of one architecture are trained side by side, as one stack of matrices: each has its own start, order
of mini-batches, responses and stopping epoch, as if it were alone, and a stack of five costs hardly more than one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn

Layer = tuple[torch.Tensor, torch.Tensor]
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


@dataclass(frozen=True)
class Recipe:
    """How networks are trained.

    Attributes:
        hidden: Units of each hidden layer.
        activation: "relu" or "tanh".
        step: Adam's step size.
        batch: Rows of a mini-batch.
        epochs: Passes over the data after which training ends in any case.
        patience: Passes without a smaller validation error after which a network is given up.
        outputs: Outputs; more than one for quantiles.
    """

    hidden: tuple[int, ...] = (50,)
    activation: str = "relu"
    step: float = 3e-3
    batch: int = 64
    epochs: int = 500
    patience: int = 30
    outputs: int = 1

    def module(self, columns: int, seed: int) -> nn.Sequential:
        """Return an untrained network, torch's own initialisation."""
        widths = (columns, *self.hidden, self.outputs)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layers: list[nn.Module] = []
            for fan_in, fan_out in pairwise(widths):
                layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[self.activation]()]
        return nn.Sequential(*layers[:-1])


@dataclass(frozen=True)
class Rows:
    """Inputs (rows, columns) and responses (rows,), or either of them with one set a network before the rows."""

    X: np.ndarray
    y: np.ndarray

    def inputs(self, networks: int) -> torch.Tensor:
        """Return the inputs of each network, (networks, rows, columns)."""
        X = torch.as_tensor(self.X, dtype=torch.float32)
        return X.expand(networks, -1, -1) if X.ndim == 2 else X

    def responses(self, networks: int) -> torch.Tensor:
        """Return the responses of each network, (networks, rows)."""
        y = torch.as_tensor(self.y, dtype=torch.float32)
        return y.expand(networks, -1) if y.ndim == 1 else y


@dataclass(frozen=True)
class Stack:
    """Trained networks of one architecture.

    Attributes:
        recipe: How they were trained.
        layers: Weights (networks, fan in, fan out) and biases (networks, 1, fan out) of each.
        stopped: The epoch whose parameters each has.
    """

    recipe: Recipe
    layers: list[Layer]
    stopped: np.ndarray

    def modules(self) -> list[nn.Sequential]:
        """Return each network as a module of its own, float32, as its owner would have it."""
        made = []
        for network in range(len(self.stopped)):
            module = self.recipe.module(self.layers[0][0].shape[1], 0)
            linear = [layer for layer in module if isinstance(layer, nn.Linear)]
            with torch.no_grad():
                for layer, (w, b) in zip(linear, self.layers, strict=True):
                    layer.weight.copy_(w[network].T)
                    layer.bias.copy_(b[network, 0])
            made.append(module)
        return made

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return predictions, (networks, rows), or (networks, rows, outputs) where there are several outputs."""
        with torch.no_grad():
            x = torch.as_tensor(X, dtype=torch.float32).expand(len(self.stopped), -1, -1)
            found: np.ndarray = _activations(self.recipe, self.layers, x)[-1].double().numpy()
        return found[..., 0] if self.recipe.outputs == 1 else found


@dataclass(frozen=True)
class SquaredError:
    """The mean squared error of one output."""

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of each network, (networks,), from predictions (networks, rows, outputs)."""
        return ((f[..., 0] - y) ** 2).mean(dim=1)

    def slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return its derivative in the predictions, (networks, rows, outputs)."""
        return (f - y[..., None]) * (2.0 / f.shape[1])


SQUARED_ERROR = SquaredError()


@dataclass(frozen=True)
class Pinball:
    """The mean pinball loss of one output a level.

    Attributes:
        levels: Of the quantiles.
    """

    levels: tuple[float, ...]

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of each network, (networks,)."""
        levels = torch.tensor(self.levels)
        error = y[..., None] - f
        return torch.maximum(levels * error, (levels - 1) * error).mean(dim=(1, 2))

    def slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return its derivative in the predictions."""
        below = (y[..., None] < f).to(f.dtype)
        return (below - torch.tensor(self.levels)) / (f.shape[1] * f.shape[2])


def train(
    recipe: Recipe,
    fitted: Rows,
    validation: Rows,
    seeds: list[int],
    loss: SquaredError | Pinball = SQUARED_ERROR,
) -> Stack:
    """Train one network a seed; equal seeds have equal starts and equal mini-batches.

    Args:
        recipe: How.
        fitted: Rows whose loss is made small.
        validation: Rows whose loss stops the training.
        seeds: One a network.
        loss: What is made small, and what stops the training.
    """
    count, n = len(seeds), fitted.X.shape[-2]
    layers = _starts(recipe, fitted.X.shape[-1], seeds)
    X, y = fitted.inputs(count), fitted.responses(count)
    X_val, y_val = validation.inputs(count), validation.responses(count)
    draws = [np.random.default_rng([7, seed]) for seed in seeds]
    optimiser = torch.optim.Adam([p for layer in layers for p in layer], lr=recipe.step, fused=True)
    best = torch.full((count,), torch.inf)
    kept = [(w.clone(), b.clone()) for w, b in layers]
    stopped = np.zeros(count, dtype=int)
    networks = torch.arange(count)[:, None]
    with torch.no_grad():  # gradients are written out below: autograd would cost more than the arithmetic
        for epoch in range(1, recipe.epochs + 1):
            order = torch.as_tensor(np.stack([rng.permutation(n) for rng in draws]))
            for rows in order.split(recipe.batch, dim=1):
                _set_gradients(recipe, layers, X[networks, rows], y[networks, rows], loss)
                optimiser.step()
            error = loss.value(_activations(recipe, layers, X_val)[-1], y_val)
            # A network that has run out of patience stays as it was, though the stack is trained on.
            waiting = torch.as_tensor(epoch - stopped <= recipe.patience)
            better = (error < best) & waiting
            best = torch.where(better, error, best)
            for (w, b), (w_now, b_now) in zip(kept, layers, strict=True):
                w[better] = w_now[better]
                b[better] = b_now[better]
            stopped[better.numpy()] = epoch
            if np.all(epoch - stopped >= recipe.patience):
                break
    return Stack(recipe, kept, stopped)


def _starts(recipe: Recipe, columns: int, seeds: list[int]) -> list[Layer]:
    modules = [recipe.module(columns, seed) for seed in seeds]
    linear = [[layer for layer in module if isinstance(layer, nn.Linear)] for module in modules]
    return [
        (
            torch.stack([layer.weight.detach().T for layer in same]).contiguous(),
            torch.stack([layer.bias.detach()[None] for layer in same]).contiguous(),
        )
        for same in zip(*linear, strict=True)
    ]


def _activations(recipe: Recipe, layers: list[Layer], x: torch.Tensor) -> list[torch.Tensor]:
    """Return the input of every layer and the output of the last."""
    activation = {"relu": torch.relu, "tanh": torch.tanh}[recipe.activation]
    found = [x]
    for w, b in layers[:-1]:
        found.append(activation(torch.baddbmm(b, found[-1], w)))
    w, b = layers[-1]
    return [*found, torch.baddbmm(b, found[-1], w)]


def _set_gradients(
    recipe: Recipe, layers: list[Layer], x: torch.Tensor, y: torch.Tensor, loss: SquaredError | Pinball
) -> None:
    """Write the gradient of the loss of a mini-batch to the parameters."""
    *inputs, f = _activations(recipe, layers, x)
    back = loss.slope(f, y)
    for number in reversed(range(len(layers))):
        w, b = layers[number]
        a = inputs[number]
        w.grad = torch.bmm(a.transpose(1, 2), back)
        b.grad = back.sum(dim=1, keepdim=True)
        if number > 0:
            back = torch.bmm(back, w.transpose(1, 2))
            back *= (a > 0) if recipe.activation == "relu" else 1 - a**2
