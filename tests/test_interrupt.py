"""Ctrl-C: a real SIGINT at a known place; the finished rows are in the record, and the model works afterwards."""

from __future__ import annotations

import copy
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from itertools import count

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import vhat

INPUTS, LAM = 8, 1e-3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, INPUTS)) @ np.diag(np.logspace(0, -1, INPUTS)) @ RNG.normal(size=(INPUTS, INPUTS))
RESPONSES = X @ RNG.normal(size=INPUTS) + 0.05 * RNG.normal(size=30)
A = X.T @ X / len(X) + LAM * np.eye(INPUTS)
THETA = np.linalg.solve(A, X.T @ RESPONSES / len(X))
UNIT = np.sqrt(np.diag(A))
MODES = np.linalg.eigh(A / np.outer(UNIT, UNIT))[1].T * UNIT
# a gradient of k eigenvectors of the preconditioned matrix takes k steps of conjugate gradients
POINTS = np.array([RNG.uniform(0.5, 1.0, k) @ MODES[:k] for k in (1, 8, 2, 8, 3, 8, 1, 8, 4, 8, 2, 8)])
SOLVERS = {name: getattr(vhat, name)() for name in ("Dense", "Dual", "CG", "Nystrom") if hasattr(vhat, name)}


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.tensor(THETA))

    def forward(self, Z):
        return Z @ self.theta


def product(q, Z):
    return jnp.dot(Z, q)


def fit(framework="numpy"):
    if framework == "jax":
        return vhat.from_jax(product, THETA, X, RESPONSES, weight_decay=LAM)
    if framework == "torch":
        return vhat.from_torch(Linear(), X, RESPONSES, weight_decay=LAM)
    derivatives = {"jac": lambda q, Z: Z, "hess": lambda q, Z: np.zeros((len(Z), INPUTS, INPUTS))}
    return vhat.from_numpy(lambda q, Z: Z @ q, THETA, X, RESPONSES, weight_decay=LAM, **derivatives)


@pytest.fixture
def four_at_a_time(monkeypatch):
    """Test points are measured in blocks of four."""
    monkeypatch.setattr("vhat.variance.weighted_norm.points_together", lambda _: 4)


class Finger:
    """Presses Ctrl-C in a coming call of one method of a model's problem."""

    def __init__(self, framework, method):
        problem = fit(framework).problem
        kind, self.calls, self.at = type(problem), count(1), ()

        def called(_, *args):
            if next(self.calls) in self.at:
                signal.raise_signal(signal.SIGINT)
            return getattr(kind, method)(twin, *args)

        twin = copy.copy(problem)
        object.__setattr__(twin, "__class__", type(kind.__name__, (kind,), {method: called}))
        self.fitted = vhat.FittedModel(twin)

    def press(self, *at):
        """Press in these calls, counted from now."""
        self.calls, self.at = count(1), at


def check_record(stop, full, finished):
    """The rows that are finished are those of a run that was let be; the others have no number."""
    record = stop.value.record
    assert isinstance(record, vhat.WeightedNorm)
    assert record.value.shape == full.value.shape
    np.testing.assert_array_equal(record.status != "interrupted", finished)
    np.testing.assert_allclose(record.value[finished], full.value[finished], rtol=1e-9)
    np.testing.assert_allclose(record.unsupported[finished], full.unsupported[finished], atol=1e-9)
    assert set(record.status[finished]) <= {"converged"}
    for numbers in (record.value, record.unsupported, record.residual):
        np.testing.assert_array_equal(np.isnan(numbers), ~finished)
    assert f"{finished.sum()} of {finished.size} predictions were finished" in str(stop.value)
    assert ("stop.record" in str(stop.value)) == finished.any()


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("framework", ["jax", "torch", "numpy"])
def test_blocks_that_are_finished_are_in_the_record(framework, name, four_at_a_time):
    finger = Finger(framework, "gradients")
    ask = {"solver": SOLVERS[name], "curvature": "ggn"}
    full = finger.fitted.weighted_norm(POINTS, **ask)
    finger.press(3)
    with pytest.raises(vhat.Interrupted) as stop:
        finger.fitted.weighted_norm(POINTS, **ask)
    check_record(stop, full, np.arange(len(POINTS)) < 8)
    np.testing.assert_array_equal(finger.fitted.weighted_norm(POINTS, **ask).value, full.value)


@pytest.mark.parametrize("framework", ["jax", "torch", "numpy"])
def test_rows_of_a_block_that_have_converged_are_finished(framework):
    finger = Finger(framework, "product")
    ask = {"solver": vhat.CG(), "curvature": "ggn"}
    full = finger.fitted.weighted_norm(POINTS, **ask)
    for steps in (1, 2, 3, 4, 6):
        finger.press(steps + 1)
        with pytest.raises(vhat.Interrupted) as stop:
            finger.fitted.weighted_norm(POINTS, **ask)
        check_record(stop, full, full.steps <= steps)
    assert 0 < np.sum(full.steps <= 1) < np.sum(full.steps <= 4) < len(POINTS)
    np.testing.assert_array_equal(finger.fitted.weighted_norm(POINTS, **ask).value, full.value)


def test_blocks_of_the_solver_that_are_finished_are_finished():
    finger = Finger("numpy", "product")
    ask = {"solver": vhat.CG(block=4), "curvature": "ggn"}
    full = finger.fitted.weighted_norm(POINTS, **ask)
    blocks = full.steps.reshape(3, 4).max(axis=1) + 2  # the steps, the true residual and the part that the data hold
    finger.press(int(blocks[:2].sum()) + 2)
    with pytest.raises(vhat.Interrupted) as stop:
        finger.fitted.weighted_norm(POINTS, **ask)
    check_record(stop, full, (np.arange(12) < 8) | (full.steps <= 1))


def test_nothing_finished_is_a_record_of_nothing():
    finger = Finger("numpy", "gradients")
    full = finger.fitted.weighted_norm(POINTS)
    finger.press(1)
    with pytest.raises(vhat.Interrupted) as stop:
        finger.fitted.weighted_norm(POINTS)
    check_record(stop, full, np.zeros(len(POINTS), dtype=bool))
    assert "not finite" in repr(stop.value.record)


@pytest.mark.parametrize("method", ["interval", "sensitivity"])
def test_intervals_and_sensitivities_leave_the_same_record(method, four_at_a_time):
    finger = Finger("numpy", "gradients")
    fitted, options = finger.fitted, {"solver": vhat.CG()}
    noise = RNG.uniform(0.5, 2.0, len(X))
    if method == "interval":
        options |= {"noise": noise}
        band = fitted.interval(POINTS, **options)
        value, unsupported = band.weighted_norm, band.unsupported
    else:
        value = len(X) * np.sum(fitted.sensitivity(POINTS, **options) ** 2, axis=1)
        unsupported = fitted.weighted_norm(POINTS, **options).unsupported
    fitted.release()  # or V of the same points would not be solved for again
    finger.press(3)
    with pytest.raises(vhat.Interrupted) as stop:
        getattr(fitted, method)(POINTS, **options)
    done = np.arange(len(POINTS)) < 8
    np.testing.assert_allclose(stop.value.record.value[done], value[done], rtol=1e-9)
    np.testing.assert_allclose(stop.value.record.unsupported[done], unsupported[done], rtol=1e-9)
    assert set(stop.value.record.status[~done]) == {"interrupted"}


def test_a_functional_leaves_a_record_of_its_own_shape():
    finger = Finger("numpy", "product")
    q = lambda theta: theta[:3] ** 2  # noqa: E731
    band = finger.fitted.functional(q, solver=vhat.CG(), curvature="ggn", noise=0.1)
    finger.press(2)
    with pytest.raises(vhat.Interrupted) as stop:
        finger.fitted.functional(q, solver=vhat.CG(), curvature="ggn", noise=0.1)
    assert stop.value.record.value.shape == band.center.shape == (3,)


def test_ctrl_c_stops_programs_and_a_record_can_travel():
    assert issubclass(vhat.Interrupted, KeyboardInterrupt)
    assert not issubclass(vhat.Interrupted, Exception)
    assert "ask for it again" in vhat.Status("interrupted").remedy
    record = fit().weighted_norm(POINTS)
    twin = pickle.loads(pickle.dumps(vhat.Interrupted("a sentence", record)))
    assert str(twin) == "a sentence"
    np.testing.assert_array_equal(twin.record.value, record.value)


def test_a_second_ctrl_c_stops_the_gathering_of_finished_rows():
    finger = Finger("numpy", "product")
    ask = {"solver": vhat.CG(), "curvature": "ggn"}
    full = finger.fitted.weighted_norm(POINTS, **ask)
    finger.press(3, 4)
    with pytest.raises(KeyboardInterrupt) as stop:
        finger.fitted.weighted_norm(POINTS, **ask)
    assert next(finger.calls) == 5  # nothing was computed after it
    assert set(stop.value.record.status) == {"interrupted"}
    np.testing.assert_array_equal(finger.fitted.weighted_norm(POINTS, **ask).value, full.value)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("method", ["product", "gradients", "jvp", "diagonal"])
def test_wherever_it_comes_nothing_is_left_half_made(method, name, four_at_a_time):
    full = fit().interval(POINTS, solver=SOLVERS[name])
    finger = Finger("numpy", method)
    finger.fitted.interval(POINTS, solver=SOLVERS[name])
    calls = next(finger.calls) - 1
    for at in range(1, calls + 1, max(1, calls // 6)):
        finger = Finger("numpy", method)
        finger.press(at)
        with pytest.raises(vhat.Interrupted) as stop:  # also while the noise is measured
            finger.fitted.interval(POINTS, solver=SOLVERS[name])
        assert stop.value.record.value.shape == full.center.shape
        again = finger.fitted.interval(POINTS, solver=SOLVERS[name])
        np.testing.assert_array_equal(again.half_width, full.half_width)
        assert again.guarantee == full.guarantee


SLOW = """
    import time
    import numpy as np
    import vhat

    rng = np.random.default_rng(0)
    X, x = rng.normal(size=(20, 3)), rng.normal(size=(2000, 3))
    y = X @ np.ones(3) + 0.1 * rng.normal(size=20)

    def jac(q, Z):
        if len(Z) == 256:
            print("block", flush=True)
            time.sleep(0.2)
        return Z

    fitted = vhat.from_numpy(lambda q, Z: Z @ q, np.ones(3), X, y, jac=jac, hess=lambda q, Z: np.zeros((len(Z), 3, 3)))
    ENDING
"""
KEPT = """try:
        fitted.weighted_norm(x)
    except vhat.Interrupted as stop:
        done = stop.record.status == "converged"
        right = np.array_equal(stop.record.value[done], fitted.weighted_norm(x[done]).value)
        print("kept", done.sum(), right, set(stop.record.status[~done]))"""


@pytest.mark.parametrize("ending", [KEPT, "fitted.weighted_norm(x)"], ids=["caught", "not caught"])
def test_a_program_is_stopped_from_outside(ending):
    script = textwrap.dedent(SLOW.replace("ENDING", ending))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        for _ in range(3):
            assert program.stdout.readline() == "block\n"
        time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
    if ending == KEPT:
        assert program.returncode == 0, err
        assert "kept 512 True {np.str_('interrupted')}" in out
    else:
        assert program.returncode != 0
        assert "vhat.errors.Interrupted: 512 of 2000 predictions were finished" in err


def test_leave_one_out_keeps_the_rows_that_were_left_out(four_at_a_time):
    finger = Finger("numpy", "gradients")
    full = finger.fitted.leave_one_out(curvature="ggn")
    finger.press(3)
    with pytest.raises(vhat.Interrupted, match=r"8 of 30 rows were left out .*stop\.record") as stop:
        finger.fitted.leave_one_out(curvature="ggn")
    record, done = stop.value.record, np.arange(30) < 8
    assert isinstance(record, vhat.LeaveOneOut)
    for name in ("prediction", "residual", "leverage", "weighted_norm"):
        np.testing.assert_array_equal(getattr(record, name)[done], getattr(full, name)[done])
        assert np.all(np.isnan(getattr(record, name)[~done]))
    assert set(record.status[~done]) == {"interrupted"}
    np.testing.assert_array_equal(finger.fitted.leave_one_out(curvature="ggn").prediction, full.prediction)


def test_an_audit_keeps_the_lines_that_are_finished_and_goes_on_with_what_was_measured():
    full = fit().audit()
    finger = Finger("numpy", "jvp")
    finger.fitted.audit()
    calls = next(finger.calls) - 1
    for at in (1, calls):
        finger = Finger("numpy", "jvp")
        finger.press(at)
        with pytest.raises(vhat.Interrupted, match=r"audit that were finished: .*audit\(\) again") as stop:
            finger.fitted.audit()
        record = stop.value.record
        assert isinstance(record, vhat.Audit)
        assert len(record) < len(full)
        for mine, line in zip(record, full, strict=False):
            assert (mine.name, mine.verdict) == (line.name, line.verdict)
        assert [line.verdict for line in finger.fitted.audit()] == [line.verdict for line in full]
