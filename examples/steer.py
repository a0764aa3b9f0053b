"""Steer a compiled language model: add a direction to a layer's output, and stop."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_iris
from torch import nn


class CharModel(nn.Module):
    """A transformer of one layer that predicts next characters."""

    def __init__(self, chars: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(chars, 32)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)
        self.mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.head = nn.Linear(32, chars)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embed(tokens), self.mask, is_causal=True))


def main(backend: str = "inductor") -> int:
    torch.manual_seed(0)
    text = load_iris().DESCR.encode("ascii", "replace")
    tokens = torch.tensor(list(text)).unfold(0, 33, 11)[:128]
    capital = torch.tensor([chr(char).isupper() for char in range(128)])
    texts, following = tokens[:, :-1], tokens[:, 1:].flatten()
    model = CharModel(len(capital), texts.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(texts).flatten(0, 1), following).backward()
        optimizer.step()

    def steer(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output + 4 * model.head.weight[capital].mean(0)

    def off_on_off(call: Any) -> list[torch.Tensor]:
        logits = [call(texts)]
        with model.block.register_forward_hook(steer):
            logits.append(call(texts))
        return [*logits, call(texts)]

    eager, compiled = map(off_on_off, (model, torch.compile(model, backend=backend)))
    good = all(torch.allclose(*both, 1e-3, 1e-4) for both in zip(eager, compiled))
    shares = [f"{x.softmax(-1)[..., capital].sum(-1).mean():.0%}" for x in compiled]
    verdict = "as eager" if good else "DIFFERENT FROM EAGER"
    print(f"steered toward capitals, off/on/off: {', '.join(shares)}; {verdict}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
