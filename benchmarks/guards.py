"""What it costs to notice changed hooks: time of a compiled call, by size of the model.

The backend computes nothing, so that a call is its guards. All modes are interleaved in
one run, those of one release on one model; "attribute set" changes an attribute of a
module before each call, which has nothing to do with hooks:

    python benchmarks/guards.py [--pristine PYTHON] [--plot FILE.png] [MODULES ...]

where PYTHON is one that has the pristine release, of the same Python version.
"""

from __future__ import annotations

import argparse
import functools
import platform
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.config
from torch import nn
from torch._dynamo.utils import counters

from interleaved import measure, parse


MODULES = (62, 302, 602, 3002, 10004)
CALLS = 20
MODES = {
    "default": (False, False),
    "skip": (True, False),
    "default, attribute set": (False, True),
    "skip, attribute set": (True, True),
}
OURS = tuple(MODES)
PRISTINE = tuple(
    f"pristine, {mode}" for mode in ("skip", "safe", "safe, attribute set")
)


class Block(nn.Module):
    """``(N, 2) -> (N, 2)``, six modules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(2), nn.ReLU()
        self.up, self.down, self.drop = nn.Linear(2, 2), nn.Linear(2, 2), nn.Dropout(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(self.act(self.up(self.norm(x)))))


class Net(nn.Module):
    """``(N, 2) -> (N, 2)``, six modules a block and two."""

    def __init__(self, modules: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range((modules - 2) // 6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


model_of = functools.cache(Net)


def step_of(mode: str, modules: int) -> Callable[[], None]:
    """Calls of a model whose graph returns its input at once."""
    skip, sets = MODES[mode.removeprefix("pristine, ").replace("safe", "default")]
    model = model_of(modules)
    touched: Any = model.blocks[0]
    touched.calls = 0
    x = torch.ones(1, 2)

    def call(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    # A code object of its own: one cache entry to check, whatever was compiled before.
    call.__code__ = call.__code__.replace(co_name=f"call_{abs(hash(mode))}")
    compiled = torch.compile(call, backend=lambda gm, inputs: lambda *args: (x,))

    def step() -> None:
        graphs = counters["stats"]["unique_graphs"]
        with torch.no_grad():
            for _ in range(CALLS):
                if sets:
                    touched.calls += 1
                compiled(x)
        if counters["stats"]["unique_graphs"] != graphs:
            raise AssertionError("compiled while measuring: not the time of guards")

    # Grad mode is guarded, so it is the same for compiling and calling.
    with torch.no_grad(), torch._dynamo.config.patch(skip_nnmodule_hook_guards=skip):
        compiled(x)
    step()
    return step


def plot(times: dict[int, dict[str, list[float]]], path: str) -> None:
    """Draw the median time of a call, by size of the model, for each mode."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for mode in next(iter(times.values())):
        medians = [statistics.median(taken[mode]) for taken in times.values()]
        line = "--" if "set" in mode else "-"
        axes.loglog(list(times), medians, line, marker="o", label=mode)
    axes.set_xlabel("modules")
    axes.set_ylabel("us per call")
    axes.set_title(f"Guards of a compiled call, Python {platform.python_version()}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", metavar="MODULES", nargs="*", type=int)
    parser.add_argument("--plot", metavar="FILE.png")
    sys.setrecursionlimit(100_000)  # for large models
    options, pythons = parse(parser, step_of, OURS, PRISTINE)
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "modules", "mode", "us per call", "quartiles", "to skip", "s to first"
    )
    times: dict[int, dict[str, list[float]]] = {}
    for modules in options.modules or MODULES:
        taken, first = measure(pythons, modules)
        times[modules] = {
            mode: [milliseconds * 1e3 / CALLS for milliseconds in values]
            for mode, values in taken.items()
        }
        base = statistics.median(times[modules]["skip"])
        for mode, values in times[modules].items():
            low, median, high = statistics.quantiles(values, n=4)
            table.add_row(
                str(modules),
                mode,
                f"{median:.1f}",
                f"{low:.1f}-{high:.1f}",
                f"{median / base:.2f}",
                f"{first[mode]:.1f}",
            )
    console = Console(width=100)
    console.print(table)
    if len(times) > 1:
        for mode in next(iter(times.values())):
            medians = [statistics.median(taken[mode]) for taken in times.values()]
            slope = statistics.linear_regression(list(times), medians).slope
            console.print(f"{mode}: {slope * 1e3:.0f} ns per module")
    if options.plot:
        plot(times, options.plot)


if __name__ == "__main__":
    main()
