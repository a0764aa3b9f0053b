# Owner(s): ["module: dynamo"]
"""Hooks that record or that cannot be traced: whole graphs, no recompiles.

Eager is the oracle. How each hook records is in ``hook_recorders``.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.nn_module_hooks import hook_policy
from torch._inductor.utils import fresh_cache
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_programs import HookTestCase, Net, play, Run, slow
from hook_recorders import brief, Maker, OPAQUE, RECORDERS, RecordingTestCase


ALL = {**RECORDERS, **OPAQUE}
# Each kind of tensor that a hook is given, and some of what hooks do with them.
ON_INDUCTOR = (
    "append_detached",
    "append_live",
    "append_input",
    "counter_on_module",
    "running_mean_tensor",
    "running_mean_rebound",
    "item",
    "numpy",
    "lock",
    "disabled_hook",
)


class StableTests(RecordingTestCase):
    """What a hook writes to its own state never causes a recompile."""

    def _check(self, make: Maker, backend: str, steps: int, *, train: bool) -> None:
        def scenario(run: Run) -> None:
            hook = make(run.log)
            run.model.blocks[0].lin.register_forward_hook(hook)
            run.model.blocks[2].register_forward_hook(hook)
            for _ in range(steps):
                run.step(train=train)

        self.check(scenario, graphs=1, backend=backend, fullgraph=True)

    @parametrize("name", ALL)
    def test_one_graph_for_many_calls(self, name: str) -> None:
        self._check(ALL[name], "aot_eager", 100, train=False)

    @parametrize("name", ALL)
    def test_one_graph_in_training(self, name: str) -> None:
        self._check(ALL[name], "aot_eager", 4, train=True)

    @parametrize("name", ALL)
    def test_on_a_backend_without_autograd(self, name: str) -> None:
        self._check(ALL[name], "eager", 4, train=True)

    @slow
    @parametrize("name", ON_INDUCTOR)
    def test_inductor(self, name: str) -> None:
        self._check(ALL[name], "inductor", 4, train=True)

    def test_a_loop_clears_between_calls(self) -> None:
        def scenario(run: Run) -> None:
            kept: list[Any] = []
            for block in run.model.blocks:
                block.register_forward_hook(lambda m, i, o: kept.append(o.detach()))
            for _ in range(20):
                run.step()
                run.log.append(list(kept))
                kept.clear()

        self.check(scenario, graphs=1, fullgraph=True, backend="aot_eager")

    def test_state_that_many_hooks_share(self) -> None:
        def scenario(run: Run) -> None:
            shared: dict[str, Any] = {"calls": 0, "order": []}

            def hook(name: str) -> Any:
                def record(module: Any, args: Any, out: Any) -> None:
                    shared["calls"] += 1
                    shared["order"].append((name, shared["calls"], brief(out)))

                return record

            run.log.append(shared)
            for name, module in run.model.named_modules():
                module.register_forward_hook(hook(name))
            for _ in range(20):
                run.step()

        self.check(scenario, graphs=1, fullgraph=True, backend="aot_eager")

    def test_new_hooks_at_each_step(self) -> None:
        def scenario(run: Run) -> None:
            for i in range(100):
                kept: list[Any] = []

                def hook(m: Any, a: Any, out: Any, kept: list[Any] = kept) -> None:
                    kept.append(out.detach())

                blocks = run.model.blocks
                handles = [block.register_forward_hook(hook) for block in blocks]
                run.step()
                for handle in handles:
                    handle.remove()
                run.log.append((i, list(kept)))
                run.step()

        self.check(scenario, graphs=2, fullgraph=True, backend="aot_eager")

    def test_another_hook_in_its_place(self) -> None:
        def scenario(run: Run) -> None:
            for make in (ALL["append_detached"], ALL["counter_in_list"], ALL["item"]):
                handle = run.model.head.register_forward_hook(make(run.log))
                run.step()
                run.step()
                handle.remove()

        self.check(scenario, graphs=3, fullgraph=True, backend="aot_eager")


class KindsTests(RecordingTestCase):
    """Pre-hooks, keyword arguments, marks and global hooks: the same."""

    def _hook(self, run: Run, name: str) -> Any:
        def hook(module: Any, *given: Any) -> None:
            run.log.append((name, type(module).__name__, len(given)))
            for value in given:
                if isinstance(value, dict):
                    run.log.append(sorted(value.items()))
                elif isinstance(value, tuple):
                    run.log.append([brief(tensor) for tensor in value])
                else:
                    run.log.append(brief(value))

        return hook

    @parametrize("backend", ("eager", "aot_eager"))
    @parametrize("with_kwargs", (False, True))
    @parametrize("prepend", (False, True))
    def test_on_modules(self, backend: str, with_kwargs: bool, prepend: bool) -> None:
        def scenario(run: Run) -> None:
            options = {"with_kwargs": with_kwargs, "prepend": prepend}
            for i, block in enumerate(run.model.blocks):
                block.register_forward_hook(self._hook(run, f"first {i}"))
                block.register_forward_hook(self._hook(run, f"hook {i}"), **options)
                pre_hook = self._hook(run, f"pre {i}")
                block.register_forward_pre_hook(pre_hook, **options)
            for _ in range(20):
                run.step()

        self.check(scenario, graphs=1, fullgraph=True, backend=backend)

    @parametrize("wrap", ("call", "inplace", "function"))
    def test_global(self, wrap: str) -> None:
        def scenario(run: Run) -> None:
            nn.modules.module.register_module_forward_hook(self._hook(run, "hook"))
            nn.modules.module.register_module_forward_pre_hook(self._hook(run, "pre"))
            for _ in range(20):
                run.step()

        run = self.check(scenario, fullgraph=True, backend="aot_eager", wrap=wrap)
        self.assertEqual(run.graphs, 1)

    def test_always_call(self) -> None:
        def scenario(run: Run) -> None:
            hook = self._hook(run, "always")
            run.model.blocks[1].register_forward_hook(hook, always_call=True)
            for _ in range(20):
                run.step()

        self.check(scenario, backend="aot_eager")

    def test_mixed_with_hooks_that_change_the_output(self) -> None:
        def scenario(run: Run) -> None:
            lin = run.model.blocks[1].lin
            lin.register_forward_hook(ALL["append_detached"](run.log))
            lin.register_forward_hook(lambda module, args, out: out * 2)
            lin.register_forward_hook(ALL["append_detached"](run.log))
            lin.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
            lin.register_forward_pre_hook(
                lambda module, args: run.log.append(args[0].detach())
            )
            for _ in range(20):
                run.step()

        self.check(scenario, graphs=1, fullgraph=True, backend="aot_eager")


class Counting(nn.Module):
    """Counts its calls, before or after its layer, and scales by the count."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.when = when
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.when == "before":
            self.calls += 1
        x = self.lin(x)
        if self.when == "after":
            self.calls += 1
        return x * self.calls


class Collecting(nn.Module):
    """A head that uses the features which hooks have collected."""

    def __init__(self, clears: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.features: list[torch.Tensor] = []
        self.clears = clears
        for block in self.blocks:
            block.register_forward_hook(self.collect)

    def collect(self, module: Any, args: Any, out: Any) -> None:
        self.features.append(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.clears:
            self.features.clear()
        for block in self.blocks:
            x = block(x)
        out = x + sum(self.features)
        if not self.clears:
            self.features = []
        return out


class InPlace(nn.Module):
    """Edits in place what a hooked layer has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.lin(x)) * 2


class FrameTests(RecordingTestCase):
    """A call at run time is right only where the frame cannot tell."""

    @parametrize("clears", (False, True))
    def test_forward_reads_what_the_hook_wrote(self, clears: bool) -> None:
        def scenario(run: Run) -> None:
            for _ in range(4):
                run.step()
                run.log.append(len(run.model.features))

        make = lambda: Collecting(clears)  # noqa: E731
        self.check(scenario, make=make, backend="aot_eager")

    @parametrize("when", ("before", "after"))
    def test_hook_reads_what_forward_changes(self, when: str) -> None:
        def scenario(run: Run) -> None:
            model = run.model
            model.lin.register_forward_hook(
                lambda module, args, out: run.log.append((model.calls, brief(out)))
            )
            for _ in range(4):
                run.step()

        self.check(scenario, make=lambda: Counting(when), backend="aot_eager")

    def test_hook_writes_an_attribute_that_forward_reads(self) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin: Any = nn.Linear(4, 4)
                setattr(self.lin, "scale", 1.0)  # noqa: B010  mypy knows no such name

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.lin(x) * self.lin.scale

        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any, out: Any) -> None:
                module.scale = module.scale + 1.0

            run.model.lin.register_forward_hook(hook)
            for _ in range(4):
                run.step()

        self.check(scenario, make=Scaled, backend="aot_eager")

    def test_hook_writes_a_global_that_forward_reads(self) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.lin(x) * _SCALE

        def hook(module: Any, args: Any, out: Any) -> None:
            global _SCALE
            _SCALE += 1.0

        def scenario(run: Run) -> None:
            global _SCALE
            _SCALE = 1.0
            run.model.lin.register_forward_hook(hook)
            for _ in range(4):
                run.step()

        self.check(scenario, make=Scaled, backend="aot_eager")

    def test_hook_edits_a_buffer_that_forward_reads(self) -> None:
        class Normed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.Linear(4, 4)
                self.register_buffer("mean", torch.zeros(4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.lin(x) - self.mean

        def scenario(run: Run) -> None:
            mean = run.model.mean

            def hook(module: Any, args: Any, out: Any) -> None:
                mean.mul_(0.9).add_(out.detach().mean(0), alpha=0.1)

            run.model.lin.register_forward_hook(hook)
            for _ in range(4):
                run.step()

        self.check(scenario, make=Normed, backend="aot_eager")

    def test_hooks_that_see_each_others_state(self) -> None:
        def scenario(run: Run) -> None:
            state = {"n": 0}

            def write(module: Any, args: Any, out: Any) -> None:
                state["n"] += 1

            def read(module: Any, args: Any, out: Any) -> Any:
                return out * state["n"]

            run.model.blocks[0].register_forward_hook(write)
            run.model.blocks[1].register_forward_hook(read)
            run.model.blocks[2].register_forward_hook(write)
            for _ in range(4):
                run.step()
                run.log.append(dict(state))

        self.check(scenario, backend="aot_eager")

    def test_new_hook_with_the_same_code_writes_what_forward_reads(self) -> None:
        class Cached(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.Linear(4, 4)
                self.cache = [1.0]

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.lin(x) * len(self.cache)

        def scenario(run: Run) -> None:
            def recorder(store: list[Any]) -> Any:
                return lambda module, args, out: store.append(1.0)

            stores: list[list[Any]] = [[], [], [], run.model.cache, run.model.cache]
            for store in stores:
                handle = run.model.lin.register_forward_hook(recorder(store))
                run.step()
                run.log.append(len(store))
                if store is not run.model.cache:
                    graphs.add(run.graphs)
                handle.remove()

        graphs: set[int] = set()
        self.check(scenario, make=Cached, backend="aot_eager")
        # None of eager's, and one for all hooks that have lists of their own.
        self.assertEqual(graphs, {0, 1})

    def test_buffer_that_forward_edits_twice(self) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.BatchNorm1d(4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.norm(self.norm(x) + 1)

        def scenario(run: Run) -> None:
            run.model.norm.register_forward_hook(
                lambda module, args, out: run.log.append(brief(module.running_mean))
            )
            for _ in range(3):
                run.step()

        self.check(scenario, make=Twice, backend="aot_eager")

    def test_hook_clips_parameters(self) -> None:
        def scenario(run: Run) -> None:
            def clip(module: Any, args: Any, out: Any) -> None:
                for parameter in module.parameters():
                    parameter.data.clamp_(-0.1, 0.1)

            run.model.blocks[0].lin.register_forward_hook(clip)
            for _ in range(3):
                run.step()

        self.check(scenario, backend="aot_eager")

    def test_callback_that_records(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any, out: Any) -> None:
                torch.utils._pytree.tree_map(lambda t: run.log.append(t.detach()), out)

            run.model.blocks[0].register_forward_hook(hook)
            for _ in range(3):
                run.step()

        self.check(scenario, graphs=1, fullgraph=True, backend="aot_eager")

    @parametrize("nested", (False, True))
    def test_graph_breaks_between_hooks(self, nested: bool) -> None:
        class Broken(Net):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.blocks[0](x)
                torch._dynamo.graph_break()
                return self.head(self.blocks[1](x))

        class Outer(Net):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Broken()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.inner(self.blocks[2](x))

        def scenario(run: Run) -> None:
            for name, module in run.model.named_modules():
                module.register_forward_hook(
                    lambda m, a, out, name=name: run.log.append((name, brief(out)))
                )
            for _ in range(3):
                run.step()

        with torch._dynamo.config.patch(nested_graph_breaks=nested):
            self.check(scenario, make=Outer, backend="aot_eager")

    def test_timer_and_recorder_share_a_log(self) -> None:
        def scenario(run: Run) -> None:
            def timer(module: Any, args: Any) -> None:
                module.started = time.perf_counter()
                run.log.append("started")

            for block in run.model.blocks:
                block.register_forward_pre_hook(timer)
                block.register_forward_hook(
                    lambda module, args, out: run.log.append(brief(out.detach()))
                )
            for _ in range(4):
                run.step()

        self.check(scenario, graphs=1, fullgraph=True, backend="aot_eager")

    @parametrize("name", ("append_detached", "item", "append_live", "insert"))
    def test_edited_in_place_afterwards(self, name: str) -> None:
        def scenario(run: Run) -> None:
            run.model.lin.register_forward_hook(ALL[name](run.log))
            for _ in range(4):
                run.step()

        options: dict[str, Any] = {"make": InPlace, "backend": "aot_eager"}
        self.check(scenario, graphs=1, fullgraph=True, **options)

    def test_edited_in_place_between_two_looks(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any, out: Any) -> None:
                run.log.append((brief(out), out.detach()))

            run.model.lin.register_forward_hook(hook)
            for _ in range(4):
                run.step()

        self.check(scenario, make=InPlace, backend="aot_eager")

    def test_errors_that_forward_catches(self) -> None:
        class Careful(Net):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                try:
                    x = self.blocks[0](x)
                except ValueError:
                    x = x * 3
                return self.head(x)

        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any, out: Any) -> None:
                run.log.append(brief(out))
                if len(run.log) % 4 == 0:
                    raise ValueError("every other call")

            run.model.blocks[0].register_forward_hook(hook)
            for _ in range(6):
                run.step()

        self.check(scenario, make=Careful, backend="aot_eager")

    @parametrize("use_reentrant", (False, True))
    def test_checkpoint(self, use_reentrant: bool) -> None:
        from torch.utils.checkpoint import checkpoint

        class Checkpointed(Net):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=use_reentrant)
                return self.head(x)

        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(ALL["append_detached"](run.log))
            for _ in range(3):
                run.step()

        self.check(scenario, make=Checkpointed, backend="aot_eager")

    @parametrize("mode", ("no_grad", "inference_mode", "autocast"))
    def test_modes(self, mode: str) -> None:
        modes: dict[str, Any] = {
            "no_grad": torch.no_grad,
            "inference_mode": torch.inference_mode,
            "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        }

        class Moded(Net):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                with modes[mode]():
                    y = self.blocks[0](x)
                return self.head(y.float() + x)

        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any, out: Any) -> None:
                scaled = out * 2
                run.log.append((out.dtype, out.requires_grad, scaled.requires_grad))
                run.log.append((torch.is_grad_enabled(), scaled.dtype))

            run.model.blocks[0].lin.register_forward_hook(hook)
            for _ in range(3):
                run.step()

        self.check(scenario, make=Moded, backend="aot_eager")


_SCALE = 1.0


class LiveTests(RecordingTestCase):
    """Tensors that hooks keep are those of eager, autograd included."""

    @parametrize("backend", ("eager", "aot_eager"))
    def test_backward_through_what_was_kept(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            kept: list[Any] = []
            for block in run.model.blocks:
                block.register_forward_hook(lambda m, i, o: kept.append(o))
            for _ in range(3):
                kept.clear()
                run.model.zero_grad()
                out = run.call(torch.linspace(-1, 1, 12).reshape(3, 4))
                loss = out.sum() + sum((k**2).mean() for k in kept)
                loss.backward()
                run.log.append([p.grad.clone() for p in run.model.parameters()])

        self.check(scenario, graphs=1, fullgraph=True, backend=backend)

    def test_backward_through_what_the_hook_computed(self) -> None:
        def scenario(run: Run) -> None:
            losses: list[Any] = []
            run.model.blocks[1].register_forward_hook(
                lambda m, i, o: losses.append(torch.relu(o).mean() + i[0].sum())
            )
            for _ in range(3):
                losses.clear()
                run.model.zero_grad()
                run.call(torch.linspace(-1, 1, 12).reshape(3, 4))
                losses[0].backward()
                grads = [p.grad for p in run.model.parameters()]
                run.log.append([0.0 if g is None else g.clone() for g in grads])

        eager = play(scenario, compiled=False)
        run = play(scenario, compiled=True, backend="aot_eager")
        for want, got in zip(eager.log, run.log, strict=True):
            for w, g in zip(want, got, strict=True):
                # Parameters that the loss does not reach get zeros from a graph.
                w = torch.zeros_like(g) if isinstance(w, float) else w
                self.assertEqual(w, g)
        self.assertEqual(run.graphs, 1)

    def test_kept_tensors_are_not_overwritten(self) -> None:
        def scenario(run: Run) -> None:
            run.model.blocks[0].register_forward_hook(
                lambda m, i, o: run.log.append(o.detach())
            )
            for i in range(5):
                run.step(torch.full((3, 4), float(i)))

        self.check(scenario, graphs=1, fullgraph=True, backend="inductor")

    @parametrize("what", ("returns", "returns_none", "edits", "adds"))
    def test_hooks_that_change_the_output(self, what: str) -> None:
        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any, out: Any) -> Any:
                run.log.append("called")
                if what == "returns":
                    return out * 2
                if what == "edits":
                    out.mul_(2)
                elif what == "adds":
                    out += 1
                return None

            run.model.blocks[1].lin.register_forward_hook(hook)
            for _ in range(3):
                run.step()

        self.check(scenario, backend="aot_eager")

    def test_output_is_not_copied(self) -> None:
        def scenario(run: Run) -> None:
            run.model.head.register_forward_hook(lambda m, i, o: run.log.append(o))
            out = run.call(torch.ones(3, 4))
            self.assertEqual(out.data_ptr(), run.log[0].data_ptr())

        self.check(scenario, graphs=1, fullgraph=True, backend="aot_eager")

    def test_tensor_hooks_and_requires_grad(self) -> None:
        def scenario(run: Run) -> None:
            def register(module: Any, args: Any, out: Any) -> None:
                out.register_hook(lambda grad: run.log.append(brief(grad)))
                run.log.append("registered")

            run.model.blocks[0].register_forward_hook(register)
            for _ in range(3):
                run.step()

        self.check(scenario, backend="aot_eager")

    def test_weight_that_a_hook_swaps(self) -> None:
        def scenario(run: Run) -> None:
            lin = run.model.blocks[0].lin
            raw = lin.weight
            del lin._parameters["weight"]
            lin.raw = raw

            def normalize(module: Any, args: Any) -> None:
                module.weight = module.raw / module.raw.norm()

            lin.register_forward_pre_hook(normalize)
            normalize(lin, ())
            for _ in range(3):
                run.step()
                with torch.no_grad():
                    raw.mul_(1.5)

        self.check(scenario, backend="aot_eager")


class KeptTests(HookTestCase):
    """Nothing writes over what a hook has kept."""

    def _model(self) -> nn.Sequential:
        torch.manual_seed(0)
        linear = (nn.Linear(64, 64) for _ in range(3))
        return nn.Sequential(*(m for lin in linear for m in (lin, nn.GELU())))

    def _train(self, model: nn.Sequential, steps: int, **options: Any) -> list[Any]:
        """What hooks keep in training, with copies made before each backward."""
        kept: list[Any] = []
        for module in model:
            module.register_forward_hook(
                lambda module, args, out: kept.append(out.detach())
            )
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="inductor", **options)
        kept_and_copies = []
        for step in range(steps):
            x = torch.linspace(-1, 1 + step, 64 * 64).reshape(64, 64).requires_grad_()
            loss = compiled(x).square().mean()
            kept_and_copies += [(tensor, tensor.clone()) for tensor in kept]
            kept.clear()
            loss.backward()
        return kept_and_copies

    def _check_kept(self, kept_and_copies: list[Any], n: int) -> None:
        self.assertEqual(len(kept_and_copies), n)
        for kept, copy in kept_and_copies:
            self.assertTrue(torch.equal(kept, copy))

    @parametrize("mode", ("default", "reduce-overhead"))
    def test_many_backwards_leave_kept_tensors_alone(self, mode: str) -> None:
        with fresh_cache():
            self._check_kept(self._train(self._model(), 10, mode=mode), 60)

    def test_backward_of_a_cached_graph_leaves_kept_tensors_alone(self) -> None:
        with fresh_cache():
            x = torch.zeros(64, 64, requires_grad=True)
            torch.compile(self._model())(x).square().mean().backward()
            self._check_kept(self._train(self._model(), 2), 12)


class ErrorTests(RecordingTestCase):
    @parametrize("fullgraph", (False, True))
    def test_exception_leaves_the_call(self, fullgraph: bool) -> None:
        def scenario(run: Run) -> None:
            calls = [0]

            def hook(module: Any, args: Any, out: Any) -> None:
                calls[0] += 1
                run.log.append(calls[0])
                if calls[0] == 4:
                    raise ValueError(f"call {calls[0]}")

            for block in run.model.blocks:
                block.register_forward_hook(hook)
            for _ in range(4):
                run.step()

        self.check(scenario, graphs=1, fullgraph=fullgraph, backend="aot_eager")

    def test_hook_that_hides_what_it_returns(self) -> None:
        class Sly(list[Any]):
            def append(self, value: Any) -> Any:
                return value * 2

        kept: Any = []
        model = Net()
        keep = hook_policy("call")(lambda m, i, o: kept.append(o))
        model.head.register_forward_hook(keep)
        compiled = torch.compile(model, backend="eager")
        compiled(torch.ones(3, 4))
        kept = Sly()
        with self.assertRaisesRegex(RuntimeError, "returned a value"):
            compiled(torch.ones(3, 4))

    def test_hook_that_hides_an_edit(self) -> None:
        editors: list[Any] = [lambda value: None]

        @hook_policy("call")
        def hook(module: Any, args: Any, out: Any) -> None:
            editors[0](out)

        model = Net()
        model.head.register_forward_hook(hook)
        compiled = torch.compile(model, backend="eager")
        x = torch.ones(3, 4)
        with torch.no_grad():
            compiled(x)
            editors[0] = lambda value: value.mul_(2)
            with self.assertRaisesRegex(RuntimeError, "edited a tensor"):
                compiled(x)

    def test_hook_that_is_neither_warns(self) -> None:
        def hook(module: Any, args: Any, out: Any) -> Any:
            return out * out.mean().item()

        model = Net()
        model.head.register_forward_hook(hook)
        torch._dynamo.utils.warn_once_cache.clear()
        with self.assertWarnsRegex(UserWarning, "breaks the graph.*nn_module_hooks.md"):
            torch.compile(model, backend="eager")(torch.ones(3, 4))


class ClockTests(HookTestCase):
    @parametrize("backend", ("eager", "aot_eager"))
    def test_hooks_measure_their_module(self, backend: str) -> None:
        class Waits(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return _wait(x)

        taken: list[float] = []

        def start(module: Any, args: Any) -> None:
            module.started = time.perf_counter()

        def stop(module: Any, args: Any, out: Any) -> None:
            taken.append(time.perf_counter() - module.started)

        model = nn.Sequential(nn.Linear(4, 4), Waits(), nn.Linear(4, 4))
        for module in model:
            module.register_forward_pre_hook(start)
            module.register_forward_hook(stop)
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        for _ in range(2):
            taken.clear()
            compiled(torch.ones(2, 4, requires_grad=True)).sum().backward()
            self.assertEqual(len(taken), 3)
            self.assertGreaterEqual(taken[1], _PAUSE)

    @parametrize("backend", ("eager", "aot_eager", "inductor"))
    def test_hooks_that_keep_tensors_with_the_time(self, backend: str) -> None:
        kept: list[Any] = []

        def stamp(module: Any, args: Any, out: Any) -> None:
            kept.append((time.time(), out.detach(), args[0].detach()))

        model: Any = Net()
        for block in model.blocks:
            block.lin.register_forward_hook(stamp)
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        x = torch.linspace(-1, 1, 12).reshape(3, 4)
        model(x)
        eager = [values for _, *values in kept]
        for _ in range(2):
            kept.clear()
            compiled(x).sum().backward()
            self.assertEqual([values for _, *values in kept], eager)
            times = [at for at, *_ in kept]
            self.assertEqual(times, sorted(times))


_PAUSE = 0.2


@torch.library.custom_op("hook_tests::wait", mutates_args=())
def _wait(x: torch.Tensor) -> torch.Tensor:
    time.sleep(_PAUSE)
    return x.clone()


@_wait.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_wait.register_autograd(lambda ctx, grad: grad)


class PolicyTests(RecordingTestCase):
    def _scenario(self, hook: Any) -> Any:
        def scenario(run: Run) -> None:
            run.model.head.register_forward_hook(hook(run.log))
            for _ in range(3):
                run.step()

        return scenario

    def test_trace(self) -> None:
        scenario = self._scenario(ALL["append_detached"])
        with torch._dynamo.config.patch(nn_module_hook_policy="trace"):
            run = self.check(scenario, backend="aot_eager")
        self.assertGreater(run.graphs, 1)

    def test_decorator_wins(self) -> None:
        def make(log: list[Any]) -> Any:
            return hook_policy("call")(ALL["append_detached"](log))

        with torch._dynamo.config.patch(nn_module_hook_policy="trace"):
            self.check(self._scenario(make), graphs=1, backend="aot_eager")

    def test_call_of_what_is_not_clear(self) -> None:
        class Board:
            def __init__(self, log: list[Any]) -> None:
                self.write = log.append

        def make(log: list[Any]) -> Any:
            boards = {"a": Board(log)}

            @hook_policy("call")
            def hook(module: Any, args: Any, out: Any) -> Any:
                return boards["a"].write(brief(out))

            return hook

        scenario = self._scenario(make)
        self.check(scenario, graphs=1, fullgraph=True, backend="aot_eager")

    def test_unknown_policy(self) -> None:
        with self.assertRaisesRegex(ValueError, "expected one of 'auto'"):
            hook_policy("never")  # type: ignore[arg-type]


for cls in (
    StableTests,
    KindsTests,
    FrameTests,
    LiveTests,
    KeptTests,
    ErrorTests,
    ClockTests,
    PolicyTests,
):
    instantiate_parametrized_tests(cls)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
