"""The audit finds what is wrong with a fit, says so in words that are true, and calls nothing good that is not."""

from __future__ import annotations

import math
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import vhat
from vhat.evidence.audit.result import Audit, Line, share_sentences

NAMES = [
    "stationarity",
    "alignment",
    "implied decay",
    "smallest eigenvalue",
    "conditioning",
    "residual curvature",
    "smoothness",
    "noise",
    "lack of fit",
    "unequal noise",
    "outliers",
    "support",
    "determinism",
    "precision",
    "basin",
    "tail",
    "gaussian noise",
]
RNG = np.random.default_rng(0)
N, LAM = 40, 1e-2
X = np.sort(RNG.uniform(-2, 2, N))[:, None]
WAVES = np.sin(2 * X + np.arange(3)) + 0.4 * RNG.standard_normal((N, 3))
Y = WAVES[:, 0]
START = {"w": RNG.normal(size=(1, 4)), "b": RNG.normal(size=4), "v": RNG.normal(size=(4, 3)), "c": RNG.normal(size=3)}


def start(outputs):
    return {**START, "v": START["v"][:, :outputs], "c": START["c"][:outputs]}


def layered(activation):
    def predict(q, Z):
        return activation(Z @ q["w"] + q["b"]) @ q["v"] + q["c"]

    return predict


network = layered(jnp.tanh)


def penalty(q):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(q))


def train(objective, params):
    """Minimise by SciPy's BFGS on JAX gradients in float64: a training loop that knows nothing of vhat."""
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), params))
        both = jax.jit(jax.value_and_grad(lambda t: objective(unravel(t))))

        def value(t):
            v, g = both(t)
            return float(v), np.asarray(g)

        found = minimize(value, np.asarray(flat), jac=True, method="BFGS", options={"gtol": 1e-8, "maxiter": 5000})
        return jax.tree.map(np.asarray, unravel(jnp.asarray(found.x)))


def doubtful(audit):
    return [line.name for line in audit if line.verdict in ("fails", "undecided")]


@pytest.fixture(scope="module")
def minimum():
    """One output, trained on the half squared error with decay LAM on every parameter."""
    y = WAVES[:, :1]
    q = train(lambda q: 0.5 * jnp.mean((network(q, X) - y) ** 2) + 0.5 * LAM * penalty(q), start(1))
    return vhat.from_jax(network, q, X, y, weight_decay=LAM)


def elsewhere(fitted, params, **options):
    return vhat.from_jax(network, params, X, WAVES[:, :1], **{"weight_decay": LAM, **options})


# -- linear models in NumPy: exact answers, no compilation -----------------------------------------
COLUMNS = np.random.default_rng(1).normal(size=(30, 3))
RESPONSES = COLUMNS @ [1.0, -2.0, 0.5] + 0.3 * np.random.default_rng(2).standard_normal(30)


def linear(q, Z):
    return Z @ q


def ridge(lam, y=RESPONSES, Z=COLUMNS):
    """Return the minimiser of 1/(2n) |Zq - y|^2 + 1/2 sum lam q^2."""
    n, p = Z.shape
    return np.linalg.solve(Z.T @ Z / n + np.diag(np.broadcast_to(lam, p)), Z.T @ y / n)


def ridge_audit(lam, stated, **options):
    return vhat.from_numpy(linear, ridge(lam), COLUMNS, RESPONSES, weight_decay=stated).audit(**options)


# -- the good case ---------------------------------------------------------------------------------
def test_trained_minimum_passes_every_line_that_can_be_tested(minimum):
    audit = minimum.audit(refits=5)
    assert audit.holds
    assert [line.name for line in audit] == NAMES
    assert {name: audit[name].verdict for name in NAMES} == {
        **dict.fromkeys(NAMES, "holds"),
        "implied decay": "noted",
        "residual curvature": "noted",
        "tail": "assumed",
        "gaussian noise": "assumed",
    }
    assert audit["alignment"].value == pytest.approx(1.0, abs=1e-4)
    assert audit["implied decay"].value == pytest.approx(LAM, rel=1e-4)
    assert audit["implied decay"].threshold == pytest.approx(LAM)


# -- the loss that was really minimised ------------------------------------------------------------
@pytest.mark.parametrize("outputs", [1, 3])
def test_forgotten_mse_shows_as_half_the_outputs_and_is_named(outputs):
    y = WAVES[:, :outputs]
    q = train(lambda q: jnp.mean((network(q, X) - y) ** 2) + 0.5 * LAM * penalty(q), start(outputs))
    audit = vhat.from_jax(network, q, X, y, weight_decay=LAM).audit(noise=0.4)
    assert not audit.holds
    assert audit["alignment"].value == pytest.approx(outputs / 2, rel=1e-3)
    assert audit["alignment"].verdict == audit["stationarity"].verdict == "fails"
    assert 'Pass loss="mse"' in audit["alignment"].remedy
    assert audit["implied decay"].value == pytest.approx(outputs * LAM / 2, rel=1e-3)
    described = vhat.from_jax(network, q, X, y, weight_decay=LAM, loss="mse").audit(noise=0.4)
    # four units under this decay do not follow three waves
    assert doubtful(described) == ([] if outputs == 1 else ["lack of fit"])
    assert described["alignment"].value == pytest.approx(1.0, rel=1e-3)


def test_with_two_outputs_mse_and_half_mse_are_one_objective_and_a_sum_of_squares_is_found():
    y = WAVES[:, :2]
    q = train(lambda q: jnp.mean((network(q, X) - y) ** 2) + 0.5 * LAM * penalty(q), start(2))
    half, mse = (vhat.from_jax(network, q, X, y, weight_decay=LAM, loss=loss).audit() for loss in ("half_mse", "mse"))
    assert half.holds
    assert mse.holds
    for name in NAMES:
        np.testing.assert_equal(half[name].value, mse[name].value)
    q = train(lambda q: jnp.sum((network(q, X) - y) ** 2) / N + 0.5 * LAM * penalty(q), start(2))
    audit = vhat.from_jax(network, q, X, y, weight_decay=LAM).audit()
    assert audit["alignment"].value == pytest.approx(0.5, rel=1e-3)
    assert audit["alignment"].verdict == audit["stationarity"].verdict == "fails"
    assert "without the half" in audit["alignment"].remedy
    assert "Halve weight_decay" in audit["alignment"].remedy
    assert "mse" not in audit["alignment"].remedy
    assert vhat.from_jax(network, q, X, y, weight_decay=LAM / 2).audit().holds


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (2.0, r"Double weight_decay\. Or: .* Pass loss=\"half_mse\""),
        (1 / 30, "over the 30 rows. Divide weight_decay by n"),
        (1 / 60, "Divide weight_decay by 2n"),
        (1.3, r"1\.3 times the decay described \(lam = 0\.13 "),
    ],
)
def test_other_slips_of_the_objective_are_named_by_their_ratio(ratio, words):
    audit = ridge_audit(0.1 * ratio, 0.1)
    assert audit["alignment"].value == pytest.approx(ratio)
    assert audit["alignment"].verdict == "fails"
    assert re.search(words, audit["alignment"].remedy)


def test_ratio_of_one_half_away_from_a_minimum_accuses_no_loss():
    q = ridge(0.1) + np.array([0.0, 0.03, -0.3])
    slope = COLUMNS.T @ (COLUMNS @ q - RESPONSES) / 30
    stated = -2 * (slope @ q) / (q @ q)  # the ratio is then 1/2
    assert stated > 0
    assert -(slope @ q) < 0.8 * np.linalg.norm(slope) * np.linalg.norm(q)
    line = vhat.from_numpy(linear, q, COLUMNS, RESPONSES, weight_decay=stated).audit()["alignment"]
    assert line.value == pytest.approx(0.5)
    assert line.verdict == "fails"
    assert "mse" not in line.remedy
    assert "stopped short of a minimum" in line.remedy


@pytest.mark.parametrize("optimiser", ["SGD", "Adam", "LBFGS"])
def test_plain_torch_loop_on_mseloss_holds_as_mse_and_fails_with_the_remedy_as_half_mse(optimiser):
    module, rows, targets = torch_loop(optimiser)
    audit = vhat.from_torch(module, rows, targets, weight_decay=LAM, loss="mse").audit()
    assert audit.holds, audit
    audit = vhat.from_torch(module, rows, targets, weight_decay=LAM).audit()
    assert audit["alignment"].value == pytest.approx(0.5, rel=0.02)
    assert audit["alignment"].verdict == audit["stationarity"].verdict == "fails"
    assert 'Pass loss="mse"' in audit["alignment"].remedy


def torch_loop(optimiser):
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    rows, targets, loss = torch.tensor(X), torch.tensor(WAVES[:, :1]), torch.nn.MSELoss()
    steps, make = {
        "SGD": (1500, lambda q: torch.optim.SGD(q, lr=0.2, momentum=0.9, weight_decay=LAM)),
        "Adam": (1500, lambda q: torch.optim.Adam(q, lr=0.03, weight_decay=LAM)),
        "LBFGS": (3, lambda q: torch.optim.LBFGS(q, max_iter=500, line_search_fn="strong_wolfe")),
    }[optimiser]
    optimizer = make(module.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def closure():
        optimizer.zero_grad()
        value = loss(module(rows), targets)
        if optimiser == "LBFGS":  # it has no weight_decay of its own
            value = value + 0.5 * LAM * sum(q.square().sum() for q in module.parameters())
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(closure)
        if optimiser != "LBFGS":
            schedule.step()
    return module, rows, targets


def test_decoupled_decay_that_never_acted_is_found():
    recipe = vhat.fit.AdamW(vhat.fit.Network((1, 4, 1), "tanh"), weight_decay=LAM, steps=2000, learning_rate=1e-2)
    audit = recipe(X, Y, seed=0).audit()
    assert abs(audit["alignment"].value) < 0.1
    assert audit["alignment"].verdict == audit["stationarity"].verdict == "fails"
    assert "decoupled decay (AdamW)" in audit["alignment"].remedy
    assert "fitted.polish()" in audit["alignment"].remedy


# -- not a minimum ---------------------------------------------------------------------------------
def test_perturbed_parameters_are_not_a_minimum_and_polish_mends_them(minimum):
    rng = np.random.default_rng(3)
    moved = elsewhere(minimum, jax.tree.map(lambda a: a + 0.03 * rng.normal(size=a.shape), minimum.params))
    audit = moved.audit()
    assert audit["stationarity"].verdict == "fails"
    assert audit["stationarity"].value > 0.1
    assert "not a minimum" in audit["stationarity"].remedy
    assert not audit.holds
    assert moved.polish().audit().holds
    with pytest.warns(vhat.NotMinimumWarning, match=r"stationarity fails: .*fitted\.polish\(\)"):
        moved.interval(X[:2], curvature="ggn")


def test_stationarity_is_measured_in_the_spread_that_the_noise_gives():
    """Move a ridge fit by a known share of its own standard errors: the line reads that share."""
    q, lam, sigma = ridge(0.1), 0.1, 0.3
    A = COLUMNS.T @ COLUMNS / 30 + lam * np.eye(3)
    S = COLUMNS @ np.linalg.solve(A, COLUMNS.T) / 30
    for share, verdict in ((0.009, "holds"), (0.011, "fails")):
        e = np.array([0.3, -0.5, 0.8])
        e *= share * math.sqrt(sigma**2 * np.trace(S) / 30 / (e @ A @ e))
        fitted = vhat.from_numpy(linear, q + e, COLUMNS, RESPONSES, weight_decay=lam)
        line = fitted.audit(noise=sigma)["stationarity"]
        assert line.value == pytest.approx(share, rel=1e-6)
        assert line.verdict == verdict


def test_saddle_is_stationary_but_has_negative_curvature():
    """Two tanh units that start alike stay alike: gradient descent ends on a saddle."""
    y = WAVES[:, :1]
    alike = {"w": np.ones((1, 4)), "b": np.full(4, 0.2), "v": np.full((4, 1), 0.5), "c": np.full(1, 0.1)}
    lam = 1e-3
    q = train(lambda q: 0.5 * jnp.mean((network(q, X) - y) ** 2) + 0.5 * lam * penalty(q), alike)
    fitted = vhat.from_jax(network, q, X, y, weight_decay=lam)
    audit = fitted.audit()
    assert audit["stationarity"].verdict == audit["alignment"].verdict == "holds"
    assert audit["smallest eigenvalue"].verdict == "fails"
    assert audit["smallest eigenvalue"].value < -0.01
    assert "saddle" in audit["smallest eigenvalue"].remedy
    assert not audit.holds
    assert fitted.audit(curvature="hessian")["smallest eigenvalue"] == audit["smallest eigenvalue"]
    with pytest.raises(vhat.NotPositiveDefinite, match=r"indefinite.*fitted\.polish\(\)"):
        fitted.interval(X[:2], curvature="hessian")
    assert fitted.polish().audit()["smallest eigenvalue"].verdict == "holds"


def test_residual_curvature_says_how_far_gauss_newton_is_off():
    """With R a share t of A along every move, V by Gauss-Newton is off by (1 - t)^2: read off one parameter."""
    a, y = np.ones(12), np.tile([0.3, -0.3, 0.1, -0.1], 3)
    for t in (0.0, 0.2, -0.4):
        b = -t / (1 - t) * (a @ a) / (y @ y) * y
        fitted = vhat.from_numpy(
            lambda q, Z: Z[:, 0] * q[0] + 0.5 * Z[:, 1] * q[0] ** 2, [0.0], np.stack([a, b], axis=1), y
        )
        line = fitted.audit(noise=0.1)["residual curvature"]
        assert line.value == pytest.approx(abs(t), abs=1e-9)
        assert ("would do" in line.remedy) == (t == 0)
        exact, gauss = (fitted.weighted_norm([[1.0, 0.0]], curvature=kind).value[0] for kind in ("hessian", "ggn"))
        assert exact / gauss == pytest.approx((1 - t) ** 2)


# -- kinks -----------------------------------------------------------------------------------------
def tuned(activation):
    """Train to where BFGS gets, which for a kinked model is nowhere in particular."""
    predict, y = layered(activation), WAVES[:, :1]
    q = train(lambda q: 0.5 * jnp.mean((predict(q, X) - y) ** 2) + 0.5 * LAM * penalty(q), start(1))
    return vhat.from_jax(predict, q, X, y, weight_decay=LAM)


@pytest.mark.parametrize("activation", [jax.nn.relu, jnp.abs], ids=["relu", "abs"])
def test_kinked_model_is_found(activation):
    line = tuned(activation).audit()["smoothness"]
    assert line.verdict == "fails"
    assert line.value > 0.01
    assert "kinks" in line.remedy


def test_smooth_activation_beside_it_is_not_called_kinked():
    line = tuned(jax.nn.softplus).audit()["smoothness"]
    assert line.verdict == "holds"
    assert line.value < 1e-6


def test_sharp_but_smooth_model_is_not_called_kinked(minimum):
    """Without decay a noise-sized move goes far and bends: that may be left open, but it is no kink."""
    audit = elsewhere(minimum, minimum.params, weight_decay=0.0).audit(noise=0.2)
    assert audit["smoothness"].verdict in ("holds", "undecided")
    assert "has kinks" not in audit["smoothness"].remedy


def test_kink_of_the_loss_is_found_and_a_jump_of_its_curvature_is_left_open():
    def audit(loss):
        q = jnp.asarray(ridge(0.1))
        return vhat.from_jax(lambda q, Z: Z @ q, q, COLUMNS, RESPONSES, weight_decay=0.1, loss=loss).audit()

    line = audit(lambda f, y: 0.5 * (f - y) ** 2 + 0.3 * jnp.abs(f - y))["smoothness"]
    assert line.verdict == "fails"
    assert "the loss has kinks" in line.remedy
    line = audit(lambda f, y: jnp.where(jnp.abs(f - y) < 0.3, 0.5 * (f - y) ** 2, 0.3 * jnp.abs(f - y) - 0.045))
    assert line["smoothness"].verdict == "undecided"


def test_edge_of_the_domain_within_reach_of_the_noise_is_not_passed():
    """log(q) at a q that one redraw of the noise makes negative."""
    y = np.log(0.1) + np.array([2.0, -2.0, 2.5, -2.5, 2.0, -2.0, 2.5, -2.5])
    fitted = vhat.from_numpy(lambda q, Z: np.log(q[0]) + 0 * Z, [0.1], np.arange(8.0), y)
    audit = fitted.audit(noise=4.0)
    assert audit["smoothness"].verdict == "undecided"
    assert "domain" in audit["smoothness"].remedy
    assert not audit.holds


# -- the model itself ------------------------------------------------------------------------------
SWITCH = {"random": False}
DICE = np.random.default_rng(4)


def test_random_jax_model_is_refused_and_one_that_becomes_random_is_found():
    def predict(q, Z):
        return Z @ q + (DICE.normal() if SWITCH["random"] else 0.0)

    fitted = vhat.from_jax(predict, ridge(0.1), COLUMNS, RESPONSES, weight_decay=0.1)
    assert fitted.audit()["determinism"].verdict == "holds"
    SWITCH["random"] = True
    try:
        audit = fitted.audit()
        with pytest.raises(vhat.ModelError, match="two evaluations of the model on the same rows differ"):
            vhat.from_jax(predict, ridge(0.1), COLUMNS, RESPONSES, weight_decay=0.1)
    finally:
        SWITCH["random"] = False
    assert audit["determinism"].verdict == "fails"
    assert "random state" in audit["determinism"].remedy
    assert not audit.holds


@pytest.mark.parametrize("change", [DICE.normal, lambda: 0.01], ids=["random", "other"])
def test_numpy_model_that_becomes_another_function_is_found(change):
    def predict(q, Z):
        return Z @ q + (change() if SWITCH["random"] else 0.0)

    fitted = vhat.from_numpy(predict, ridge(0.1), COLUMNS, RESPONSES, weight_decay=0.1)
    assert fitted.audit()["determinism"].verdict == "holds"
    SWITCH["random"] = True
    try:
        audit = fitted.audit()
    finally:
        SWITCH["random"] = False
    assert audit["determinism"].verdict == "fails"


def test_torch_model_that_becomes_random_is_found():
    class Noisy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(3, 1).double()

        def forward(self, Z):
            return torch.nn.functional.dropout(self.line(Z)[:, 0], 0.5, training=SWITCH["random"])

    torch.manual_seed(0)
    fitted = vhat.from_torch(Noisy().eval(), COLUMNS, RESPONSES, weight_decay=1e-3).polish()
    assert fitted.audit().holds
    SWITCH["random"] = True
    try:
        audit = fitted.audit()
    finally:
        SWITCH["random"] = False
    assert audit["determinism"].verdict == "fails"


def test_cast_to_float32_inside_the_model_is_found():
    def predict(q, Z):
        return (Z @ q).astype(jnp.float32)

    audit = vhat.from_jax(predict, ridge(0.1), COLUMNS, RESPONSES, weight_decay=0.1).audit()
    assert audit["precision"].verdict == "fails"
    assert "float32" in audit["precision"].remedy
    assert not audit.holds
    audit = vhat.from_numpy(predict, ridge(0.1), COLUMNS, RESPONSES, weight_decay=0.1).audit()
    assert audit["precision"].verdict == "fails"


# -- what the data do not determine ----------------------------------------------------------------
def redundant(q, Z):
    return (q[0] + q[1]) * Z


LINE_X = np.linspace(-1, 1, 20)
LINE_Y = 2 * LINE_X + 0.1 * np.random.default_rng(5).standard_normal(20)
SLOPE = float(LINE_X @ LINE_Y / (LINE_X @ LINE_X))


@pytest.mark.parametrize("lam", [0.0, 1e-18, 1e-11])
def test_redundant_parameters_without_enough_decay_are_not_passed(lam):
    fitted = vhat.from_numpy(redundant, [SLOPE / 2, SLOPE / 2], LINE_X, LINE_Y, weight_decay=lam)
    audit = fitted.audit()
    assert [line.name for line in audit] == NAMES
    assert audit["conditioning"].verdict == "undecided"
    assert "Raise weight_decay" in audit["conditioning"].remedy
    assert audit["smallest eigenvalue"].verdict == ("holds" if lam == 1e-11 else "undecided")
    assert not audit.holds
    if lam == 0:
        assert "singular" in audit["noise"].remedy
        assert fitted.audit(noise=0.1)["noise"].verdict == "assumed"
        with pytest.raises(vhat.NotPositiveDefinite, match="redundant"):
            fitted.interval([0.0])


def test_parameter_without_influence_or_decay_is_named_and_every_line_is_there():
    fitted = vhat.from_numpy(lambda q, Z: q[0] * Z + 0 * q[1], [SLOPE, 3.0], LINE_X, LINE_Y)
    audit = fitted.audit()
    assert [line.name for line in audit] == NAMES
    assert audit["smallest eigenvalue"].verdict == "fails"
    assert "1 of 2 parameters" in audit["smallest eigenvalue"].remedy
    assert not audit.holds


def test_decay_lost_in_rounding_is_noted_and_not_blamed():
    audit = ridge_audit(0.0, 1e-25)
    assert audit["alignment"].verdict == "noted"
    assert "lost in rounding" in audit["alignment"].remedy
    assert audit.holds


def test_without_decay_there_is_nothing_to_align_but_a_forgotten_one_is_named():
    audit = ridge_audit(0.0, 0.0)
    assert audit.holds
    assert audit["alignment"].verdict == "noted"
    assert audit["alignment"].remedy == "No decay was described."
    audit = ridge_audit(1e-2, 0.0)
    assert audit["stationarity"].verdict == "fails"
    assert "it was lam = 0.01: pass it as weight_decay" in audit["alignment"].remedy


def test_decay_with_zeros_aligns_over_the_parameters_that_decay():
    lam = np.array([0.2, 0.2, 0.0])
    audit = ridge_audit(lam, lam)
    assert doubtful(audit) == ["lack of fit"]  # so much decay takes a sixth of a coefficient: one noise level
    assert audit["alignment"].value == pytest.approx(1.0)
    assert audit["implied decay"].value == pytest.approx(0.2)
    assert audit["implied decay"].threshold == pytest.approx(0.2)
    assert ridge_audit(lam / 2, lam)["alignment"].value == pytest.approx(0.5)


def test_all_zero_parameters_are_no_minimum():
    fitted = vhat.from_numpy(linear, np.zeros(3), COLUMNS, RESPONSES, weight_decay=0.1)
    audit = fitted.audit()
    assert audit["stationarity"].verdict == "fails"
    assert audit["alignment"].verdict == "noted"
    assert "zero" in audit["alignment"].remedy
    assert not audit.holds
    zero = jax.tree.map(np.zeros_like, start(1))
    audit = vhat.from_jax(network, zero, X, WAVES[:, :1], weight_decay=LAM).audit()
    assert audit["smallest eigenvalue"].verdict == "fails"
    assert not audit.holds


# -- noise -----------------------------------------------------------------------------------------
def test_interpolating_fit_has_no_noise_to_estimate():
    Z = np.eye(4)
    fitted = vhat.from_numpy(linear, [1.0, 2.0, 3.0, 4.0], Z, np.array([1.0, 2.0, 3.0, 4.0]))
    audit = fitted.audit(refits=2)
    assert audit["noise"].verdict == "fails"
    assert "interpolates" in audit["noise"].remedy
    assert "Give noise=" in audit["noise"].remedy
    assert audit["stationarity"].verdict == "holds"
    assert audit["basin"].verdict == "undecided"
    assert not audit.holds
    audit = fitted.audit(noise=0.1, refits=2)
    assert audit["noise"].verdict == "assumed"
    assert audit["basin"].verdict == "holds"
    assert audit.holds


def test_given_noise_is_assumed_beside_what_the_residuals_say():
    fitted = vhat.from_numpy(linear, ridge(0.1), COLUMNS, RESPONSES, weight_decay=0.1)
    found = fitted.interval(COLUMNS[:1]).noise
    for given, words in ((found, "speak for"), (10 * found, "is it a standard deviation"), (0.1 * found, "misses")):
        line = fitted.audit(noise=given)["noise"]
        assert line.verdict == "assumed"
        assert f"The level {given:.4g} was given" in line.remedy
        assert words in line.remedy


@pytest.mark.parametrize("rows", [1, 4])
def test_noise_estimated_from_next_to_nothing_is_not_passed(rows):
    x, y = np.linspace(1.0, 2.0, rows), np.linspace(1.0, 2.1, rows)
    slope = x @ y / (x @ x + rows)
    fitted = vhat.from_numpy(lambda q, Z: q[0] * Z, [slope], x, y, weight_decay=1.0)
    audit = fitted.audit()
    assert audit["stationarity"].verdict == audit["alignment"].verdict == "holds"
    assert audit["noise"].verdict == "undecided"
    assert "degrees of freedom" in audit["noise"].remedy
    assert not audit.holds
    assert fitted.audit(noise=0.1)["noise"].verdict == "assumed"


def test_yes_or_no_responses_are_not_passed():
    y = (RESPONSES > 0).astype(float)
    fitted = vhat.from_numpy(linear, ridge(0.1, y), COLUMNS, y, weight_decay=0.1)
    audit = fitted.audit()
    assert audit["gaussian noise"].verdict == "fails"
    assert "yes/no" in audit["gaussian noise"].remedy
    assert not audit.holds


# -- does the minimum follow the data? -------------------------------------------------------------
def test_minimum_that_vanishes_under_the_noise_fails_the_basin_line():
    """f = q^2 fitted to a mean that the noise makes negative now and then: the two minima meet and are gone."""
    y = np.array([0.3, -0.25, 0.2, -0.1, 0.12, -0.05, 0.22, 0.02, -0.14, 0.1])
    fitted = vhat.from_numpy(lambda q, Z: q[0] ** 2 + 0 * Z, [math.sqrt(y.mean())], np.arange(10.0), y)
    audit = fitted.audit(refits=5)
    assert audit["stationarity"].verdict == audit["smallest eigenvalue"].verdict == "holds"
    assert audit["basin"].verdict == "fails"
    assert audit["basin"].value < 0.9
    assert not audit.holds
    assert fitted.audit()["basin"].verdict == "assumed"
    assert "refits=10" in fitted.audit()["basin"].remedy


def test_refits_are_not_started_from_what_is_no_minimum():
    line = ridge_audit(0.1, 0.2, refits=5)["basin"]
    assert line.verdict == "undecided"
    assert "settle stationarity first" in line.remedy


def test_other_lines_wait_for_stationarity_with_their_advice():
    """On a circle near its centre, away from the minimum: the noise line would ask for a level or more decay."""
    fitted = vhat.from_numpy(lambda q, Z: Z @ [np.cos(q[0]), np.sin(q[0])], [0.3], np.eye(2), [0.4, 0.0])
    audit = fitted.audit(curvature="ggn")
    assert audit["stationarity"].verdict == "fails"
    assert audit["noise"].verdict == "undecided"
    assert audit["noise"].remedy.startswith(
        "Settle stationarity first, which fails. If this line then stays: The level"
    )
    assert audit["basin"].remedy.startswith("Settle stationarity first, which fails")
    assert "olish" not in fitted.polish().audit()["noise"].remedy


def test_minimum_near_a_fold_is_not_passed_without_refits():
    """f = a q + b q^2/2 at q = 0 with H a tenth of its Gauss-Newton part: fitted values move ten times too far."""
    a, y = np.ones(12), np.tile([0.3, -0.3, 0.1, -0.1], 3)
    b = 0.9 * (a @ a) / (y @ y) * y
    columns = np.stack([a, b], axis=1)
    fitted = vhat.from_numpy(lambda q, Z: Z[:, 0] * q[0] + 0.5 * Z[:, 1] * q[0] ** 2, [0.0], columns, y)
    audit = fitted.audit()
    assert audit["stationarity"].verdict == audit["smallest eigenvalue"].verdict == "holds"
    assert audit["noise"].value == pytest.approx(11 / 12, rel=1e-6)  # by Gauss-Newton; the exact smoother says 92/12
    assert audit["noise"].verdict == "undecided"
    assert audit["basin"].verdict == "undecided"
    assert "near a fold" in audit["basin"].remedy
    assert not audit.holds
    assert not fitted.audit(noise=0.2).holds
    assert fitted.audit(refits=10)["basin"].verdict == "fails"


@pytest.mark.parametrize(
    ("rows", "share", "amplifies"), [(12, 0.45, False), (12, 0.55, True), (4, 0.3, False), (4, 0.4, True)]
)
def test_a_fit_amplifies_noise_where_its_count_exceeds_gauss_newton_s_by_a_tenth_or_by_one(rows, share, amplifies):
    """H is ``1 - share`` of its Gauss-Newton part, which adds ``(share/(1 - share))^2`` to ``n - 1``."""
    a, y = np.ones(rows), np.tile([0.3, -0.3, 0.1, -0.1], rows // 4)
    b = share * (a @ a) / (y @ y) * y
    columns = np.stack([a, b], axis=1)
    fitted = vhat.from_numpy(lambda q, Z: Z[:, 0] * q[0] + 0.5 * Z[:, 1] * q[0] ** 2, [0.0], columns, y)
    band = fitted.interval(columns)
    added = (share / (1 - share)) ** 2
    assert ("amplifies" in band.noise_source) == amplifies == (added > min(0.1 * (rows - 1), 1.0))
    freedom = rows - 1 + (0 if amplifies else added)
    assert band.noise == pytest.approx(np.sqrt(np.sum(y**2) / freedom), rel=1e-6)


CURVES = {
    "decay": (lambda q, x: q[0] * jnp.exp(-q[1] * x), [2.0, 1.0]),
    "logistic": (lambda q, x: q[0] / (1 + jnp.exp(-q[1] * (x - q[2]))), [2.0, 2.0, 1.5]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CURVES)
def test_ordinary_curves_are_not_called_near_a_fold(name):
    """Twenty redraws of a model that is right, noise a tenth of the range."""
    model, truth = CURVES[name]
    x = np.linspace(0, 3, 20)
    with jax.enable_x64(True):
        mean = np.asarray(model(jnp.asarray(truth), jnp.asarray(x)))
    for seed in range(20):
        y = mean + 0.1 * np.ptp(mean) * np.random.default_rng(seed).standard_normal(20)
        fitted = vhat.from_jax(model, np.array(truth), x, y, weight_decay=0.0).polish()
        assert "amplifies" not in fitted.interval(x).noise_source


def test_basin_line_of_a_linear_model_holds_and_same_seed_gives_the_same_audit():
    fitted = vhat.from_numpy(linear, ridge(0.1), COLUMNS, RESPONSES, weight_decay=0.1)
    one, two = fitted.audit(refits=5, seed=7), fitted.audit(refits=5, seed=7)
    assert one["basin"].value == 1.0
    assert one["basin"].verdict == "holds"
    assert repr(one) == repr(two)


# -- units -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("unit", [1e6, 1e-6])
def test_unit_of_y_changes_no_verdict_and_no_value(minimum, unit):
    """y -> a y, v -> a v, c -> a c; the decay of w and b is a^2 lam, that of v and c lam: the same problem."""
    q = minimum.params
    for moved in (0.0, 0.1):
        base = {**q, "w": q["w"] + moved}
        other = {**base, "v": unit * base["v"], "c": unit * base["c"]}
        decay = {"w": unit**2 * LAM, "b": unit**2 * LAM, "v": LAM, "c": LAM}
        plain = elsewhere(minimum, base).audit(refits=0 if moved else 3)
        fitted = vhat.from_jax(network, other, X, unit * WAVES[:, :1], weight_decay=decay)
        scaled = fitted.audit(refits=0 if moved else 3)
        assert plain.holds == scaled.holds == (moved == 0.0)
        for name in NAMES:
            assert plain[name].verdict == scaled[name].verdict
            if name in ("stationarity", "smallest eigenvalue", "conditioning", "residual curvature", "noise"):
                assert scaled[name].value == pytest.approx(plain[name].value, rel=1e-5, abs=1e-8)


# -- reading it ------------------------------------------------------------------------------------
def test_prints_as_a_table_with_every_line_and_says_what_to_look_at(minimum):
    good, bad = repr(minimum.audit()), repr(elsewhere(minimum, minimum.params, weight_decay=2 * LAM).audit())
    assert good.startswith("Audit: 12 lines hold; nothing that can be tested fails")
    assert bad.startswith("Audit: 9 lines hold; look at: stationarity, alignment, noise")
    for name in NAMES:
        assert f"│ {name} " in good
    assert 'loss="mse"' in bad
    assert max(map(len, bad.splitlines())) <= 120
    assert str(minimum.audit()) == good


def test_a_value_and_a_threshold_that_differ_are_printed_with_digits_that_show_it():
    line = Line("lack of fit", 0.27712, 0.27694, "fails", "Mend it.", "mean")
    assert str(line) == "lack of fit fails: mean is 0.2771 (threshold 0.2769). Mend it."
    assert re.search(r"0\.2771 .* 0\.2769 ", repr(Audit((line,))))
    assert Line("noise", 0.25, 0.01, "holds", "", "").numbers == ("0.25", "0.01")
    assert Line("noise", 0.25, 0.25, "holds", "", "").numbers == ("0.25", "0.25")
    assert Line("noise", math.nan, math.nan, "noted", "", "").numbers == ("", "")


def test_several_noise_levels_and_brackets_survive_printing():
    y = WAVES[:, :2]
    fitted = vhat.from_numpy(lambda q, Z: Z * q, [0.3, 0.2], X, y, weight_decay=0.1).polish()
    audit = fitted.audit()
    level = np.array2string(np.asarray(fitted.interval(X[:1]).noise), precision=4)
    assert level in audit["noise"].remedy
    assert level in " ".join(repr(audit).split())


def test_lines_are_found_by_name_and_an_unknown_name_lists_them(minimum):
    audit = minimum.audit()
    assert len(audit) == len(NAMES)
    line = audit["noise"]
    assert isinstance(audit, vhat.Audit)
    assert isinstance(line, vhat.Line)
    assert (line.name, line.verdict, line.threshold) == ("noise", "holds", 0.01)
    with pytest.raises(KeyError, match=r"nope.*'stationarity', 'alignment'.*'gaussian noise'"):
        audit["nope"]


def test_to_pandas_has_one_row_a_line(minimum):
    frame = minimum.audit().to_pandas()
    assert list(frame.index) == NAMES
    assert list(frame.columns) == ["value", "threshold", "verdict", "remedy", "meaning"]
    assert frame.loc["stationarity", "verdict"] == "holds"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"refits": -1}, "refits=-1 is not a whole number"),
        ({"refits": 2.5}, r"refits=2\.5"),
        ({"refits": "5"}, "refits='5'"),
        ({"seed": -1}, "seed=-1"),
        ({"noise": 0.0}, "noise must be positive"),
        ({"noise": np.ones(7)}, r"noise has shape \(7,\)"),
        ({"curvature": "exact"}, "curvature='exact' is not known. Use one of 'auto', 'hessian', 'ggn'"),
    ],
)
def test_unusable_options_are_refused(options, words):
    fitted = vhat.from_numpy(linear, ridge(0.1), COLUMNS, RESPONSES, weight_decay=0.1)
    with pytest.raises(vhat.InputError, match=words):
        fitted.audit(**options)


def test_audit_leaves_the_model_and_the_precision_of_jax_as_they_were(minimum):
    before = jax.tree.map(np.copy, minimum.params)
    flag = jax.config.jax_enable_x64
    minimum.audit(refits=1)
    assert jax.config.jax_enable_x64 == flag
    jax.tree.map(np.testing.assert_array_equal, before, minimum.params)


def test_stationarity_belongs_to_the_noise_of_each_row_and_not_to_its_size_alone():
    """Two noises of one size: on rows that say nothing of the parameter, and on those that do."""
    rng = np.random.default_rng(0)
    Z = np.zeros((20, 1))
    Z[:10, 0] = rng.normal(size=10)
    y = Z[:, 0] + 0.1 * rng.standard_normal(20)
    theta = Z.T @ y / (np.sum(Z**2) + 20 * 0.01) + 5e-4
    quiet, loud = np.full(20, 0.001), np.full(20, 0.001)
    quiet[10:], loud[:10] = 0.2, 0.2

    def fitted():
        return vhat.from_jax(lambda q, X: X @ q, theta, Z, y, weight_decay=0.01)

    alone = [fitted().audit(noise=noise)["stationarity"].value for noise in (quiet, loud)]
    assert alone[0] > 50 * alone[1]
    one = fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vhat.VhatWarning)
        claims = [one.interval([[1.0]], noise=noise).guarantee for noise in (quiet, loud)]
    assert ["not a minimum" in claim for claim in claims] == [value > 0.01 for value in alone] == [True, False]
    assert [one.audit(noise=noise)["stationarity"].value for noise in (quiet, loud)] == pytest.approx(alone)


# -- what is printed -------------------------------------------------------------------------------
def test_a_remedy_that_lines_share_is_printed_once():
    """An early-stopped ReLU network: four lines send the reader to linearised(), the table does once."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1), torch.nn.Flatten(0))
    fitted = vhat.from_torch(module, COLUMNS, RESPONSES, weight_decay=1e-2)
    audit = fitted.audit()
    advice = "fitted.linearised(validation=(X, y)) takes the model as it is"
    assert sum(advice in line.remedy for line in audit) >= 3
    printed = " ".join(repr(audit).split())
    assert printed.count(advice) == 1
    assert max(map(len, repr(audit).splitlines())) <= 120
    again = fitted.with_validation(COLUMNS + 0.1, RESPONSES).audit()
    assert "fitted.linearised() takes the model as it is" in again["stationarity"].remedy
    assert not any("validation=(X, y)" in line.remedy for line in again)


def test_sentences_of_the_same_texts_become_one_note():
    shared = "This is the longest sentence of all of them, and it is said twice. So is this."
    texts, notes = share_sentences([f"First. {shared}", f"{shared} Last.", "So is this.", "Alone."])
    assert notes == ["This is the longest sentence of all of them, and it is said twice."]
    assert texts == ["First. [1] So is this.", "[1] So is this. Last.", "So is this.", "Alone."]
