"""``parameters="last"``: the last linear layer of a module, on inputs that are computed once."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

import vhat

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3)).astype(np.float32)
Y = np.sin(X[:, 0]).astype(np.float64) + 0.1 * RNG.standard_normal(60)
POINTS = RNG.standard_normal((7, 3)).astype(np.float32)


def mlp(*widths, seed=0, bias=True):
    torch.manual_seed(seed)
    layers = []
    for a, b in itertools.pairwise(widths[:-1]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:], bias=bias)).eval()


class Squeezed(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x)[:, 0]


def squeezed(bias=True):
    return Squeezed(mlp(3, 8, 5, 1, bias=bias)).eval()


def features(module, x):
    """The inputs of the last layer by hand, in double precision."""
    wide = copy.deepcopy(module).double()
    with torch.no_grad():
        return wide.body[:-1](torch.as_tensor(x).double()).numpy()


def ridge(Z, y, lam, weights=None):
    """Minimum and covariance over sigma^2 of ``1/(2n) sum w (z'b - y)^2 + 1/2 b' lam b``, dense."""
    n, w = len(Z), np.ones(len(Z)) if weights is None else weights
    A = np.linalg.inv((Z.T * w) @ Z / n + np.diag(lam))
    B = A @ (Z.T * w) / n
    return B @ y, B @ B.T


# -- against oracles -----------------------------------------------------------------------------
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_polished_last_layer_is_the_ridge_regression_on_its_inputs(bias, weighted):
    module = squeezed(bias)
    weights = RNG.uniform(0.5, 2.0, len(X)) if weighted else None
    fitted = vhat.from_torch(
        module, X, Y, weight_decay={"body.4.weight": 0.03}, parameters="last", sample_weight=weights
    ).polish()
    Z, P = features(module, X), features(module, POINTS)
    lam = np.full(5, 0.03)
    if bias:
        Z, P, lam = np.c_[Z, np.ones(len(Z))], np.c_[P, np.ones(len(P))], np.r_[lam, 0.0]
    theta, covariance = ridge(Z, Y, lam, weights)
    band = fitted.interval(POINTS, noise=0.1)
    np.testing.assert_allclose(fitted.problem.numpy(fitted.problem.theta), theta, rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(band.center, P @ theta, rtol=1e-9)
    se = 0.1 * np.sqrt(np.einsum("ij,jk,ik->i", P, covariance, P))
    np.testing.assert_allclose(band.standard_error, se, rtol=1e-8)
    np.testing.assert_allclose(band.half_width, 1.959963984540054 * se, rtol=1e-8)
    assert band.bound == "exact"


def test_without_decay_intervals_are_those_of_statsmodels():
    sm = pytest.importorskip("statsmodels.api")
    module = squeezed()
    Z, P = (np.c_[features(module, x), np.ones(len(x))] for x in (X, POINTS))
    keep = np.r_[np.ptp(Z[:, :-1], axis=0) > 0, True]
    assert keep.all()
    fitted = vhat.from_torch(module, X, Y, weight_decay=0.0, parameters="last").polish()
    found = sm.OLS(Y, Z).fit().get_prediction(P)
    for target, obs in (("mean", False), ("observation", True)):
        band = fitted.interval(POINTS, 0.1, target=target)
        expected = found.conf_int(obs=obs, alpha=0.1)
        np.testing.assert_allclose(np.c_[band.lower, band.upper], expected, rtol=1e-8)


def test_it_is_what_freezing_all_other_parameters_gives():
    module = mlp(3, 8, 5, 2)
    y = np.c_[Y, Y**2]
    frozen = copy.deepcopy(module)
    for layer in frozen[:-1]:
        layer.requires_grad_(False)
    a = vhat.from_torch(module, X, y, weight_decay=0.02, parameters="last")
    b = vhat.from_torch(frozen, X, y, weight_decay=0.02)
    np.testing.assert_allclose(a.predict(POINTS), b.predict(POINTS), rtol=1e-12)
    a, b = a.polish(), b.polish()
    for name in ("center", "half_width", "weighted_norm", "unsupported"):
        np.testing.assert_allclose(
            getattr(a.interval(POINTS), name), getattr(b.interval(POINTS), name), rtol=1e-9, atol=1e-13
        )
    loo_a, loo_b = a.leave_one_out(), b.leave_one_out()
    np.testing.assert_allclose(loo_a.prediction, loo_b.prediction, rtol=1e-9)
    np.testing.assert_allclose(a.sensitivity(POINTS), b.sensitivity(POINTS), rtol=1e-8, atol=1e-12)


def test_a_loss_of_ones_own_has_the_derivatives_of_the_whole_module():
    module = mlp(3, 8, 5, 2)
    y = np.c_[Y, Y**2]

    def loss(f, t):
        return torch.log(torch.cosh(f - t)).sum() + 0.1 * (f - t).prod()

    whole = vhat.from_torch(module, X, y, weight_decay=0.1, loss=loss, parameters=["4"]).problem
    head = vhat.from_torch(module, X, y, weight_decay=0.1, loss=loss, parameters="last").problem
    v = np.random.default_rng(3).standard_normal((3, whole.p))
    for kind in ("hessian", "ggn"):
        expected = whole.product(whole.native(v), kind)
        np.testing.assert_allclose(head.product(head.native(v), kind), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(head.gradient(), whole.gradient(), rtol=1e-10)
    np.testing.assert_allclose(head.diagonal(), whole.diagonal(), rtol=1e-10)
    np.testing.assert_allclose(head.jvp(head.native(v)), whole.jvp(whole.native(v)), rtol=1e-10, atol=1e-13)


def test_the_module_is_left_as_it_is_and_read_in_double_precision():
    module = squeezed()
    before = copy.deepcopy(module.state_dict())
    fitted = vhat.from_torch(module, X, Y, weight_decay=0.1, parameters="last")
    np.testing.assert_allclose(fitted.problem.X[0], features(module, X), rtol=1e-12, atol=1e-14)
    with torch.no_grad():
        wide = copy.deepcopy(module).double()(torch.as_tensor(POINTS).double())
    np.testing.assert_allclose(fitted.predict(POINTS), wide, rtol=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(value.requires_grad for value in module.parameters())


def test_a_row_alone_has_the_interval_that_it_has_in_company():
    fitted = vhat.from_torch(squeezed(), X, Y, weight_decay=0.1, parameters="last").polish()
    band = fitted.interval(POINTS)
    alone = [fitted.interval(POINTS[i : i + 1]) for i in range(len(POINTS))]
    np.testing.assert_allclose([one.half_width[0] for one in alone], band.half_width, rtol=1e-12)
    np.testing.assert_allclose([one.center[0] for one in alone], band.center, rtol=1e-12)


def test_a_head_as_it_was_trained_is_no_minimum_and_the_warning_says_polish():
    fitted = vhat.from_torch(squeezed(), X, Y, weight_decay=0.1, parameters="last")
    with pytest.warns(vhat.NotMinimumWarning, match=r"polish\(\)"):
        fitted.interval(POINTS)
    taken = fitted.linearised(0.1).interval(POINTS)
    np.testing.assert_allclose(taken.center, fitted.predict(POINTS), rtol=1e-12)


def test_polish_solves_the_linear_problem_without_a_step_of_descent():
    record = vhat.from_torch(squeezed(), X, Y, weight_decay=0.1, parameters="last").polish().polished
    assert record.warmup_steps == record.steps == 0
    assert record.relative_gradient < 1e-13


# -- which layer ---------------------------------------------------------------------------------
class Scaled(nn.Module):
    """A fixed affine map of the responses after the head."""

    def __init__(self):
        super().__init__()
        self.body, self.out = mlp(3, 6, 4), nn.Linear(4, 2)
        self.register_buffer("mean", torch.tensor([3.0, -1.0]))
        self.register_buffer("scale", torch.tensor([[2.0, 0.5], [0.0, 4.0]]))

    def forward(self, x):
        return (self.out(torch.tanh(self.body(x))) @ self.scale.T + self.mean).unsqueeze(1).flatten(1)


class NamedOddly(nn.Module):
    """The last layer is registered first; another is called after it and is not used."""

    def __init__(self):
        super().__init__()
        self.z_out, self.a_in, self.aside = nn.Linear(4, 1), nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        h = torch.tanh(self.a_in(x))
        prediction = self.z_out(h)
        self.aside(h)
        return prediction.squeeze(-1)


class LinearTail(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.second(self.first(torch.sin(x)))


class FrozenBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.last.bias.requires_grad_(False)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Scaled, ["out.weight", "out.bias"]),
        (NamedOddly, ["z_out.weight", "z_out.bias"]),
        (LinearTail, ["second.weight", "second.bias"]),
        (FrozenBias, ["last.weight"]),
    ],
)
def test_the_last_layer_is_found_by_use(make, names):
    torch.manual_seed(1)
    module = make().eval()
    with torch.no_grad():
        y = module(torch.as_tensor(X)).double().numpy() + 0.1 * RNG.standard_normal((1,))
    found = vhat.from_torch(module, X, y, weight_decay=0.1, parameters="last")
    named = vhat.from_torch(module, X, y, weight_decay=0.1, parameters=names)
    assert found.problem.autodiff.base.model.state.names == tuple(names)
    a, b = found.polish().interval(POINTS, noise=0.1), named.polish().interval(POINTS, noise=0.1)
    np.testing.assert_allclose(a.half_width, b.half_width, rtol=1e-9)
    np.testing.assert_allclose(a.center, b.center, rtol=1e-9)
    assert a.bound == b.bound == "exact"


class Sigmoid(Squeezed):
    def forward(self, x):
        return torch.sigmoid(super().forward(x))


class Positive(Squeezed):
    """ReLU after a head whose outputs are all positive: linear at the parameters given."""

    def forward(self, x):
        return torch.relu(super().forward(x) + 100.0)


class Skip(Squeezed):
    def forward(self, x):
        return super().forward(x) + x[:, 0]


class Gated(Squeezed):
    def forward(self, x):
        return super().forward(x) * x[:, 0]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))[:, 0]


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        return self.layer(torch.tanh(x)[:, :, None]).mean(dim=(1, 2))


class NoLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x @ self.w


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Sigmoid(mlp(3, 4, 1)),
            r"no linear layer was found.*body.2.weight.*parameters=\[names\].*body.0.weight",
        ),
        (lambda: Positive(mlp(3, 4, 1)), "no linear layer was found"),
        (lambda: Skip(mlp(3, 4, 1)), r"not always that of its last linear layer 'body.2.weight'.*parameters=\[names\]"),
        (lambda: Gated(mlp(3, 4, 1)), "not always that of its last linear layer"),
        (Twice, "no linear layer was found"),
        (Tokens, "no linear layer was found"),
        (NoLayer, r"layers called: none.*It has w\."),
    ],
)
def test_a_module_without_a_last_linear_layer_is_refused_with_the_call_that_works(make, words):
    torch.manual_seed(0)
    with pytest.raises(vhat.ModelError, match=words):
        vhat.from_torch(make().eval(), X, Y, weight_decay=0.1, parameters="last")


def test_a_row_that_goes_another_way_is_refused():
    class Switch(Squeezed):
        def forward(self, x):
            return torch.where(x[:, 0] > 50.0, x[:, 1], super().forward(x))

    fitted = vhat.from_torch(Switch(mlp(3, 4, 1)).eval(), X, Y, weight_decay=0.1, parameters="last")
    with pytest.raises(vhat.ModelError, match="not always that of its last linear layer"):
        fitted.predict(np.array([[0.0, 1.0, 2.0], [60.0, 1.0, 2.0]]))


# -- data ----------------------------------------------------------------------------------------
class Rows(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y, self.reads = torch.as_tensor(x), torch.as_tensor(y), 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.reads += 1
        return self.x[index], self.y[index]


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(zip(torch.as_tensor(X), torch.as_tensor(Y), strict=True))


@pytest.mark.parametrize("source", [lambda: Rows(X, Y), Stream], ids=["dataset", "stream"])
def test_a_loader_gives_what_its_rows_give(source):
    loader = torch.utils.data.DataLoader(source(), batch_size=7)
    a = vhat.from_torch(squeezed(), loader, weight_decay=0.1, parameters="last").polish().interval(POINTS)
    b = vhat.from_torch(squeezed(), X, Y, weight_decay=0.1, parameters="last").polish().interval(POINTS)
    np.testing.assert_allclose(a.half_width, b.half_width, rtol=1e-11)
    np.testing.assert_allclose(a.center, b.center, rtol=1e-11)


def test_a_dataset_is_read_once_but_for_a_few_rows():
    rows = Rows(np.tile(X, (50, 1)), np.tile(Y, 50))
    vhat.from_torch(squeezed(), torch.utils.data.DataLoader(rows, 100), weight_decay=0.1, parameters="last")
    assert rows.reads <= 3000 + 3 * 100


def test_faulty_batches_are_named_by_their_rows():
    bad = X.copy()
    bad[25, 1] = np.nan
    loader = torch.utils.data.DataLoader(Rows(bad, Y), batch_size=10)
    with pytest.raises(vhat.InputError, match=r"batch that starts with row 20: .*row 5"):
        vhat.from_torch(squeezed(), loader, weight_decay=0.1, parameters="last")

    class Random(Rows):
        def __getitem__(self, index):
            return self.x[index] + torch.randn(3), self.y[index]

    with pytest.raises(vhat.InputError, match="augments at random"):
        vhat.from_torch(squeezed(), Random(X, Y), weight_decay=0.1, parameters="last")


def test_inputs_of_the_layer_that_do_not_fit_are_refused_before_they_are_read():
    rows = Rows(np.tile(X, (50, 1)), np.tile(Y, 50))
    with pytest.raises(vhat.MemoryBudgetError, match=r"5 numbers per row.*Give a larger memory"):
        vhat.from_torch(squeezed(), rows, weight_decay=0.1, parameters="last", memory=2e5)
    assert rows.reads <= 2 * 256


def test_test_inputs_may_be_data_frames_and_dicts_as_in_training():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X.astype(np.float64), columns=["a", "b", "c"])
    points = pd.DataFrame(POINTS.astype(np.float64), columns=["a", "b", "c"])
    fitted = vhat.from_torch(squeezed(), frame, Y, weight_decay=0.1, parameters="last").polish()
    turned = fitted.interval(points[["c", "a", "b"]])
    np.testing.assert_allclose(turned.half_width, fitted.interval(points).half_width, rtol=1e-13)
    with pytest.raises(vhat.InputError, match="rows of shape"):
        fitted.interval(np.ones((2, 4)))


# -- what else a fitted model does ---------------------------------------------------------------
def test_save_and_load_keep_the_layers_inputs(tmp_path):
    module = squeezed()
    fitted = vhat.from_torch(module, X, Y, weight_decay=0.1, parameters="last").polish()
    fitted.save(tmp_path / "head")
    again = vhat.load(tmp_path / "head", model=Squeezed(mlp(3, 8, 5, 1, seed=9)).eval())
    for name in ("center", "half_width"):
        np.testing.assert_array_equal(getattr(again.interval(POINTS), name), getattr(fitted.interval(POINTS), name))
    with pytest.raises(vhat.StoreError, match='data="copy"'):
        fitted.save(tmp_path / "other", data="reference")
    with pytest.raises(vhat.StoreError, match="does not have the structure"):
        vhat.load(tmp_path / "head", model=Squeezed(mlp(3, 8, 6, 1)).eval())


def test_params_write_to_and_functionals_know_the_whole_module():
    module = squeezed()
    fitted = vhat.from_torch(module, X, Y, weight_decay=0.1, parameters="last").polish()
    assert set(fitted.params) == {name for name, _ in module.named_parameters()}
    other = copy.deepcopy(module).double()
    fitted.write_to(other)
    with torch.no_grad():
        np.testing.assert_allclose(other(torch.as_tensor(POINTS).double()), fitted.predict(POINTS), rtol=1e-12)
    mean = fitted.functional(lambda q: q["body.4.weight"].mean() + 0 * q["body.0.bias"][0])
    assert mean.bound == "exact"
    with pytest.raises(vhat.InputError, match="does not depend on any trainable parameter"):
        fitted.functional(lambda q: q["body.0.bias"][0])


def test_calibration_and_acquisition_take_the_modules_own_inputs():
    fitted = vhat.from_torch(squeezed(), X, Y, weight_decay=0.1, parameters="last").polish()
    fresh = RNG.standard_normal((40, 3)).astype(np.float32)
    band = fitted.calibrate(fresh, np.sin(fresh[:, 0])).interval(POINTS)
    assert np.all(band.half_width > 0)
    assert len(fitted.acquire(fresh, 3).indices) == 3
    with pytest.raises(vhat.InputError, match="also a training row"):
        fitted.calibrate(X, Y)


# -- large backbones -----------------------------------------------------------------------------
class Block(nn.Module):
    """A residual block of two convolutions, as in ResNet-18."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.down = None
        if stride != 1 or inside != outside:
            self.down = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        out = torch.relu_(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.down is None else self.down(x)
        return torch.relu_(out)


class ResNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks = []
        for stage, stride in enumerate((1, 2, 2, 2)):
            outside = width * 2**stage
            blocks += [Block(width if stage == 0 else outside // 2, outside, stride), Block(outside, outside, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8 * width, 1)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


class Transformer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Linear(4, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, activation="gelu")
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(dim=1))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        pytest.param(lambda: ResNet(4), (3, 32, 32), id="convolutional", marks=pytest.mark.slow),
        pytest.param(lambda: Transformer(16), (5, 4), id="transformer"),
    ],
)
def test_behind_a_frozen_backbone_it_is_the_ridge_regression_on_its_output(make, shape):
    torch.manual_seed(0)
    module = make().eval()
    x = torch.randn(40, *shape)
    kept = {}
    last = module.fc if hasattr(module, "fc") else module.head
    handle = last.register_forward_hook(lambda _, inputs, __: kept.update(z=inputs[0]))
    wide = copy.deepcopy(module).double()
    handle.remove()
    with torch.no_grad():
        wide(x.double())
    Z = np.c_[kept["z"].numpy(), np.ones(40)]
    y = Z[:, 0] + 0.1 * RNG.standard_normal(40)
    fitted = vhat.from_torch(module, x, y[:, None], weight_decay=0.01, parameters="last").polish()
    theta, covariance = ridge(Z, y, np.full(Z.shape[1], 0.01))
    band = fitted.interval(x[:5], noise=0.1)
    np.testing.assert_allclose(band.center[:, 0], Z[:5] @ theta, rtol=1e-7)
    se = 0.1 * np.sqrt(np.einsum("ij,jk,ik->i", Z[:5], covariance, Z[:5]))
    np.testing.assert_allclose(band.standard_error[:, 0], se, rtol=1e-7)


def test_the_last_layer_of_a_part_of_what_a_module_returns():
    """``output=`` goes along: the answer is that of a module which returns this part alone, also when loaded."""

    class Two(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return {"prediction": self.inner(x), "inputs": x}

    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1)).double().eval()
    X = torch.randn(40, 2, dtype=torch.float64)
    y = X[:, :1].sin()
    alone = vhat.from_torch(inner, X, y, weight_decay=1e-3, parameters="last").polish()
    part = vhat.from_torch(Two(inner), X, y, weight_decay=1e-3, parameters="last", output="prediction").polish()
    np.testing.assert_allclose(part.interval(X[:3]).upper, alone.interval(X[:3]).upper, rtol=1e-12)


def test_features_that_may_come_from_the_same_responses_are_never_guaranteed():
    """A hidden unit that is the least-squares fit itself: refitting the head alone misses most of the variance."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 20))
    y = rng.normal(size=60)
    net = torch.nn.Sequential(torch.nn.Linear(20, 1, bias=False), torch.nn.Linear(1, 1), torch.nn.Flatten(0)).double()
    with torch.no_grad():
        net[0].weight[:] = torch.tensor(np.linalg.lstsq(X, y, rcond=None)[0])
    whole = vhat.from_torch(net, X, y, weight_decay=0.0, parameters="last").polish()
    frozen = net.requires_grad_(False)
    frozen[1].requires_grad_(True)
    by_hand = vhat.from_torch(frozen, X, y, weight_decay=0.0).polish()
    for fitted in (whole, by_hand):
        told = fitted.interval(X[:2]).guarantee
        assert told.startswith("Nominal")
        assert "if the parameters that are held fixed were trained on these responses" in told


def test_a_recipe_cannot_train_a_last_layer_again():
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1), torch.nn.Flatten(0))
    X = np.random.default_rng(0).normal(size=(30, 2))
    fitted = vhat.from_torch(module, X, X[:, 0], weight_decay=1e-2, parameters="last")
    with pytest.raises(vhat.InputError, match="Give validation="):
        fitted.linearised(recipe=lambda X, y, *, seed, sample_weight=None: fitted)


@pytest.mark.parametrize("linearised", [False, True])
def test_the_audit_names_columns_as_features_of_the_last_layer(linearised):
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((200, 3)).astype(np.float32)
    module = Squeezed(nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))).eval()
    bent = (features(module, rows)[:, 0] - 0.1) ** 2 + 0.01 * rng.standard_normal(200)  # no line follows it
    fitted = vhat.from_torch(module, rows, bent, weight_decay=1e-4, parameters="last").polish()
    line = (fitted.linearised(1e-4) if linearised else fitted).audit(noise=0.01)["lack of fit"]
    assert line.verdict == "fails"
    assert "feature 0 of the last layer (counted from 0)" in line.remedy
    assert "column" not in line.remedy


def test_loaders_are_taken_wherever_rows_are():
    torch.manual_seed(3)
    X = torch.randn(90, 3)
    y = X[:, 0].sin() + 0.1 * torch.randn(90)
    module = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1), torch.nn.Flatten(0))
    sets = [torch.utils.data.TensorDataset(X[part], y[part]) for part in (slice(60), slice(60, 90))]
    train, held_out = (torch.utils.data.DataLoader(each, batch_size=16) for each in sets)
    arrays = vhat.from_torch(module, X[:60], y[:60], weight_decay=1e-3, parameters="last", validation=(X[60:], y[60:]))
    expected = arrays.linearised(0.1).interval(X[60:])
    for given in ((train,), (X[:60], y[:60])):
        head = vhat.from_torch(module, *given, weight_decay=1e-3, parameters="last", validation=held_out)
        for ask in (held_out, X[60:]):
            np.testing.assert_array_equal(head.linearised(0.1).interval(ask).half_width, expected.half_width)
    loaded, direct = (head.linearised(0.1).calibrate(*rows) for rows in ((held_out,), (X[60:], y[60:])))
    np.testing.assert_array_equal(loaded.interval(X[:5], 0.2).half_width, direct.interval(X[:5], 0.2).half_width)
