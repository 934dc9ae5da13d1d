"""Seconds to predict one image of 640×480, system by system, on this machine.

python -m spen.tasks.denoising.timing --device cpu --threads 2 --out runs/table1
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from spen.storage import write_json
from spen.tasks.denoising.build import build, denoiser
from spen.tasks.denoising.data import Rooms
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.recipes import find_recipe, find_regime
from spen.training.run import hardware

SYSTEMS = ("foe-3", "dp-3", "dp-20", "convnet", "convnet+", "unet", "spen-best")
SIZE = (480, 640)
FILE = "timing.json"


def measure(name: str, *, device: str = "cpu", repeats: int = 5, size: tuple[int, int] = SIZE) -> dict[str, Any]:
    """The median over ``repeats`` images, from observation to answer on the host; weights do not matter to time."""
    frame = Rooms("test", 1).frame(0)
    ratio = [-(-wanted // have) for wanted, have in zip(size, frame.noisy.shape[-2:], strict=True)]
    planes = [p.float().repeat(1, *ratio)[None, :, : size[0], : size[1]] for p in (frame.noisy, frame.valid)]
    denoise = denoiser(*build(find_recipe(name), find_regime("rooms")), device)
    x = Observation(*planes)
    denoise(x)  # kernels are chosen and memory is taken on the first image
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        denoise(x)  # the answer comes to the host, so the device has finished
        taken.append(time.perf_counter() - began)
    return {
        "recipe": name,
        "device": device,
        "hardware": hardware() if device != "cpu" else _processor(),
        "threads": torch.get_num_threads() if device == "cpu" else None,
        "size": f"{size[1]}×{size[0]}",
        "seconds": statistics.median(taken),
        "fastest": min(taken),
    }


def record(entries: list[dict[str, Any]], out: Path | str) -> list[dict[str, Any]]:
    """Put them into ``out/timing.json``, beside what other devices took; the newest of a kind stands."""
    known = {_key(entry): entry for entry in load(out)}
    known.update({_key(entry): entry for entry in entries})
    write_json(Path(out) / FILE, list(known.values()))
    return list(known.values())


def load(out: Path | str) -> list[dict[str, Any]]:
    """What has been measured so far."""
    path = Path(out) / FILE
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return found


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["recipe"], entry["device"], entry["threads"], entry["size"]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "processor"


def main() -> None:
    """The plain command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of a processor")
    parser.add_argument("--rows", default=",".join(SYSTEMS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default="runs/table1")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    for name in a.rows.split(","):
        entry = measure(name, device=a.device, repeats=a.repeats)
        record([entry], a.out)
        print(f"{name:10s} {entry['seconds']:.4f} s (best {entry['fastest']:.4f}) on {entry['hardware']}", flush=True)


if __name__ == "__main__":
    main()
