"""The library's own networks in NumPy, with derivatives in closed form. Needs neither compilation nor JAX."""

from vhat.models.dense_network.build import is_small, network_problem

__all__ = ["is_small", "network_problem"]
