"""Monte Carlo dropout: the spread of one network's predictions when units are dropped at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_count
from vhat.errors import InputError
from vhat.fit.adam_steps import CosineAdam
from vhat.fit.recipe import NetworkRecipe
from vhat.methods.base.dropout_training import train_with_dropout
from vhat.methods.base.ensemble import Ensemble
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import Claim
from vhat.methods.base.method import Predictor, check_level, check_noise

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.networks import Network, Params

__all__ = ["MCDropout"]

_STREAM = 14
"""Number of this method's stream of random numbers."""


@dataclass(frozen=True)
class MCDropout(BaseMethod[Ensemble]):
    """Train with dropout, and keep dropping units when predicting (Gal and Ghahramani, 2016).

    A member is the network without the units dropped in one draw. The draw is the same for all points, so that the
    interval of a point does not depend on the other points. The center is the mean of the members.

    Two kinds of recipe work: :class:`vhat.fit.Adam` and :class:`vhat.fit.AdamW`, whose network is trained with dropout
    on its hidden layers; and a training loop of your own whose torch module has ``torch.nn.Dropout`` layers, with the
    rates of these layers.

    Attributes:
        rate: Probability that a hidden unit is dropped, for the recipes of :mod:`vhat.fit`.
        draws: Number of members.
        noise: Standard deviation of y, for ``target="observation"``; None estimates it from the residuals.

    Examples:
        >>> MCDropout(rate=0.2).draws
        100
    """

    rate: float = 0.1
    draws: int = 100
    noise: float | None = None

    def __post_init__(self) -> None:
        check_level("rate", self.rate, zero=False)
        check_count("draws", self.draws, least=2)
        check_noise(self.noise)

    def _fit(self, data: Training) -> Ensemble:
        members: tuple[Predictor, ...]
        if isinstance(data.recipe, NetworkRecipe):
            fitted, members = self._network(data.recipe, data)
            rate = f"{self.rate:g}"
        else:
            fitted = data.fit_once()
            rates = _torch_rates(fitted)
            members = tuple(DroppedModule(fitted, each) for each in data.seeds(self.draws))
            rate = " and ".join(f"{each:g}" for each in sorted(set(rates)))
        claim = Claim(
            name="MC dropout",
            covers="no stated quantity: the spread of predictions over dropped units",
            by=f"the normal quantile over {self.draws} draws at rate {rate}, read as an approximate posterior",
            assumed=(
                f"that a dropout rate of {rate} expresses the uncertainty, which does not shrink as data are added "
                "unless the rate is tuned",
            ),
        )
        return Ensemble(members, claim, fitted, self.noise)

    def _network(self, recipe: NetworkRecipe, data: Training) -> tuple[FittedModel, tuple[DroppedNetwork, ...]]:
        """Train a network of this library with dropout; return it and the members.

        Raises:
            InputError: When the recipe cannot train with dropout, or the network has no hidden layer.
        """
        from vhat.fitted.construct import from_jax

        if not isinstance(recipe, CosineAdam):
            raise InputError(
                f"MCDropout trains with units dropped at random, which {type(recipe).__name__} cannot: its objective "
                "must stay the same from step to step. Use vhat.fit.Adam or vhat.fit.AdamW."
            )
        network = recipe.network
        if len(network.widths) < 3:
            raise InputError(f"widths={network.widths} has no hidden layer, so there are no units to drop.")
        params = train_with_dropout(recipe, self.rate, data.X, data.y, data.seed)
        fitted = from_jax(network, params, data.X, data.y, weight_decay=recipe.weight_decay)
        rng = data.random(_STREAM)
        members = (DroppedNetwork(fitted, network, _dropped(params, self.rate, rng)) for _ in range(self.draws))
        return fitted, tuple(members)


@dataclass(frozen=True, eq=False)
class DroppedNetwork:
    """A network without some of its hidden units.

    Attributes:
        fitted: The whole network, fitted.
        network: The network.
        params: Its parameters, with the outgoing weights of dropped units zero and the other weights scaled up.
    """

    fitted: FittedModel = field(repr=False)
    network: Network
    params: Params = field(repr=False)

    def predict(self, x: Any) -> np.ndarray:
        """Return predictions, (points,) or (points, outputs)."""
        with self.fitted.problem.scope():
            return np.asarray(self.network(self.params, self.fitted.problem.inputs(x)), dtype=np.float64)


def _dropped(params: Params, rate: float, rng: np.random.Generator) -> Params:
    """Return parameters in float64 with hidden units dropped: their rows in the next layer's weights are zero."""
    layers = [{name: np.asarray(leaf, dtype=np.float64) for name, leaf in layer.items()} for layer in params]
    dropped = [layers[0]]  # the inputs of the first layer are never dropped
    for layer in layers[1:]:
        kept = (rng.random(len(layer["w"])) >= rate) / (1 - rate)
        dropped.append({**layer, "w": kept[:, None] * layer["w"]})
    return tuple(dropped)


@dataclass(frozen=True, eq=False)
class DroppedModule:
    """A torch module with the dropout masks of one seed.

    Attributes:
        fitted: The fitted model.
        seed: Seed of the masks.
    """

    fitted: FittedModel = field(repr=False)
    seed: int

    def predict(self, x: Any) -> np.ndarray:
        """Return predictions, (points,) or (points, outputs)."""
        layers = _dropout_layers(self.fitted)
        hooks = [layer.register_forward_hook(Mask(self.seed, at)) for at, layer in enumerate(layers)]
        try:
            return self.fitted.predict(x)
        finally:
            for hook in hooks:
                hook.remove()


@dataclass(frozen=True)
class Mask:
    """A forward hook of a dropout layer in ``eval()`` mode that drops the same units in every row.

    Attributes:
        seed: Seed of the mask.
        layer: Number of the dropout layer.
    """

    seed: int
    layer: int

    def __call__(self, module: Any, inputs: Any, output: Any) -> Any:  # noqa: ARG002
        """Return the output with units dropped and the others scaled up."""
        import torch

        shape = tuple(output.shape[1:])
        if not isinstance(module, torch.nn.Dropout):
            # Dropout1d to Dropout3d drop whole channels: one draw for each channel, the same at all its positions.
            shape = (*shape[:1], *(1 for _ in shape[1:]))
        kept = np.random.default_rng([self.seed, self.layer]).random(shape) >= module.p
        return output * output.new_tensor(kept / (1 - module.p))


def _dropout_layers(fitted: FittedModel) -> list[Any]:
    """Return the dropout layers of a fitted torch module; none for any other model."""
    module = getattr(getattr(fitted.problem.autodiff, "model", None), "module", None)
    if module is None:
        return []
    from torch import nn

    kinds = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d
    return [part for part in module.modules() if isinstance(part, kinds) and 0 < part.p < 1]


def _torch_rates(fitted: FittedModel) -> list[float]:
    """Return the rates of the dropout layers.

    Raises:
        InputError: When the model has none.
    """
    rates = [float(layer.p) for layer in _dropout_layers(fitted)]
    if not rates:
        raise InputError(
            "MCDropout found nothing to drop: the recipe must be vhat.fit.Adam or AdamW, or end in vhat.from_torch "
            "with a module that has torch.nn.Dropout layers, trained with them on and given in eval() mode."
        )
    return rates
