"""Gradients of a module's linear layers as outer products, against autograd's own Jacobian."""

import numpy as np
import pytest

import vhat

torch = pytest.importorskip("torch")


def _torch_models():
    nn = torch.nn

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 5), nn.Linear(3, 2)

        def forward(self, x):
            hidden = torch.tanh(self.first(x))
            return self.last(torch.tanh(hidden @ self.first.weight))

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.again, self.last = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 1)

        def forward(self, x):
            hidden = torch.tanh(self.first(x))
            return self.last(torch.tanh(self.again(torch.tanh(self.again(hidden)))))[:, 0]

    class Hidden(torch.autograd.Function):
        """A second use, with its own backward pass."""

        @staticmethod
        def forward(x, w):
            return x @ w.T

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, slope):
            x, w = ctx.saved_tensors
            return slope @ w, slope.T @ x

        generate_vmap_rule = True

    class Secret(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.last(torch.tanh(Hidden.apply(torch.tanh(self.first(x)), self.first.weight)))

    class SharedBias(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)
            self.second.bias = self.first.bias

        def forward(self, x):
            return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))

    class Tokens(nn.Module):
        """A layer over several vectors of a row, and one over the row."""

        def __init__(self):
            super().__init__()
            self.token, self.last = nn.Linear(1, 4), nn.Linear(12, 2)

        def forward(self, x):
            return self.last(torch.tanh(self.token(x[:, :, None])).flatten(1))

    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    bare = nn.Sequential(nn.Linear(3, 6, bias=False), nn.Sigmoid(), nn.Linear(6, 1))
    convolution = nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 2), nn.BatchNorm1d(4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)
    )
    normed = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 1))
    parametrised = nn.Sequential(
        torch.nn.utils.parametrizations.orthogonal(nn.Linear(3, 3), use_trivialization=False),
        nn.Tanh(),
        nn.Linear(3, 1),
    )
    return {
        "layers, one in place": (mlp, {"0.weight", "2.weight", "4.weight"}),
        "no bias": (bare, {"0.weight", "2.weight"}),
        "convolution and batch norm": (convolution, {"5.weight"}),
        "layer norm": (normed, {"0.weight", "3.weight"}),
        "parametrised": (parametrised, {"2.weight"}),
        "tied": (Tied(), {"last.weight"}),
        "applied twice": (Twice(), {"first.weight", "last.weight"}),
        "in a function of its own": (Secret(), {"last.weight"}),
        "shared bias": (SharedBias(), {"first.weight", "last.weight"}),
        "several vectors a row": (Tokens(), {"last.weight"}),
    }


@pytest.mark.parametrize("name", list(_torch_models()))
def test_linear_layers_of_a_module_multiply_out_to_its_jacobian(name):
    module, outer = _torch_models()[name]
    rng = np.random.default_rng(0)
    X = rng.standard_normal((37, 3)).astype(np.float32)
    module.eval()
    with torch.no_grad():
        y = module(torch.as_tensor(X)).numpy() + 0.1
    weights = rng.uniform(0.5, 2.0, len(X))
    problem = vhat.from_torch(module, X, y, weight_decay=0.1, sample_weight=weights).problem
    state = problem.autodiff.model.state
    wide = {key: value.detach().double() for key, value in [*module.named_parameters(), *module.named_buffers()]}
    trained = tuple(wide[key].requires_grad_() for key in state.names)

    def predict(*values):
        return torch.func.functional_call(
            module, {**wide, **dict(zip(state.names, values, strict=True))}, torch.as_tensor(X).double()
        )

    blocks = torch.autograd.functional.jacobian(predict, trained)
    outputs = problem.outputs
    J = torch.cat([block.reshape(len(X) * outputs, -1) for block in blocks], dim=1).numpy()
    leaves = [tuple(part.numpy() for part in leaf) for leaf in problem.factors(problem.X)]
    assert {key for key, leaf in zip(state.names, leaves, strict=True) if len(leaf) == 2} == outer
    full = [leaf[0] if len(leaf) == 1 else np.einsum("ka,kb->kab", *leaf).reshape(len(J), -1) for leaf in leaves]
    np.testing.assert_allclose(np.concatenate(full, axis=1), J, rtol=1e-10, atol=1e-12 * np.abs(J).max())
    expected = np.repeat(weights / len(X), outputs) @ J**2
    np.testing.assert_allclose(problem.diagonal().numpy(), expected, rtol=1e-10, atol=1e-13 * expected.max())
    assert problem.factor_numbers == sum(sum(part.shape[1] for part in leaf) for leaf in leaves)


def test_rows_that_take_another_way_are_differentiated_plainly():
    """A module that knows how many rows it is given."""

    class Either(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(3, 5), torch.nn.Linear(5, 1)

        def forward(self, x):
            first = self.first(x) if len(x) < 20 else x @ self.first.weight.T + self.first.bias
            return self.last(torch.tanh(first))

    torch.manual_seed(0)
    module, X = Either().eval(), np.random.default_rng(0).standard_normal((37, 3)).astype(np.float32)
    problem = vhat.from_torch(module, X, X[:, :1], weight_decay=0.1).problem
    assert len(problem.autodiff.model.linear) == 2
    leaves = problem.factors(problem.X)
    assert all(len(leaf) == 1 for leaf in leaves)
    found = np.concatenate([leaf[0].numpy() for leaf in leaves], axis=1)
    np.testing.assert_allclose(found, problem.gradients(problem.X).numpy(), rtol=1e-12)


def test_rows_that_are_sorted_on_the_way_keep_their_gradients():
    """As sequence models do by length."""

    class Sorting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(3, 6), torch.nn.Linear(6, 1)

        def forward(self, x):
            order = x[:, 0].argsort()
            return self.last(torch.tanh(self.first(x[order])))[order.argsort()]

    torch.manual_seed(0)
    X = np.random.default_rng(3).standard_normal((120, 3))
    X[[0, -1], 0] = -1.0, 1.0  # rows that are looked at first are in order
    module = Sorting().double().eval()
    weights = np.where(X[:, 0] < -0.5, 3.0, 1e-3)
    with torch.no_grad():
        y = module(torch.as_tensor(X)).numpy()
    problem = vhat.from_torch(module, X, y, weight_decay=0.1, sample_weight=weights).problem
    J = np.concatenate([problem.gradients(problem.take(problem.X, i, i + 1)).numpy() for i in range(120)])
    leaves = [tuple(part.numpy() for part in leaf) for leaf in problem.factors(problem.X)]
    full = [leaf[0] if len(leaf) == 1 else np.einsum("ka,kb->kab", *leaf).reshape(120, -1) for leaf in leaves]
    np.testing.assert_allclose(np.concatenate(full, axis=1), J, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(problem.diagonal().numpy(), weights / 120 @ J**2, rtol=1e-9)


def test_a_module_that_cuts_its_rows_into_chunks_is_planned_for_as_it_is():
    class Chunking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))

        def forward(self, x):
            return torch.cat([self.net(part) for part in x.split(16)])

    torch.manual_seed(0)
    X = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    problem = vhat.from_torch(Chunking().eval(), X, X[:, :1], weight_decay=0.1).problem
    assert problem.autodiff.model.linear
    assert not problem.outer_leaves
    assert problem.factor_numbers == problem.p
    assert all(len(leaf) == 1 for leaf in problem.factors(problem.X))
