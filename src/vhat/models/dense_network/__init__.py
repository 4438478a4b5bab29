"""The library's own networks in NumPy, with derivatives in closed form: no compilation, no import of JAX."""

from vhat.models.dense_network.build import is_small, network_problem

__all__ = ["is_small", "network_problem"]
