"""The trained network as a torch module, and its training data."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


class Problem:
    """What a problem file holds, as torch has it.

    Attributes:
        module: The network, ``nn.Sequential``, predictions (rows, 1).
        X: Training inputs.
        y: Responses (rows, 1).
        points: Test inputs.
        lam: Weight decay.
    """

    def __init__(self, file: str, dtype: torch.dtype = torch.float64) -> None:
        with np.load(file) as kept:
            layers = int(kept["layers"])
            activation = {"relu": nn.ReLU, "tanh": nn.Tanh}[str(kept["activation"])]
            parts: list[nn.Module] = []
            for i in range(layers):
                w, b = kept[f"w{i}"], kept[f"b{i}"]
                linear = nn.Linear(*w.shape, dtype=dtype)
                with torch.no_grad():
                    linear.weight.copy_(torch.tensor(w.T))
                    linear.bias.copy_(torch.tensor(b))
                parts += [linear, activation()]
            self.module = nn.Sequential(*parts[:-1])
            self.X = torch.tensor(kept["X"], dtype=dtype)
            self.y = torch.tensor(kept["y"], dtype=dtype)[:, None]
            self.points = torch.tensor(kept["points"], dtype=dtype)
            self.lam = float(kept["lam"])

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters in their order."""
        return list(self.module.parameters())

    def gradients(self, points: torch.Tensor) -> torch.Tensor:
        """``grad f(x)`` of each point, (m, p)."""
        tensors = dict(self.module.named_parameters())

        def predict(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(self.module, values, (x[None],))[0, 0]

        rows = torch.func.vmap(torch.func.grad(predict), in_dims=(None, 0))(tensors, points)
        return torch.cat([rows[name].reshape(len(points), -1) for name in tensors], dim=1).detach()

    def norms(self, h: torch.Tensor) -> list[float]:
        """``V = |J h|^2 / n`` of each row of h, (m, p)."""
        tensors = dict(self.module.named_parameters())
        sizes = [tensor.numel() for tensor in tensors.values()]

        def image(flat: torch.Tensor) -> torch.Tensor:
            parts = zip(tensors.items(), torch.split(flat, sizes), strict=True)
            tangents = {name: part.reshape(tensor.shape) for (name, tensor), part in parts}
            call = lambda values: torch.func.functional_call(self.module, values, (self.X,))  # noqa: E731
            return torch.func.jvp(call, (tensors,), (tangents,))[1]

        with torch.no_grad():
            return [float((image(row) ** 2).sum() / len(self.X)) for row in h]
