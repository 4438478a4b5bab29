"""Make a fitted model: from a model in JAX, torch, NumPy or SciPy, or from a directory that holds a saved one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vhat.errors import InputError
from vhat.fitted.model import FittedModel
from vhat.tables.rows import Rows, check_responses

if TYPE_CHECKING:
    from vhat.models.problem import Problem
    from vhat.store import Restored

__all__ = ["assemble", "from_curve_fit", "from_jax", "from_numpy", "from_torch", "load"]


def from_jax(
    predict: Callable[..., Any],
    params: Any = None,
    X: Any = None,
    y: Any = None,
    *,
    weight_decay: Any,
    loss: Any = "half_mse",
    sample_weight: Any = None,
    parameters: Any = "all",
    output: Any = None,
    memory: float | None = None,
    validation: Any = None,
) -> FittedModel:
    """Take a JAX function, its fitted parameters and its training data.

    A Flax nnx module holds its own parameters: ``from_jax(net, X, y, weight_decay=...)``, in ``net.eval()`` mode. Its
    ``nnx.Param`` variables are the parameters, all others are held fixed; ``nnx.update(net, fitted.params)`` writes
    them back.

    Args:
        predict: ``predict(params, X)`` returning (n,) or (n, outputs), each row on its own.
        params: Any pytree; floating-point leaves are the parameters (a Flax or Equinox model will do). All other leaves
            are held fixed, integers among them: a parameter that happens to be ``1`` is written ``1.0``.
        X: Training inputs: an array, or a dict or tuple of arrays, one row a point; or :class:`vhat.Rows` in files.
        y: Training responses, of the shape that ``predict`` returns; None with Rows.
        weight_decay: lam of ``L + lam/2 |theta|^2``: a number, a pytree prefix of ``params``, or a mapping from names
            of leaves such as ``"params/Dense_1/kernel"``; zeros allowed, and what a mapping does not name has none.
        loss: ``"half_mse"`` for ``1/(2n) sum |f - y|^2``, ``"mse"`` for a mean over rows and outputs without the
            half, or ``loss(f_i, y_i)`` of one row.
        sample_weight: Weights ``w_i >= 0`` of ``1/n sum w_i l_i``.
        parameters: What counts as trained, all else being held fixed: ``"all"``; ``"last"``, the last linear layer, as
            in :func:`from_torch`; names of leaves or subtrees, the keys on the way to them joined by slashes
            (``["params/Dense_1"]``); or a function of such a name.
        output: Which part of what ``predict`` returns is the prediction, where that is no single array: a key, an
            attribute, an index, or a function of it.
        memory: Budget in bytes; half of the free memory by default.
        validation: ``(X, y)`` that training did not fit: see :meth:`vhat.FittedModel.with_validation`.

    Returns:
        The fitted model.

    Raises:
        InputError: For data or options that cannot be used.
        ModelError: For a model that cannot be used.

    Examples:
        >>> import numpy as np, vhat
        >>> x = np.linspace(-1, 1, 20)[:, None]
        >>> y = 2 * x[:, 0] + 0.1 * np.sin(40 * x[:, 0])
        >>> line = {"slope": np.array([2.0]), "offset": 0.0}
        >>> fitted = vhat.from_jax(lambda q, x: x @ q["slope"] + q["offset"], line, x, y, weight_decay=1e-6)
        >>> band = fitted.polish().interval([[0.0], [5.0]])
        >>> bool(band.half_width[1] > 5 * band.half_width[0])
        True
    """
    from vhat.models.jax import jax_problem
    from vhat.models.jax.modules import arguments

    files = _files(X, params)
    if isinstance(params, Rows):  # from_jax(net, rows) of a module that holds its own parameters
        params, X = _loaded(params, X, memory, "from_jax(net, rows)")
    else:
        X, y = _loaded(X, y, memory, "from_jax(predict, params, rows)")
    predict, params, X, y = arguments(predict, params, X, y)
    problem = jax_problem(
        predict,
        params,
        X,
        y,
        weight_decay=weight_decay,
        loss=loss,
        sample_weight=sample_weight,
        parameters=parameters,
        output=output,
        memory=memory,
    )
    return _with_rows(_fitted(problem, files, parameters), validation)


def from_torch(
    module: Any,
    X: Any,
    y: Any = None,
    *,
    weight_decay: Any,
    loss: Any = "half_mse",
    sample_weight: Any = None,
    target_key: str | None = None,
    parameters: Any = "all",
    output: Any = None,
    variance_head: str = "log_variance",
    memory: float | None = None,
    validation: Any = None,
) -> FittedModel:
    """Take a trained ``nn.Module`` and its training data.

    The module is left as it is: state, mode, gradients and dtype. Frozen parameters are used but not counted.

    Args:
        module: The module, in ``eval()`` mode where it has dropout or batch-norm; also a Lightning module, or a fitted
            skorch net, whose ``module_`` is taken.
        X: Tensor, array, tuple or dict of tensors; or a DataLoader, read once in the order of its dataset, or
            :class:`vhat.Rows` in files. A dict whose keys are parameters of ``forward`` is given as ``forward(**X)``,
            any other as ``forward(X)``.
        y: Responses of the shape that the module returns; None with a DataLoader or Rows.
        weight_decay: The decay of the optimiser (lam): a number, or a mapping from names of parameters or submodules to
            numbers. As in an optimiser's parameter groups, what it does not name has no decay.
        loss: ``"half_mse"``, ``"mse"`` (torch's ``MSELoss``: lam is then outputs/2 times the decay), or
            ``loss(f_i, y_i)`` of one row. ``"gaussian_nll"`` (torch's ``GaussianNLLLoss``) for a module that predicts a
            mean and a variance, see below.
        sample_weight: Weights of the rows.
        target_key: The key of the responses in dict batches.
        parameters: What counts as trained, all else being held fixed: ``"all"`` that require a gradient; ``"last"``,
            the last linear layer; names of parameters or submodules, such as ``["head"]``; or a function of a name.
            A parameter that is named may be one that requires no gradient. For ``"last"`` the module runs once for
            each row, a DataLoader is read batch by batch, and only the inputs of the layer are kept: the first thing
            to try for a large network. The layer as it was trained is seldom the minimum of its own ridge regression:
            ``.polish()`` goes there by one solve, ``.linearised(...)`` takes it as it is.
        output: Which part of what the module returns is the prediction, where that is no single tensor: a key or an
            attribute (``"logits"``), an index (``0``), or a function of it (``lambda out: out.logits[:, 0]``).
            For ``"gaussian_nll"`` a pair of keys or indices, ``("mean", "log_variance")``, or a function that returns a
            pair; without it the module returns a pair or one tensor (n, 2).
        variance_head: What the second head of ``"gaussian_nll"`` gives: ``"log_variance"``, ``"variance"``, or
            ``"deviation"``, its root.
        memory: Budget in bytes.
        validation: ``(X, y)`` that training did not fit, or a DataLoader or Dataset of such rows: see
            :meth:`vhat.FittedModel.with_validation`.

    Returns:
        The fitted model.

    Raises:
        InputError: For data or options that cannot be used.
        ModelError: For a module that cannot be used.

    **A mean and a variance** (``loss="gaussian_nll"``): the prediction is the mean. The variance that the module gives
    each row is held fixed at its fitted value: ``1/variance`` weighs the squared error of the mean, its root is the
    noise of the training responses and, at new inputs, that of a new response. Parameters that only the variance uses
    are held fixed and not counted. ``noise=`` and ``observation_noise=`` of an interval replace it, and
    ``noise="weights"`` takes its size from the residuals. Where both heads share layers, training minimised both losses
    together and these are no minimum of the mean's alone: ``linearised()`` takes such a network as it is.
    """
    from vhat.models.torch import torch_problem

    files = _files(X)
    if not _is_last(parameters):  # a last layer reads them block by block
        X, y = _loaded(X, y, memory, "from_torch(module, rows)")
    problem = torch_problem(
        module,
        X,
        y,
        weight_decay=weight_decay,
        loss=loss,
        sample_weight=sample_weight,
        target_key=target_key,
        parameters=parameters,
        output=output,
        variance_head=variance_head,
        memory=memory,
    )
    return _with_rows(_fitted(problem, files, parameters), validation)


def from_numpy(
    predict: Callable[..., Any],
    theta: Any,
    X: Any,
    y: Any = None,
    *,
    jac: Callable[..., Any] | None = None,
    hess: Callable[..., Any] | None = None,
    weight_decay: Any = 0.0,
    loss: Any = "half_mse",
    sample_weight: Any = None,
    memory: float | None = None,
    validation: Any = None,
) -> FittedModel:
    """Take a NumPy function with a modest number of parameters.

    Args:
        predict: ``predict(theta, X)`` returning (n,) or (n, outputs).
        theta: The fitted parameters, (p,).
        X: Training inputs, one row a point; or :class:`vhat.Rows` in files.
        y: Training responses; None with Rows.
        jac: ``jac(theta, X)`` returning (n, p) or (n, outputs, p); by adaptive differences when None. A function of
            the inputs alone, ``jac(X)``, says that ``predict`` is linear in theta, and is checked to be right; write
            ``lambda X: design(X, 3)`` for one with further arguments, optional ones included.
        hess: ``hess(theta, X)`` returning (n, p, p) or (n, outputs, p, p); by differences when None.
        weight_decay: lam, a number or (p,).
        loss: As in :func:`from_jax`, with a NumPy callable.
        sample_weight: Weights of the rows.
        memory: Budget in bytes.
        validation: ``(X, y)`` that training did not fit: see :meth:`vhat.FittedModel.with_validation`.

    Returns:
        The fitted model.

    Raises:
        InputError: For data or options that cannot be used.
        ModelError: For a model that cannot be used.

    Examples:
        >>> import numpy as np, vhat
        >>> x = np.linspace(0, 4, 30)
        >>> y = 2.0 * np.exp(-x) + 0.01 * np.cos(30 * x)
        >>> decay = lambda q, x: q[0] * np.exp(-q[1] * x)
        >>> fitted = vhat.from_numpy(decay, [2.0, 1.0], x, y).polish()
        >>> fitted.interval([1.0]).center.round(1)
        array([0.7])

        A model that is linear in its parameters, with the matrix that says so:

        >>> design = lambda x: np.column_stack([np.ones_like(x), x])
        >>> line = vhat.from_numpy(lambda q, x: design(x) @ q, [0.0, 0.0], x, y, jac=design).polish()
        >>> bool(np.allclose(line.params, np.polyfit(x, y, 1)[::-1]))
        True
    """
    from vhat.models.numpy import numpy_problem

    files = _files(X)
    X, y = _loaded(X, y, memory, "from_numpy(predict, theta, rows)")
    problem = numpy_problem(
        predict,
        theta,
        X,
        y,
        jac=jac,
        hess=hess,
        weight_decay=weight_decay,
        loss=loss,
        sample_weight=sample_weight,
        memory=memory,
    )
    return _with_rows(_fitted(problem, files), validation)


def from_curve_fit(
    f: Callable[..., Any], popt: Any, x: Any, y: Any, sigma: Any = None, *, absolute_sigma: bool = False
) -> FittedModel:
    """Take the result of :func:`scipy.optimize.curve_fit`.

    A model that is linear in its parameters is not recognised as one here, for curve_fit has no Jacobian of the inputs
    alone: ``from_numpy(..., jac=design)`` takes it.

    With ``sigma`` the rows are weighted by ``1/sigma^2`` and the noise of row i is a common factor times
    ``sigma[i]``; the factor is estimated (scipy's ``absolute_sigma=False``). Where sigma is the noise itself, pass it
    to the interval: ``interval(x, noise=sigma)``.

    Args:
        f: ``f(x, *params)``.
        popt: The fitted parameters.
        x: The independent variable, as curve_fit got it.
        y: The responses.
        sigma: Standard deviations as curve_fit got them, or None.
        absolute_sigma: An argument of curve_fit; True is refused, with the call to use instead.

    Returns:
        The fitted model, with no weight decay.

    Raises:
        InputError: For data that cannot be used, a sigma that is a matrix, or ``absolute_sigma=True``.

    Examples:
        >>> import numpy as np, vhat
        >>> from scipy.optimize import curve_fit
        >>> line = lambda x, a, b: a + b * x
        >>> x = np.arange(8.0)
        >>> y = np.array([1.1, 2.9, 5.2, 6.8, 9.1, 11.2, 12.8, 15.1])
        >>> popt, pcov = curve_fit(line, x, y)
        >>> errors = vhat.from_curve_fit(line, popt, x, y).functional(lambda q: q).standard_error
        >>> bool(np.allclose(errors, np.sqrt(np.diag(pcov)), rtol=1e-6))
        True
    """
    from vhat.models.numpy import curve_fit_problem

    if absolute_sigma:
        raise InputError(
            "absolute_sigma=True moves no parameter, only the error bars: leave it out here, and give the noise where "
            "they are asked for, interval(..., noise=sigma) or functional(..., noise=sigma)."
        )
    problem, shape = curve_fit_problem(f, popt, x, y, sigma)
    return FittedModel(problem, noise_shape=None if shape is None else shape[:, None])


def _files(*given: Any) -> Rows | None:
    """Return the first argument that is :class:`vhat.Rows`, or None."""
    return next((each for each in given if isinstance(each, Rows)), None)


def _is_last(parameters: Any) -> bool:
    return isinstance(parameters, str) and parameters == "last"


def _loaded(X: Any, y: Any, memory: float | None, call: str) -> tuple[Any, Any]:
    """Return inputs and responses, loaded whole where they are rows in files.

    Raises:
        InputError: For rows without responses, or with responses beside them.
        MemoryBudgetError: When the rows do not fit.
    """
    if not isinstance(X, Rows):
        return X, y
    check_responses(X, y, call)
    return X.load(memory)


def _fitted(problem: Problem, files: Rows | None, parameters: Any = "all") -> FittedModel:
    """Return the fitted model, with a reference to its files where the problem contains their rows unchanged."""
    if files is None or _is_last(parameters):
        return FittedModel(problem)
    with problem.scope():
        return FittedModel(problem.read_from(files))


def _with_rows(fitted: FittedModel, validation: Any) -> FittedModel:
    """Return the model with validation rows, where some were given."""
    return fitted if validation is None else fitted.with_validation(validation)


def load(
    folder: str | os.PathLike[str],
    model: Any = None,
    *,
    loss: Any = None,
    output: Any = None,
    data: Any = None,
    memory: float | None = None,
    validation: Any = None,
) -> Any:
    """Load a model saved by :meth:`vhat.FittedModel.save`, :meth:`vhat.Sketch.save` or :meth:`vhat.Calibrated.save`.

    Nothing in the directory is executed. A network of ``vhat.fit`` needs no more than the directory. A model that is
    your own code has to be given again; it is compared with what was saved: names and shapes of parameters, and
    predictions and loss on some training rows.

    Args:
        folder: The directory.
        model: What was fitted: for :func:`vhat.from_jax` ``predict``, or ``(predict, params)`` where params are not
            plain dicts, lists and tuples of arrays (an Equinox model; their values do not matter), or the Flax nnx
            module; for
            :func:`vhat.from_torch` a module of the same structure, whatever its weights (it is not changed); for
            :func:`vhat.from_numpy` ``predict`` or ``(predict, jac, hess)`` as far as they were given; for
            :func:`vhat.from_curve_fit` ``f``.
        loss: The loss, where it was a function.
        output: The output, where it was a function; a key or an index was saved.
        data: ``(X, y)``, where the model was saved with ``data="reference"``.
        memory: Budget in bytes; by default the one that was saved, or half of what is free now if that is less.
        validation: ``(X, y)`` that training did not fit, where the model has such rows and was saved with
            ``data="reference"``.

    Returns:
        The :class:`vhat.FittedModel`, :class:`vhat.Sketch` or :class:`vhat.Calibrated`, with the intervals and the
        audit that it had: to the last bit with the same versions on the same kind of machine.

    Raises:
        StoreError: When there is no such model, it is newer, truncated or changed, or what was given does not match.
        InputError: For options that cannot be used.

    Examples:
        >>> import tempfile, numpy as np, vhat
        >>> x = np.arange(8.0)
        >>> line = lambda x, a, b: a + b * x
        >>> y = line(x, 1.0, 2.0) + 0.1 * np.cos(9 * x)
        >>> fitted = vhat.from_curve_fit(line, np.polyfit(x, y, 1)[::-1], x, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fitted.save(folder)
        ...     again = vhat.load(folder, model=line)
        >>> bool(np.all(again.interval([9.0]).upper == fitted.interval([9.0]).upper))
        True
    """
    from vhat.intervals.load_calibration import load_calibrated
    from vhat.sketch import persistence
    from vhat.store import KIND, Supplied, kind_of, read, restore, well_formed

    supplied = Supplied(model, loss, data, memory, output, validation)
    if kind_of(folder) == persistence.KIND:
        saved = read(folder, persistence.KIND)
        with well_formed(folder):
            return load_calibrated(persistence.restore_sketch(saved, supplied), saved.get("calibration"))
    saved = read(folder, KIND)
    with well_formed(folder):
        return load_calibrated(assemble(restore(saved, supplied)), saved.get("calibration"))


def assemble(saved: Restored) -> FittedModel:
    """Make a fitted model from the parts that :func:`vhat.store.restore` returned."""
    from vhat.store import restore_factorisation

    fitted = FittedModel(
        saved.problem,
        noise_shape=saved.noise_shape,
        polished=saved.polished,
        given=saved.given,
        decay_chosen=saved.decay_chosen,
        validation=saved.validation,
        refit=saved.refit,
    )
    if saved.factorisation is not None:
        with saved.problem.scope():
            restore_factorisation(saved.factorisation, fitted.workspace)
    return fitted
