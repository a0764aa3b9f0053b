# Owner(s): ["module: dynamo"]
"""Forward hooks that record, one for each way in which people do it.

Each maker takes the log that is compared with eager's and returns a hook of
``register_forward_hook``. ``RECORDERS`` need nothing that compiled code cannot trace,
``OPAQUE`` ones do.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from hook_programs import HookTestCase, same


Maker = Callable[[list[Any]], Callable[..., Any]]
RECORDERS: dict[str, Maker] = {}
OPAQUE: dict[str, Maker] = {}


def recorder(make: Maker) -> Maker:
    RECORDERS[make.__name__] = make
    return make


def opaque(make: Maker) -> Maker:
    OPAQUE[make.__name__] = make
    return make


def brief(value: torch.Tensor) -> float:
    return round(value.double().sum().item(), 4)


def plain(value: Any) -> Any:
    """``value`` as what ``same`` compares, with copies of tensors as they are now."""
    if isinstance(value, torch.Tensor):
        return (value.requires_grad, value.detach().clone())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "__dataclass_fields__"):
        return plain(vars(value))
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return value
    return [plain(item) for item in value]


class RecordingTestCase(HookTestCase):
    """A log may hold tensors, containers and other things that ``plain`` knows."""

    def check_log(self, eager: list[Any], compiled: list[Any]) -> None:
        for want, got in zip(plain(eager), plain(compiled), strict=False):
            self.assertTrue(same(want, got), f"eager {want}\ncompiled {got}")
        self.assertEqual(len(eager), len(compiled))


@recorder
def append_detached(log: list[Any]) -> Callable[..., Any]:
    return lambda module, args, out: log.append(out.detach())


@recorder
def append_live(log: list[Any]) -> Callable[..., Any]:
    def hook(module: Any, args: Any, out: Any) -> None:
        log.append(out)

    return hook


@recorder
def append_input(log: list[Any]) -> Callable[..., Any]:
    def hook(module: Any, args: Any, out: Any) -> None:
        log.append([arg.detach() for arg in args])

    return hook


@recorder
def extend(log: list[Any]) -> Callable[..., Any]:
    def hook(module: Any, args: Any, out: Any) -> None:
        log.extend([type(module).__name__, out.shape])

    return hook


@recorder
def insert(log: list[Any]) -> Callable[..., Any]:
    def hook(module: Any, args: Any, out: Any) -> None:
        log.insert(0, out.detach().clone())

    return hook


@recorder
def dict_item(log: list[Any]) -> Callable[..., Any]:
    features: dict[str, Any] = {}
    log.append(features)

    def hook(module: Any, args: Any, out: Any) -> None:
        features[f"out {len(features)}"] = out.detach()

    return hook


@recorder
def dict_update(log: list[Any]) -> Callable[..., Any]:
    features: dict[str, Any] = {}
    log.append(features)

    def hook(module: Any, args: Any, out: Any) -> None:
        features.update(last=out.detach(), shape=tuple(out.shape))

    return hook


@recorder
def set_add(log: list[Any]) -> Callable[..., Any]:
    seen: set[Any] = set()
    log.append(seen)

    def hook(module: Any, args: Any, out: Any) -> None:
        seen.add((len(seen) % 50, tuple(out.shape)))

    return hook


@recorder
def default_dict(log: list[Any]) -> Callable[..., Any]:
    features: Any = collections.defaultdict(list)
    log.append(features)

    def hook(module: Any, args: Any, out: Any) -> None:
        features[type(module).__name__].append(out.detach())

    return hook


@recorder
def bounded_deque(log: list[Any]) -> Callable[..., Any]:
    last: collections.deque[Any] = collections.deque(maxlen=3)
    log.append(last)

    def hook(module: Any, args: Any, out: Any) -> None:
        last.append(out.detach())

    return hook


@recorder
def counter_in_closure(log: list[Any]) -> Callable[..., Any]:
    calls = 0

    def hook(module: Any, args: Any, out: Any) -> None:
        nonlocal calls
        calls += 1
        log.append(calls)

    return hook


@recorder
def counter_in_list(log: list[Any]) -> Callable[..., Any]:
    calls = [0]
    log.append(calls)

    def hook(module: Any, args: Any, out: Any) -> None:
        calls[0] += 1

    return hook


@recorder
def counter_on_module(log: list[Any]) -> Callable[..., Any]:
    def hook(module: Any, args: Any, out: Any) -> None:
        module.calls = getattr(module, "calls", 0) + 1
        log.append(module.calls)

    return hook


class Recorder:
    """A callable object that keeps a running mean as a float."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.calls = 0
        self.mean = 0.0

    def __call__(self, module: Any, args: Any, out: Any) -> None:
        self.calls += 1
        self.mean += (out.detach().mean().item() - self.mean) / self.calls
        self.log.append((self.calls, round(self.mean, 5)))

    def method(self, module: Any, args: Any, out: Any) -> None:
        self.calls += 1
        self.log.append((self.calls, out.detach()))


@recorder
def callable_object(log: list[Any]) -> Callable[..., Any]:
    return Recorder(log)


@recorder
def bound_method(log: list[Any]) -> Callable[..., Any]:
    return Recorder(log).method


@recorder
def partial(log: list[Any]) -> Callable[..., Any]:
    def hook(name: str, module: Any, args: Any, out: Any) -> None:
        log.append((name, out.detach()))

    return functools.partial(hook, "layer")


@dataclasses.dataclass
class Statistics:
    calls: int = 0
    largest: float = 0.0


@recorder
def data_class(log: list[Any]) -> Callable[..., Any]:
    statistics = Statistics()
    log.append(statistics)

    def hook(module: Any, args: Any, out: Any) -> None:
        statistics.calls += 1
        statistics.largest = max(statistics.largest, out.detach().max().item())

    return hook


@recorder
def running_mean_tensor(log: list[Any]) -> Callable[..., Any]:
    mean = torch.zeros(())
    log.append(mean)

    def hook(module: Any, args: Any, out: Any) -> None:
        mean.mul_(0.9).add_(out.detach().mean(), alpha=0.1)

    return hook


@recorder
def running_mean_rebound(log: list[Any]) -> Callable[..., Any]:
    mean: Any = 0.0

    def hook(module: Any, args: Any, out: Any) -> None:
        nonlocal mean
        mean = mean * 0.9 + out.detach().mean() * 0.1
        log.append(mean)

    return hook


@recorder
def nested_containers(log: list[Any]) -> Callable[..., Any]:
    store: dict[str, Any] = {"layers": {"first": []}}
    log.append(store)

    def hook(module: Any, args: Any, out: Any) -> None:
        store["layers"]["first"].append({"shape": out.shape, "value": [out.detach()]})

    return hook


@recorder
def helper_function(log: list[Any]) -> Callable[..., Any]:
    def keep(name: str, value: torch.Tensor) -> None:
        log.append((name, value.detach().float()))

    def hook(module: Any, args: Any, out: Any) -> None:
        keep("out", out)
        for arg in args:
            keep("in", arg)

    return hook


@recorder
def tuple_or_tensor(log: list[Any]) -> Callable[..., Any]:
    def hook(module: Any, args: Any, out: Any) -> None:
        values = out if isinstance(out, tuple) else (out,)
        log.append(tuple(value.detach() for value in values))

    return hook


@opaque
def item(log: list[Any]) -> Callable[..., Any]:
    return lambda module, args, out: log.append(brief(out))


@opaque
def tolist(log: list[Any]) -> Callable[..., Any]:
    def hook(module: Any, args: Any, out: Any) -> None:
        log.append([round(value, 4) for value in out.detach().sum(0).tolist()])

    return hook


@opaque
def numpy(log: list[Any]) -> Callable[..., Any]:
    def hook(module: Any, args: Any, out: Any) -> None:
        log.append(out.detach().cpu().numpy().shape)

    return hook


@opaque
def prints(log: list[Any]) -> Callable[..., Any]:
    stream = io.StringIO()

    def hook(module: Any, args: Any, out: Any) -> None:
        print(f"{type(module).__name__}: {brief(out.detach()):.3f}", file=stream)
        log.append(stream.getvalue())

    return hook


@opaque
def logs(log: list[Any]) -> Callable[..., Any]:
    logger = logging.Logger("hooks", logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: log.append(  # type: ignore[method-assign]
        record.getMessage()
    )
    logger.addHandler(handler)

    def hook(module: Any, args: Any, out: Any) -> None:
        logger.info("out has mean %.4f", out.mean().item())

    return hook


@opaque
def writes_file(log: list[Any]) -> Callable[..., Any]:
    file = io.BytesIO()

    def hook(module: Any, args: Any, out: Any) -> None:
        file.write(out.detach().numpy().tobytes()[:3])
        log.append(file.tell())

    return hook


class Writer:
    """What TensorBoard's ``SummaryWriter`` looks like to a hook."""

    def __init__(self, log: list[Any]) -> None:
        self._log = log

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self._log.append((tag, round(value, 4), step))


@opaque
def writer(log: list[Any]) -> Callable[..., Any]:
    board = Writer(log)
    steps = [0]

    def hook(module: Any, args: Any, out: Any) -> None:
        board.add_scalar("norm", out.norm().item(), steps[0])
        steps[0] += 1

    return hook


@opaque
def lock(log: list[Any]) -> Callable[..., Any]:
    guard = threading.Lock()

    def hook(module: Any, args: Any, out: Any) -> None:
        with guard:
            log.append(out.detach())

    return hook


@opaque
def c_function(log: list[Any]) -> Callable[..., Any]:
    checksum = functools.partial(__import__("zlib").crc32)

    def hook(module: Any, args: Any, out: Any) -> None:
        log.append(checksum(str(tuple(out.shape)).encode()))

    return hook


@opaque
def disabled_function(log: list[Any]) -> Callable[..., Any]:
    @torch.compiler.disable
    def keep(value: torch.Tensor) -> None:
        log.append(brief(value))

    def hook(module: Any, args: Any, out: Any) -> None:
        keep(out.detach())

    return hook


@opaque
def disabled_hook(log: list[Any]) -> Callable[..., Any]:
    @torch.compiler.disable
    def hook(module: Any, args: Any, out: Any) -> None:
        log.append(brief(out))

    return hook


@opaque
def checks(log: list[Any]) -> Callable[..., Any]:
    def hook(module: Any, args: Any, out: Any) -> None:
        if not torch.isfinite(out).all():
            raise FloatingPointError(f"{type(module).__name__} is not finite")
        log.append("finite")

    return hook
