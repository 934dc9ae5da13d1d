"""One 640×480 image through dp-3, by torch and by onnxruntime, on one core. python docs/scripts/export_speed.py"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch

from spen.export import write
from spen.models import open_model
from spen.tasks.denoising.energy import Observation


def seconds(run: Callable[[], object], repeats: int = 5) -> float:
    """The processor time of the fastest of a few."""
    run()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    image = torch.rand(1, 1, 480, 640)
    x = Observation(image, (torch.rand_like(image) > 0.1).float())
    denoise = open_model("dp-3").denoise
    with tempfile.TemporaryDirectory() as folder:
        path = write(open_model("dp-3").exportable(), Path(folder) / "dp-3.onnx").path
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options)
    feed = {"image": x.image.numpy(), "seen": x.seen.numpy()}
    print(f"onnxruntime {onnxruntime.__version__}: {seconds(lambda: session.run(None, feed)):.2f} s")
    print(f"torch {torch.__version__}: {seconds(lambda: denoise(x)):.2f} s")
    # The tails of a sharp softplus are numbers below 1e-38, which processors are slow with.
    torch.set_flush_denormal(True)
    print(f"torch with torch.set_flush_denormal(True): {seconds(lambda: denoise(x)):.2f} s")


if __name__ == "__main__":
    main()
