"""The processes of a run: their number, the rank of this one, and SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from pytorch_lightning.utilities.rank_zero import rank_zero_only


class Terminated(SystemExit):
    """A SIGTERM has ended the run. Its state is written, and the same call resumes it. Exit status 3."""

    def __init__(self) -> None:
        super().__init__(3)


def is_main_process() -> bool:
    """Whether this process writes the run folder. Known before the process group is initialised."""
    return not getattr(rank_zero_only, "rank", 0)


def devices_and_nodes(devices: int, nodes: int) -> tuple[int, int]:
    """(devices of a node, nodes): those of torchrun if it has started this process, else the arguments."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return devices, nodes
    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    if devices not in (1, local) or nodes not in (1, world // local):
        raise ValueError(
            f"torchrun has started {local} processes on each of {world // local} nodes, not {devices} on each of "
            f"{nodes}: leave devices and nodes away"
        )
    return local, world // local


def rejoin_after_restart(accelerator: str) -> None:
    """Initialise the process group after a restart by torchrun on one machine, with new keys in its store.

    The store still holds the addresses of the processes that ended, and the first process would connect to these.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    if attempt == "0" or not one_machine or dist.is_initialized():
        return
    store, rank, world = next(dist.rendezvous("env://"))
    gpu = accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    keys = dist.PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group("nccl" if gpu else "gloo", store=keys, rank=rank, world_size=world)


class Termination:
    """Whether a SIGTERM has arrived, which a scheduler sends before it ends a job."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note a SIGTERM within the block; afterwards the handler from before is restored."""
        before = signal.getsignal(signal.SIGTERM)
        self.watch()
        try:
            yield
        finally:
            if _handles_signals():
                signal.signal(signal.SIGTERM, before)

    def watch(self) -> None:
        """Install the handler again. Lightning installs its own, which broadcasts: unsafe in a handler."""
        if _handles_signals():
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: object) -> None:
        self.requested = True


def _handles_signals() -> bool:
    return threading.current_thread() is threading.main_thread()
