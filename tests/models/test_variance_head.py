"""Modules with a mean and a variance, trained by the Gaussian negative log-likelihood.

The oracle is weighted ridge regression in closed form, with the variances that the module predicts.
"""

import numpy as np
import pytest
import torch
from torch import nn

import vhat
from tests.models.torch_cases import data, mlp, seeded
from vhat.errors import InputError, ModelError, NoiseWarning
from vhat.models.torch import torch_problem

N, D, LAM = 60, 3, 0.05
X = data(N, D).double()
DEVIATION = 0.2 * torch.exp(0.6 * X[:, 0])
Y = X @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64) + 0.4 + DEVIATION * data(N, seed=5).double()
NEW = data(7, D, seed=9).double()


class TwoHeads(nn.Module):
    """A linear mean and a variance of its own."""

    def __init__(self, wrap=lambda mean, log_variance: (mean, log_variance)):
        super().__init__()
        self.mean, self.spread, self.wrap = nn.Linear(D, 1), mlp(D, 5, 1), wrap

    def forward(self, x):
        return self.wrap(self.mean(x)[:, 0], self.spread(x)[:, 0])


class OneLayer(nn.Module):
    """Mean and log variance are the two columns of one layer."""

    def __init__(self, wrap=lambda out: out):
        super().__init__()
        self.head, self.wrap = nn.Linear(D, 2), wrap

    def forward(self, x):
        return self.wrap(self.head(x))


def at_minimum(module, mean):
    """Put the mean of a module at the minimum of the weighted ridge problem; return the design, weights and theta."""
    design = torch.cat([X, torch.ones(N, 1, dtype=torch.float64)], dim=1)
    module = module.double()
    with torch.no_grad():
        log_variance = spread_of(module, X)
        weights = torch.exp(-log_variance)
        A = design.T @ (weights[:, None] * design) / N + LAM * torch.eye(D + 1, dtype=torch.float64)
        theta = torch.linalg.solve(A, design.T @ (weights * Y) / N)
        weight, bias = mean(module)
        weight.copy_(theta[:D])
        bias.copy_(theta[D])
    return module, design.numpy(), weights.numpy(), A.numpy()


def spread_of(module, x):
    return module.head(x)[:, 1] if isinstance(module, OneLayer) else module.spread(x)[:, 0]


def two_heads(wrap=lambda mean, log_variance: (mean, log_variance)):
    return at_minimum(seeded(lambda: TwoHeads(wrap)), lambda m: (m.mean.weight[0], m.mean.bias[0]))


def one_layer(wrap=lambda out: out):
    return at_minimum(seeded(lambda: OneLayer(wrap)), lambda m: (m.head.weight[0], m.head.bias[0]))


MODELS = {
    "pair": (two_heads, None),
    "one tensor": (one_layer, None),
    "dict": (lambda: two_heads(lambda m, s: {"s": s, "m": m}), ("m", "s")),
    "function": (lambda: one_layer(lambda out: {"both": out}), lambda out: out["both"]),
    "key of one tensor": (lambda: one_layer(lambda out: {"both": out}), "both"),
    "chunks": (lambda: one_layer(lambda out: out.chunk(2, dim=1)), lambda out: (out[0][:, 0], out[1][:, 0])),
}


@pytest.mark.parametrize("name", MODELS)
def test_intervals_are_those_of_weighted_ridge_regression(name):
    make, output = MODELS[name]
    module, design, weights, A = make()
    fitted = vhat.from_torch(module, X, Y, weight_decay=LAM, loss="gaussian_nll", output=output)
    assert fitted.problem.p == D + 1
    band = fitted.interval(NEW)
    g = np.column_stack([NEW.numpy(), np.ones(len(NEW))])
    h = np.linalg.solve(A, g.T).T @ (design * weights[:, None]).T / N  # d f / d y
    expected = np.sqrt(np.sum((h / np.sqrt(weights)) ** 2, axis=1))
    np.testing.assert_allclose(band.standard_error, expected, rtol=1e-8)
    np.testing.assert_allclose(fitted.sensitivity(NEW), h, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(fitted.polish().predict(NEW), fitted.predict(NEW), rtol=1e-8, atol=1e-9)
    assert band.bound == "exact"
    assert band.guarantee.startswith("Nominal")
    assert "noise as the model's own variance head has it, which is held fixed" in band.guarantee
    own = torch.exp(0.5 * spread_of(module, NEW)).detach().numpy()
    response = fitted.interval(NEW, target="observation")
    np.testing.assert_allclose(response.half_width, 1.959963984540054 * np.hypot(expected, own), rtol=1e-7)


def test_the_objective_is_that_of_torch():
    module, *_ = two_heads()
    problem = torch_problem(module, X, Y, weight_decay=LAM, loss="gaussian_nll")
    mean, log_variance = (part.detach() for part in module(X))
    torch_value = nn.GaussianNLLLoss()(mean, Y, torch.exp(log_variance))
    assert problem.objective() + 0.5 * float(log_variance.mean()) == pytest.approx(float(torch_value), rel=1e-12)


@pytest.mark.parametrize(("kind", "wrap"), [("variance", torch.exp), ("deviation", lambda s: torch.exp(0.5 * s))])
def test_a_variance_or_a_deviation_in_place_of_its_logarithm_gives_the_same(kind, wrap):
    log, other = two_heads()[0], two_heads(lambda mean, s: (mean, wrap(s)))[0]
    expected = torch_problem(log, X, Y, weight_decay=LAM, loss="gaussian_nll")
    found = torch_problem(other, X, Y, weight_decay=LAM, loss="gaussian_nll", variance_head=kind)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-12)
    np.testing.assert_allclose(found.own_noise(found.X), expected.own_noise(expected.X), rtol=1e-12)


def shared():
    module = seeded(lambda: nn.Sequential(nn.Linear(D, 6), nn.ReLU(), nn.Linear(6, 2))).double()
    with torch.no_grad():
        module[0].bias[2] = -100.0  # a unit that is off at every row is still one that the mean depends on
    return module


def test_what_only_the_variance_uses_is_held_fixed_and_a_unit_that_is_off_is_not():
    module = shared()
    problem = torch_problem(module, X, Y, weight_decay=LAM, loss="gaussian_nll")
    assert problem.leaves == ((6, D), (6,), (1, 6), (1,))
    params = problem.autodiff.params(problem.theta)
    for name, value in module.named_parameters():
        assert torch.equal(params[name], value)
    gradient = problem.numpy(problem.gradients(problem.X))
    leaves = {name: value.clone().requires_grad_() for name, value in module.named_parameters()}
    first = torch.func.functional_call(module, leaves, (X,))[0, 0]
    parts = torch.autograd.grad(first, list(leaves.values()))
    expected = np.concatenate([p.numpy().ravel() for p in (*parts[:2], parts[2][:1], parts[3][:1])])
    np.testing.assert_allclose(gradient[0], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.slow
def test_polish_moves_the_mean_and_leaves_the_variances():
    fitted = vhat.from_torch(
        seeded(lambda: nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 2))),
        X,
        Y,
        weight_decay=LAM,
        loss="gaussian_nll",
    )
    polished = fitted.polish()
    assert not np.allclose(polished.predict(NEW), fitted.predict(NEW))
    own = [each.problem.own_noise(each.problem.inputs(NEW)) for each in (fitted, polished)]
    np.testing.assert_array_equal(own[0], own[1])
    assert "certified minimum" in polished.interval(NEW).guarantee


def test_a_noise_that_is_given_wins():
    fitted = vhat.from_torch(two_heads()[0], X, Y, weight_decay=LAM, loss="gaussian_nll")
    given = fitted.interval(NEW, target="observation", noise=0.3)
    assert given.noise == pytest.approx(0.3)
    np.testing.assert_array_equal(given.observation_noise, 0.3)
    fresh = fitted.interval(NEW, target="observation", observation_noise=0.7)
    np.testing.assert_array_equal(fresh.observation_noise, 0.7)
    with pytest.raises(InputError, match="observation_noise="):
        fitted.interval(NEW, target="observation", noise=np.full(N, 0.3) + np.arange(N))
    scaled = fitted.interval(NEW, target="observation", noise="weights")
    own = fitted.interval(NEW, target="observation")
    ratio = scaled.observation_noise / own.observation_noise
    np.testing.assert_allclose(ratio, scaled.noise / own.noise, rtol=1e-12)


def test_calibration_takes_the_models_own_noise_on_both_sides():
    module, *_ = two_heads()
    fitted = vhat.from_torch(module, X, Y, weight_decay=LAM, loss="gaussian_nll")
    fresh_x, fresh_y = data(40, D, seed=11).double(), data(40, seed=12)
    band = fitted.interval(fresh_x, target="observation")
    own = torch.exp(0.5 * spread_of(module, fresh_x)).detach().numpy()
    calibrated = fitted.calibrate(fresh_x, fresh_y)
    scores = np.abs(fresh_y.numpy() - band.center) / np.hypot(band.standard_error, own)
    np.testing.assert_allclose(calibrated.scores, scores, rtol=1e-10)
    there = fitted.interval(NEW, target="observation")
    spread = np.hypot(there.standard_error, there.observation_noise)
    np.testing.assert_allclose(
        calibrated.interval(NEW, 0.2).half_width, np.sort(scores)[int(np.ceil(0.8 * 41)) - 1] * spread, rtol=1e-10
    )
    assert np.all(np.isfinite(fitted.calibrate("loo").interval(NEW, 0.2).half_width))


def test_linearised_keeps_the_variance_head_and_validation_rows_scale_it():
    module = shared()
    fitted = vhat.from_torch(module, X, Y, weight_decay=LAM, loss="gaussian_nll")
    tangent = fitted.linearised(0.1)
    band = tangent.interval(NEW, target="observation")
    np.testing.assert_array_equal(band.center, fitted.predict(NEW))
    own = torch.exp(0.5 * module(NEW)[:, 1]).detach().numpy()
    np.testing.assert_allclose(band.observation_noise, own, rtol=1e-12)
    rows = (data(50, D, seed=21).double(), data(50, seed=22).double())
    scaled = fitted.linearised(validation=rows).interval(NEW, target="observation")
    factor = scaled.observation_noise / own
    np.testing.assert_allclose(factor, factor[0], rtol=1e-9)
    assert "that of the model's own variance head (held fixed) times one factor" in scaled.guarantee
    # the same in other units of y: everything scales
    units = nn.Sequential(*module, Scaled(1000.0))
    far = vhat.from_torch(units, X, 1000 * Y, weight_decay=LAM, loss="gaussian_nll")
    again = far.linearised(validation=(rows[0], 1000 * rows[1])).interval(NEW, target="observation")
    np.testing.assert_allclose(again.half_width, 1000 * scaled.half_width, rtol=1e-6)


def test_equal_noise_is_told_by_validation_errors_of_equal_weight():
    """By the errors and the sensitivities of weighted ridge regression; the head only weighs the training rows."""
    module, design, weights, A = two_heads()
    rows = (data(50, D, seed=21).double(), data(50, seed=22).double())
    fitted = vhat.from_torch(module, X, Y, weight_decay=LAM, loss="gaussian_nll", validation=rows)
    g = np.column_stack([rows[0].numpy(), np.ones(50)])
    h = np.linalg.solve(A, g.T).T @ (design * weights[:, None]).T / N
    errors = fitted.predict(rows[0]) - rows[1].numpy()
    level = np.sqrt(np.mean(errors**2 / (1 + np.sum(h**2, axis=1))))
    band = fitted.interval(NEW, noise="equal")
    np.testing.assert_allclose(band.noise, level, rtol=1e-8)
    own = fitted.interval(NEW)  # without the word, errors are in units of the head
    assert "that of the model's own variance head" in own.guarantee
    assert "the same in every row" in band.guarantee


class Scaled(nn.Module):
    """Mean and variance in other units of y."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, out):
        return torch.stack([self.factor * out[:, 0], out[:, 1] + 2 * float(np.log(self.factor))], dim=1)


def exact_head():
    """A module whose variance head is the truth, with its mean at the minimum."""
    module = seeded(TwoHeads).double()
    module.spread = nn.Linear(D, 1).double()
    with torch.no_grad():
        module.spread.weight[:] = torch.tensor([[1.2, 0.0, 0.0]])
        module.spread.bias[:] = 2 * np.log(0.2)
    return at_minimum(module, lambda m: (m.mean.weight[0], m.mean.bias[0]))[0]


def test_the_audit_tells_a_true_variance_head_from_one_that_is_off():
    module = exact_head()
    audit = vhat.from_torch(module, X, Y, weight_decay=LAM, loss="gaussian_nll").audit()
    verdicts = {line.name: line.verdict for line in audit.lines}
    assert verdicts["noise"] == "assumed"
    assert verdicts["unequal noise"] == "holds"
    assert verdicts["lack of fit"] == "holds"
    with torch.no_grad():
        module.spread.bias[:] = 2 * np.log(0.02)  # a tenth of the noise
    noise = vhat.from_torch(module, X, Y, weight_decay=LAM / 100, loss="gaussian_nll").audit()["noise"]
    assert noise.verdict == "fails"
    assert 'noise="weights"' in noise.remedy


def test_a_constant_head_fails_the_line_on_unequal_noise():
    module = exact_head()
    with torch.no_grad():
        module.spread.weight[:] = 0.0
    strong = X @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64) + 0.05 * torch.exp(1.5 * X[:, 0]) * data(N, seed=5)
    fitted = vhat.from_torch(module, X, strong, weight_decay=LAM, loss="gaussian_nll").polish()
    assert fitted.audit()["unequal noise"].verdict == "fails"


def test_frozen_parameters_stay_frozen():
    module, *_ = two_heads()
    module.mean.bias.requires_grad_(False)
    problem = torch_problem(module, X, Y, weight_decay=LAM, loss="gaussian_nll")
    assert problem.leaves == ((1, D),)
    module.requires_grad_(False)
    module.spread.requires_grad_(True)
    with pytest.raises(ModelError, match="mean does not depend on any trainable parameter"):
        torch_problem(module, X, Y, weight_decay=LAM, loss="gaussian_nll")


@pytest.mark.parametrize(
    ("wrap", "options", "words"),
    [
        (lambda m, s: m, {}, r"needs a mean and a variance.*Let the module return \(mean, log variance\)"),
        (lambda m, s: {"m": m, "s": s}, {}, r"a dict with the keys 'm'.*output=\('mean', 'log_variance'\)"),
        (lambda m, s: {"m": m, "s": s}, {"output": ("m", "v")}, "output='v' is not in what the module returned"),
        (lambda m, s: (m, s, s), {}, r"a tuple with the parts 0.*choose both: output=\('mean'"),
        (lambda m, s: (m[:, None].expand(-1, 3), s), {}, r"the mean has shape \(6, 3\).*takes one output"),
        (lambda m, s: (m, s - 1e4), {}, "no positive and finite variance in rows"),
        (lambda m, s: (m, -s.abs() - 1), {"variance_head": "variance"}, "Pass variance_head='log_variance'"),
    ],
)
def test_heads_that_cannot_be_used_are_answered_with_what_works(wrap, options, words):
    with pytest.raises(ModelError, match=words):
        torch_problem(seeded(lambda: TwoHeads(wrap)), X, Y, weight_decay=LAM, loss="gaussian_nll", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"output": ("m", 0.5)}, "Give the key or attribute"),
        ({"output": ("m",)}, "must name two heads"),
        ({"output": 1.5}, "Give the key or attribute"),
        ({"variance_head": "precision"}, "variance_head='precision' is not known"),
    ],
)
def test_options_of_heads_are_checked(options, words):
    with pytest.raises(InputError, match=words):
        torch_problem(seeded(TwoHeads), X, Y, weight_decay=LAM, loss="gaussian_nll", **options)


def test_other_front_ends_name_the_call_that_works():
    with pytest.raises(InputError, match=r"for from_torch. Here give the mean.*sample_weight=1/variance"):
        vhat.from_numpy(lambda q, x: x @ q, np.ones(D), X.numpy(), Y.numpy(), loss="gaussian_nll")


def test_the_call_that_other_front_ends_name_gives_the_same_intervals():
    module, design, weights, _ = two_heads()
    fitted = vhat.from_torch(module, X, Y, weight_decay=LAM, loss="gaussian_nll")
    theta = np.append(module.mean.weight.detach().numpy().ravel(), module.mean.bias.detach().numpy())
    plain = vhat.from_numpy(
        lambda q, Z: Z @ q, theta, design, Y.numpy(), jac=lambda Z: Z, weight_decay=LAM, sample_weight=weights
    )
    own = fitted.interval(NEW, target="observation")
    found = plain.interval(
        np.column_stack([NEW.numpy(), np.ones(len(NEW))]),
        target="observation",
        noise=1 / np.sqrt(weights),
        observation_noise=own.observation_noise,
    )
    np.testing.assert_allclose(own.half_width, found.half_width, rtol=1e-8)


def test_sample_weights_multiply_those_of_the_variances():
    module, _, weights, _ = two_heads()
    own = np.linspace(0.5, 2.0, N)
    problem = torch_problem(module, X, Y, weight_decay=LAM, loss="gaussian_nll", sample_weight=own)
    np.testing.assert_allclose(problem.weights, own * weights, rtol=1e-12)


def test_a_variance_read_as_its_logarithm_is_asked_about():
    module = two_heads(lambda mean, s: (mean, 0.05 + 0 * s))[0]
    with pytest.warns(NoiseWarning, match="pass variance_head='variance'"):
        torch_problem(module, X, Y, weight_decay=LAM, loss="gaussian_nll")


@pytest.mark.parametrize("name", ["one tensor", "dict"])
def test_a_saved_model_keeps_its_heads(name, tmp_path):
    make, output = MODELS[name]
    fitted = vhat.from_torch(make()[0], X, Y, weight_decay=LAM, loss="gaussian_nll", output=output).polish()
    fitted.save(tmp_path)
    loaded = vhat.load(tmp_path, make()[0])
    for target in ("mean", "observation"):
        first, second = (each.interval(NEW, target=target) for each in (fitted, loaded))
        np.testing.assert_array_equal(first.lower, second.lower)
        assert first.guarantee == second.guarantee
    module = make()[0]
    loaded.write_to(module)
    np.testing.assert_allclose(spread_of(module, NEW).detach(), spread_of(make()[0], NEW).detach(), rtol=1e-12)
