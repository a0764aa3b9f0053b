"""Grad-CAM of digits: which pixels speak for the class that was read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class GradCam:
    """Heat maps of a batch of digits, each scaled to a maximum of 1.

    Attributes:
        images: pixels, ``(N, 8, 8)``.
        labels: what the digits are.
        predicted: what they were read as.
        confidence: the probability the network gives that.
        heat: the heat maps, ``(N, 8, 8)``.
    """

    images: torch.Tensor
    labels: torch.Tensor
    predicted: torch.Tensor
    confidence: torch.Tensor
    heat: torch.Tensor

    @classmethod
    def make(
        cls,
        images: torch.Tensor,
        labels: torch.Tensor,
        logits: torch.Tensor,
        activation: torch.Tensor,
        gradient: torch.Tensor,
    ) -> GradCam:
        """Weigh each channel by the mean of its gradient and keep what speaks for.

        Args:
            images: ``(N, 1, 8, 8)``.
            labels: ``(N,)``.
            logits: ``(N, 10)``.
            activation: of a layer, ``(N, C, 8, 8)``.
            gradient: of each digit's greatest logit with respect to it.
        """
        weights = gradient.mean((2, 3), keepdim=True)
        heat = torch.relu((weights * activation).sum(1))
        confidence, predicted = logits.softmax(1).max(1)
        # A map that is cold all over stays so.
        peak = heat.amax((1, 2), keepdim=True).clamp(min=1e-12)
        return cls(images.squeeze(1), labels, predicted, confidence, heat / peak)

    def draw(self, path: Path) -> None:
        """Draw one digit of each class: pixels, heat map, and one upon the other."""
        # Here, for an interpreter that only compares draws nothing.
        from matplotlib import colormaps
        from matplotlib.figure import Figure

        shown = [int((self.labels == c).nonzero()[0]) for c in range(10)]
        # Not from pyplot: this one needs no display and is drawn by Agg.
        figure = Figure(figsize=(1.25 * len(shown) + 1.5, 4.9), layout="constrained")
        axes = figure.subplots(3, len(shown))
        colors = colormaps["inferno"]
        for column, i in zip(axes.T, shown):
            right = bool(self.predicted[i] == self.labels[i])
            column[0].set_title(
                f"reads {self.predicted[i]}\n{self.confidence[i]:.0%} sure",
                color="#222222" if right else "#c62828",
            )
            column[0].imshow(self.images[i], cmap="gray_r", vmin=0, vmax=16)
            mappable = column[1].imshow(self.heat[i], cmap=colors, vmin=0, vmax=1)
            heat = _enlarged(self.heat[i])
            paper = 1 - _enlarged(self.images[i] / 16)[..., None].expand(-1, -1, 3)
            glow = torch.as_tensor(colors(heat.numpy()))[..., :3]
            # Cold places show the digit alone.
            opacity = 0.95 * heat[..., None]
            column[2].imshow(torch.lerp(paper, glow, opacity))
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_color("#bbbbbb")
        for axis, name in zip(axes[:, 0], ("digit", "heat map", "overlay")):
            axis.set_ylabel(name, fontsize=12)
        figure.colorbar(
            mappable, ax=axes, shrink=0.7, pad=0.01, label="speaks for what is read"
        )
        figure.suptitle(
            "Grad-CAM of unseen digits, through hooks on a compiled model", fontsize=14
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def _enlarged(image: torch.Tensor) -> torch.Tensor:
    image = image.expand(1, 1, *image.shape)
    large = F.interpolate(image, scale_factor=16, mode="bicubic")
    return large.squeeze().clamp(0, 1)
