"""Two DDP processes through the same Trainer; each keeps the gradients it stepped with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from spen.objectives import EndToEnd, squared_error
from spen.training import TensorSource, fit
from spen.training import module as training_module
from spen.training.checkpoints import save_weights
from spen.training.stages import Stage
from tests.training.toy import MSE, build_data, build_model


def run(out: Path, devices: int) -> None:
    torch.set_num_threads(1)
    model = build_model()
    model.eval()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0  # processes draw different masks; the comparison needs none
    full, dev = build_data()
    train = TensorSource(full.x, full.target, 16 // devices, shuffle=False)
    stage = Stage(name="joint", objective=EndToEnd(squared_error), epochs=1, learning_rate=1e-3)
    kept: list[dict[str, torch.Tensor]] = []
    original = training_module.StageModule.on_before_optimizer_step

    def keep(self: Any, optimizer: Any) -> None:
        kept.append({n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None})
        original(self, optimizer)

    training_module.StageModule.on_before_optimizer_step = keep  # type: ignore[method-assign]
    fit(model, [stage], train, dev, MSE(), out=out, accelerator="cpu", devices=devices, progress=False)
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        save_weights(
            {f"{i}/{n}": g for i, grads in enumerate(kept) for n, g in grads.items()}, out / "grads.safetensors"
        )


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
