"""Networks inside the libraries that people train them with: skorch, Lightning, torch's wrappers, Flax nnx."""

import copy
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import vhat
from tests.models.torch_cases import data, mlp, seeded
from vhat.errors import InputError, ModelError
from vhat.models.jax import jax_problem
from vhat.models.torch import torch_problem

X, Y = data(24, 3), data(24, 1, seed=1)
NEW = data(5, 3, seed=2)


# -- skorch --------------------------------------------------------------------------------------------
class Dropped(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 1))


def skorch_net(module=Dropped, **options):
    from skorch import NeuralNetRegressor

    return NeuralNetRegressor(
        module, max_epochs=2, train_split=None, verbose=0, optimizer__weight_decay=0.1, device="cpu", **options
    )


@pytest.mark.slow
def test_a_fitted_skorch_net_is_taken_for_its_module(tmp_path):
    net = skorch_net().fit(X.numpy(), Y.numpy())
    with pytest.raises(ModelError, match=r"call net\.module_\.eval\(\) first"):
        vhat.from_torch(net, X, Y, weight_decay=0.1, loss="mse")
    net.module_.eval()
    fitted = vhat.from_torch(net, X.numpy(), Y.numpy(), weight_decay=0.1, loss="mse")
    np.testing.assert_allclose(fitted.predict(NEW), net.predict(NEW.numpy()), rtol=1e-5)
    expected = torch_problem(net.module_, X, Y, weight_decay=0.1, loss="mse")
    np.testing.assert_array_equal(fitted.problem.gradient(), expected.gradient())
    fitted.save(tmp_path)
    np.testing.assert_array_equal(vhat.load(tmp_path, net).predict(NEW), fitted.predict(NEW))
    polished = fitted.polish()
    polished.write_to(net)
    np.testing.assert_allclose(net.predict(NEW.numpy()), polished.predict(NEW), rtol=1e-5)


@pytest.mark.slow
def test_a_skorch_net_that_was_not_fitted_is_answered_with_the_call():
    with pytest.raises(ModelError, match=r"NeuralNetRegressor has no module_ yet: call net\.fit\(X, y\) first"):
        vhat.from_torch(skorch_net(), X, Y, weight_decay=0.1)


# -- Lightning -----------------------------------------------------------------------------------------
def lightning_module():
    import lightning

    class Regression(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters()
            self.body, self.loss = mlp(3, 4, 1), nn.MSELoss()

        def forward(self, x):
            return self.body(x)

        def training_step(self, batch, index):
            loss = self.loss(self(batch[0]), batch[1])
            self.log("train", loss, prog_bar=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-2, weight_decay=0.1)

    return Regression


@pytest.mark.slow
def test_a_lightning_module_is_taken_after_training_with_its_trainer_attached(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning's own, about loggers and workers
        import lightning

        make = lightning_module()
        module = seeded(make)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8, shuffle=True)
        trainer = lightning.Trainer(
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
            default_root_dir=tmp_path,
        )
        trainer.fit(module, loader)
    module.eval()
    assert module.trainer is trainer
    fitted = vhat.from_torch(module, loader, weight_decay=0.1, loss="mse")
    assert module.trainer is trainer
    body = torch_problem(copy.deepcopy(module.body), X, Y, weight_decay=0.1, loss="mse")
    np.testing.assert_array_equal(fitted.problem.gradient(), body.gradient())
    band = fitted.linearised(0.1).interval(loader)
    np.testing.assert_allclose(band.center, module(X).detach(), rtol=1e-5, atol=1e-6)
    fitted.save(tmp_path / "saved")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = vhat.load(tmp_path / "saved", module)
    np.testing.assert_array_equal(again.predict(NEW), fitted.predict(NEW))


# -- torch ---------------------------------------------------------------------------------------------
def test_a_module_with_hooks_is_taken_with_them():
    module = seeded(lambda: mlp(3, 4, 1))
    expected = torch_problem(module, X, 2 * Y, weight_decay=0.1).fitted_values
    module.register_forward_hook(lambda part, given, out: 2 * out)
    np.testing.assert_allclose(torch_problem(module, X, 2 * Y, weight_decay=0.1).fitted_values, 2 * expected)


def test_data_parallel_and_compiled_modules_give_the_numbers_of_what_they_hold():
    module = seeded(lambda: mlp(3, 4, 1))
    expected = torch_problem(module, X, Y, weight_decay=0.1)
    for wrapped in (nn.DataParallel(module), torch.compile(module, backend="eager")):
        found = torch_problem(wrapped.eval(), X, Y, weight_decay=0.1)
        np.testing.assert_array_equal(found.gradient(), expected.gradient())


# -- Flax nnx ------------------------------------------------------------------------------------------
class Net(nnx.Module):
    def __init__(self):
        self.first = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(4, rngs=nnx.Rngs(1))
        self.drop = nnx.Dropout(0.4, rngs=nnx.Rngs(2))
        self.last = nnx.Linear(4, 1, rngs=nnx.Rngs(3))

    def __call__(self, x):
        return self.last(self.drop(jnp.tanh(self.norm(self.first(x)))))[:, 0]


def by_hand(params, x):
    hidden = x @ params["first"]["kernel"] + params["first"]["bias"]
    hidden = hidden / jnp.sqrt(1 + 1e-5) * params["norm"]["scale"] + params["norm"]["bias"]
    return (jnp.tanh(hidden) @ params["last"]["kernel"] + params["last"]["bias"])[:, 0]


@pytest.mark.slow
def test_an_nnx_module_is_taken_with_its_own_parameters(tmp_path):
    net = Net()
    x, y = X.double().numpy(), Y[:, 0].double().numpy()
    with pytest.raises(ModelError, match=r"norm \(BatchNorm\), drop \(Dropout\).*call net\.eval\(\) first|drop.*norm"):
        vhat.from_jax(net, x, y, weight_decay=0.1)
    net.eval()
    fitted = vhat.from_jax(net, x, y, weight_decay=0.1)
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(net, nnx.Param)))
    expected = jax_problem(by_hand, params, x, y, weight_decay=0.1)
    assert fitted.problem.p == expected.p
    np.testing.assert_allclose(fitted.problem.fitted_values, expected.fitted_values, rtol=1e-6)
    keywords = vhat.from_jax(net, X=x, y=y, weight_decay=0.1)
    np.testing.assert_array_equal(keywords.problem.fitted_values, fitted.problem.fitted_values)
    polished = fitted.polish()
    assert "certified minimum" in polished.interval(NEW.numpy()).guarantee
    polished.save(tmp_path)
    np.testing.assert_array_equal(vhat.load(tmp_path, net).predict(x), polished.predict(x))
    nnx.update(net, jax.tree.map(jnp.asarray, polished.params))
    np.testing.assert_allclose(net(jnp.asarray(x)), polished.predict(x), rtol=1e-4, atol=1e-5)


def test_what_from_jax_lacks_is_named():
    net, x, y = Net(), X.numpy(), Y[:, 0].numpy()
    net.eval()
    with pytest.raises(InputError, match=r"y is missing: from_jax takes .*\(net, X, y\) for a Flax nnx module"):
        vhat.from_jax(lambda p, x: x @ p, np.ones(3), x, weight_decay=0.1)
    with pytest.raises(InputError, match="X or y is missing"):
        vhat.from_jax(net, x, weight_decay=0.1)
    with pytest.raises(InputError, match=r"give from_jax\(net, X, y\), and nnx.update"):
        vhat.from_jax(net, nnx.state(net), x, y, weight_decay=0.1)
