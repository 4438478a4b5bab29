"""The activations of :class:`vhat.fit.Network` with their first and second derivatives, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from scipy.special import expit, ndtr

__all__ = ["DERIVATIVES", "VALUES"]

_INVERSE_ROOT_2PI = 1.0 / np.sqrt(2.0 * np.pi)

Derivatives = tuple[np.ndarray, np.ndarray]
"""First and second derivative."""


def _relu(a: np.ndarray) -> np.ndarray:
    return np.maximum(a, 0.0)


def _softplus(a: np.ndarray) -> np.ndarray:
    return np.logaddexp(a, 0.0)


def _gelu(a: np.ndarray) -> np.ndarray:
    found: np.ndarray = a * ndtr(a)
    return found


def _silu(a: np.ndarray) -> np.ndarray:
    found: np.ndarray = a * expit(a)
    return found


def _relu_derivatives(a: np.ndarray, value: np.ndarray) -> Derivatives:
    del value
    return (a > 0).astype(np.float64), np.zeros_like(a)


def _tanh_derivatives(a: np.ndarray, value: np.ndarray) -> Derivatives:
    del a
    first = 1.0 - value**2
    return first, -2.0 * value * first


def _softplus_derivatives(a: np.ndarray, value: np.ndarray) -> Derivatives:
    del value
    first = expit(a)
    return first, first * (1.0 - first)


def _gelu_derivatives(a: np.ndarray, value: np.ndarray) -> Derivatives:
    del value
    density = _INVERSE_ROOT_2PI * np.exp(-0.5 * a**2)
    return ndtr(a) + a * density, density * (2.0 - a**2)


def _silu_derivatives(a: np.ndarray, value: np.ndarray) -> Derivatives:
    s = expit(a)
    s_derivative = s * (1.0 - s)
    return s + value * (1.0 - s), s_derivative * (2.0 + a * (1.0 - 2.0 * s))


VALUES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = MappingProxyType(
    {"relu": _relu, "tanh": np.tanh, "softplus": _softplus, "gelu": _gelu, "silu": _silu}
)
"""Activations by name."""

DERIVATIVES: Mapping[str, Callable[[np.ndarray, np.ndarray], Derivatives]] = MappingProxyType(
    {
        "relu": _relu_derivatives,
        "tanh": _tanh_derivatives,
        "softplus": _softplus_derivatives,
        "gelu": _gelu_derivatives,
        "silu": _silu_derivatives,
    }
)
"""First and second derivatives by name, as functions of argument and value. Those of relu are 0 at the kink."""
