"""The Triton kernels by value: interpreted on the CPU where Triton is installed, compiled on a GPU."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from spen.gradients.compiled import choose, lower, ops
from spen.gradients.compiled.convolutions import FORWARD, WEIGHT, Convolution, Implementation, implementations
from spen.gradients.compiled.lower import Passes

aten = torch.ops.aten
on_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and ops.kernels() is not None),
    reason="compiled kernels need a GPU and Triton; `make kernels` interprets them",
)

# batch, outputs, image height and width, kernel height and width, paddings
SHAPES = [
    (1, 16, 5, 7, 3, 3, 1, 1),  # smaller than a block in every way
    (2, 32, 4, 33, 7, 7, 3, 3),  # one pixel more than a block
    (1, 32, 8, 32, 7, 7, 0, 0),  # valid
    (2, 16, 3, 20, 5, 3, 4, 2),  # full, not square
    (1, 16, 5, 11, 9, 9, 4, 4),
    (1, 16, 4, 70, 3, 7, 0, 5),
]


def convolution(
    shape: tuple[int, ...], inputs: int, dtype: torch.dtype, last: bool, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """(δ, a, W) of a convolution, in one memory layout."""
    batch, outputs, h, w, kh, kw, ph, pw = shape
    generator = torch.Generator().manual_seed(sum(shape) + inputs)
    image = torch.randn(batch, inputs, h, w, generator=generator)
    weight = torch.randn(outputs, inputs, kh, kw, generator=generator)
    cotangent = torch.randn(batch, outputs, h + 2 * ph - kh + 1, w + 2 * pw - kw + 1, generator=generator)
    layout = torch.channels_last if last else torch.contiguous_format
    cotangent, image = (t.to(device, dtype).contiguous(memory_format=layout) for t in (cotangent, image))
    return cotangent, image if inputs > 1 else image.contiguous(), weight.to(device, dtype)


def reference(index: int, cotangent: Tensor, image: Tensor, weight: Tensor, padding: list[int]) -> Tensor:
    """In double precision on the CPU: 0 the input's gradient, 1 the weight's."""
    operands = [t.cpu().double().contiguous() for t in (cotangent, image, weight)]
    geometry = ([1, 1], padding, [1, 1], False, [0, 0], 1, [index == 0, index == 1, False])
    return aten.convolution_backward(*operands, None, *geometry)[index]


def error(found: Tensor, exact: Tensor) -> float:
    assert found.shape == exact.shape
    return float((found.cpu().double() - exact).norm() / exact.norm())


def check_wide(
    shape: tuple[int, ...], inputs: int, dtype: torch.dtype, last: bool, device: str, bound: float, only: int = -1
) -> None:
    """Every configuration, or one: interpreted programs are slow."""
    kernel, padding = list(shape[4:6]), list(shape[6:])
    operands = convolution(shape, inputs, dtype, last, device)
    exact = reference(1, *operands, padding)
    configurations = ops.configurations(shape[1], inputs, kernel, dtype)
    assert configurations
    for config in configurations if only < 0 else [configurations[only % len(configurations)]]:
        found = ops.weight_gradient(operands[0], operands[1], kernel, padding, config)
        assert found.dtype is torch.float32
        assert error(found, exact) < bound, config


def check_narrow(shape: tuple[int, ...], last: bool, device: str, bound: float, only: slice = slice(None)) -> None:
    kernel, padding = list(shape[4:6]), list(shape[6:])
    cotangent, image, weight = convolution(shape, 1, torch.float32, last, device)
    for config in ops.NARROW_WEIGHT[only]:
        found = ops.narrow_weight_gradient(cotangent, image, kernel, padding, list(config))
        assert error(found, reference(1, cotangent, image, weight, padding)) < bound, config
    for config in ops.NARROW_INPUT[only]:
        found = ops.narrow_input_gradient(cotangent, weight, padding, list(config))
        assert error(found, reference(0, cotangent, image, weight, padding)) < bound, config
    exact = torch.nn.functional.conv2d(image.cpu().double(), weight.cpu().double(), padding=padding)
    for forward in ops.NARROW_FORWARD[only]:
        found = ops.narrow_forward(image, weight, padding, last, list(forward))
        assert found.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        assert error(found, exact) < bound, forward


# ── interpreted ──


def test_interpreted_kernels_agree() -> None:
    """Triton decides at import whether it interprets, so these tests have a file and a process of their own."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: its kernels are not used here either; `make kernels` tests them")
    try:
        int(np.ones(1))
    except TypeError:
        pytest.skip("Triton's interpreter needs numpy below 2.4; `make kernels` tests with one")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    options = ["-p", "no:cacheprovider", "-o", "addopts=-q"]
    command = [sys.executable, "-m", "pytest", *options, Path(__file__).with_name("interpreted_kernels.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


# ── without Triton ──


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
def test_without_kernels_the_operations_compute_the_same(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "kernels", lambda: None)
    for shape in SHAPES[:3]:
        check_wide(shape, 32, torch.float32, last, "cpu", 1e-5)
        check_narrow(shape, last, "cpu", 1e-5)


def test_the_operations_are_declared_as_torch_wants_them() -> None:
    """Schema, shapes and layouts of what is promised while a program is compiled, against what is computed."""
    cotangent, image, weight = convolution(SHAPES[0], 32, torch.float32, True, "cpu")
    cases: list[tuple[Any, tuple[Any, ...]]] = [
        (ops.weight_gradient, (cotangent, image, [3, 3], [1, 1], [1, 2, 32, 4, 3])),
        (ops.narrow_weight_gradient, (cotangent, image[:, :1].contiguous(), [3, 3], [1, 1], [64, 4, 3])),
        (ops.narrow_input_gradient, (cotangent, weight[:, :1].contiguous(), [1, 1], [8, 4, 2])),
        (ops.narrow_forward, (image[:, :1].contiguous(), weight[:, :1].contiguous(), [1, 1], True, [128, 4])),
    ]
    for operation, arguments in cases:
        torch.library.opcheck(operation, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("outputs", "inputs", "kernel", "padding", "elements", "is_proved"),
    [
        (32, 32, (7, 7), (3, 3), 1000, True),
        (64, 1, (9, 3), (0, 2), 1000, True),
        (32, 3, (7, 7), (3, 3), 1000, False),
        (48, 32, (7, 7), (3, 3), 1000, False),
        (128, 32, (3, 3), (1, 1), 1000, False),
        (32, 32, (1, 1), (0, 0), 1000, False),
        (32, 32, (4, 4), (1, 1), 1000, False),
        (32, 32, (3, 3), (3, 3), 1000, False),
        (32, 32, (3, 3), (1, 1), 2**30, False),
    ],
)
def test_only_what_is_tested_is_offered(
    outputs: int, inputs: int, kernel: tuple[int, int], padding: tuple[int, int], elements: int, is_proved: bool
) -> None:
    assert ops.proved(outputs, inputs, kernel, padding, elements) is is_proved


# ── on a GPU ──


@on_gpu
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled_kernels_agree(shape: tuple[int, ...], last: bool) -> None:
    for inputs in ops.CHANNELS:
        check_wide(shape, inputs, torch.float32, last, "cuda", 2e-3)  # TF32
        check_wide(shape, inputs, torch.bfloat16, last, "cuda", 1e-5)
    check_narrow(shape, last, "cuda", 2e-3)


@on_gpu
def test_float32_is_not_rounded_where_tf32_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    check_wide(SHAPES[1], 32, torch.float32, True, "cuda", 1e-5)
    check_narrow(SHAPES[1], True, "cuda", 1e-5)


# ── the choice ──


def _forward_product() -> Convolution:
    return Convolution(FORWARD, (1, 16, 6, 6), (16, 16, 3, 3), (3, 3), (1, 1), (1, 1))


def test_ways_that_fail_or_disagree_are_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that does not run or computes something else is named and left out, however fast it is."""
    product = _forward_product()
    plain = implementations(product, torch.contiguous_format, None, turned=False, kernels=False)["cudnn"]

    def broken(a: Tensor, b: Tensor) -> Tensor:
        raise RuntimeError("out of shared memory\nand more")

    found = {
        "cudnn": plain,
        "wrong": Implementation(plain.first, plain.second, lambda a, b: 1.1 * plain.core(a, b)),
        "nan": Implementation(plain.first, plain.second, lambda a, b: plain.core(a, b) * float("nan")),
        "broken": Implementation(plain.first, plain.second, broken),
        "good": Implementation(plain.first, plain.second, lambda a, b: 1.001 * plain.core(a, b)),
    }
    measured: list[object] = []
    monkeypatch.setattr(choose, "seconds_of", lambda call, device: measured.append(call()) or 1.0)
    monkeypatch.setattr(choose, "_known", {})
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    arguments = (product, found, torch.device("cpu"), torch.contiguous_format, None)
    with pytest.warns(UserWarning, match="Convolution") as caught:
        times = choose.times(*arguments)
    assert list(times) == ["cudnn", "good"]
    texts = [str(w.message) for w in caught if "Convolution(" in str(w.message)]
    assert [t.split(" on ")[0] for t in texts[:2]] == ["wrong disagrees with cuDNN", "nan disagrees with cuDNN"]
    assert texts[2].startswith("broken cannot run Convolution(")
    assert texts[2].endswith(": out of shared memory")
    assert choose.times(*arguments) is times  # remembered
    assert len(measured) == 2


@pytest.mark.parametrize(
    ("damage", "again"),
    [
        (None, 0),
        ("not JSON", 1),
        ("[]", 1),
        ("no plain way", 1),
        ("another way", 1),
        ("no number", 1),
        ("no file can be written", 1),
    ],
)
def test_times_are_kept_for_the_next_process(
    damage: str | None, again: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And measured again if what was kept is damaged, or was measured for other ways."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    measured: list[object] = []
    monkeypatch.setattr(choose, "seconds_of", lambda call, device: measured.append(call) or 0.25)
    found = implementations(_forward_product(), torch.contiguous_format, None, turned=True, kernels=False)
    arguments = (_forward_product(), found, torch.device("cpu"), torch.contiguous_format, None)
    if damage == "no file can be written":
        (tmp_path / "file").touch()
        monkeypatch.setattr(choose, "_file", lambda: tmp_path / "file" / "below.json")
    monkeypatch.setattr(choose, "_known", {})
    times = choose.times(*arguments)
    assert times == {"cudnn": 0.25, "turned": 0.25}
    path = tmp_path / "spen-products.json"
    if damage in ("not JSON", "[]"):
        path.write_text(damage)
    elif damage not in (None, "no file can be written"):
        (described,) = json.loads(path.read_text())
        kept = {
            "no plain way": {"turned": 0.1},
            "another way": {"cudnn": 0.1, "x": 0.1},
            "no number": {"cudnn": "fast"},
        }
        path.write_text(json.dumps({described: kept[str(damage)]}))
    monkeypatch.setattr(choose, "_known", {})
    assert choose.times(*arguments) == times
    assert len(measured) == 2 + 2 * again
    assert [p.name for p in tmp_path.iterdir()] == (["file"] if "written" in str(damage) else ["spen-products.json"])


def test_kernels_are_compiled_before_they_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is called once with one example, in the layout it will get; what was measured before is not called."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(choose, "_known", {})
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    called: list[tuple[torch.Size, torch.Size, bool]] = []

    def core(first: Tensor, second: Tensor) -> Tensor:
        called.append((first.shape, second.shape, first.is_contiguous(memory_format=torch.channels_last)))
        raise RuntimeError("measuring it will say so")

    product = Convolution(WEIGHT, (5, 16, 6, 6), (5, 16, 6, 6), (3, 3), (1, 1), (1, 1))
    plain = implementations(product, torch.channels_last, None, turned=False, kernels=False)["cudnn"]
    found = {"cudnn": plain, "triton 1": Implementation(plain.first, plain.second, core)}
    asked = [(product, found, torch.channels_last)]
    choose.compile_kernels(asked, torch.device("cpu"), None)
    assert called == [(torch.Size([1, 16, 6, 6]), torch.Size([1, 16, 6, 6]), True)]
    monkeypatch.setattr(choose, "seconds_of", lambda call, device: 0.25)
    with pytest.warns(UserWarning, match="measuring it will say so"):
        choose.times(product, found, torch.device("cpu"), torch.channels_last, None)
    del called[:]
    choose.compile_kernels(asked, torch.device("cpu"), None)
    assert called == []


def _called(way: Implementation, *operands: Tensor) -> Tensor:
    return way(*operands)


def test_the_layout_with_the_least_time_in_all_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    product = _forward_product()
    node: Any = object()
    for quick in (torch.channels_last, torch.contiguous_format):

        def times(product: Any, found: Any, device: Any, layout: Any, precision: Any, quick: Any = quick) -> Any:
            return {"cudnn": 2.0, "turned": 1.0 if layout is quick else 3.0}

        monkeypatch.setattr(choose, "times", times)
        monkeypatch.setattr(choose, "compile_kernels", lambda asked, device, precision: None)
        layout, chosen = lower._chosen({node: product}, None, Passes(), torch.device("cuda"))
        assert layout is quick
        image, weight = torch.randn(1, 16, 6, 6), torch.randn(16, 16, 3, 3)
        turned = make_fx(functools.partial(_called, chosen[product]))(image, weight)
        assert any(n.target is aten.flip.default for n in turned.graph.nodes)


def test_fused_programs_are_stored_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process would find it: Inductor looks into the same folder."""
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    inputs = [torch.randn(3, 7), torch.randn(7, 2)]
    found = []
    for _ in range(2):
        program = make_fx(lambda a, b: [torch.tanh(a @ b).sum(0)])(*inputs)
        counters.clear()
        (result,) = lower.lowered(program, inputs, fuse=True, precision=None)(*inputs)
        assert torch.allclose(result, torch.tanh(inputs[0] @ inputs[1]).sum(0), atol=1e-6)
        found.append(counters["inductor"]["fxgraph_cache_hit"])
    assert found == [0, 1]
    code = "".join(path.read_text() for path in tmp_path.rglob("*.py"))
    assert "7" in code
    assert "s0" not in code
