"""Training from the answers of earlier batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanSquaredError

import spen
from spen.domains import Box, Domain, Reals, Simplex
from spen.gradients import Exact
from spen.objectives import EndToEnd, squared_error
from spen.objectives.replay import Replay, start_at
from spen.rules import GradientDescent
from spen.storage import load_weights
from spen.testing.problems import Quadratic
from spen.training import TensorSource, fit, joint


def model_of(steps: int = 2, domain: Domain | None = None, init: nn.Module | None = None) -> spen.SPEN:
    energy = Quadratic(torch.diag(torch.tensor([0.5, 1.0, 4.0])))
    minimizer = spen.Minimizer(domain or Reals(), GradientDescent(steps, 0.1, learn_rates=True), Exact())
    return spen.SPEN(energy=energy, init=init or nn.Identity(), minimizer=minimizer)


@pytest.mark.parametrize(
    "domain",
    [Reals(), Box("projected"), Box(), Box(low=-1.0, high=3.0), Simplex(), Simplex("mirror"), Simplex("projected")],
    ids=str,
)
def test_a_start_is_found_for_every_point(domain: Domain) -> None:
    y = domain.output(domain.enter(torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)))
    torch.testing.assert_close(domain.output(domain.enter(start_at(domain, y))), y, rtol=1e-5, atol=1e-5)
    corner = torch.eye(3, dtype=torch.float64)
    assert bool(start_at(domain, corner).isfinite().all())


def test_a_start_replaces_what_init_returned_but_for_rows_of_nan() -> None:
    model, x = model_of(), torch.ones(2, 3)
    start = torch.tensor([[5.0, 6.0, 7.0], [torch.nan, 1.0, 1.0]])
    found = model(x, start=start)
    assert torch.equal(found.start, torch.stack([start[0], x[1]]))
    assert torch.equal(found.output, model.minimizer(model.energy, x, found.start).output)
    with pytest.raises(ValueError, match=r"start has shape \(2, 2\), but Init returns \(2, 3\)"):
        model(x, start=start[:, :2])


def test_descents_go_on_where_they_stopped() -> None:
    """One example, always replayed: three batches are one descent of six steps, and no gradient reaches Init."""
    init = nn.Linear(3, 3)
    model, x = model_of(init=init), torch.ones(1, 3)
    objective = EndToEnd(squared_error, replay=1.0, replay_size=1)
    for _ in range(3):
        init.zero_grad()
        loss = objective(model, x, torch.zeros(1, 3))
        loss.backward()
    long = model(x, steps=6)
    expected = objective.iterate_weights(2)
    values = [float(squared_error(y.detach(), torch.zeros(1, 3)).mean()) for y in long.outputs[-2:]]
    assert float(loss) == pytest.approx(sum(w * v for w, v in zip(expected, values, strict=True)), rel=1e-5)
    assert init.weight.grad is None or not bool(init.weight.grad.any())
    assert torch.equal(objective.predict(model, x), model(x).output)  # prediction starts at Init


def test_stored_examples_replace_a_share_of_the_batch_with_inputs_targets_and_starts() -> None:
    torch.manual_seed(0)
    replay = Replay(size=50)
    old = torch.arange(60.0)[:, None].expand(-1, 3)
    x = {"a": old, "b": (old[:, 0].long(), 7)}
    assert replay.mix(x, old, 0.5)[2] is None
    replay.add(x, -old, 10 * old)
    new = {"a": 1000 + old[:40], "b": (old[:40, 0].long(), 7)}
    mixed, target, start = replay.mix(new, old[:40], 0.5)
    assert start is not None
    kept = start.isnan().all(1)
    assert 8 < int(kept.sum()) < 32
    assert torch.equal(mixed["a"][kept], new["a"][kept])
    assert torch.equal(target[kept], old[:40][kept])
    taken = mixed["a"][~kept]
    assert float(taken.min()) >= 10
    assert float(taken.max()) < 60
    assert torch.equal(start[~kept], 10 * taken)
    assert torch.equal(target[~kept], -taken)
    assert torch.equal(mixed["b"][0][~kept], taken[:, 0].long())
    assert mixed["b"][1] == 7
    with pytest.raises(ValueError, match=r"replay mixes the examples of several batches, and these have shapes"):
        replay.mix({"a": old[:, :2], "b": x["b"]}, old, 0.5)


class Answer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(tmp_path: Path) -> None:
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    weights: list[dict[str, Tensor]] = []
    objective = EndToEnd(squared_error, replay=0.5, replay_size=16)
    for name, pieces in (("whole", [None]), ("pieces", [1e-9, 1e-9, None]), ("without", [None])):
        if name == "without":
            objective = EndToEnd(squared_error)
        for seconds in pieces:
            torch.manual_seed(0)
            source: Any = TensorSource(x, x.tanh(), 8)
            stages = [joint(objective, epochs=3, learning_rate=1e-2)]
            run = fit(
                model_of(init=Answer()),
                stages,
                source,
                source,
                MeanSquaredError(),
                out=tmp_path / name,
                seconds=seconds,
            )
            assert run.complete == (seconds is None)
        weights.append(load_weights(tmp_path / name / "model.safetensors"))
    whole, pieces_, without = weights
    assert all(torch.equal(whole[key], pieces_[key]) for key in whole)
    assert any(not torch.equal(whole[key], without[key]) for key in whole)


def test_replay_needs_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="replay stores the answers of one process, and a run of several could not"):
        EndToEnd(squared_error, replay=0.5)(model_of(), torch.ones(1, 3), torch.ones(1, 3))
