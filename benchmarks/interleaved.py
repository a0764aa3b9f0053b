"""What the benchmarks of hooks share: a transformer, and modes measured in turn.

Each release of torch runs in a process of its own that waits while another one
measures. Used by ``backward_hooks.py`` and ``recording_hooks.py``; measures nothing by
itself.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import nn


BLOCKS = (4, 12)
WIDTH, HEADS, TOKENS, BATCH = 64, 4, 32, 4
ROUNDS, STEPS = 25, 3
StepOf = Callable[[str, int], Callable[[], None]]


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


def transformer(blocks: int) -> nn.Sequential:
    """The model, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(blocks)])


def hooked(model: nn.Module) -> list[nn.Module]:
    """The modules that get hooks: every Linear and every block."""
    return [m for m in model.modules() if isinstance(m, (nn.Linear, Block))]


def work(step_of: StepOf, modes: list[str], blocks: int) -> None:
    """Measure a mode whenever standard input names one; print milliseconds.

    Args:
        step_of: makes a training step in a mode, for a number of blocks.
        modes: the modes.
        blocks: the number of blocks.
    """
    steps: dict[str, Callable[[], None] | None] = {}
    for mode in modes:
        start = time.perf_counter()
        try:
            steps[mode] = step_of(mode, blocks)
        except Exception as error:
            print(f"{mode}: {type(error).__name__}: {error}", file=sys.stderr)
            steps[mode] = None
        print(time.perf_counter() - start, flush=True)
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
            [python, sys.argv[0], "--worker", str(blocks), *modes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seconds_to_first = {mode: self._read() for mode in modes}

    def _read(self) -> float:
        return float(self.process.stdout.readline())  # type: ignore[union-attr]

    def milliseconds(self, mode: str) -> float:
        print(mode, file=self.process.stdin, flush=True)
        return self._read()

    def stop(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()


def measure(
    pythons: dict[str, tuple[str, ...]], blocks: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Milliseconds of each round, and seconds to the first, by mode.

    Args:
        pythons: the modes that each Python measures, in a process of its own.
        blocks: number of blocks of the model.
    """
    workers = [Worker(python, modes, blocks) for python, modes in pythons.items()]
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for worker in workers:
            for mode in worker.modes:
                times.setdefault(mode, []).append(worker.milliseconds(mode))
    first: dict[str, float] = {}
    for worker in workers:
        first |= worker.seconds_to_first
        worker.stop()
    return times, first


def parse(
    parser: argparse.ArgumentParser,
    step_of: StepOf,
    ours: tuple[str, ...],
    pristine: tuple[str, ...],
) -> tuple[argparse.Namespace, dict[str, tuple[str, ...]]]:
    """Options of a benchmark, and the modes that each Python measures.

    Does not return in a worker of another process: it works until that stops it.

    Args:
        parser: knows the options that are the benchmark's own.
        step_of: makes a training step in a mode, for a number of blocks.
        ours: modes of this release.
        pristine: modes of the release without hooks of ours.
    """
    parser.add_argument("--pristine", metavar="PYTHON")
    parser.add_argument("--worker", nargs="+", metavar=("BLOCKS", "MODE"))
    options = parser.parse_args()
    if options.worker:
        work(step_of, options.worker[1:], int(options.worker[0]))
        sys.exit()
    pythons = {sys.executable: ours}
    if options.pristine:
        pythons[options.pristine] = pristine
    return options, pythons


def _ratio(times: dict[str, list[float]], mode: str, base: str) -> str:
    if base not in times:
        return "-"
    return f"{statistics.median(times[mode]) / statistics.median(times[base]):.2f}"


def run(
    doc: str | None, step_of: StepOf, ours: tuple[str, ...], pristine: tuple[str, ...]
) -> None:
    """Measure all modes in turn and print a table, or be a worker of that.

    Args:
        doc: what the script says of itself.
        step_of: makes a training step in a mode, for a number of blocks.
        ours: modes of this release, among them "no hooks".
        pristine: modes of the release without hooks of ours, among them "pristine".
    """
    parser = argparse.ArgumentParser(description=doc)
    _, pythons = parse(parser, step_of, ours, pristine)
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "blocks",
        "mode",
        "ms per step",
        "quartiles",
        "to no hooks",
        "to pristine",
        "s to compile",
    )
    for blocks in BLOCKS:
        times, first = measure(pythons, blocks)
        for mode, taken in times.items():
            low, median, high = statistics.quantiles(taken, n=4)
            table.add_row(
                str(blocks),
                mode,
                f"{median:.1f}",
                f"{low:.1f}-{high:.1f}",
                _ratio(times, mode, "no hooks"),
                _ratio(times, mode, "pristine"),
                f"{first[mode]:.1f}",
            )
    Console(width=110).print(table)
