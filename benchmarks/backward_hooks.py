"""What backward hooks cost: time of a training step of a transformer, by mode.

A full backward hook on every Linear and every block changes the gradients. All modes
are interleaved in one run; the table gives medians, quartiles and ratios. Each release
of torch runs in a process of its own that waits while another one measures:

    python benchmarks/backward_hooks.py [--pristine PYTHON]

where PYTHON is one that has the pristine release, whose ``torch.compile`` breaks the
graph at every such hook.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.config
from torch import nn


BLOCKS = (4, 12)
WIDTH, HEADS, TOKENS, BATCH = 64, 4, 32, 4
ROUNDS, STEPS = 25, 3
OURS = ("eager", "no hooks", "called at run time", "traced", "compiled autograd")
PRISTINE = ("pristine, no hooks", "pristine")


class Block(nn.Module):
    """``(BATCH, TOKENS, WIDTH) -> (BATCH, TOKENS, WIDTH)``, four linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_mlp(x))))


def scale(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
    """A full backward hook that is nothing but tensor code."""
    return (grad_input[0] * 0.999,)


def step_of(mode: str, blocks: int) -> Callable[[], None]:
    """A training step of a new model in one of the modes, compiled and run twice."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(blocks)])
    if "no hooks" not in mode:
        for module in model.modules():
            if isinstance(module, (nn.Linear, Block)):
                module.register_full_backward_hook(scale)
    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    options: dict[str, Any] = {}
    if mode == "called at run time":
        options["nn_module_hook_policy"] = "call"
    if mode == "compiled autograd":
        options["compiled_autograd"] = True

    def forward(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    def train(x: torch.Tensor) -> None:
        forward(x).backward()

    # Code objects of their own: nothing compiled before counts.
    for function in (forward, train):
        name = f"{function.__name__}_{mode}_{blocks}".replace(" ", "_")
        function.__code__ = function.__code__.replace(co_name=name)
    if mode == "compiled autograd":
        train = torch.compile(train)
    elif mode != "eager":
        forward = torch.compile(forward)

    def step() -> None:
        with torch._dynamo.config.patch(options):
            train(x)
        x.grad = None
        model.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    return step


def work(modes: tuple[str, ...], blocks: int) -> None:
    """Measure a mode whenever standard input names one; print milliseconds."""
    steps: dict[str, Callable[[], None] | None] = {}
    for mode in modes:
        try:
            steps[mode] = step_of(mode, blocks)
        except Exception as error:
            print(f"{mode}: {type(error).__name__}: {error}", file=sys.stderr)
            steps[mode] = None
    print("ready", flush=True)
    for line in sys.stdin:
        step = steps[line.strip()]
        if step is None:
            print("nan", flush=True)
            continue
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        print((time.perf_counter() - start) / STEPS * 1e3, flush=True)


class Worker:
    """A process with one release of torch."""

    def __init__(self, python: str, modes: tuple[str, ...], blocks: int) -> None:
        self.modes = modes
        self.process = subprocess.Popen(
            [python, __file__, "--worker", str(blocks), *modes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._read() != "ready":
            raise RuntimeError(f"{python} did not get ready, see its error above")

    def _read(self) -> str:
        return self.process.stdout.readline().strip()  # type: ignore[union-attr]

    def milliseconds(self, mode: str) -> float:
        print(mode, file=self.process.stdin, flush=True)
        return float(self._read())

    def stop(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()


def measure(pythons: dict[str, tuple[str, ...]], blocks: int) -> dict[str, list[float]]:
    workers = [Worker(python, modes, blocks) for python, modes in pythons.items()]
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for worker in workers:
            for mode in worker.modes:
                times.setdefault(mode, []).append(worker.milliseconds(mode))
    for worker in workers:
        worker.stop()
    return times


def ratio(times: dict[str, list[float]], mode: str, base: str) -> str:
    if base not in times:
        return "-"
    return f"{statistics.median(times[mode]) / statistics.median(times[base]):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pristine", metavar="PYTHON")
    parser.add_argument("--worker", nargs="+", metavar=("BLOCKS", "MODE"))
    options = parser.parse_args()
    if options.worker:
        work(tuple(options.worker[1:]), int(options.worker[0]))
        return
    from rich.console import Console
    from rich.table import Table

    pythons: dict[str, tuple[str, ...]] = {sys.executable: OURS}
    if options.pristine:
        pythons[options.pristine] = PRISTINE
    table = Table(
        "blocks", "mode", "ms per step", "quartiles", "to no hooks", "to pristine"
    )
    for blocks in BLOCKS:
        times = measure(pythons, blocks)
        for mode, taken in times.items():
            low, median, high = statistics.quantiles(taken, n=4)
            table.add_row(
                str(blocks),
                mode,
                f"{median:.1f}",
                f"{low:.1f}-{high:.1f}",
                ratio(times, mode, "no hooks"),
                ratio(times, mode, "pristine"),
            )
    console = Console(width=100)
    console.print(table)


if __name__ == "__main__":
    main()
