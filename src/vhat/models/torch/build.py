"""Problems from torch modules: any ``nn.Module``, with tensors, arrays or a DataLoader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from vhat.checks import check_finite, check_targets, check_weights, decay_factor
from vhat.errors import InputError, MemoryBudgetError, ModelError
from vhat.models.problem import Problem
from vhat.models.selection import ALL, LAST, Selection
from vhat.models.torch import probe
from vhat.models.torch.arrays import plain
from vhat.models.torch.autodiff import TorchAutodiff, unwrapped
from vhat.models.torch.data_loader import is_loader, read_loader
from vhat.models.torch.decay import decay_of
from vhat.models.torch.inputs import Rows, preserved_rng, read_rows
from vhat.models.torch.last_layer_problem import last_layer_problem
from vhat.models.torch.linearised import rows_in_chunk
from vhat.models.torch.model import TorchModel, take_rows, wrap_errors
from vhat.models.torch.options import TorchOptions
from vhat.models.torch.read_state import read_state
from vhat.models.torch.reference import Reference, record_reference
from vhat.models.torch.tape_bytes import tape_bytes_per_row
from vhat.models.torch.variance_head import MeanOf, VarianceHead, take_heads, warn_of_reading
from vhat.models.validate import refuse_loss

__all__ = ["torch_problem"]


def torch_problem(
    module: Any,
    X: Any,
    y: Any = None,
    *,
    weight_decay: Any,
    loss: Any = "half_mse",
    sample_weight: Any = None,
    target_key: str | None = None,
    parameters: Selection = ALL,
    output: Any = None,
    variance_head: str = "log_variance",
    memory: float | None = None,
) -> Problem:
    """Check a torch module and its data and return their problem.

    Parameters with ``requires_grad=False`` are used but not part of theta; tied parameters count once. The module is
    evaluated with float64 copies of its tensors and is not changed.

    Args:
        module: Any ``nn.Module`` in evaluation mode that returns (n,) or (n, outputs); a row's prediction depends on
            that row only.
        X: A tensor or array, a tuple or dict of them, or a DataLoader or Dataset (read once, in its dataset's order).
        y: Responses, of the shape that the module returns; None with a DataLoader.
        weight_decay: lam, a number or a mapping from names of parameters, or of submodules, to a number or a tensor;
            trained parameters that it does not name have none.
        loss: ``"half_mse"``, ``"mse"``, ``"gaussian_nll"`` for a module with a mean and a variance head
            (:mod:`vhat.models.torch.variance_head`), or a twice differentiable ``loss(f_i, y_i)`` of one row.
        sample_weight: One weight per row; with a DataLoader, in the order of its dataset.
        target_key: Key of the target in a DataLoader's dict batches.
        parameters: The parameters that count as trained: ``"all"`` that require a gradient; ``"last"``, the last linear
            layer, whose inputs are computed once (:mod:`vhat.models.torch.last_layer`); names of parameters or
            submodules; or a predicate of a name. All other parameters are held fixed.
        output: The prediction in the module's return value: a key, an attribute, an index, or a function of it; for
            ``"gaussian_nll"`` a pair of them.
        variance_head: What the second head of ``"gaussian_nll"`` predicts: ``"log_variance"``, ``"variance"`` or
            ``"deviation"``.
        memory: Budget in bytes.

    Returns:
        The problem.

    Raises:
        InputError: For data, decay or options that cannot be used.
        ModelError: For a module that cannot be used.
        MemoryBudgetError: When a single row exceeds the budget.
    """
    options = TorchOptions(weight_decay, loss, sample_weight, target_key, output, variance_head, memory)
    given = module
    module = unwrapped(module)
    probe.refuse_module(module, "module.eval()" if isinstance(given, torch.nn.Module) else "net.module_.eval()")
    if not isinstance(parameters, str) or parameters != LAST:
        return _whole_module_problem(module, X, y, parameters, options)
    if options.two_heads:
        raise InputError(
            'parameters="last" takes one linear layer for the prediction, and loss="gaussian_nll" has two heads: '
            "name the layer of the mean, parameters=[names], or leave parameters out and call linearised()."
        )
    return last_layer_problem(module, X, y, options)


def _whole_module_problem(module: Any, X: Any, y: Any, parameters: Selection, options: TorchOptions) -> Problem:
    """Return the problem of a module in which any parameters may be trained."""
    X, y = _data(X, y, options.target_key, options.memory)
    state, theta = read_state(module, parameters)
    with preserved_rng(state.device), torch.inference_mode(False):
        layout, rows = read_rows(X, state.device)
        head = None
        output = options.output
        if options.two_heads:
            head, state, theta = take_heads(module, state, theta, layout, rows, output, options.variance_head)
            output = MeanOf(output)
        model = probe.probe_model(module, state, theta, layout, rows, output)
        with wrap_errors("differentiating a few rows"):
            row_bytes = tape_bytes_per_row(model, theta, take_rows(rows, slice(0, 4)))
        n = len(rows[0])
        targets = _targets(y, model, n)
        _check_budget(row_bytes, options.memory)
        weights = check_weights(plain(options.sample_weight), n)
        if head is not None:
            weights = weights / head.deviation(rows)[:, 0] ** 2
        autodiff = TorchAutodiff(
            model,
            options.row_loss,
            row_bytes,
            rows_in_chunk(row_bytes, options.memory),
            options.target_key,
            head=head,
            references=_references(model, theta, head, rows),
        )
        problem = Problem(
            autodiff=autodiff,
            theta=theta,
            decay=decay_of(options.weight_decay, state) * decay_factor(options.loss, model.outputs),
            X=rows,
            targets=targets,
            weights=weights,
            memory=options.memory,
        )
        _refuse_unusable(problem)
        if head is not None:
            warn_of_reading(head, rows, problem.fitted_values - problem.targets)
    return problem


def _check_budget(row_bytes: int, memory: int) -> None:
    """Raise if the tape of a single row exceeds the budget."""
    if row_bytes > memory:
        raise MemoryBudgetError(
            f"one row needs {row_bytes:.3g} bytes to be differentiated and the budget is {memory:.3g}. Give a larger "
            "memory."
        )


def _references(model: TorchModel, theta: Any, head: VarianceHead | None, rows: Rows) -> tuple[Reference, ...]:
    """Return reference predictions of the module and of its variance head, to detect later changes."""
    with wrap_errors("evaluating the module"):
        references = [record_reference(model, theta, rows, model.narrow)]
        if head is not None:
            references.append(record_reference(head.model, head.theta, rows, model.narrow))
    return tuple(references)


def _data(X: Any, y: Any, target_key: str | None, memory: int) -> tuple[Any, Any]:
    """Return inputs and responses, read from a DataLoader or taken out of a dict if they were given so."""
    if is_loader(X):
        if y is not None:
            raise InputError("X is a DataLoader, which contains the targets; leave y out.")
        return read_loader(X, target_key, memory)
    if y is None and isinstance(X, Mapping) and target_key in X:
        return {key: value for key, value in X.items() if key != target_key}, X[target_key]
    if y is None:
        raise InputError("y is missing; give the responses, or a DataLoader that yields (x, y).")
    return X, y


def _targets(y: Any, model: TorchModel, n: int) -> np.ndarray:
    """Return the responses, (n, K). An error names the remedy for training with a loss that squeezes predictions."""
    y = plain(y)
    try:
        return check_targets(y, (n,) if model.squeeze else (n, model.outputs))
    except InputError as error:
        if model.squeeze or model.outputs > 1 or np.shape(y) != (n,):
            raise
        part = f"out[{model.output!r}]" if isinstance(model.output, str | int) else "out"
        remedy = f"Where the loss squeezed the predictions itself, give output=lambda out: {part}[:, 0]."
        raise InputError(f"{error} {remedy}") from None


def _refuse_unusable(problem: Problem) -> None:
    """Raise unless predictions, loss and derivatives are finite on all training rows, and some derivative nonzero."""
    with wrap_errors("evaluating the module on the training rows"):
        check_finite("the model's prediction on X", problem.fitted_values, ModelError)
    refuse_loss(problem.loss_derivatives)
    noise = np.random.default_rng(0).standard_normal((1, problem.n, problem.outputs))
    with wrap_errors("differentiating the module on the training rows"):
        gradient = problem.vjp(noise)  # of a random combination of all predictions
        product = problem.product(gradient, "hessian")
    if not gradient.any():
        raise ModelError(
            "the derivative of the prediction is zero in every parameter (rounding, sign or a threshold inside?). "
            "vhat needs a differentiable module."
        )
    if not (gradient.isfinite().all() and product.isfinite().all()):
        raise ModelError(
            "the first or second derivative of the module is not finite at these parameters (a square root or norm at "
            "zero, or an overflow?). Rewrite that operation so that its derivative exists."
        )
