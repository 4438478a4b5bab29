"""Networks as plain JAX functions, and recipes that train them.

A *recipe* is any callable ``recipe(X, y, *, seed, sample_weight=None) -> fitted``. Those here train a
:class:`Network`:

- :class:`Minimum`, the default: to a certified minimum, as the intervals assume;
- :class:`AdamW`: as in the paper;
- :class:`Adam`: on the penalised objective;
- :class:`GradientDescent`: with the step size of the descent lemma.

:func:`choose_weight_decay` chooses lam by held-out scores.

A training loop of your own is a recipe if it ends in ``vhat.from_torch`` or ``vhat.from_jax``:

>>> import numpy as np, torch, vhat
>>> def my_recipe(X, y, *, seed, sample_weight=None):
...     torch.manual_seed(seed)
...     module = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
...     X, y = torch.as_tensor(X), torch.as_tensor(y)[:, None]
...     weights = torch.ones(len(y)) if sample_weight is None else torch.as_tensor(sample_weight)
...     optimizer = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=1e-3)
...     for _ in range(300):
...         optimizer.zero_grad()
...         (weights[:, None] * (module(X) - y) ** 2).mean().div(2).backward()
...         optimizer.step()
...     return vhat.from_torch(module, X, y, weight_decay=1e-3, sample_weight=sample_weight)
>>> x = np.linspace(-1, 1, 30)[:, None]
>>> fits = vhat.fit.fit_many(my_recipe, x, np.sin(3 * x[:, 0]), seeds=range(2))
>>> fits[0].predict(x).shape
(30, 1)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vhat.fit.adam import Adam
    from vhat.fit.adamw import AdamW
    from vhat.fit.gradient_descent import GradientDescent
    from vhat.fit.many_fits import Recipe, fit_many
    from vhat.fit.minimum import Minimum
    from vhat.fit.score_curve import Curve
    from vhat.fit.selection import Selection, choose_weight_decay
    from vhat.fit.training import Trace, Trained
    from vhat.models.networks import Network, VarianceScaling, glorot, normal

# Small tables are fitted and saved estimators predict without JAX, so the modules that need it are imported lazily.
_NAMES_BY_MODULE = {
    "adam": ("Adam",),
    "adamw": ("AdamW",),
    "gradient_descent": ("GradientDescent",),
    "many_fits": ("Recipe", "fit_many"),
    "minimum": ("Minimum",),
    "score_curve": ("Curve",),
    "selection": ("Selection", "choose_weight_decay"),
    "training": ("Trace", "Trained"),
}
_MODULE_OF = dict.fromkeys(("Network", "VarianceScaling", "glorot", "normal"), "vhat.models.networks")
for _module, _names in _NAMES_BY_MODULE.items():
    _MODULE_OF.update(dict.fromkeys(_names, f"vhat.fit.{_module}"))

__all__ = [
    "Adam",
    "AdamW",
    "Curve",
    "GradientDescent",
    "Minimum",
    "Network",
    "Recipe",
    "Selection",
    "Trace",
    "Trained",
    "VarianceScaling",
    "choose_weight_decay",
    "fit_many",
    "glorot",
    "normal",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
