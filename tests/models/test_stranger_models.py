"""Models that vhat has never seen, trained by their owners' own loops, through public names only."""

from __future__ import annotations

import copy

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch.utils.data import DataLoader, TensorDataset

import vhat

RNG = np.random.default_rng(0)


class Convolutional(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 3, 3, padding=1),
            torch.nn.BatchNorm2d(3),
            torch.nn.SiLU(),
            torch.nn.AvgPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Dropout(0.1),
        )
        self.head = torch.nn.Linear(3 * 9, 1)

    def forward(self, images):
        return self.head(self.features(images))


def train(module, loader, epochs, **options):
    """A plain torch loop, as anyone would write it."""
    optimizer = torch.optim.Adam(module.parameters(), lr=5e-3, **options)
    module.train()
    for _ in range(epochs):
        for images, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(module(images), targets).backward()
            optimizer.step()
    return module.eval()


def test_a_convolutional_batch_normed_module_from_a_shuffled_loader_gets_a_band():
    torch.manual_seed(0)
    images = torch.as_tensor(RNG.normal(size=(60, 1, 6, 6)), dtype=torch.float32)
    targets = images[:, 0, 2:4, 2:4].mean(dim=(1, 2))[:, None] + 0.1 * torch.randn(60, 1)
    loader = DataLoader(TensorDataset(images, targets), batch_size=16, shuffle=True)
    module = train(Convolutional(), loader, 30, weight_decay=1e-2)
    before = copy.deepcopy(module.state_dict())

    fitted = vhat.from_torch(module, loader, weight_decay=1e-2, loss="mse")
    with pytest.warns(vhat.VhatWarning):  # Adam's last epoch is not a minimum
        rough = fitted.interval(images[:5])
    polished = fitted.polish()
    band = polished.interval(images[:5])
    new = polished.interval(torch.as_tensor(3 * RNG.normal(size=(5, 1, 6, 6))))

    np.testing.assert_allclose(rough.center, module(images[:5]).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert band.center.shape == (5, 1)
    assert np.all(band.status == "converged")
    assert "certified minimum" in band.guarantee
    assert np.median(new.half_width) > np.median(band.half_width)
    assert polished.audit().holds
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert not module.training

    target = copy.deepcopy(module)
    polished.write_to(target)
    np.testing.assert_allclose(target(images[:5]).detach().numpy(), band.center, rtol=1e-4, atol=1e-5)


def refit_by_lbfgs(loss, params):
    """Full-batch L-BFGS by optax, in float64: an owner's loop that does reach its minimum."""
    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(carry, _):
        params, state = carry
        value, grad = value_and_grad(params, state=state)
        updates, state = solver.update(grad, state, params, value=value, grad=grad, value_fn=loss)
        return (optax.apply_updates(params, updates), state), None

    return jax.jit(lambda p: jax.lax.scan(step, (p, solver.init(p)), None, length=400)[0][0])(params)


X = RNG.normal(size=(50, 2))
Y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * RNG.standard_normal(50)


def objective(predict):
    def loss(params):
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return 0.5 * jnp.mean((predict(params, X) - Y) ** 2) + 0.5 * 1e-2 * squares

    return loss


def test_a_flax_linen_model_gets_a_band():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(nn.tanh(nn.Dense(6)(x)))[:, 0]

    net = Net()
    with jax.enable_x64(True):
        start = jax.tree.map(lambda a: a.astype(jnp.float64), net.init(jax.random.key(0), X))
        params = refit_by_lbfgs(objective(net.apply), start)
    band = vhat.from_jax(net.apply, params, X, Y, weight_decay=1e-2).interval(X[:4])
    assert "certified minimum" in band.guarantee
    assert 0.05 < band.noise < 0.2


def test_a_flax_nnx_model_gets_a_band_through_its_state():
    net = nnx.Sequential(nnx.Linear(2, 6, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(6, 1, rngs=nnx.Rngs(1)))
    graph, state = nnx.split(net)

    def predict(state, x):
        return nnx.merge(graph, state)(x)[:, 0]

    fitted = vhat.from_jax(predict, state, X, Y, weight_decay=1e-2).polish()
    assert "certified minimum" in fitted.interval(X[:4]).guarantee


def test_an_equinox_model_is_its_own_pytree_of_parameters():
    """Activation functions and sizes are leaves of an Equinox module: they are held, not trained."""
    net = eqx.nn.MLP(2, "scalar", 6, 1, activation=jnp.tanh, key=jax.random.key(0))

    def predict(model, x):
        return jax.vmap(model)(x)

    fitted = vhat.from_jax(predict, net, X, Y, weight_decay=1e-2).polish()
    assert fitted.problem.p == sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(net, eqx.is_inexact_array)))
    band = fitted.interval(X[:4])
    assert "certified minimum" in band.guarantee
    assert isinstance(fitted.params, eqx.nn.MLP)


def test_a_weight_tied_torch_module_counts_its_weights_once():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
            self.two.weight = self.one.weight
            self.out = torch.nn.Linear(2, 1)

        def forward(self, x):
            return self.out(torch.tanh(self.two(torch.tanh(self.one(x)))))[:, 0]

    torch.manual_seed(0)
    fitted = vhat.from_torch(Tied(), X, Y, weight_decay=1e-2).polish()
    assert fitted.problem.p == 4 + 2 + 2 + 2 + 1
    assert "certified minimum" in fitted.interval(X[:3]).guarantee


class Energy(torch.nn.Module):
    """A force as its owners write it: minus the slope of an energy, differentiated inside the module or by hand."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.way, self.inner, self.outer = way, torch.nn.Linear(3, 8), torch.nn.Linear(8, 1, bias=False)

    def energy(self, z):
        return self.outer(torch.tanh(self.inner(z))).sum()

    def forward(self, z):
        if self.way == "by hand":
            return -((1 - torch.tanh(self.inner(z)) ** 2) * self.outer.weight) @ self.inner.weight
        if self.way == "torch.func.grad":
            return -torch.func.grad(self.energy)(z)
        if self.way == "vmap of torch.func.grad":
            return -torch.func.vmap(torch.func.grad(self.energy))(z)
        z = z.clone().requires_grad_(True)
        return -torch.autograd.grad(self.energy(z), z, create_graph=True)[0]


@pytest.mark.parametrize("way", ["torch.func.grad", "vmap of torch.func.grad", "torch.autograd.grad"])
@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
def test_a_module_that_differentiates_on_its_own_is_one_that_writes_the_derivative_out(way, curvature):
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(40, 3)), 0.1 * rng.normal(size=(40, 3))
    found, expected = (
        vhat.from_torch(Energy(each).eval(), X, y, weight_decay=0.5).weighted_norm(X[:5], curvature=curvature).value
        for each in (way, "by hand")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_a_compiled_submodule_is_what_it_was_made_of():
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).eval()
    partly = torch.nn.Sequential(torch.compile(plain[0], backend="aot_eager"), plain[1], plain[2]).eval()
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(40, 3)), 0.1 * rng.normal(size=(40, 1))
    found, expected = (
        vhat.from_torch(module, X, y, weight_decay=0.5).weighted_norm(X[:5]).value for module in (partly, plain)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("keep", [True, False])
def test_a_force_in_float32_whose_derivative_is_cut_off_is_refused(keep):
    """``create_graph=False`` hides the force from autograd; in float32 only wide differences can tell."""

    class Cut(Energy):
        def forward(self, z):
            z = z.clone().requires_grad_(True)
            energy = self.outer(torch.tanh(self.inner(z)))
            slope = torch.autograd.grad(energy.sum(), z, create_graph=keep, retain_graph=True)[0]
            return (energy + slope[:, :1]).float()

    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(40, 3)), 0.1 * rng.normal(size=(40, 1))
    if keep:
        vhat.from_torch(Cut("").eval(), X, y, weight_decay=0.5)
    else:
        with pytest.raises(vhat.ModelError, match="not those of its predictions"):
            vhat.from_torch(Cut("").eval(), X, y, weight_decay=0.5)


def test_a_part_that_jax_does_not_differentiate_is_refused_in_float32_too():
    def predict(q, X):
        slope = X @ q["a"] + jax.lax.stop_gradient(jnp.tanh(X @ q["b"]))
        return slope.astype(jnp.float32)

    rng = np.random.default_rng(2)
    params = {"a": rng.normal(size=3), "b": rng.normal(size=3)}
    with pytest.raises(vhat.ModelError, match="not those of its predictions"):
        vhat.from_jax(predict, params, rng.normal(size=(40, 3)), rng.normal(size=40), weight_decay=0.5)


@pytest.mark.parametrize("rows", [4, 2])
def test_a_module_that_fails_on_few_rows_fails_in_words(rows):
    class Picky(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(3, 1)

        def forward(self, z):
            if len(z) == rows:
                raise ValueError(f"{rows} rows are not to my taste")
            return self.line(z)

    rng = np.random.default_rng(2)
    with pytest.raises(vhat.ModelError, match="not to my taste"):
        vhat.from_torch(Picky().eval(), rng.normal(size=(40, 3)), rng.normal(size=(40, 1)), weight_decay=0.5)
