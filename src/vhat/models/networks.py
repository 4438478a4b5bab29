"""Fully connected networks as plain JAX functions of their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from vhat.checks import check_choice, check_count
from vhat.errors import InputError

__all__ = ["ACTIVATIONS", "Network", "Params", "VarianceScaling", "glorot", "normal"]

Params = tuple[dict[str, Any], ...]
"""One ``{"w": (inputs, outputs), "b": (outputs,)}`` per layer."""


def _relu(x: Any) -> Any:
    import jax

    return jax.nn.relu(x)


def _tanh(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.tanh(x)


def _softplus(x: Any) -> Any:
    import jax

    return jax.nn.softplus(x)


def _gelu(x: Any) -> Any:
    import jax

    # x Phi(x) exactly, as in torch; JAX's default is a tanh approximation.
    return jax.nn.gelu(x, approximate=False)


def _silu(x: Any) -> Any:
    import jax

    return jax.nn.silu(x)


ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {"relu": _relu, "tanh": _tanh, "softplus": _softplus, "gelu": _gelu, "silu": _silu}
)
"""Activations by name, in JAX. JAX is imported when one of them is called."""


@dataclass(frozen=True)
class VarianceScaling:
    """Initial distribution of a layer: independent weights of variance ``scale / fan``, and biases.

    Attributes:
        scale: The variance of a weight times the fan. A *standard deviation* of 100 is ``scale=100**2``.
        mode: The fan: ``"fan_in"``, ``"fan_out"``, ``"fan_avg"`` (their mean), or ``"none"`` (the fan is 1).
        distribution: ``"normal"`` or ``"uniform"``, for weights and biases.
        bias: Standard deviation of the biases; None for that of the weights. With ``bias=0`` every kink of the first
            layer passes through the origin.
    """

    scale: float = 1.0
    mode: Literal["fan_in", "fan_out", "fan_avg", "none"] = "fan_in"
    distribution: Literal["normal", "uniform"] = "normal"
    bias: float | None = None

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("fan_in", "fan_out", "fan_avg", "none"))
        check_choice("distribution", self.distribution, ("normal", "uniform"))
        for name in ("scale", "bias"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name}={value!r} is not a finite number of at least 0.")

    def draw(self, rng: np.random.Generator, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        """Draw one layer, float64."""
        fan = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2, "none": 1.0}[self.mode]
        weight_sd = math.sqrt(self.scale / fan)
        bias_sd = weight_sd if self.bias is None else self.bias
        # Weights are drawn before biases: the same seed gives the same parameters in every version.
        weights = weight_sd * self._standardised(rng, (inputs, outputs))
        biases = bias_sd * self._standardised(rng, (outputs,))
        return {"w": weights, "b": biases}

    def _standardised(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw numbers of mean 0 and variance 1."""
        if self.distribution == "normal":
            return rng.standard_normal(shape)
        return rng.uniform(-math.sqrt(3.0), math.sqrt(3.0), shape)


def glorot(*, bias: float = 0.0) -> VarianceScaling:
    """Return Glorot's uniform initialisation: variance ``2 / (inputs + outputs)``; biases 0 by default."""
    return VarianceScaling(scale=1.0, mode="fan_avg", distribution="uniform", bias=bias)


def normal(standard_deviation: float, *, bias: float | None = None) -> VarianceScaling:
    """Return N(0, ``standard_deviation``^2) for all weights, and for biases unless ``bias`` is given."""
    if not 0 <= standard_deviation < math.inf:
        raise InputError(f"standard_deviation={standard_deviation!r} is not a finite number of at least 0.")
    return VarianceScaling(scale=standard_deviation**2, mode="none", bias=bias)


@dataclass(frozen=True)
class Network:
    """A fully connected network ``predict(params, X)``, linear in its last layer.

    It holds no parameters. Networks with equal fields are equal and have the same hash, so that fits share the
    compiled functions that take the network as a static argument.

    Attributes:
        widths: Numbers of inputs, hidden units of each layer, and outputs.
        activation: ``"tanh"``, ``"softplus"``, ``"gelu"``, ``"silu"`` or ``"relu"``. The intervals use second
            derivatives: prefer a smooth one.
        initial: Initial distribution of the layers: one for all layers, or one per layer.

    Examples:
        >>> import numpy as np
        >>> network = Network((2, 16, 1), "softplus", initial=(normal(3.0), glorot()))
        >>> params = network.init(seed=0)
        >>> network(params, np.zeros((5, 2))).shape
        (5,)
    """

    widths: tuple[int, ...] = (1, 64, 1)
    activation: str = "tanh"
    initial: VarianceScaling | tuple[VarianceScaling, ...] = glorot()  # noqa: RUF009  (immutable)

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", _checked_widths(self.widths))
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        if isinstance(self.initial, VarianceScaling):
            return
        if not isinstance(self.initial, Sequence) or not all(
            isinstance(each, VarianceScaling) for each in self.initial
        ):
            raise InputError(f"initial={self.initial!r} is not known. Give a VarianceScaling, or one per layer.")
        if len(self.initial) != len(self.widths) - 1:
            raise InputError(
                f"initial has {len(self.initial)} entries; widths={self.widths} has {len(self.widths) - 1} "
                "layers. Give one for all layers, or one per layer."
            )
        object.__setattr__(self, "initial", tuple(self.initial))

    @property
    def parameters(self) -> int:
        """Number of parameters, p."""
        return sum((inputs + 1) * outputs for inputs, outputs in pairwise(self.widths))

    def init(self, seed: int) -> Params:
        """Draw parameters: NumPy float64, the same for the same seed on every machine."""
        check_count("seed", seed)
        rng = np.random.default_rng(seed)
        shapes = list(pairwise(self.widths))
        each = (self.initial,) * len(shapes) if isinstance(self.initial, VarianceScaling) else self.initial
        return tuple(layer.draw(rng, *shape) for layer, shape in zip(each, shapes, strict=True))

    def __call__(self, params: Params, X: Any) -> Any:
        """Return predictions at rows X.

        Args:
            params: What ``init`` returned, or the same structure after training.
            X: Rows, (n, inputs).

        Returns:
            A JAX array (n,) where the last width is 1, else (n, outputs).

        Raises:
            InputError: When X has another shape.
        """
        import jax.numpy as jnp

        shape = np.shape(X)
        if len(shape) != 2 or shape[1] != self.widths[0]:
            remedy = " Give X[:, None]." if len(shape) == 1 and self.widths[0] == 1 else ""
            raise InputError(f"X has shape {shape}; this network takes (rows, {self.widths[0]}).{remedy}")
        activate = ACTIVATIONS[self.activation]
        hidden = X
        for layer in params[:-1]:
            hidden = activate(jnp.matmul(hidden, layer["w"]) + layer["b"])
        output = jnp.matmul(hidden, params[-1]["w"]) + params[-1]["b"]
        return output[:, 0] if self.widths[-1] == 1 else output


def _checked_widths(widths: Any) -> tuple[int, ...]:
    """Return widths as a tuple of Python integers; raise if they are not positive whole numbers."""
    if not isinstance(widths, Sequence) or isinstance(widths, str) or len(widths) < 2:
        raise InputError(f"widths={widths!r} must list at least inputs and outputs, such as (1, 64, 1).")
    if not all(isinstance(width, int | np.integer) and width > 0 for width in widths):
        raise InputError(f"widths={widths!r} must be positive whole numbers, such as (1, 64, 1).")
    return tuple(int(width) for width in widths)
