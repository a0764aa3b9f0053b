# Owner(s): ["module: dynamo"]
"""Backward hooks in compiled code together with what else people compile."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.utils.checkpoint
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_gradients import (
    AOT_BACKENDS,
    attempt,
    BACKENDS,
    growing,
    logging,
    ones,
    watch_all,
)
from hook_programs import Block, HookTestCase, Net, no_global_hooks, Run, slow


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first = Block()
        self.second = Block()
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.utils.checkpoint.checkpoint(
            self.first, x, use_reentrant=self.use_reentrant
        )
        return self.second(x)


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.first(x).relu()
        return self.second(x.float())


class TogetherTests(HookTestCase):
    def check_whole(self, scenario: Any, make: Any = Net, **options: Any) -> Run:
        options = {"wrap": "call", "backend": "aot_eager", "fullgraph": True, **options}
        return self.check(scenario, make=make, **options)

    @parametrize("backend", BACKENDS)
    @parametrize("use_reentrant", (False, True))
    def test_checkpoint(self, backend: str, use_reentrant: bool) -> None:
        def scenario(run: Run) -> None:
            watch_all(run, edit=True)
            run.step()
            run.step()

        self.check_whole(scenario, lambda: Checkpointed(use_reentrant), backend=backend)

    @parametrize("backend", BACKENDS)
    def test_autocast(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            dtypes: list[Any] = []
            for module in (run.model.first, run.model.second):
                module.register_full_backward_hook(
                    lambda _, gi, go: dtypes.append((gi[0].dtype, go[0].dtype))
                )
            watch_all(run)
            run.step()
            run.log.clear()  # bfloat16 sums depend on the kernel
            run.log += dtypes
            run.steps.clear()

        run = self.check_whole(scenario, Autocast, backend=backend)
        self.assertIn(torch.bfloat16, run.log[1])

    @parametrize("backend", AOT_BACKENDS)
    def test_dynamic_shapes(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            watch_all(run, edit=True)
            for n in (3, 5, 7, 2):
                run.step(torch.linspace(-1, 1, 4 * n).reshape(n, 4))

        run = self.check_whole(scenario, backend=backend)
        self.assertLessEqual(run.graphs, 2)

    def test_reduce_overhead(self) -> None:
        log: list[Any] = []
        torch.manual_seed(0)
        model = Net()
        model.blocks[1].register_full_backward_hook(growing(log, 1))
        eager_x, x = ones(), ones()
        model(eager_x).sum().backward()
        compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        compiled(x).sum().backward()
        self.assertEqual(eager_x.grad, x.grad)
        self.assertEqual(log[0], log[1])

    @parametrize("backend", BACKENDS)
    def test_instances_share_a_graph(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            for i, block in enumerate(run.model.blocks):
                block.register_full_backward_hook(growing(run.log, i))
                block.register_full_backward_pre_hook(logging(run.log, i))
            run.step()
            run.step()

        run = self.check(scenario, wrap="blocks", backend=backend, graphs=1)
        self.assertEqual(run.graph_runs, [3, 3])

    @parametrize("backend", BACKENDS)
    def test_two_calls_before_either_backward(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            handle = block.register_full_backward_hook(growing(run.log, "first"))
            first = run.call(ones()).sum()
            handle.remove()
            handle = block.register_full_backward_hook(growing(run.log, "second", 3.0))
            second = run.call(ones()).sum()
            attempt(run, second.backward)
            attempt(run, first.backward)

        self.check_whole(scenario, backend=backend)

    @parametrize("backend", BACKENDS)
    def test_backward_in_another_thread(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            watch_all(run, edit=True)
            here = threading.get_ident()
            run.model.head.register_full_backward_hook(
                lambda *_: run.log.append(threading.get_ident() == here)
            )
            for _ in range(2):
                out = run.call(ones()).sum()
                thread = threading.Thread(target=attempt, args=(run, out.backward))
                thread.start()
                thread.join()

        self.check_whole(scenario, backend=backend)

    @parametrize("backend", AOT_BACKENDS)
    def test_replicas_in_threads(self, backend: str) -> None:
        torch.manual_seed(0)
        model = Net()
        log: list[Any] = []
        model.blocks[1].register_full_backward_hook(growing(log, "x"))
        compiled = torch.compile(lambda m, x: m(x), backend=backend, fullgraph=True)
        compiled(model, ones()).sum().backward()  # compiled before the threads start
        log.clear()
        inputs = [ones(value=float(i)) for i in range(4)]
        replicas = [copy.copy(model) for _ in inputs]
        for replica in replicas:
            replica.__dict__ = model._replicate_for_data_parallel().__dict__

        def work(replica: nn.Module, x: torch.Tensor) -> None:
            compiled(replica, x).sum().backward()

        threads = [
            threading.Thread(target=work, args=pair)
            for pair in zip(replicas, inputs, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = sorted(log)
        log.clear()
        for x in inputs:
            eager_x = x.detach().clone().requires_grad_()
            model(eager_x).sum().backward()
            self.assertEqual(eager_x.grad, x.grad)
        self.assertEqual(sorted(log), seen)

    @parametrize("backend", BACKENDS)
    def test_forward_and_backward_in_one_function(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            watch_all(run, edit=True)

            def step(x: torch.Tensor) -> torch.Tensor:
                loss = run.model(x).sum()
                loss.backward()
                return loss.detach()

            if run.compiled:
                step = torch.compile(step, backend=backend)
            for _ in range(2):
                x = ones()
                run.steps.append([step(x), x.grad])

        self.check(scenario, wrap="function", backend=backend)

    @parametrize("backend", BACKENDS)
    def test_compiled_autograd(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            watch_all(run, edit=True)
            with torch._dynamo.config.patch(compiled_autograd=run.compiled):
                run.step()
                run.step()

        self.check(scenario, backend=backend)

    @parametrize("backend", ("eager", "aot_eager"))
    def test_compiled_autograd_for_backward_alone(self, backend: str) -> None:
        def compiler(gm: torch.fx.GraphModule) -> Any:
            return torch.compile(gm, backend=backend)

        def scenario(run: Run) -> None:
            watch_all(run, edit=True)
            for _ in range(2):
                out = run.call(ones()).sum()
                if run.compiled:
                    with torch._dynamo.compiled_autograd._enable(compiler):
                        attempt(run, out.backward)
                else:
                    attempt(run, out.backward)

        self.check(scenario, backend=backend)

    @parametrize("backend", AOT_BACKENDS)
    def test_flop_counter_and_anomaly_mode(self, backend: str) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        def scenario(run: Run) -> None:
            watch_all(run, edit=True)
            run.step()
            with FlopCounterMode(display=False):
                run.step()
            with torch.autograd.detect_anomaly(check_nan=True):
                run.step()

        # Dynamo itself refuses to compile under a dispatch mode.
        self.check_whole(scenario, backend=backend, fullgraph=False)


PROGRAM = """
import sys
import torch, torch._dynamo, torch._inductor.config
from torch import nn
from torch._dynamo.utils import counters
torch._inductor.config.fx_graph_cache = True
torch._functorch.config.enable_autograd_cache = True
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
log = []
who = sys.argv[1]
for i in (0, 2):
    model[i].register_full_backward_hook(
        lambda m, gi, go: log.append((who, m.weight.shape)) or (gi[0] * len(who),)
    )
    model[i].register_full_backward_pre_hook(lambda m, go: log.append((who, "pre")))
model[1].register_forward_hook(
    lambda m, i, o: o.register_hook(lambda g: log.append((who, "tensor"))) and None
)
x = torch.ones(3, 4, requires_grad=True)
model(x).sum().backward()
want, logged = x.grad.clone(), list(log)
x.grad = None
log.clear()
torch.compile(model, fullgraph=True)(x).sum().backward()
torch.testing.assert_close(x.grad, want)
assert log == logged, (log, logged)
print(counters["aot_autograd"]["autograd_cache_hit"],
      counters["aot_autograd"]["autograd_cache_miss"],
      counters["aot_autograd"]["autograd_cache_bypass"])
"""


class CacheTests(HookTestCase):
    @slow
    def test_another_process_hits_the_cache_and_calls_its_own_hooks(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "program.py")
            path.write_text(PROGRAM)
            environment = {
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": str(Path(directory, "cache")),
            }
            outputs = [
                subprocess.run(
                    [sys.executable, path, who],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                for who in ("first", "other one")
            ]
        for output in outputs:
            self.assertEqual(output.returncode, 0, output.stderr)
            self.assertNotIn("pickle", output.stderr)
        hits = [output.stdout.split() for output in outputs]
        self.assertEqual(hits, [["0", "1", "0"], ["1", "0", "0"]])


class LifetimeTests(HookTestCase):
    @parametrize("backend", BACKENDS)
    def test_nothing_outlives_the_model(self, backend: str) -> None:
        class Hook:
            def __call__(self, module: nn.Module, *gradients: Any) -> None:
                self.seen = gradients

        def live() -> list[Any]:
            model, hooks = Net(), [Hook(), Hook()]
            model.blocks[0].register_full_backward_hook(hooks[0])
            model.blocks[1].register_full_backward_pre_hook(hooks[1])
            model.blocks[2].register_forward_hook(
                lambda _, args, out: out.register_hook(lambda grad: None) and None
            )
            compiled = torch.compile(model, backend=backend, fullgraph=True)
            x = ones()
            out = compiled(x)
            out.sum().backward()
            grads = [hooks[0].seen[0][0], hooks[1].seen[0][0]]
            return [weakref.ref(o) for o in (model, *hooks, out, x, *grads)]

        with no_global_hooks():
            references = live()
            torch._dynamo.reset()
            gc.collect()
        self.assertEqual([r() is None for r in references], [True] * len(references))

    @slow
    def test_many_models_leave_nothing(self) -> None:
        compiled = torch.compile(
            lambda model, x: model(x), backend="aot_eager", fullgraph=True
        )

        def rounds(n: int) -> int:
            for _ in range(n):
                model = Net()
                model.blocks[0].register_full_backward_hook(lambda *_: None)
                model.blocks[1].register_full_backward_pre_hook(lambda *_: None)
                compiled(model, ones()).sum().backward()
            del model
            gc.collect()
            return sum(isinstance(o, (Net, torch.Tensor)) for o in gc.get_objects())

        with no_global_hooks():
            before = rounds(20)
            self.assertLessEqual(rounds(1000), before)


instantiate_parametrized_tests(TogetherTests)
instantiate_parametrized_tests(LifetimeTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
