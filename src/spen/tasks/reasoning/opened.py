"""A trained solver: scores, and solutions for files of puzzles."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from spen.storage import write_whole
from spen.tasks.reasoning.data import SIDES, boards, one_hot, read_puzzles
from spen.tasks.reasoning.metrics import obeys_the_rules
from spen.tasks.reasoning.sudoku import format_board
from spen.tasks.simple import SimpleOpened, answer_files
from spen.tasks.task import Progress, Scores

SEARCH = {"steps": 64, "restarts": 64, "start_noise": 0.7}
"""How ``predict`` and ``evaluate`` search for the solution of a puzzle by default: the best of a few settings on
development puzzles. A puzzle that is solved needs no further restarts."""


class ReasoningModel(SimpleOpened):
    """Of sudoku: reads files with a puzzle on each line; writes puzzle,solution,verdict. Of others: arrays."""

    def _search(self, options: dict[str, Any]) -> dict[str, Any]:
        return SEARCH | options if self.system.problem == "sudoku" and self._descends() else options

    def evaluate(self, split: str, data: str = "", *, progress: Progress | None = None, **options: Any) -> Scores:
        return super().evaluate(split, data, progress=progress, **self._search(options))

    def predict(
        self, inputs: Sequence[Path], out: Path | None, *, progress: Progress | None = None, **options: Any
    ) -> Iterator[Path]:
        if self.system.problem != "sudoku":
            yield from super().predict(inputs, out, progress=progress, **options)
            return
        folders = [path for path in inputs if path.is_dir()]
        if folders:
            raise ValueError(f"{folders[0]} is a folder; name the files with puzzles in it")
        targets = [None] * len(inputs) if out is None else [target for _, target in answer_files(inputs, out, ".csv")]
        files = [(target, read_puzzles(path)) for path, target in zip(inputs, targets, strict=True)]
        trained = SIDES[self.settings["data"]]
        for path, (_, puzzles) in zip(inputs, files, strict=True):
            if (side := puzzles[0].side) != trained:  # the weights serve every size
                print(
                    f"{path} holds puzzles of {side}×{side}, and {self.name} was trained on {trained}×{trained}: it "
                    "may leave most of them unsolved; train a model on this size",
                    file=sys.stderr,
                )
        for target, puzzles in files if progress is None else progress(files, len(files), "files"):
            x = one_hot([p.clues for p in puzzles])
            y = torch.cat([self.answer(part, **self._search(options)) for part in x.split(self.task.batch_size)])
            verdicts = ["solved" if right else "unsolved" for right in obeys_the_rules(y, x).tolist()]
            rows = zip(puzzles, boards(y), verdicts, strict=True)
            text = "".join(f"{format_board(p.clues)},{format_board(b)},{verdict}\n" for p, b, verdict in rows)
            if target is None:
                sys.stdout.write(text)
                continue
            write_whole(target, text)
            yield target
