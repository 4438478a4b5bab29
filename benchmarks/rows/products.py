"""One Hessian-vector product in gradients of the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import vhat
from benchmarks.objective import gradient_of_loss
from benchmarks.ours import medians
from benchmarks.problems import Setting, Trained
from benchmarks.registry import Measurement, Run, at_most, row
from benchmarks.rivals.foreign import Foreign, Unavailable
from benchmarks.timing import Job, Stopwatch

TOGETHER = 16


def _products(fitted: vhat.FittedModel, ready: Callable[[Any], Any]) -> Callable[[int], Callable[[int], None]]:
    """Make a job of the product of the fitted model's Hessian with a number of vectors."""
    problem = fitted.problem

    def job(vectors: int) -> Callable[[int], None]:
        rows = np.random.default_rng(0).standard_normal((vectors, problem.p))
        with problem.scope():
            v = problem.native(rows)

        def run(_: int) -> None:
            with problem.scope():
                ready(problem.product(v, "hessian"))

        return run

    return job


def _in_gradients(run: Run, trained: Trained, product: Any, gradient: Any, what: str) -> Measurement:
    jobs = {
        "gradient": Job(gradient, run.count(21)),
        "product": Job(product(TOGETHER), run.count(7)),
        "single": Job(product(1), run.count(11)),
    }
    seconds = medians(run.watch.interleaved(jobs))
    single = seconds["single"] / seconds["gradient"]
    return Measurement(
        value=seconds["product"] / TOGETHER / seconds["gradient"],
        how=f"{trained.setting}; {TOGETHER} vectors at once, a vector; {single:.2f} for a vector alone. {what}",
        details={"seconds": seconds, "single": single},
    )


@row("hvp-jax", "Hessian product / gradient, one hidden layer, JAX", unit="gradients", goal=at_most(1.0))
def in_jax(run: Run) -> Measurement:
    import jax

    trained = run.load(Setting(n=10_000))
    product = _products(trained.fitted(), jax.block_until_ready)
    what = "The gradient is compiled, whole or in chunks, whichever is quickest."
    return _in_gradients(run, trained, product, gradient_of_loss(trained, run.watch), what)


def torch_module(trained: Trained) -> Any:
    """The network as a torch module, float64."""
    import torch

    activation = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[trained.setting.activation]
    parts: list[Any] = []
    for layer in trained.params:
        linear = torch.nn.Linear(*layer["w"].shape, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(layer["w"].T))
            linear.bias.copy_(torch.tensor(layer["b"]))
        parts += [linear, activation()]
    return torch.nn.Sequential(*parts[:-1])


def _torch_gradient(module: Any, X: Any, y: Any, watch: Stopwatch) -> Callable[[int], None]:
    """Autograd on the whole data or in chunks, whichever is quickest."""

    def ready(rows: int) -> Callable[[], None]:
        def run() -> None:
            module.zero_grad()
            for start in range(0, len(y), rows):
                part = slice(start, start + rows)
                (0.5 * ((module(X[part]) - y[part]) ** 2).sum() / len(y)).backward()

        return run

    ways = {f"gradient, {rows} rows at once": ready(rows) for rows in (500, 1000, 2000, len(y))}
    best = ways[watch.fastest(ways)]
    return lambda _: best()


@row("hvp-torch", "Hessian product / gradient, one hidden layer, torch", unit="gradients", goal=at_most(2.5))
def in_torch(run: Run) -> Measurement:
    import torch

    trained = run.load(Setting(n=10_000))
    module = torch_module(trained)
    X, y = torch.tensor(trained.X), torch.tensor(trained.y)[:, None]
    product = _products(vhat.from_torch(module, X, y, weight_decay=trained.setting.lam), lambda found: found)
    what = "The gradient is autograd's, float64, whole or in chunks, whichever is quickest."
    return _in_gradients(run, trained, product, _torch_gradient(module, X, y, run.watch), what)


@row("curvlinops-product", "curvlinops Hessian product / ours (JAX), n = 1000")
def curvlinops(run: Run) -> Measurement:
    import jax

    trained = run.load(Setting(n=1000))
    product = _products(trained.fitted(), jax.block_until_ready)
    try:
        with Foreign("curvlinops", trained, 1, run.watch) as rival:
            jobs = {
                "rival": Job(lambda _: rival.call("product", columns=TOGETHER)[0], run.count(7)),
                "rival, single": Job(lambda _: rival.call("product", columns=1)[0], run.count(11)),
                "ours": Job(product(TOGETHER), run.count(7)),
                "ours, single": Job(product(1), run.count(11)),
            }
            seconds = medians(run.watch.interleaved(jobs))
    except Unavailable as reason:
        return Measurement(None, str(reason))
    single = seconds["rival, single"] / seconds["ours, single"]
    return Measurement(
        value=seconds["rival"] / seconds["ours"],
        how=f"{trained.setting}; {TOGETHER} vectors at once; {single:.1f} for a vector alone. Its "
        "HessianLinearOperator on one batch, float64.",
        details={"seconds": seconds, "single": single},
    )
