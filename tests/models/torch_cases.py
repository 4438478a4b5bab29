"""Torch modules, losses and the dense oracle that the tests of the torch front end share."""

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.func import functional_call


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.decode(torch.tanh(self.encode(x)))))


class Codes(nn.Module):
    """Integer ids beside real inputs."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 3), nn.Linear(5, 2)

    def forward(self, ids, x):
        return self.head(torch.cat([torch.tanh(self.table(ids)), x], dim=1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))[:, 0]


class Branching(nn.Module):
    """A Python branch on a value: torch.vmap cannot follow it."""

    def __init__(self):
        super().__init__()
        self.body = mlp(3, 4, 1)

    def forward(self, x):
        return torch.stack([self.body(row) if float(row[0]) > 0 else 2 * self.body(row) for row in x])


class Squeezing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(3, 4, 1)

    def forward(self, x):
        return self.body(x).squeeze()


def mlp(*widths, activation=nn.Tanh):
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 1),
    )


def normalised():
    """Each row of outputs sums to zero whatever the parameters are."""
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4).requires_grad_(False))


def train_batch_norm(module, X):
    module.train()
    with torch.no_grad():
        module(X)
    return module.eval()


class Wrapped(nn.Module):
    """A small network with one step of the given kind after its hidden layer."""

    def __init__(self, step):
        super().__init__()
        self.first, self.last, self.step = nn.Linear(3, 4), nn.Linear(4, 1), step

    def forward(self, x):
        return self.last(self.step(torch.tanh(self.first(x))))


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


def log_cosh(f, y):
    return torch.log(torch.cosh(f - y))


def coupled(f, y):
    """A loss of two outputs together: its curvature has an off-diagonal."""
    r = f - y
    return r[0] ** 2 + r[1] ** 2 + 0.5 * torch.sin(r[0] * r[1])


def relative(f, y):
    """Not a function of f - y."""
    return (f * torch.exp(-y) - y**2) ** 2


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(make):
    state = torch.get_rng_state()
    torch.manual_seed(3)
    module = make()
    torch.set_rng_state(state)
    return module.eval()


def case(name):
    n = 9
    ids = torch.randint(0, 5, (n,), generator=torch.Generator().manual_seed(1))
    table = {
        "one output": (lambda: mlp(3, 4, 1), data(n, 3), data(n, 1, seed=1), "half_mse"),
        "squeezed": (Squeezing, data(n, 3), data(n, seed=1), "half_mse"),
        "two outputs": (lambda: mlp(3, 4, 2), data(n, 3), data(n, 2, seed=1), "half_mse"),
        "relu": (lambda: mlp(3, 6, 1, activation=nn.ReLU), data(n, 3), data(n, 1, seed=1), "half_mse"),
        "log-cosh": (Squeezing, data(n, 3), data(n, seed=1), log_cosh),
        "log-cosh of two": (lambda: mlp(3, 4, 2), data(n, 3), data(n, 2, seed=1), log_cosh),
        "coupled": (lambda: mlp(3, 4, 2), data(n, 3), data(n, 2, seed=1), coupled),
        "relative": (Squeezing, data(n, 3), data(n, seed=1), relative),
        "convolution": (convolutional, data(n, 1, 7, 7), data(n, 1, seed=1), "half_mse"),
        "tied": (Tied, data(n, 3), data(n, 1, seed=1), "half_mse"),
        "codes": (Codes, (ids, data(n, 2)), data(n, 2, seed=1), "half_mse"),
        "recurrent": (Recurrent, data(n, 4, 2), data(n, 1, seed=1), "half_mse"),
        "attention": (Attention, data(n, 3, 4), data(n, seed=1), "half_mse"),
        "constant sum": (normalised, data(n, 3), data(n, 4, seed=1), "half_mse"),
        "branching": (Branching, data(n, 3), data(n, 1, seed=1), "half_mse"),
    }
    make, X, y, loss = table[name]
    module = seeded(make)
    if name == "convolution":
        train_batch_norm(module, X)
    return module, X, y, loss


CASES = (
    "one output",
    "squeezed",
    "two outputs",
    "relu",
    "log-cosh",
    "log-cosh of two",
    "coupled",
    "relative",
    "convolution",
    "tied",
    "codes",
    "recurrent",
    "attention",
    "constant sum",
    "branching",
)
WEIGHTS = np.linspace(0.5, 2.0, 9)


def oracle(module, X, y, loss, weights):
    """Dense Jacobian, Hessian and loss of a double copy of the module, by torch.autograd alone."""
    double = copy.deepcopy(module).double()
    names = [name for name, value in double.named_parameters() if value.requires_grad]
    shapes = [dict(double.named_parameters())[name].shape for name in names]
    theta = torch.cat([dict(double.named_parameters())[name].detach().reshape(-1) for name in names])
    inputs = [x.double() if x.is_floating_point() else x for x in (X if isinstance(X, tuple) else (X,))]
    y, w, n = y.double(), torch.as_tensor(weights), len(y)

    def f(t):
        parts = torch.split(t, [shape.numel() for shape in shapes])
        trained = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return functional_call(double, trained, tuple(inputs))

    def rows(t):
        if loss == "half_mse":
            return 0.5 * (f(t) - y).reshape(n, -1).square().sum(1)
        return torch.stack([loss(a, b).sum() for a, b in zip(f(t), y, strict=True)])

    def L(t):
        return (w * rows(t)).sum() / n

    H = torch.autograd.functional.hessian(L, theta)
    J = torch.autograd.functional.jacobian(f, theta).reshape(n, -1, len(theta))
    gradient = torch.autograd.functional.jacobian(L, theta)
    return SimpleNamespace(
        H=H.numpy(), J=J.numpy(), gradient=gradient.numpy(), L=float(L(theta)), f=f(theta).reshape(n, -1).numpy()
    )


def blocks(problem, k=3, seed=0):
    return np.random.default_rng(seed).standard_normal((k, problem.p))


def full_curvature(problem):
    c = problem.loss_derivatives.curvature
    return c if c.ndim == 3 else c[:, :, None] * np.eye(problem.outputs)


def close(found, expected, rtol=1e-10):
    expected = np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())
