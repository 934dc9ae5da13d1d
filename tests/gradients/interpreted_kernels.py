"""The Triton kernels by value, interpreted on the CPU. test_kernels.py runs this file under TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch

from tests.gradients.test_kernels import SHAPES, check_narrow, check_wide


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weight_gradient_by_value(shape: tuple[int, ...], last: bool) -> None:
    which = SHAPES.index(shape)
    check_wide(shape, 16, torch.float32, last, "cpu", 1e-5, which)
    if last:  # the interpreter knows no bfloat16; the products of rounded operands are exact
        check_wide(shape, 16, torch.float16, last, "cpu", 1e-5, which + 1)


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
@pytest.mark.parametrize("shape", [*SHAPES, (1, 16, 2, 300, 3, 5, 1, 2)], ids=str)
def test_narrow_kernels_by_value(shape: tuple[int, ...], last: bool) -> None:
    which = sum(shape) % 3
    check_narrow(shape, last, "cpu", 1e-5, slice(which, which + 1))
