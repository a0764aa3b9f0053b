"""A digit classifier small enough to compile in seconds, and its data."""

from __future__ import annotations

import dataclasses

import torch
from sklearn.datasets import load_digits
from torch import nn


BATCH = 64
TRAIN_BATCHES = 20
# The pixels of a scanned digit are 0 to 16; the model is told how to bring them to 1.
SCALE = 1 / 16
# Rounding then stays far below the effect of any hook, over a whole training run:
# what the compiled code does differently is not lost in the noise.
DTYPE = torch.float64


class ConvBlock(nn.Module):
    """A convolution and a rectifier; height and width are kept."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.conv(x))


class DigitNet(nn.Module):
    """Two blocks and a linear head: ``(N, 1, 8, 8)`` pixels to ``(N, 10)`` logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBlock(1, 8)
        self.body = ConvBlock(8, 32)
        self.pool = nn.AvgPool2d(4)
        self.head = nn.Linear(32 * 2 * 2, 10)

    def forward(self, images: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        features = self.body(self.stem(images * scale))
        return self.head(self.pool(features).flatten(1))


def layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of ``model`` that contain no others, by name, in calling order."""
    return {
        name: module
        for name, module in model.named_modules()
        if not any(module.children())
    }


@dataclasses.dataclass(frozen=True)
class Batch:
    """As many digits as every compiled graph is made for."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Digits:
    """Scikit-learn's scanned digits, in batches of equal size."""

    train: list[Batch]
    unseen: list[Batch]

    @classmethod
    def load(cls) -> Digits:
        """Read the data bundled with scikit-learn, always in the same order."""
        bunch = load_digits()
        order = torch.randperm(
            len(bunch.target), generator=torch.Generator().manual_seed(0)
        )
        images = torch.tensor(bunch.images, dtype=DTYPE).unsqueeze(1)[order]
        labels = torch.tensor(bunch.target)[order]
        # The few digits of an incomplete batch are left out.
        batches = [
            Batch(images[i : i + BATCH], labels[i : i + BATCH])
            for i in range(0, len(labels) - BATCH + 1, BATCH)
        ]
        return cls(batches[:TRAIN_BATCHES], batches[TRAIN_BATCHES:])
