"""The same models in NumPy, torch and JAX, behind one interface, so that a case is written once.

Only public names of vhat are used, and each framework is imported by its own kit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

import numpy as np

from guard_cases.data import PARTS, LinearData, NetData, Theta
from guard_cases.numpy_net import Decay, NumpyNet, by_parameter, joined

__all__ = ["FRAMEWORKS", "MEMORY", "Kit", "make_kit"]

FRAMEWORKS = ("numpy", "torch", "jax")
MEMORY = 1e9
"""Given to every model: the default is half of the free memory, and sizes of blocks would depend on the machine."""


class Kit(Protocol):
    """What a case needs of a framework."""

    name: str

    def linear(self, data: LinearData, **options: Any) -> Any:
        """Return the fitted linear model."""

    def net(self, data: NetData, *, weight_decay: Decay = 0.01, **options: Any) -> Any:
        """Return the fitted network; a mapping gives the decay of each part of theta."""

    def reload(self, folder: str, data: NetData) -> Any:
        """Load a network that was saved."""

    def flat(self, params: Any) -> np.ndarray:
        """Return the parameters of a network as one NumPy vector, in the order w, b, v, c."""

    def functional(self, params: Any) -> Any:
        """Return two numbers of a network's parameters: the squared norm of v, and the first entry of c."""

    def log_cosh(self, f: Any, y: Any) -> Any:
        """Return a loss of one row that is not the square."""


def make_kit(framework: str) -> Kit:
    """Return the kit of a framework, which is imported now."""
    kits: dict[str, Callable[[], Kit]] = {"numpy": NumpyKit, "torch": TorchKit, "jax": JaxKit}
    return kits[framework]()


class NumpyKit:
    """NumPy functions with first and second derivatives in closed form."""

    name = "numpy"

    def linear(self, data: LinearData, **options: Any) -> Any:
        """Return the fitted linear model."""
        import vhat

        options = {"weight_decay": data.decay, "memory": MEMORY, **options}
        return vhat.from_numpy(_linear, data.theta["w"], data.X, data.y, jac=_linear_jac, hess=_linear_hess, **options)

    def net(self, data: NetData, *, weight_decay: Decay = 0.01, derivatives: bool = True, **options: Any) -> Any:
        """Return the fitted network; its derivatives are taken by differences where ``derivatives`` is False."""
        import vhat

        net = NumpyNet(data)
        if derivatives:
            options = {"jac": net.jac, "hess": net.hess, **options}
        lam = by_parameter(data, weight_decay) if isinstance(weight_decay, Mapping) else weight_decay
        options = {"weight_decay": lam, "memory": MEMORY, **options}
        return vhat.from_numpy(net.predict, joined(data.theta), data.X, data.y, **options)

    def reload(self, folder: str, data: NetData) -> Any:
        """Load a network that was saved."""
        import vhat

        net = NumpyNet(data)
        return vhat.load(folder, (net.predict, net.jac, net.hess), memory=MEMORY)

    def flat(self, params: Any) -> np.ndarray:
        """Return the parameters as they are."""
        return np.asarray(params)

    def functional(self, params: Any) -> Any:
        """Return the squared norm of v and the first entry of c, for one output."""
        width = (len(params) - 1) // 4
        return np.stack([np.sum(params[-1 - width : -1] ** 2), params[-1]])

    def log_cosh(self, f: Any, y: Any) -> Any:
        """Return ``log(exp(f - y) + exp(y - f))``."""
        return np.logaddexp(f - y, y - f)


class TorchKit:
    """Torch modules in float64."""

    name = "torch"

    def linear(self, data: LinearData, **options: Any) -> Any:
        """Return the fitted linear model."""
        import torch

        import vhat

        module = torch.nn.Linear(data.X.shape[1], 1, bias=False).double()
        with torch.no_grad():
            module.weight.copy_(torch.as_tensor(data.theta["w"])[None, :])
        squeezed = torch.nn.Sequential(module, torch.nn.Flatten(0))
        options = {"weight_decay": data.decay, "memory": MEMORY, **options}
        return vhat.from_torch(squeezed, data.X, data.y, **options)

    def net(self, data: NetData, *, weight_decay: Decay = 0.01, **options: Any) -> Any:
        """Return the fitted network."""
        import vhat

        if isinstance(weight_decay, Mapping):
            weight_decay = dict(weight_decay)
        options = {"weight_decay": weight_decay, "memory": MEMORY, **options}
        return vhat.from_torch(self.module(data), data.X, data.y, **options)

    def module(self, data: NetData) -> Any:
        """Return the network as a module in float64."""
        return _torch_net()(data.theta, data.activation, data.squeeze)

    def reload(self, folder: str, data: NetData) -> Any:
        """Load a network that was saved."""
        import vhat

        return vhat.load(folder, self.module(data), memory=MEMORY)

    def flat(self, params: Any) -> np.ndarray:
        """Return the parameters as one vector."""
        return joined({part: params[part].detach().numpy() for part in PARTS})

    def functional(self, params: Any) -> Any:
        """Return the squared norm of v and the first entry of c."""
        import torch

        return torch.stack([torch.sum(params["v"] ** 2), params["c"][0]])

    def log_cosh(self, f: Any, y: Any) -> Any:
        """Return ``log(exp(f - y) + exp(y - f))``."""
        import torch

        return torch.logaddexp(f - y, y - f).sum()


class JaxKit:
    """JAX functions of a dictionary of parameters; all cases share one function a shape, and so its compilations."""

    name = "jax"

    def linear(self, data: LinearData, **options: Any) -> Any:
        """Return the fitted linear model."""
        import vhat

        options = {"weight_decay": data.decay, "memory": MEMORY, **options}
        return vhat.from_jax(_jax_linear, data.theta, data.X, data.y, **options)

    def net(self, data: NetData, *, weight_decay: Decay = 0.01, **options: Any) -> Any:
        """Return the fitted network."""
        import vhat

        if isinstance(weight_decay, Mapping):
            weight_decay = dict(weight_decay)
        options = {"weight_decay": weight_decay, "memory": MEMORY, **options}
        predict = jax_net(data.activation, data.squeeze)
        return vhat.from_jax(predict, data.theta, data.X, data.y, **options)

    def reload(self, folder: str, data: NetData) -> Any:
        """Load a network that was saved."""
        import vhat

        return vhat.load(folder, jax_net(data.activation, data.squeeze), memory=MEMORY)

    def flat(self, params: Any) -> np.ndarray:
        """Return the parameters as one vector."""
        return joined({part: np.asarray(params[part]) for part in PARTS})

    def functional(self, params: Any) -> Any:
        """Return the squared norm of v and the first entry of c."""
        import jax.numpy as jnp

        return jnp.stack([jnp.sum(params["v"] ** 2), params["c"][0]])

    def log_cosh(self, f: Any, y: Any) -> Any:
        """Return ``log(exp(f - y) + exp(y - f))``."""
        import jax.numpy as jnp

        return jnp.sum(jnp.logaddexp(f - y, y - f))


# -- the models -----------------------------------------------------------------------------------


def _linear(theta: np.ndarray, X: np.ndarray) -> np.ndarray:
    return X @ theta


def _linear_jac(theta: np.ndarray, X: np.ndarray) -> np.ndarray:  # noqa: ARG001
    return X


def _linear_hess(theta: np.ndarray, X: np.ndarray) -> np.ndarray:
    return np.zeros((len(X), len(theta), len(theta)))


def _jax_linear(theta: Any, X: Any) -> Any:
    return X @ theta["w"]


@cache
def jax_net(activation: str, squeeze: bool) -> Callable[[Any, Any], Any]:
    """Return ``predict(params, X)``, always the same function for the same network."""
    import jax
    import jax.numpy as jnp

    activate = {"tanh": jnp.tanh, "relu": jax.nn.relu}[activation]

    def predict(params: Any, X: Any) -> Any:
        values = activate(X @ params["w"] + params["b"]) @ params["v"] + params["c"]
        return values[:, 0] if squeeze else values

    return predict


@cache
def _torch_net() -> Any:
    """Return the class of the module, made once torch is needed."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self, theta: Theta, activation: str, squeeze: bool) -> None:
            super().__init__()
            for part in PARTS:
                self.register_parameter(part, torch.nn.Parameter(torch.tensor(theta[part])))
            self.activate = {"tanh": torch.tanh, "relu": torch.relu}[activation]
            self.squeeze = squeeze

        def forward(self, X: Any) -> Any:
            values = self.activate(X @ self.w + self.b) @ self.v + self.c
            return values[:, 0] if self.squeeze else values

    return Net
