from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from vhat.errors import InputError
from vhat.intervals.tail import Tail


def test_a_tail_in_units_of_v_is_the_same_at_every_point() -> None:
    v, c = Tail(0.5, 0.1).pair([[1.0, 2.0], [3.0, np.nan]])
    np.testing.assert_array_equal(v, np.full((2, 2), 0.5))
    np.testing.assert_array_equal(c, np.full((2, 2), 0.1))


def test_a_relative_tail_is_proportional_to_the_norm_and_keeps_nan() -> None:
    v, c = Tail.relative(0.5, 0.1).pair([0.0, 2.0, np.nan])
    np.testing.assert_array_equal(v, [0.0, 1.0, np.nan])
    np.testing.assert_array_equal(c, [0.0, 0.2, np.nan])


def test_one_point_gives_arrays_without_dimension() -> None:
    v, c = Tail.relative(0.5, 0.1).pair(4.0)
    assert v.shape == c.shape == ()
    assert (float(v), float(c)) == (2.0, 0.4)


@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf, "wide", None])
@pytest.mark.parametrize("make", [Tail, Tail.relative])
def test_a_tail_that_is_no_tail_is_refused_when_made(make: type[Tail], bad: float) -> None:
    with pytest.raises(InputError, match="v="):
        make(bad, 0.0)
    with pytest.raises(InputError, match="c="):
        make(0.0, bad)


def test_a_tail_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Tail(0.1, 0.1).v = 1.0  # type: ignore[misc]


def test_a_relative_tail_is_not_equal_to_an_absolute_one() -> None:
    assert Tail(1, 2) == Tail(1.0, 2.0)
    assert Tail(1, 2) != Tail.relative(1, 2)
    assert len({Tail(1, 2), Tail(1.0, 2.0), Tail.relative(1, 2)}) == 2


@pytest.mark.parametrize("tail", [Tail(0.5, 0.1), Tail.relative(0.25, 0.0)])
def test_the_repr_makes_the_tail_again(tail: Tail) -> None:
    assert eval(repr(tail)) == tail
    assert copy.deepcopy(tail) == tail
    assert pickle.loads(pickle.dumps(tail)) == tail
