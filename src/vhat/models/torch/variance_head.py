"""Modules that predict a mean and a variance, trained by the Gaussian negative log-likelihood.

With the variances held fixed at their fitted values, the likelihood of a row is the half squared error of its mean over
its variance: a weighted square loss, whose weights are known and whose noise is the model's own. Parameters that only
the variance uses are held fixed and not counted, single rows of a last layer among them.
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
from vhat.models.torch.model import State, TorchModel, TrainedRows, recording, take_rows, wrap_errors

__all__ = ["GAUSSIAN_NLL", "MeanOf", "VarianceHead", "check_heads", "take_heads", "warn_of_reading"]

GAUSSIAN_NLL = "gaussian_nll"
"""The name of the loss."""
_KINDS = ("log_variance", "variance", "deviation")
"""What the second head may give."""
_ROWS = 6
"""Rows on which it is found out which parameters the mean depends on."""
_CLEARLY = 0.5
"""Log-likelihood of a row, in nats, by which reading the second head as a variance must be better to be asked about."""
_FORMS = (
    "Let the module return (mean, log variance), or one tensor (n, 2), or choose both: output=('mean', 'log_variance')"
)


def check_heads(output: Any, variance_head: str) -> None:
    """Refuse options of ``loss="gaussian_nll"`` that are not known.

    Raises:
        InputError: Naming what they may be.
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
    """The mean in what a module returns.

    Attributes:
        output: As the user gave it: None, a pair of keys or indices, one of them, or a function.
    """

    output: Any

    def __call__(self, returned: Any) -> Any:
        """Return the mean, (m,) or (m, 1)."""
        return _pair(self.output, returned)[0]


@dataclass(frozen=True)
class SpreadOf:
    """The second head in what a module returns; see :class:`MeanOf`."""

    output: Any

    def __call__(self, returned: Any) -> Any:
        """Return what the second head gives, (m,) or (m, 1)."""
        return _pair(self.output, returned)[1]


def _pair(output: Any, returned: Any) -> tuple[Any, Any]:
    """Return both heads.

    Raises:
        ModelError: Where there are not two.
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
    """The standard deviation of a response as the model itself predicts it, at the parameters that were given.

    Attributes:
        model: The module with its second head as the output.
        theta: The parameters that were given, flat.
        kind: What the second head gives: ``"log_variance"``, ``"variance"`` or ``"deviation"``.
        output: Which parts of the output are mean and variance, as the user gave it.
        chunk_rows: How many rows are evaluated at a time.
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
                found = np.exp(0.5 * raw)
            else:
                found = np.sqrt(raw) if self.kind == "variance" else raw
        bad = ~(np.isfinite(found) & (found > 0))
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
        return found

    def raw(self, rows: Rows) -> np.ndarray:
        """Return what the head gives at each row, (m, 1)."""
        self.model.guard()
        with wrap_errors("evaluating the variance head"), torch.inference_mode(False), torch.no_grad():
            blocks = slices(len(rows[0]), self.chunk_rows)
            return to_array(torch.cat([self.model(self.theta, take_rows(rows, block)).detach() for block in blocks]))


def take_heads(
    module: Any, state: State, theta: Any, layout: Layout, rows: Rows, output: Any, kind: str
) -> tuple[VarianceHead, State, Any]:
    """Return the variance head, and the state and parameters of the mean alone.

    Args:
        module: The module.
        state: Its tensors.
        theta: Its flat parameters, (p,).
        layout: How its inputs were given.
        rows: Training inputs.
        output: Which parts of what it returns are the two heads.
        kind: What the second head gives.

    Raises:
        ModelError: Where there are not two heads of one output each.
    """
    few = take_rows(rows, slice(0, _ROWS))
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
    both = TorchModel(module, state, layout, convention, 1, mean.ndim == 1, output=SpreadOf(output))
    head = VarianceHead(both, theta.detach().clone(), kind, output)
    return head, *_of_mean(replace(both, output=MeanOf(output)), theta, few)


def _of_mean(model: TorchModel, theta: Any, rows: Rows) -> tuple[State, Any]:
    """Hold fixed what the mean does not depend on: whole parameters, and rows of the others.

    A parameter is replaced by NaN, which every operation on it passes on: where the mean stays a number, it does not
    depend on it. That holds for units that are off at these rows as well, whose derivatives vanish.
    """
    state = model.state
    values = {name: value.detach().clone() for name, value in state.split(theta).items()}
    slopes = _slopes(model, values, rows)

    def unused(name: str, lines: Sequence[int] | None) -> bool:
        spoilt = values[name].clone()
        if lines is None:
            spoilt.fill_(float("nan"))
        else:
            spoilt[list(lines)] = float("nan")
        with torch.inference_mode(False), torch.no_grad():
            return bool(model.at({**values, name: spoilt}, rows).isfinite().all())

    with wrap_errors("finding the parameters that the mean depends on"):
        free = [name for name in state.names if not unused(name, None)]
        if not free:
            raise ModelError(
                "the mean does not depend on any trainable parameter: is the order (mean, variance)? Choose by output=."
            )
        slots = {name: slot for name in free if (slot := _slot(name, values[name], slopes[name], unused)) is not None}
    return state.hold(free, slots, values), torch.cat(
        [(slots[name].select(values[name]) if name in slots else values[name]).reshape(-1) for name in free]
    )


def _slopes(model: TorchModel, values: dict[str, Any], rows: Rows) -> dict[str, Any]:
    """Return the gradient of the sum of the means in each parameter; zero where there is none."""
    with recording(), wrap_errors("differentiating the mean"):
        leaves = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
        total = model.at(leaves, rows).square().sum()
        if not total.requires_grad:
            return {name: torch.zeros_like(value) for name, value in values.items()}
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    pairs = zip(values.items(), found, strict=True)
    return {name: torch.zeros_like(value) if part is None else part for (name, value), part in pairs}


def _slot(name: str, value: Any, slope: Any, unused: Callable[[str, Sequence[int]], bool]) -> TrainedRows | None:
    """Return which rows of a parameter the mean depends on; None where it depends on all of them."""
    if value.ndim == 0 or len(value) < 2:
        return None
    flat = [int(row) for row in torch.nonzero(slope.reshape(len(value), -1).abs().sum(1) == 0).reshape(-1)]
    idle = set(_bisect(flat, lambda lines: unused(name, lines)))
    if not idle:
        return None
    kept = [row for row in range(len(value)) if row not in idle]
    return TrainedRows(torch.tensor(kept, device=value.device), value)


def _bisect(lines: list[int], unused: Callable[[list[int]], bool]) -> list[int]:
    """Return those of the lines that are not used, in about as many trials as there are used ones among them."""
    if not lines or unused(lines):
        return lines
    if len(lines) == 1:
        return []
    half = len(lines) // 2
    return _bisect(lines[:half], unused) + _bisect(lines[half:], unused)


def warn_of_reading(head: VarianceHead, rows: Rows, residuals: np.ndarray) -> None:
    """Warn of log variances that would make the residuals far likelier if they were variances.

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

    def cost(log_variance: np.ndarray) -> float:
        return float(np.mean(0.5 * (log_variance + residuals**2 * np.exp(-log_variance))))

    if cost(raw) - cost(np.log(raw)) > _CLEARLY:
        warnings.warn(
            "every value of the second head is positive, and read as a variance it makes the training responses far "
            "likelier than read as a log variance. If it is a variance (as torch.nn.GaussianNLLLoss takes it), pass "
            "variance_head='variance'.",
            NoiseWarning,
            stacklevel=outside(),
        )
