"""Problems from JAX functions: any ``predict(params, X)`` with any pytree of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vhat.checks import (
    check_loss,
    check_memory,
    check_prediction,
    check_real_prediction,
    check_targets,
    check_weights,
    decay_factor,
)
from vhat.errors import InputError, ModelError
from vhat.models.jax import compiled, pytrees
from vhat.models.jax.arrays import refuse_tracing
from vhat.models.jax.autodiff import JaxAutodiff
from vhat.models.jax.chunks import first_rows
from vhat.models.jax.fingerprint import python_function
from vhat.models.jax.last_layer import affine_paths, last_layer_problem
from vhat.models.jax.paths import selected_paths
from vhat.models.jax.probe import refuse_unusable
from vhat.models.outputs import SelectedOutput, check_output, flatten_remedy, select
from vhat.models.problem import Problem
from vhat.models.selection import ALL, LAST, Selection

__all__ = ["jax_problem"]

_TRACED_ROWS = 8
"""Number of rows in the example with which functions are traced."""


def jax_problem(
    predict: Callable[[Any, Any], Any],
    params: Any,
    X: Any,
    y: Any,
    *,
    weight_decay: Any,
    loss: Any = "half_mse",
    sample_weight: Any = None,
    parameters: Selection = ALL,
    output: Any = None,
    memory: float | None = None,
) -> Problem:
    """Check a JAX model and its data and return their problem.

    Args:
        predict: ``predict(params, X) -> (n,)`` or ``(n, outputs)``; a row's prediction depends on that row only.
        params: Any pytree. Its floating-point leaves, including Python floats, are the parameters. All other leaves
            are held fixed: integers (also a Python ``1``), flags, functions.
        X: An array, or a dict or tuple of arrays, with one leading row axis.
        y: Responses, of the shape that ``predict`` returns.
        weight_decay: lam, a number, a pytree prefix of ``params``, or a mapping from names of leaves; leaves that a
            mapping does not name have none.
        loss: ``"half_mse"``, ``"mse"`` or a twice differentiable ``loss(f_i, y_i)`` of one row.
        sample_weight: One weight per row.
        parameters: The leaves that count as trained: ``"all"`` floating-point leaves; ``"last"``, the last linear layer
            (:mod:`vhat.models.jax.last_layer`); names of leaves or subtrees (:mod:`vhat.models.jax.paths`); or a
            predicate of a name. All other leaves are held fixed.
        output: The prediction in the return value of ``predict``: a key, an attribute, an index, or a function of it.
        memory: Budget in bytes.

    Returns:
        The problem.

    Raises:
        InputError: For data, decay or options that cannot be used.
        ModelError: For a model that cannot be used.
    """
    check_loss(loss)
    refuse_tracing(params, X, y)
    if not callable(predict):
        raise InputError(f"predict must be a function predict(params, X); got {type(predict).__name__}.")
    check_output(output)
    if output is not None:
        predict = SelectedOutput(python_function(predict), output)
    last = isinstance(parameters, str) and parameters == LAST
    if last:
        parameters = affine_paths(predict, params, X)
    with jax.enable_x64(True):
        selected = selected_paths(parameters, pytrees.trainable_paths(params))
        theta, layout, fixed, dtype = pytrees.flatten(params, selected)
        inputs = pytrees.as_inputs(X, "X")
        shape = _probe(lambda t, x: predict(layout.unflatten(t, fixed), x), theta, inputs)
        targets = check_targets(y, shape)
        decay = pytrees.decay_vector(weight_decay, params, selected) * decay_factor(loss, targets.shape[1])
        custom_loss = None if isinstance(loss, str) else pytrees.Static(loss)
        with pytrees.wrap_errors("tracing predict(params, X) and the loss"):
            example = pytrees.shapes_of((fixed, theta, first_rows(inputs, _TRACED_ROWS)))
            model = compiled.Model.create(pytrees.Static(predict), layout, custom_loss, len(shape) == 1, example)
        problem = Problem(
            autodiff=JaxAutodiff(model, fixed, dtype, pytrees.columns_of(X), selected, output),
            theta=jnp.asarray(theta),
            decay=jnp.asarray(decay),
            X=inputs,
            targets=targets,
            weights=check_weights(sample_weight, len(targets)),
            memory=check_memory(memory),
        )
        refuse_unusable(problem)
    return last_layer_problem(problem) if last else problem


def _probe(predict: Callable[..., Any], theta: Any, X: Any) -> tuple[int, ...]:
    """Return the shape of the predictions for all rows, by tracing the model."""
    n = len(jax.tree.leaves(X)[0])
    try:
        with pytrees.wrap_errors("tracing predict(params, X)"):
            output = jax.eval_shape(lambda t, x: select(None, predict(t, x), "predict"), theta, X)
    except ModelError as error:  # raise it again without the note that JAX adds to exceptions while it traces
        raise ModelError(str(error)) from error.__cause__
    shape = output.shape
    check_prediction(shape, n, flatten_remedy(shape, n, None, output))
    check_real_prediction(output.dtype)
    return tuple(shape)
