"""Cases of what only torch has: modules in float32, DataLoaders, frozen parameters, inputs that are not one array."""

from __future__ import annotations

from typing import Any

import numpy as np

from guard_cases.data import NET, large_net
from guard_cases.kits import MEMORY, Kit, TorchKit
from guard_cases.record import Record
from guard_cases.registry import case
from guard_cases.shared import solver

__all__: list[str] = []

OPTIONS: dict[str, Any] = {"weight_decay": 0.01, "memory": MEMORY}


def _asked(record: Record, fitted: Any, points: Any) -> None:
    """Record V, an interval and leave-one-out."""
    with record.step("V") as step:
        step.norm(fitted.weighted_norm(points))
    with record.step("interval") as step:
        step.interval(fitted.interval(points, bound="tight"))
    with record.step("leave one out") as step:
        step.left_out(fitted.leave_one_out())


@case("torch")
def float32(record: Record, kit: Kit) -> None:
    """Take a module and data in float32, and polish it."""
    import torch

    import vhat

    assert isinstance(kit, TorchKit)
    module = kit.module(NET).float()
    X = torch.tensor(NET.X, dtype=torch.float32)
    y = torch.tensor(NET.y, dtype=torch.float32)
    points = torch.tensor(NET.points, dtype=torch.float32)
    fitted = vhat.from_torch(module, X, y, **OPTIONS)
    _asked(record, fitted, points)
    with record.step("polish") as step:
        polished = fitted.polish()
        step.polished(polished.polished)
        polished.write_to(module)
        step.number("written", module(points).detach().numpy())


@case("torch")
def frozen(record: Record, kit: Kit) -> None:
    """Leave the first layer out of the parameters."""
    import vhat

    assert isinstance(kit, TorchKit)
    module = kit.module(NET)
    module.w.requires_grad_(False)
    module.b.requires_grad_(False)
    fitted = vhat.from_torch(module, NET.X, NET.y, **OPTIONS)
    _asked(record, fitted, NET.points)
    with record.step("parameters") as step:
        step.number("value", kit.flat(fitted.params))
    with record.step("functional") as step:
        step.interval(fitted.functional(kit.functional, bound="tight"))


@case("torch")
def loader(record: Record, kit: Kit) -> None:
    """Read a DataLoader that shuffles, with batches of unequal size."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import vhat

    assert isinstance(kit, TorchKit)
    rows = TensorDataset(torch.tensor(NET.X), torch.tensor(NET.y))
    batches = DataLoader(rows, batch_size=7, shuffle=True, generator=torch.Generator().manual_seed(0))
    fitted = vhat.from_torch(kit.module(NET), batches, **OPTIONS)
    _asked(record, fitted, torch.tensor(NET.points))


@case("torch")
def several_inputs(record: Record, kit: Kit) -> None:  # noqa: ARG001
    """Give the inputs as a tuple and as a dictionary."""
    import torch

    import vhat

    class TwoArguments(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = torch.nn.Parameter(torch.tensor([0.5, -0.2, 0.8], dtype=torch.float64))
            self.right = torch.nn.Parameter(torch.tensor([1.0, 0.3, -0.4], dtype=torch.float64))

        def forward(self, a: Any, b: Any) -> Any:
            return torch.tanh(a * self.left + b * self.right).sum(dim=1)

    class Dictionary(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = TwoArguments()

        def forward(self, X: Any) -> Any:
            return self.body(X["a"], X["b"])

    a, b = torch.tensor(NET.X[:, :1]), torch.tensor(NET.X[:, 1:])
    new_a, new_b = torch.tensor(NET.points[:, :1]), torch.tensor(NET.points[:, 1:])
    module = TwoArguments()
    y = module(a, b).detach().numpy() + 0.05 * np.cos(9.0 * NET.X[:, 0])
    inputs = {
        "tuple": (module, (a, b), (new_a, new_b)),
        "dictionary": (Dictionary(), {"a": a, "b": b}, {"a": new_a, "b": new_b}),
    }
    for name, (model, X, points) in inputs.items():
        with record.step(name) as step:
            step.interval(vhat.from_torch(model, X, y, **OPTIONS).interval(points, bound="tight"))


@case("torch")
def large_minimum(record: Record, kit: Kit) -> None:
    """Certify and polish more parameters than a dense matrix is made of: Lanczos and products take its place."""
    data = large_net()
    fitted = kit.net(data)
    for name in ("auto", "Nystrom", "CG"):
        with record.step(f"V {name}") as step:
            step.norm(fitted.weighted_norm(data.points, solver=solver(name), curvature="hessian"))
    with record.step("leave one out") as step:
        step.left_out(fitted.leave_one_out())
    with record.step("polish") as step:
        polished = fitted.polish()
        step.polished(polished.polished)
        step.number("prediction", polished.predict(data.points))
    with record.step("audit") as step:
        step.audit(polished.audit())
    with record.step("interval") as step:
        step.interval(polished.interval(data.points, bound="tight"))
