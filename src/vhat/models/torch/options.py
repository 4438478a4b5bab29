"""Options of ``from_torch`` that the problem of a whole module and that of its last layer share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vhat.checks import Loss, check_loss, check_memory
from vhat.models.outputs import check_output
from vhat.models.torch.variance_head import GAUSSIAN_NLL, check_heads

__all__ = ["TorchOptions"]


@dataclass(frozen=True)
class TorchOptions:
    """Options for a module and its data, as in :func:`vhat.models.torch.build.torch_problem`.

    Attributes:
        weight_decay: lam, a number or a mapping from names.
        loss: The name of a loss, or a function of one row.
        sample_weight: One weight per row, or None.
        target_key: Key of the target in dict batches, or None.
        output: The user's ``output=``, which selects the prediction in the module's return value.
        variance_head: What the second head of ``"gaussian_nll"`` predicts.
        memory: Budget in bytes; None for the default.
    """

    weight_decay: Any
    loss: Any
    sample_weight: Any
    target_key: str | None
    output: Any
    variance_head: str
    memory: Any

    def __post_init__(self) -> None:
        if self.two_heads:
            check_heads(self.output, self.variance_head)
        else:
            check_loss(self.loss, ("half_mse", "mse", GAUSSIAN_NLL))
            check_output(self.output)
        object.__setattr__(self, "memory", check_memory(self.memory))

    @property
    def two_heads(self) -> bool:
        """Whether the module predicts a mean and a variance."""
        return isinstance(self.loss, str) and self.loss == GAUSSIAN_NLL

    @property
    def row_loss(self) -> Loss:
        """The loss of one row: ``"half_mse"``, from which the other named losses differ by a factor, or a function."""
        return "half_mse" if isinstance(self.loss, str) else self.loss
