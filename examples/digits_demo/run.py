"""Play scenarios on one model, eagerly or compiled, and record what happens."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch._dynamo.utils import counters

from .gradcam import GradCam
from .model import Batch, DigitNet, Digits, DTYPE, SCALE


Named = tuple[str, torch.Tensor]


class CountingBackend:
    """A backend of ``torch.compile`` that counts the graphs it compiled and ran.

    Args:
        name: the backend that does the work.
    """

    def __init__(self, name: str) -> None:
        self.compiler = torch._dynamo.lookup_backend(name)
        self.graphs = 0
        self.runs = 0

    def __call__(
        self, graph_module: torch.fx.GraphModule, example_inputs: list[torch.Tensor]
    ) -> Callable[..., Any]:
        self.graphs += 1
        compiled = self.compiler(graph_module, example_inputs)

        def counted(*args: Any) -> Any:
            self.runs += 1
            return compiled(*args)

        return counted


@dataclasses.dataclass
class Recording:
    """What one scenario did.

    Attributes:
        values: outputs, losses and whatever hooks saw, named.
        gradients: of parameters and of activations, named.
        calls: per call of the model, the hooks that ran, in order.
        note: the result, in words.
        error: the exception that ended the scenario, if any.
        graphs: graphs compiled.
        breaks: graph breaks met while compiling them.
        runs: per call of the model, how many compiled graphs ran.
        pieces: the same of a step that was timed.
        eager_ms: median time of an eager training step, hooks and all.
        compiled_ms: the same of a compiled one.
    """

    values: list[Named] = dataclasses.field(default_factory=list)
    gradients: list[Named] = dataclasses.field(default_factory=list)
    calls: list[list[str]] = dataclasses.field(default_factory=list)
    note: str = ""
    error: str = ""
    graphs: int = 0
    breaks: int = 0
    runs: list[int] = dataclasses.field(default_factory=list)
    pieces: int = 0
    eager_ms: float = 0.0
    compiled_ms: float = 0.0


class Run:
    """One playing of all scenarios on one model.

    Args:
        digits: the data.
        backend: what compiles the model; None to run it eagerly.
        quick: take few training and timing steps.

    Attributes:
        model: the hooked module itself, never its compiled wrapper.
        log: what hooks append their names to. It is emptied before each pass, for a
            hook that finds it longer each time is compiled each time.
        kept: what hooks keep, by name; emptied likewise, and recorded after the pass.
        kept_in_forward: what it held after the last forward pass.
        first: what the first scenario computed, for the last one to find again.
        trained: the weights that all scenarios but these two start from.
        cam: the heat maps, once they are made.
    """

    def __init__(
        self, digits: Digits, backend: CountingBackend | None, *, quick: bool
    ) -> None:
        torch.manual_seed(0)
        self.digits = digits
        self.backend = backend
        self.quick = quick
        self.model = DigitNet().to(DTYPE)
        self.call: Callable[..., torch.Tensor] = self.model
        if backend:
            self.call = torch.compile(self.model, backend=backend)
        self.log: list[str] = []
        self.kept: dict[str, Any] = {}
        self.kept_in_forward: dict[str, Any] = {}
        self.recording = Recording()
        self.initial = self._weights()
        self.trained = self.initial
        self.first: list[torch.Tensor] = []
        self.cam: GradCam | None = None

    def play(self, scenario: Callable[[Run], str]) -> Recording:
        """Play one scenario from the trained weights.

        Raises:
            Exception: what an eager scenario raises, for that is a mistake in it.
        """
        self.recording = recording = Recording()
        self.restore(self.trained)
        graphs = self.backend.graphs if self.backend else 0
        breaks = counters["graph_break"].total()
        try:
            recording.note = scenario(self)
        except Exception as error:
            if not self.backend:
                raise
            recording.error = f"{type(error).__name__}: {error}".splitlines()[0]
        if self.backend:
            recording.graphs = self.backend.graphs - graphs
            recording.breaks = counters["graph_break"].total() - breaks
        return recording

    def restore(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Give the model other weights, in place."""
        self.model.load_state_dict(weights)

    def keep_trained(self) -> None:
        """Let the following scenarios start from the weights as they are."""
        self.trained = self._weights()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Call the model; record its output and what hooks did."""
        self.model.zero_grad()
        self._forget()
        runs = self.backend.runs if self.backend else 0
        logits = self.call(images, scale=SCALE)
        if self.backend:
            self.recording.runs.append(self.backend.runs - runs)
        self.value("logits", logits)
        self.kept_in_forward = self.kept.copy()
        for name, kept in self.kept.items():
            self.value(name, kept)
        self.recording.calls.append(self.log.copy())
        return logits

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass; record all gradients and what hooks did."""
        self._forget()
        loss.backward()
        self.value("loss", loss)
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.gradient(name, parameter.grad)
        for name, kept in self.kept.items():
            self.gradient(name, kept)
        self.recording.calls[-1].extend(self.log)

    def step(self, batch: Batch) -> torch.Tensor:
        """Compute the gradients of one training step; the logits are returned."""
        logits = self.forward(batch.images)
        self.backward(F.cross_entropy(logits, batch.labels))
        return logits

    def train(self, steps: int) -> list[torch.Tensor]:
        """Train with momentum, from the weights as they are; return the logits."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        batches = self.digits.train
        logits = []
        for i in range(steps):
            logits.append(self.step(batches[i % len(batches)]).detach())
            optimizer.step()
        return logits

    def value(self, name: str, value: torch.Tensor | float) -> None:
        """Record a value to be compared."""
        self.recording.values.append((name, torch.as_tensor(value).detach().clone()))

    def gradient(self, name: str, gradient: torch.Tensor) -> None:
        """Record a gradient to be compared."""
        self.recording.gradients.append((name, gradient.detach().clone()))

    def measure(self) -> None:
        """Time training steps with the hooks as they are; nothing is recorded."""
        if not self.backend:
            return
        steps = 3 if self.quick else 30
        warm_up = 2
        # Taken in turn, so that other work on the machine slows both alike.
        compiled, eager = [], []
        for _ in range(warm_up + steps):
            runs = self.backend.runs
            compiled.append(self._timed_step())
            self.recording.pieces = self.backend.runs - runs
            with torch.compiler.set_stance("force_eager"):
                eager.append(self._timed_step())
        self.recording.compiled_ms = statistics.median(compiled[warm_up:]) * 1e3
        self.recording.eager_ms = statistics.median(eager[warm_up:]) * 1e3

    @contextlib.contextmanager
    def compiled_in_place(self) -> Iterator[None]:
        """Have the model compiled by ``Module.compile``, without a wrapper."""
        call, self.call = self.call, self.model
        if self.backend:
            self.model.compile(backend=self.backend)
        try:
            yield
        finally:
            self.call = call
            self.model._compiled_call_impl = None

    def _forget(self) -> None:
        self.log.clear()
        self.kept.clear()

    def _timed_step(self) -> float:
        batch = self.digits.train[0]
        self.model.zero_grad()
        self._forget()
        start = time.perf_counter()
        logits = self.call(batch.images, scale=SCALE)
        F.cross_entropy(logits, batch.labels).backward()
        return time.perf_counter() - start

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: t.clone() for name, t in self.model.state_dict().items()}
