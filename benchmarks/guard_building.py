"""What it costs to build the guard on hooks: compile time, and memory for each module.

Compile times with the guard and with ``skip_nnmodule_hook_guards`` are taken in turn,
in one process, with a backend that computes nothing. Memory is that of the guard alone,
and of what it remembers of each model that is called:

    python benchmarks/guard_building.py [--rounds ROUNDS] [MODULES ...]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import tracemalloc

import torch
import torch._dynamo
import torch._dynamo.config
from rich.console import Console
from rich.table import Table
from torch._dynamo.nn_module_hooks.module_paths import ExpectedHooks, ModulePaths
from torch._dynamo.source import AttrSource, DictGetItemSource, LocalSource
from torch._guards import Source

from guards import Net


MODULES = (602, 5000)
ROUNDS = 7


def seconds_to_compile(model: Net, skip: bool) -> float:
    """Time of the first call after a reset."""
    x = torch.ones(1, 2)
    torch._dynamo.reset()
    gc.collect()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=skip), torch.no_grad():
        compiled = torch.compile(model, backend=lambda gm, inputs: lambda *args: (x,))
        start = time.perf_counter()
        compiled(x)
        return time.perf_counter() - start


def bytes_held(model: Net) -> tuple[float, float]:
    """Bytes for each module: of the guard, and of its memo of one model."""
    sources: dict[str, Source] = {"": LocalSource("self")}
    for name, _ in model.named_modules():
        above, _, key = name.rpartition(".")
        if name:
            modules = AttrSource(sources[above], "_modules")
            sources[name] = DictGetItemSource(modules, key)
    expected = ExpectedHooks.of(model)
    tracemalloc.start()
    paths = ModulePaths([])
    for source in sources.values():
        paths.expect(source, expected, lambda name: lambda frame_locals: None)
    guard = paths.guard
    del paths, sources, source
    gc.collect()
    built, _ = tracemalloc.get_traced_memory()
    if not guard({"self": model}):
        raise AssertionError("the guard does not hold: nothing was measured")
    called, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    n = sum(1 for _ in model.modules())
    return built / n, (called - built) / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", metavar="MODULES", nargs="*", type=int)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    sys.setrecursionlimit(100_000)  # for large models
    table = Table(
        "modules",
        "s, default",
        "s, skip",
        "to skip",
        "pairs, quartiles",
        "bytes a module",
        "bytes a module and model",
    )
    for modules in options.modules or MODULES:
        model = Net(modules)
        seconds_to_compile(model, skip=True)
        times: dict[bool, list[float]] = {False: [], True: []}
        for n in range(options.rounds):
            for skip in (False, True) if n % 2 else (True, False):
                times[skip].append(seconds_to_compile(model, skip))
        default, skip_ = (statistics.median(times[skip]) for skip in (False, True))
        pairs = [a / b for a, b in zip(times[False], times[True], strict=True)]
        low, middle, high = statistics.quantiles(pairs, n=4)
        guard, memo = bytes_held(model)
        table.add_row(
            str(modules),
            f"{default:.2f}",
            f"{skip_:.2f}",
            f"{default / skip_:.3f}",
            f"{low:.3f} {middle:.3f} {high:.3f}",
            f"{guard:.0f}",
            f"{memo:.0f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
