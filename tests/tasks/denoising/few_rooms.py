"""Small parts of a few rooms, made once: a training takes a second instead of a minute."""

from __future__ import annotations

from functools import cache

from spen.tasks.denoising.data import Frame, Frames, Rooms
from spen.tasks.denoising.datasets import Splits


class Given(Frames):
    """Frames that are in memory."""

    def __init__(self, *frames: Frame) -> None:
        self.frames, self.names = frames, [str(k) for k in range(len(frames))]

    def frame(self, index: int, epoch: int = 0) -> Frame:
        return self.frames[index]


@cache
def whole_rooms() -> Given:
    """Three rooms of the training split."""
    return Given(*(Rooms("train", 3).frame(k) for k in range(3)))


@cache
def few_rooms() -> Splits:
    """3, 1 and 2 parts of 48×64 pixels."""
    dev, test = ([Rooms(split, count).frame(k) for k in range(count)] for split, count in (("dev", 1), ("test", 2)))
    small = [
        [Frame(*(part[:, 80:128, 100:164].clone() for part in frame)) for frame in frames]
        for frames in (whole_rooms().frames, dev, test)
    ]
    return Splits(*(Given(*frames) for frames in small))
