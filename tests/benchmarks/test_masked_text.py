"""The transformer energy over hidden characters: its loss by value, what it reads, and more steps than it learned."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from benchmarks.masked_text import (
    Masked,
    TextEnergy,
    TextSource,
    build,
    hidden_loss,
    losses_by_steps,
    main,
)
from benchmarks.transformer import set_fused
from spen.gradients import Exact, FiniteDifference
from spen.objectives import EndToEnd


def batch(seed: int = 0) -> Masked:
    draws = torch.Generator().manual_seed(seed)
    hidden = torch.rand(3, 8, generator=draws) < 0.5
    hidden[:, 0] = True
    return Masked(torch.randint(5, (3, 8), generator=draws), hidden)


def test_the_loss_is_that_of_hidden_characters() -> None:
    y = torch.tensor([[[0.5, 0.5], [0.1, 0.9], [0.25, 0.75]]])
    x = Masked(torch.tensor([[0, 0, 1]]), torch.tensor([[True, False, True]]))
    assert float(hidden_loss(y, x)) == pytest.approx(-(math.log(0.5) + math.log(0.75)) / 2)


def test_the_energy_reads_hidden_guesses_and_visible_characters() -> None:
    torch.manual_seed(0)
    energy, x = TextEnergy(5, 8, 16, 1), batch()
    y = torch.softmax(torch.randn(3, 8, 5), -1).requires_grad_()
    (slope,) = torch.autograd.grad(energy(y, x).sum(), y)
    assert bool((slope[x.hidden] != 0).all())
    assert bool((slope[~x.hidden] == 0).all())
    other = x._replace(characters=torch.where(x.hidden, x.characters, (x.characters + 1) % 5))
    assert not torch.allclose(energy(y, other), energy(y, x))


def test_finite_differences_agree_with_double_backprop() -> None:
    torch.manual_seed(0)
    model, x = build(5, 8, 16, 1, 4, Exact()).double(), batch()
    objective = EndToEnd(hidden_loss)

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        objective(model, x, x).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    set_fused(model, False)
    expected = gradients()
    model.minimizer.gradient = FiniteDifference()
    found = gradients()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-8), name


def test_losses_after_fewer_and_more_steps_come_from_one_descent() -> None:
    torch.manual_seed(0)
    model = build(5, 8, 16, 1, 2, FiniteDifference())
    source = TextSource(torch.arange(200) % 5, 8, 3, 2, 0.5, 0)
    found = losses_by_steps(model, source, [1, 2, 4])
    direct = [float(hidden_loss(model(x).output.detach(), y).mean()) for x, y in source.batches(0)]
    assert found[2] == pytest.approx(sum(direct) / 2, rel=1e-5)
    assert found[4] != pytest.approx(found[2])


def test_the_command_trains_and_prints(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ["--length", "8", "--batch", "4", "--width", "8", "--layers", "1", "--epochs", "1", "--per-epoch", "2"]
    text = f"{tmp_path}/text.txt"
    with open(text, "w", encoding="utf-8") as file:
        file.write("to be or not to be " * 100)
    common = ["masked_text", "--steps", "2", "--text", text, "--out", f"{tmp_path}/out", "--device", "cpu", *size]
    printed = {}
    for option in ([], ["--draw-steps"], ["--costs"]):
        monkeypatch.setattr("sys.argv", [*common, *option])
        main()
        printed[" ".join(option)] = capsys.readouterr().out
    assert "2    0     1: " in printed[""]
    assert "2    0     1: " in printed["--draw-steps"]
    assert Path(f"{tmp_path}/out/loss-by-steps.png").is_file()
    assert printed["--draw-steps"] != printed[""]
    assert "double backprop, unfused" in printed["--costs"]
    assert "1: " not in printed["--costs"]
