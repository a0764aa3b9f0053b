"""Tame a training that is too fast: bound gradients layer by layer, once compiled."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch import nn


def train(backend: str | None = None) -> list[float]:
    """The losses of 30 steps, the last 25 clipped; eager without a ``backend``."""
    torch.manual_seed(0)
    data = load_diabetes()
    inputs = torch.tensor(data.data) * 20
    targets = torch.tensor(data.target).unsqueeze(1) / 100
    model = nn.Sequential(
        nn.Linear(10, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1)
    ).double()
    call = torch.compile(model, backend=backend) if backend else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def clip(module: nn.Module, grad_output: Any) -> Any:
        (grad,) = grad_output
        return (grad * (0.1 / grad.norm()).clamp(max=1.0),)

    losses = []
    for step in range(30):
        if step == 5:
            for layer in model:
                layer.register_full_backward_pre_hook(clip)
        optimizer.zero_grad()
        loss = F.mse_loss(call(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(backend: str = "inductor") -> int:
    eager, compiled = train(), train(backend)
    good = all(math.isclose(*both, rel_tol=1e-6) for both in zip(eager, compiled))
    print(
        f"loss {compiled[0]:.1f}, {compiled[4]:.1f} after 4 steps too fast, "
        f"{compiled[-1]:.1f} after 25 clipped; "
        f"{'as eager' if good else 'DIFFERENT FROM EAGER'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
