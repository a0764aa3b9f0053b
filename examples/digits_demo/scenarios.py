"""What people do with hooks, done to a model while it is compiled.

A scenario is a function of a ``Run``: it registers and removes hooks on ``run.model``,
takes steps and returns its result in words. It starts from the trained weights with
no hooks, but for the first, which trains them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from .gradcam import GradCam
from .model import layers, SCALE
from .run import Run


Hook = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A scenario and what is known of it beforehand.

    Args:
        hooked: whether hooks run in it.
        most_graphs: how many graphs it may compile at most, where that is promised.
    """

    title: str
    play: Callable[[Run], str]
    hooked: bool = True
    most_graphs: int | None = None


def plain_training(run: Run) -> str:
    run.restore(run.initial)
    steps = 10 if run.quick else 200
    run.first = run.train(steps)
    run.keep_trained()
    run.measure()
    return f"{accuracy(run):.1%} of unseen digits read after {steps} steps"


def activations_recorded(run: Run) -> str:
    """Every layer's output is kept, then no longer."""
    batch = run.digits.unseen[0]
    with ExitStack() as hooks:
        for name, layer in layers(run.model).items():
            hooks.enter_context(layer.register_forward_hook(recorder(run, name)))
        for _ in range(3):
            run.step(batch)
        run.measure()
        run.step(batch)
        active = (run.kept_in_forward["body.act"] > 0).double().mean().item()
    run.step(batch)
    return f"{active:.0%} of the last rectifiers active"


def layer_steered(run: Run) -> str:
    """A direction in a layer's output, added and not, over and over."""
    batch = run.digits.unseen[1]
    with torch.no_grad():
        features = run.model.body(run.model.stem(batch.images * SCALE))
    eights = batch.labels == 8
    direction = 4 * (features[eights].mean(0) - features[~eights].mean(0))

    def steer(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        run.log.append("steer")
        return output + direction

    read_as_eight = []
    for hooked in (False, True, False, True, False):
        with ExitStack() as hooks:
            if hooked:
                hooks.enter_context(run.model.body.register_forward_hook(steer))
            logits = run.step(batch)
            if hooked:
                run.measure()
        read_as_eight.append(int((logits.argmax(1) == 8).sum()))
    return f"read as an eight, off/on/off/on/off: {read_as_eight} of {len(eights)}"


def hooks_reordered(run: Run) -> str:
    """Three hooks that do not commute, in three orders."""
    batch = run.digits.unseen[2]
    head = run.model.head
    orders = []

    def step() -> None:
        run.step(batch)
        orders.append("-".join(run.recording.calls[-1]) or "none")

    with (
        head.register_forward_hook(editor(run, "double", lambda out: out * 2)),
        head.register_forward_hook(editor(run, "shift", lambda out: out + 1)),
    ):
        step()
        square = editor(run, "square", lambda out: out * out)
        with head.register_forward_hook(square, prepend=True) as handle:
            step()
            head._forward_hooks.move_to_end(handle.id)  # type: ignore[attr-defined]
            step()
            run.measure()
        step()
    return ", ".join(orders)


def input_edited(run: Run) -> str:
    """A pre-hook takes a grey veil off the images and restores their contrast."""
    depth = 8.0
    generator = torch.Generator().manual_seed(0)

    def veiled(images: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(images.shape, generator=generator, dtype=images.dtype)
        return depth - noise + images * (16 - depth) / 16

    def unveil(
        module: nn.Module, args: tuple[torch.Tensor], kwargs: dict[str, float]
    ) -> tuple[tuple[torch.Tensor], dict[str, float]]:
        run.log.append("unveil")
        clear = torch.relu(args[0] - depth)
        return (clear,), {**kwargs, "scale": SCALE * 16 / (16 - depth)}

    shares = [accuracy(run, veiled)]
    with run.model.register_forward_pre_hook(unveil, with_kwargs=True):
        shares.append(accuracy(run, veiled))
        run.step(run.digits.train[0])
        run.measure()
    shares.append(accuracy(run, veiled))
    return "veiled digits read, off/on/off: " + ", ".join(f"{s:.0%}" for s in shares)


def gradients_clipped(run: Run) -> str:
    """Gradients between layers are bounded during the middle third of a training."""
    bound = 0.01

    def clipper(name: str) -> Hook:
        def clip(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
            run.log.append(name)
            (grad,) = grad_input
            clipped = grad * (bound / (grad.norm() + 1e-12)).clamp(max=1.0)
            run.kept[f"clipped at {name}"] = clipped
            return (clipped,)

        return clip

    def norms(steps: int) -> str:
        before = len(run.recording.gradients)
        run.train(steps)
        stem = [
            gradient.norm().item()
            for name, gradient in run.recording.gradients[before:]
            if name == "stem.conv.weight"
        ]
        return f"{max(stem):.2g}"

    third = 1 if run.quick else 5
    largest = [norms(third)]
    with ExitStack() as hooks:
        for name, layer in layers(run.model).items():
            # Pixels need no gradient, so there is none to clip before the stem.
            if name != "stem.conv":
                hooks.enter_context(layer.register_full_backward_hook(clipper(name)))
        largest.append(norms(third))
        run.measure()
    largest.append(norms(third))
    return f"largest gradient of the stem, off/on/off: {', '.join(largest)}"


def grad_cam(run: Run) -> str:
    """Where the network looks, from an activation and its gradient."""
    batch = run.digits.unseen[3]

    def keep_output(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        run.log.append("activation")
        run.kept["activation"] = output.detach()

    def keep_gradient(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        run.log.append("gradient")
        run.kept["gradient"] = grad_output[0]

    with (
        run.model.body.register_forward_hook(keep_output),
        run.model.body.register_full_backward_hook(keep_gradient),
    ):
        logits = run.forward(batch.images)
        run.backward(logits.max(1).values.sum())
        run.cam = GradCam.make(
            batch.images,
            batch.labels,
            logits.detach(),
            run.kept_in_forward["activation"],
            run.kept["gradient"],
        )
        run.measure()
    run.value("heat map", run.cam.heat)
    return f"heat maps of {len(batch.labels)} digits"


def calls_counted(run: Run) -> str:
    """A global hook counts calls by type of module, under ``Module.compile``."""

    def count(module: nn.Module, args: Any, output: Any) -> None:
        kind = type(module).__name__
        run.log.append(kind)
        run.kept[kind] = run.kept.get(kind, 0) + 1

    with run.compiled_in_place():
        run.step(run.digits.unseen[4])
        with register_module_forward_hook(count):
            for batch in run.digits.unseen[4:7]:
                run.step(batch)
            counts = run.kept_in_forward
            run.measure()
        run.step(run.digits.unseen[4])
    return "per call: " + ", ".join(f"{kind} {n}" for kind, n in counts.items())


def all_removed(run: Run) -> str:
    """The training starts over and must go as it did at first."""
    run.restore(run.initial)
    again = run.train(10)
    same = all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(again, run.first))
    run.value("as at first", same)
    run.measure()
    return f"10 steps again: {'as at first' if same else 'not as at first'}"


def recorder(run: Run, name: str) -> Hook:
    def record(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        run.log.append(name)
        run.kept[name] = output.detach()

    return record


def editor(run: Run, name: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> Hook:
    def hook(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        run.log.append(name)
        return edit(output)

    return hook


def accuracy(
    run: Run, distort: Callable[[torch.Tensor], torch.Tensor] = torch.clone
) -> float:
    """The share of unseen digits that the model reads right, distorted or not."""
    batches = run.digits.unseen
    right = sum(
        int((run.forward(distort(b.images)).argmax(1) == b.labels).sum())
        for b in batches
    )
    return right / sum(len(b.labels) for b in batches)


# Backward hooks come late: they cut the model into pieces, which are timed as well.
SCENARIOS = (
    Scenario("plain training", plain_training, hooked=False, most_graphs=1),
    Scenario("layers recorded", activations_recorded, most_graphs=1),
    Scenario("layer steered", layer_steered, most_graphs=1),
    Scenario("hooks reordered", hooks_reordered, most_graphs=3),
    Scenario("input edited", input_edited),
    Scenario("gradients clipped", gradients_clipped),
    Scenario("Grad-CAM", grad_cam),
    Scenario("calls counted", calls_counted),
    Scenario("all hooks removed", all_removed, hooked=False, most_graphs=0),
)
