"""Train a digit classifier with torch.compile and use every kind of hook on it.

Plays the same scenarios twice, eagerly and compiled, from the same seed and with the
same data in the same order. Compares every output, loss, value seen by a hook,
parameter gradient and hook call, at each step, without ever copying weights from
one side to the other. Prints a table, draws a Grad-CAM and exits with 1 if anything
compiled differs from eager.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch._dynamo
from digits_demo import report
from digits_demo.comparison import ATOL, judge, RTOL, Verdict
from digits_demo.model import BATCH, DigitNet, Digits
from digits_demo.run import CountingBackend, Run
from digits_demo.scenarios import SCENARIOS


HERE = Path(__file__).resolve().parent


def main() -> int:
    options = parse_arguments()
    verdicts = play(options)
    if options.json:
        report.write_json(verdicts, options.json)
    else:
        pristine = play_elsewhere(options) if options.pristine else None
        print()
        report.show(verdicts, pristine)
        print(footnote())
    return 0 if all(verdict.good for verdict in verdicts) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a short training, compiled by aot_eager: no kernels to build",
    )
    parser.add_argument(
        "--pristine",
        type=Path,
        metavar="PYTHON",
        help="play the same in this interpreter, which has the official PyTorch",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PNG",
        default=HERE / "out" / "gradcam.png",
        help="where to draw the Grad-CAM (default: %(default)s)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help="write the verdicts there and draw and print no table",
    )
    options = parser.parse_args()
    if options.pristine and not options.pristine.is_file():
        parser.error(f"--pristine: there is no {options.pristine}")
    return options


def play(options: argparse.Namespace) -> list[Verdict]:
    """Play all scenarios, eagerly and compiled, in this interpreter."""
    # The model is so small that a second thread mostly waits.
    torch.set_num_threads(1)
    # One compiled model plays everything: more graphs than Dynamo expects of a program.
    torch._dynamo.config.recompile_limit = 64
    digits = Digits.load()
    backend = "aot_eager" if options.quick else "inductor"
    print(f"PyTorch {torch.__version__}, torch.compile with {backend}", flush=True)
    eager = Run(digits, None, quick=options.quick)
    compiled = Run(digits, CountingBackend(backend), quick=options.quick)
    verdicts = []
    for number, scenario in enumerate(SCENARIOS, 1):
        start = time.perf_counter()
        verdict = judge(
            scenario, eager.play(scenario.play), compiled.play(scenario.play)
        )
        took = time.perf_counter() - start
        verdicts.append(verdict)
        print(
            f"{number}/{len(SCENARIOS)} {scenario.title} ({took:.0f} s): "
            f"{verdict.error or verdict.note}",
            flush=True,
        )
    if compiled.cam and not options.json:
        compiled.cam.draw(options.out)
        print(f"Grad-CAM drawn: {options.out}", flush=True)
    return verdicts


def play_elsewhere(options: argparse.Namespace) -> list[Verdict]:
    """Play all scenarios in the other interpreter; empty if it fails altogether."""
    print("\nThe same program elsewhere:", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verdicts.json"
        command = [options.pristine, __file__, "--json", path]
        if options.quick:
            command.append("--quick")
        # It exits with 1 where its hooks differ, which is no failure of ours.
        code = subprocess.run(command).returncode
        if not path.exists():
            print(f"error: {options.pristine} ended with {code}", file=sys.stderr)
            return []
        return report.read_json(path)


def footnote() -> str:
    parameters = sum(p.numel() for p in DigitNet().parameters())
    return (
        "yes N: all of N recorded tensors or hook calls are as in eager (tensors "
        f"within {RTOL:g} relative plus {ATOL:g};\ncalls in the same order). New: "
        "compiled in that scenario, where the ones before it left nothing to use "
        "again.\nms: median time of a warm training step while hooked (forward, loss, "
        f"backward) of a small model: {parameters}\nparameters, batches of {BATCH}, "
        "float64, one thread."
    )


if __name__ == "__main__":
    sys.exit(main())
