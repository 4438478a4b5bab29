"""The fitted model that a user holds, and the calls that make one."""

from vhat.fitted.model import FittedModel

__all__ = ["FittedModel"]
