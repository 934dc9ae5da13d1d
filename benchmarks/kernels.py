"""Every way to compute the products of the DeepPrior, one by one and within a training step.

    python -m benchmarks.kernels --device cuda          # about two minutes on one GPU
    python -m benchmarks.kernels --device cpu --tiny    # that it works

Three tables: single products (time, rate, error), the two programs of a step (∇E and the products with H) with every
pass of the lowering switched on and off, and whole training steps. What fails is named with its reason.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from benchmarks.ceilings import precise, wait
from benchmarks.measure import errors, measure
from benchmarks.problems import Problem, deep_prior
from spen.descent.potential import Potential
from spen.gradients import Compiled, ForwardOverReverse
from spen.gradients.compiled import lower, ops
from spen.gradients.compiled.choose import seconds_of
from spen.gradients.compiled.convolutions import FORWARD, INPUT, WEIGHT, Convolution, ways
from spen.gradients.compiled.lower import Passes, lowered
from spen.gradients.compiled.trace import Bound

LAYOUTS = {"last": torch.channels_last, "first": torch.contiguous_format}
PRECISIONS: dict[str, torch.dtype | None] = {"tf32": None, "bf16": torch.bfloat16}
# Configurations beside those the library chooses from: rows, columns, pixels a block, warps, stages.
MORE = [(2, 4, 32, 2, 3), (4, 8, 32, 16, 3), (2, 8, 64, 8, 2)]
OFF = Passes(pairs=False, pointwise=False, turned=False, kernels=False, layout=torch.channels_last)
LAST = Passes(turned=False, kernels=False, layout=torch.channels_last)
VARIANTS: list[tuple[str, str, Passes]] = [
    ("everything", "tf32", Passes()),
    ("everything, channels last", "tf32", Passes(layout=torch.channels_last)),
    ("everything, channels first", "tf32", Passes(layout=torch.contiguous_format)),
    ("everything", "bf16", Passes()),
    ("as it was", "tf32", OFF),
    ("as it was", "bf16", OFF),
    ("pairs, pointwise", "tf32", LAST),
    ("pairs, pointwise, turned", "tf32", Passes(kernels=False)),
    ("everything but pairs", "tf32", Passes(pairs=False)),
    ("pairs, pointwise", "bf16", LAST),
    ("pointwise", "tf32", Passes(pairs=False, turned=False, kernels=False, layout=torch.channels_last)),
    ("everything but pairs", "bf16", Passes(pairs=False)),
]
SHARES = {"products": 0.42, "programs": 0.78, "steps": 1.0}  # of the time, when a table ends


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="small shapes: a test of this script")
    parser.add_argument("--only", default="products,programs,steps", help="which tables")
    parser.add_argument("--seconds", type=float, default=170.0, help="after which no further row is begun")
    options = parser.parse_args(arguments)
    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(1) if options.device == "cpu" else None
    sizes = {"batch": 2, "height": 8, "width": 12, "steps": 2} if options.tiny else {}
    bench = Bench(torch.device(options.device), sizes)
    began = time.perf_counter()
    print(f"torch {torch.__version__}, Triton kernels: {'yes' if ops.kernels() is not None else 'no'}", flush=True)
    for name in options.only.split(","):
        bench.until = began + SHARES[name] * options.seconds
        bench.attempt(name, getattr(bench, name))
    return 0


class Bench:
    """The tables. Every row is attempted by itself."""

    def __init__(self, device: torch.device, sizes: dict[str, int]) -> None:
        self.device, self.sizes, self.until = device, sizes, float("inf")

    def attempt(self, name: str, row: Callable[[], object]) -> None:
        if time.perf_counter() > self.until:
            print(f"{name:44s} not begun: out of time", flush=True)
            return
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                row()
            for text in sorted({str(w.message)[:200] for w in caught if "cuDNN" in str(w.message)}):
                print(f"    {text}")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = (str(error).strip().splitlines() or [""])[0]
            print(f"{name:44s} {type(error).__name__}: {reason[:160]} ({where.name}:{where.lineno})", flush=True)

    # ── single products ──

    def products(self) -> None:
        """Both layers, forward, input and weight gradient, at the batch of ∇E and at twice that."""
        problem = deep_prior("cpu", **self.sizes)
        batch, height, width = (problem.sizes[n] for n in ("batch", "height", "width"))
        print(f"\n{'product':44s} {'ms':>8s} {'Tflop/s':>8s} {'error':>9s}")
        for inputs in (32, 1):
            for kind in (WEIGHT, INPUT, FORWARD):
                for rows in (2 * batch,) if kind == WEIGHT else (2 * batch, batch):
                    image, weight = (rows, inputs, height, width), (32, inputs, 7, 7)
                    planes = (rows, 32, height, width)
                    first, second = {FORWARD: (image, weight), INPUT: (planes, weight), WEIGHT: (planes, image)}[kind]
                    product = Convolution(kind, first, second, (7, 7), (3, 3), (1, 1))
                    self._ways(product, f"{kind} {inputs}→32 ×{rows}", 2.0 * rows * height * width * 32 * inputs * 49)

    def _ways(self, product: Convolution, title: str, operations: float) -> None:
        a, b = (torch.randn(s, device=self.device) for s in (product.first, product.second))
        with precise("float32"):
            exact = next(iter(ways(product, torch.contiguous_format, None, turned=False, kernels=False).values()))(a, b)
        for precision, dtype in PRECISIONS.items():
            if dtype is not None and not product.wide:
                continue
            for layout, memory in LAYOUTS.items():
                if dtype is not None and memory is torch.contiguous_format:
                    continue  # cuDNN and our kernels are slow there
                found = ways(product, memory, dtype, turned=True, kernels=True)
                if product.kind == WEIGHT and product.wide:
                    found.update(self._more(product, memory, dtype))
                for name, way in found.items():

                    def row(way: Any = way, label: str = f"{title} {precision} {layout} {name}") -> None:
                        prepared = way.first(a), way.second(b)
                        result = way.core(*prepared).float()
                        error = float((result - exact).norm() / exact.norm())
                        seconds = self.seconds(lambda: way.core(*prepared))
                        print(
                            f"{label:44s} {1e3 * seconds:8.3f} {operations / seconds / 1e12:8.1f} {error:9.1e}",
                            flush=True,
                        )

                    self.attempt(f"{title} {precision} {layout} {name}", row)

    def _more(self, product: Convolution, memory: torch.memory_format, dtype: torch.dtype | None) -> dict[str, Any]:
        plain = next(iter(ways(product, memory, dtype, turned=False, kernels=False).values()))
        k, p = list(product.kernel), list(product.padding)

        def core(config: list[int]) -> Callable[[Tensor, Tensor], Tensor]:
            return lambda d, a: torch.ops.spen.weight_gradient(d, a, k, p, config)

        extra = {f"extra {' '.join(map(str, c))}": type(plain)(plain.first, plain.second, core(list(c))) for c in MORE}
        half = product.first[0] // 2

        def two(d: Tensor, a: Tensor) -> Tensor:
            return plain.core(d[:half], a[:half]) + plain.core(d[half:], a[half:])

        return {"cudnn, two calls": type(plain)(plain.first, plain.second, two), **extra}

    def seconds(self, call: Callable[[], object], repeats: int = 7) -> float:
        """The median of single calls; on a GPU as replays of a graph, which is how a descent runs them."""
        if self.device.type == "cuda":
            return seconds_of(call, self.device, repeats)
        spans = []
        for _ in range(repeats):
            began = time.perf_counter()
            call()
            spans.append(time.perf_counter() - began)
        return statistics.median(spans)

    # ── programs ──

    def programs(self) -> None:
        """G = ∇E and P = H v with its cross terms, as Compiled lowers them: milliseconds, and MiB at the most."""
        print(f"\n{'programs':34s} {'':6s} {'G ms':>8s} {'G MiB':>8s} {'P ms':>8s} {'P MiB':>8s} {'error':>9s}")
        problem = deep_prior(self.device.type, **self.sizes)
        graphs = self._traced(problem)
        with precise("float32"):
            exact = [program(*inputs) for program, inputs in graphs]
        for name, precision, passes in VARIANTS:

            def row(name: str = name, precision: str = precision, passes: Passes = passes) -> None:
                figures, error = [], 0.0
                for (program, inputs), right in zip(self._traced(problem), exact, strict=True):
                    with torch.no_grad():
                        run = lowered(program, inputs, fuse=True, precision=PRECISIONS[precision], passes=passes)
                        error = max(error, errors(list(run(*inputs)), list(right))[0])
                        figures += [1e3 * self.seconds(lambda run=run, inputs=inputs: run(*inputs))]  # type: ignore[misc]
                        figures += [self._peak(lambda run=run, inputs=inputs: run(*inputs))]  # type: ignore[misc]
                text = " ".join(f"{f:8.3f}" if i % 2 == 0 else f"{f:8.0f}" for i, f in enumerate(figures))
                print(f"{name:34s} {precision:6s} {text} {error:9.1e}", flush=True)

            self.attempt(f"{name} {precision}", row)

    def _traced(self, problem: Problem) -> list[tuple[GraphModule, list[Tensor]]]:
        torch.manual_seed(1)
        found: list[tuple[GraphModule, list[Tensor]]] = []
        potential = Potential.of(problem.model.energy, problem.x)
        Bound.of(
            potential,
            problem.x.image,
            ForwardOverReverse().product,
            lambda program, inputs: found.append((program, list(inputs))) or program,  # type: ignore[func-returns-value]
        )
        found[1][1][1] = torch.randn_like(found[1][1][1])
        return found

    def _peak(self, call: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            return 0.0
        wait(self.device)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        call()
        wait(self.device)
        return (torch.cuda.max_memory_allocated(self.device) - before) / 2**20

    # ── training steps ──

    def steps(self) -> None:
        """Compiled as it chooses by itself, then with all passes off; errors are distances from the first row."""
        print(f"\n{'training step':34s} {'':6s} {'ms':>8s} {'MiB':>8s} {'from 1st':>9s}")
        problem = deep_prior(self.device.type, **self.sizes)
        reference: list[list[Tensor]] = []
        for name, passes, precision in self._step_rows():

            def row(name: str = name, passes: Any = passes, precision: Any = precision) -> None:
                with _Default(passes):
                    model = problem.with_strategy(Compiled(precision=PRECISIONS[precision], fuse=True))
                    outcome = measure(
                        lambda: lambda: problem.gradients(problem.objective(model, problem.x, problem.target)),
                        self.device,
                        seconds=4.0,
                        repeats=12,
                    )
                reference.append(outcome.gradients)
                error = errors(outcome.gradients, reference[0])[0]
                peak = outcome.peak_bytes / 2**20
                print(f"{name:34s} {precision:6s} {1e3 * outcome.median:8.2f} {peak:8.0f} {error:9.1e}", flush=True)

            self.attempt(f"{name} {precision}", row)

    def _step_rows(self) -> Iterator[tuple[str, Passes, str]]:
        for precision in PRECISIONS:
            yield "everything", Passes(), precision
            yield "as it was", OFF, precision


class _Default:
    """Programs made meanwhile are lowered with these passes."""

    def __init__(self, passes: Passes) -> None:
        self.passes, self.before = passes, lower.Passes

    def __enter__(self) -> None:
        lower.Passes = lambda: self.passes  # type: ignore[assignment,misc]

    def __exit__(self, *_: object) -> None:
        lower.Passes = self.before  # type: ignore[misc]


if __name__ == "__main__":
    raise SystemExit(main())
