"""Monte Carlo dropout: one network, and the spread of its predictions when units are dropped at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_count
from vhat.errors import InputError
from vhat.fit.adam_steps import CosineAdam
from vhat.fit.many_fits import Recipe
from vhat.fit.recipe import NetworkRecipe
from vhat.methods.base.dropout_training import train_with_dropout
from vhat.methods.base.ensemble import Ensemble, new_seeds
from vhat.methods.base.method import Claim, Predictor, check_level, check_noise, fit_once

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.networks import Network, Params

__all__ = ["MCDropout"]

_STREAM = 14


@dataclass(frozen=True)
class MCDropout:
    """Train with dropout, and keep dropping units when predicting (Gal and Ghahramani, 2016).

    A member is the network without the units that one draw drops, the same for every point, so that a point's interval
    does not depend on the others. The center is the mean of the members.

    Two kinds of recipe have units to drop: :class:`vhat.fit.Adam` and :class:`vhat.fit.AdamW`, whose network is trained
    with dropout on its hidden layers; and a training loop of your own whose torch module has ``torch.nn.Dropout``
    layers, trained as you train it, at the rates that they have.

    Attributes:
        rate: The share of hidden units that is dropped, for the recipes of :mod:`vhat.fit`.
        draws: How many members.
        noise: The standard deviation of y, for ``target="observation"``; None estimates it from the residuals.

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

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> Ensemble:
        """Train once, with dropout.

        Args:
            recipe: One of the kinds above.
            X: Rows.
            y: Responses.
            seed: Determines the training and what is dropped.

        Raises:
            InputError: When the recipe has nothing that could be dropped.
        """
        members: tuple[Predictor, ...]
        if isinstance(recipe, NetworkRecipe):
            fitted, members = self._network(recipe, X, y, seed)
            rate = f"{self.rate:g}"
        else:
            fitted = fit_once(recipe, X, y, seed)
            rates = _torch_rates(fitted)
            members = tuple(DroppedModule(fitted, each) for each in new_seeds(seed, self.draws))
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

    def _network(
        self, recipe: NetworkRecipe, X: Any, y: Any, seed: int
    ) -> tuple[FittedModel, tuple[DroppedNetwork, ...]]:
        from vhat.fitted.construct import from_jax

        if not isinstance(recipe, CosineAdam):
            raise InputError(
                f"MCDropout trains with units dropped at random, which {type(recipe).__name__} cannot: its objective "
                "must stay the same from step to step. Use vhat.fit.Adam or vhat.fit.AdamW."
            )
        network = recipe.network
        if len(network.widths) < 3:
            raise InputError(f"widths={network.widths} has no hidden layer, so there are no units to drop.")
        params = train_with_dropout(recipe, self.rate, X, y, seed)
        fitted = from_jax(network, params, X, y, weight_decay=recipe.weight_decay)
        rng = np.random.default_rng([seed, _STREAM])
        members = (DroppedNetwork(fitted, network, _dropped(params, self.rate, rng)) for _ in range(self.draws))
        return fitted, tuple(members)


@dataclass(frozen=True, eq=False)
class DroppedNetwork:
    """A network without some of its hidden units.

    Attributes:
        fitted: The whole network, fitted.
        network: The network.
        params: Its parameters, with the weights that leave a dropped unit zero and the others scaled up.
    """

    fitted: FittedModel = field(repr=False)
    network: Network
    params: Params = field(repr=False)

    def predict(self, x: Any) -> np.ndarray:
        """Return predictions, (points,) or (points, outputs)."""
        with self.fitted.problem.scope():
            return np.asarray(self.network(self.params, self.fitted.problem.inputs(x)), dtype=np.float64)


def _dropped(params: Params, rate: float, rng: np.random.Generator) -> Params:
    """Drop hidden units through the weights that leave them, which is the same for every row."""
    first, *rest = params
    kept = [(rng.random(len(layer["w"])) >= rate) / (1 - rate) for layer in rest]
    wide = [{name: np.asarray(leaf, dtype=np.float64) for name, leaf in layer.items()} for layer in (first, *rest)]
    return (wide[0], *({**layer, "w": keep[:, None] * layer["w"]} for layer, keep in zip(wide[1:], kept, strict=True)))


@dataclass(frozen=True, eq=False)
class DroppedModule:
    """A torch module whose dropout layers drop what one seed draws.

    Attributes:
        fitted: The fitted model.
        seed: The seed.
    """

    fitted: FittedModel = field(repr=False)
    seed: int

    def predict(self, x: Any) -> np.ndarray:
        """Return predictions, (points,) or (points, outputs)."""
        hooks = [
            layer.register_forward_hook(Mask(self.seed, at)) for at, layer in enumerate(_dropout_layers(self.fitted))
        ]
        try:
            return self.fitted.predict(x)
        finally:
            for hook in hooks:
                hook.remove()


@dataclass(frozen=True)
class Mask:
    """Drops the same units in every row: a forward hook of a dropout layer in ``eval()`` mode.

    Attributes:
        seed: The seed of the draw.
        layer: Which dropout layer this is.
    """

    seed: int
    layer: int

    def __call__(self, module: Any, inputs: Any, output: Any) -> Any:  # noqa: ARG002
        """Return the output with units dropped and the others scaled up."""
        import torch

        units = tuple(output.shape[1:])
        shape = units if isinstance(module, torch.nn.Dropout) else (*units[:1], *(1 for _ in units[1:]))  # or channels
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
    rates = [float(layer.p) for layer in _dropout_layers(fitted)]
    if not rates:
        raise InputError(
            "MCDropout found nothing to drop: the recipe must be vhat.fit.Adam or AdamW, or end in vhat.from_torch "
            "with a module that has torch.nn.Dropout layers, trained with them on and given in eval() mode."
        )
    return rates
