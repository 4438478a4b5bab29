"""Modules that predict a mean and a variance, trained by the Gaussian negative log-likelihood.

With the variances held fixed at their fitted values, the negative log-likelihood of a row is half the squared error of
its mean divided by its variance. This is a square loss with known weights, and the model itself predicts the noise.
Parameters that only the variance uses are held fixed and not counted, down to single rows of a last layer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from vhat.checks import check_choice
from vhat.errors import InputError, ModelError, NoiseWarning, name_rows, outside
from vhat.models.outputs import check_output, describe_returned, is_array, part_of, select
from vhat.models.protocols import slices
from vhat.models.torch.arrays import to_array
from vhat.models.torch.convention import choose_convention
from vhat.models.torch.inputs import Layout, Rows
from vhat.models.torch.model import TorchModel, recording, take_rows, wrap_errors
from vhat.models.torch.state import State, TrainedRows

__all__ = ["GAUSSIAN_NLL", "MeanOf", "VarianceHead", "check_heads", "take_heads", "warn_of_reading"]

GAUSSIAN_NLL = "gaussian_nll"
"""Name of the loss."""
_KINDS = ("log_variance", "variance", "deviation")
"""What the second head may predict."""
_DEPENDENCE_ROWS = 6
"""Number of rows on which the dependence of the mean on each parameter is tested."""
_CLEAR_GAIN = 0.5
"""Gain in log-likelihood per row, in nats, above which a second head probably is a variance and not its logarithm."""
_FORMS = (
    "Let the module return (mean, log variance), or one tensor (n, 2), or choose both: output=('mean', 'log_variance')"
)


def check_heads(output: Any, variance_head: str) -> None:
    """Raise unless the options of ``loss="gaussian_nll"`` have an allowed form.

    Raises:
        InputError: Naming the allowed forms.
    """
    check_choice("variance_head", variance_head, _KINDS)
    if isinstance(output, tuple | list):
        if len(output) != 2:
            raise InputError(f"output={output!r} must name two heads, such as output=('mean', 'log_variance').")
        for part in output:
            check_output(part)
        return
    check_output(output)


@dataclass(frozen=True)
class MeanOf:
    """Selection of the mean from a module's return value.

    Attributes:
        output: The user's ``output=``: None, a pair of keys or indices, one key or index, or a function.
    """

    output: Any

    def __call__(self, returned: Any) -> Any:
        """Return the mean, (m,) or (m, 1)."""
        return _pair(self.output, returned)[0]


@dataclass(frozen=True)
class SpreadOf:
    """Selection of the second head from a module's return value; see :class:`MeanOf`."""

    output: Any

    def __call__(self, returned: Any) -> Any:
        """Return the output of the second head, (m,) or (m, 1)."""
        return _pair(self.output, returned)[1]


def _pair(output: Any, returned: Any) -> tuple[Any, Any]:
    """Return the outputs of both heads.

    Raises:
        ModelError: If there are not two.
    """
    if isinstance(output, tuple | list):
        return select(output[0], returned), select(output[1], returned)
    if callable(output):
        returned = output(returned)
    elif output is not None and not is_array(returned):
        returned = part_of(output, returned, "the module")
    if is_array(returned) and returned.ndim == 2 and returned.shape[1] == 2:
        return returned[:, 0], returned[:, 1]
    if isinstance(returned, tuple | list) and len(returned) == 2 and all(map(is_array, returned)):
        return returned[0], returned[1]
    raise ModelError(
        f"loss='gaussian_nll' needs a mean and a variance, and the module returned {describe_returned(returned)}. "
        f"{_FORMS}."
    )


@dataclass(frozen=True, eq=False)
class VarianceHead:
    """The standard deviation of a response that the model itself predicts, at the fitted parameters.

    Attributes:
        model: The module with its second head as the output.
        theta: The fitted parameters, flat.
        kind: What the second head predicts: ``"log_variance"``, ``"variance"`` or ``"deviation"``.
        output: The user's ``output=``, which selects mean and variance.
        chunk_rows: Number of rows that are evaluated at a time.
    """

    model: TorchModel
    theta: Any
    kind: str
    output: Any
    chunk_rows: int = 1000

    def deviation(self, rows: Rows) -> np.ndarray:
        """Return the standard deviation at each row, (m, 1).

        Raises:
            ModelError: Naming rows where it is not positive and finite.
        """
        raw = self.raw(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.kind == "log_variance":
                deviation = np.exp(0.5 * raw)
            elif self.kind == "variance":
                deviation = np.sqrt(raw)
            else:
                deviation = raw
        bad = ~(np.isfinite(deviation) & (deviation > 0))
        if bad.any():
            remedy = {
                "log_variance": "Its logarithm is far out of range: did training diverge?",
                "variance": "Pass variance_head='log_variance' if the head gives logarithms.",
                "deviation": "Pass variance_head='log_variance' or 'variance' if the head gives these.",
            }[self.kind]
            raise ModelError(
                f"the variance head, read as {self.kind!r}, gives no positive and finite variance in "
                f"{name_rows(np.flatnonzero(bad[:, 0]))}. {remedy}"
            )
        return deviation

    def raw(self, rows: Rows) -> np.ndarray:
        """Return the output of the head at each row, (m, 1)."""
        self.model.guard()
        with wrap_errors("evaluating the variance head"), torch.inference_mode(False), torch.no_grad():
            blocks = slices(len(rows[0]), self.chunk_rows)
            return to_array(torch.cat([self.model(self.theta, take_rows(rows, block)).detach() for block in blocks]))


def take_heads(
    module: Any, state: State, theta: Any, layout: Layout, rows: Rows, output: Any, kind: str
) -> tuple[VarianceHead, State, Any]:
    """Return the variance head, and the state and parameters of the mean only.

    Args:
        module: The module.
        state: Its tensors.
        theta: Its flat parameters, (p,).
        layout: Structure of its inputs.
        rows: Training inputs.
        output: The user's ``output=``, which selects the two heads.
        kind: What the second head predicts.

    Raises:
        ModelError: If there are not two heads with one output each.
    """
    few = take_rows(rows, slice(0, _DEPENDENCE_ROWS))
    m = len(few[0])
    with torch.inference_mode(False), torch.no_grad():
        convention, returned = choose_convention(module, {**state.split(theta), **state.fixed}, layout, few)
        with wrap_errors("choosing mean and variance by output="):
            mean, spread = _pair(output, returned)
    for name, part in (("mean", mean), ("variance head", spread)):
        if part.numel() != m:
            raise ModelError(
                f"the {name} has shape {tuple(part.shape)} for {m} rows; loss='gaussian_nll' takes one output, (n,) or "
                "(n, 1) each. Several outputs: give the mean as output=, loss='half_mse', sample_weight=1/variance "
                "where all outputs have one, and interval(x, noise=...)."
            )
    # Two functions of the same module: one returns the second head, the other (below) the mean.
    with_variance = TorchModel(module, state, layout, convention, 1, mean.ndim == 1, output=SpreadOf(output))
    head = VarianceHead(with_variance, theta.detach().clone(), kind, output)
    mean_state, mean_theta = _parameters_of_mean(replace(with_variance, output=MeanOf(output)), theta, few)
    return head, mean_state, mean_theta


def _parameters_of_mean(model: TorchModel, theta: Any, rows: Rows) -> tuple[State, Any]:
    """Return the state and flat vector of the parameters, and rows of parameters, that the mean depends on.

    To test a parameter, it is replaced by NaN, which every operation propagates: if the mean stays finite, it does not
    depend on the parameter. Unlike a zero derivative, this is also right for ReLU units that are inactive at these
    rows.
    """
    state = model.state
    values = {name: value.detach().clone() for name, value in state.split(theta).items()}
    gradients = _gradients(model, values, rows)

    def is_unused(name: str, index: Sequence[int] | None) -> bool:
        """Return whether the mean does not depend on these rows of a parameter, or on all of it for None."""
        changed = values[name].clone()
        if index is None:
            changed.fill_(float("nan"))
        else:
            changed[list(index)] = float("nan")
        with torch.inference_mode(False), torch.no_grad():
            return bool(model.at({**values, name: changed}, rows).isfinite().all())

    slots: dict[str, TrainedRows] = {}
    parts = []
    with wrap_errors("finding the parameters that the mean depends on"):
        free = [name for name in state.names if not is_unused(name, None)]
        if not free:
            raise ModelError(
                "the mean does not depend on any trainable parameter: is the order (mean, variance)? Choose by output=."
            )
        for name in free:
            trained = _trained_rows(name, values[name], gradients[name], is_unused)
            if trained is not None:
                slots[name] = trained
            parts.append(values[name] if trained is None else trained.select(values[name]))
    return state.hold(free, slots, values), torch.cat([part.reshape(-1) for part in parts])


def _gradients(model: TorchModel, values: dict[str, Any], rows: Rows) -> dict[str, Any]:
    """Return the gradient of the sum of squared means in each parameter; zero if it does not depend on it."""
    with recording(), wrap_errors("differentiating the mean"):
        leaves = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
        total = model.at(leaves, rows).square().sum()
        if not total.requires_grad:
            return {name: torch.zeros_like(value) for name, value in values.items()}
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    pairs = zip(values.items(), found, strict=True)
    return {name: torch.zeros_like(value) if part is None else part for (name, value), part in pairs}


def _trained_rows(
    name: str, value: Any, gradient: Any, is_unused: Callable[[str, Sequence[int]], bool]
) -> TrainedRows | None:
    """Return the rows of a parameter that the mean depends on; None if it depends on all of them.

    Args:
        name: The parameter.
        value: Its value.
        gradient: The gradient of the mean in it.
        is_unused: Tests whether the mean does not depend on some of its rows.
    """
    if value.ndim == 0 or len(value) < 2:
        return None
    # Only rows with a zero gradient can be unused.
    candidates = [int(row) for row in torch.nonzero(gradient.reshape(len(value), -1).abs().sum(1) == 0).reshape(-1)]
    unused = set(_bisect(candidates, lambda index: is_unused(name, index)))
    if not unused:
        return None
    used = [row for row in range(len(value)) if row not in unused]
    return TrainedRows(torch.tensor(used, device=value.device), value)


def _bisect(candidates: list[int], all_unused: Callable[[list[int]], bool]) -> list[int]:
    """Return the unused ones among the candidates by bisection, in about as many tests as there are used ones."""
    if not candidates or all_unused(candidates):
        return candidates
    if len(candidates) == 1:
        return []
    half = len(candidates) // 2
    return _bisect(candidates[:half], all_unused) + _bisect(candidates[half:], all_unused)


def warn_of_reading(head: VarianceHead, rows: Rows, residuals: np.ndarray) -> None:
    """Warn if the residuals would be much more likely with the predicted log variances taken as variances.

    Args:
        head: The head.
        rows: Training inputs.
        residuals: ``f - y`` there, (n, 1).
    """
    if head.kind != "log_variance":
        return
    raw = head.raw(rows)
    if not np.all(raw > 0):
        return

    # Only a head with positive values can be a variance; compare both interpretations by their likelihood.
    def negative_log_likelihood(log_variance: np.ndarray) -> float:
        """Return the mean over rows, up to a constant."""
        return float(np.mean(0.5 * (log_variance + residuals**2 * np.exp(-log_variance))))

    if negative_log_likelihood(raw) - negative_log_likelihood(np.log(raw)) > _CLEAR_GAIN:
        warnings.warn(
            "every value of the second head is positive, and read as a variance it makes the training responses far "
            "likelier than read as a log variance. If it is a variance (as torch.nn.GaussianNLLLoss takes it), pass "
            "variance_head='variance'.",
            NoiseWarning,
            stacklevel=outside(),
        )
