"""x → F(x) → Init → minimise → Trajectory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spen.arguments import described, require
from spen.builders import Builder, Origin
from spen.descent.trajectory import Trajectory
from spen.hub import download, is_repository, push
from spen.minimizer import Minimizer
from spen.mismatch import refuse_foreign_entropy
from spen.pretrained import load_pretrained, save_pretrained
from spen.search import Found, search
from spen.tensors import as_rows, flat


class SPEN(nn.Module):
    """ŷ = argmin_y E(y; F(x)) by descent from Init(F(x)) (Eq. 1 and 10).

    ``features`` is F (None: the identity), ``init`` maps features to the point the descent starts from, and
    ``energy`` scores (y, features) with one number per example. Any of them may hold parameters; gradients of an
    objective reach them all, and the learned rates of the minimiser's rule.
    """

    def __init__(
        self, *, energy: nn.Module, init: nn.Module, minimizer: Minimizer, features: nn.Module | None = None
    ) -> None:
        super().__init__()
        how = "write a class with a forward method, whose parameters can then be learned"
        require(energy, nn.Module, "energy", "a module such as a subclass of spen.Energy", how)
        require(init, nn.Module, "init", "a module that maps features to a start, such as nn.Identity()", how)
        if features is not None:
            require(features, nn.Module, "features", "a module that maps x to features, such as nn.Linear(3, 4)", how)
        require(minimizer, nn.Module, "minimizer", "a minimiser such as spen.Minimizer(Reals(), GradientDescent(10))")
        if not hasattr(minimizer, "domain"):
            raise TypeError(
                "minimizer must be a minimiser such as spen.Minimizer(Reals(), GradientDescent(10)), "
                f"not {described(minimizer)}"
            )
        refuse_foreign_entropy(energy, minimizer.domain)
        self.features = nn.Identity() if features is None else features
        self.init = init
        self.energy = energy
        self.minimizer = minimizer
        self.origin: Origin | None = None
        """The builder of the model and its settings, which ``save_pretrained`` writes."""

    def forward(
        self, x: Any, *, steps: int | None = None, noise: float = 0.0, start: Tensor | None = None
    ) -> Trajectory:
        """Descend from Init(F(x)).

        ``steps`` replaces the number of steps of the rule: further steps repeat its last one. ``start`` (B, …)
        replaces what Init returned, except for examples whose row holds a NaN. ``noise`` · N(0, 1) is added to the
        start, to vary it in training.
        """
        features = self.features(x)
        begin = self._start(features)
        if start is not None:
            if start.shape != begin.shape:
                raise ValueError(f"start has shape {tuple(start.shape)}, but Init returns {tuple(begin.shape)}")
            begin = torch.where(as_rows(flat(start).isnan().any(1), begin), begin, start.to(begin))
        if noise:
            begin = begin + noise * torch.randn_like(begin)
        given = {} if steps is None else {"steps": steps}
        return self.minimizer(self.energy, features, begin, **given)

    def search(self, x: Any, **options: Any) -> Found:
        """More computation for a better answer: longer descents, restarts, the lowest energy (``spen.search``)."""
        return search(self, x, **options)

    def feedforward(self, x: Any) -> Tensor:
        """Init(F(x)) as a point of the domain: the answer without any descent, which pretraining fits (Sec. 5)."""
        domain = self.minimizer.domain
        return domain.output(domain.enter(self._start(self.features(x))))

    @classmethod
    def from_pretrained(cls, folder: Path | str, *, build: Builder | None = None, revision: str | None = None) -> SPEN:
        """The model that ``save_pretrained`` wrote, ready to predict.

        ``folder`` is a folder or, if there is none of that name, "user/name" on the Hugging Face hub; then
        config.json and model.safetensors are downloaded, of the branch, tag or commit ``revision``.
        config.json names a registered builder (``spen.builders.register``), never code to import; ``build`` is called
        with the settings instead, where the program has a builder of its own: ``build=lambda **settings: my_model()``.
        """
        if not Path(folder).is_dir() and is_repository(folder):
            return load_pretrained(download(str(folder), revision), build)
        if revision is not None:
            raise ValueError(f"a revision is one of a model on the Hugging Face hub, and {str(folder)!r} is a folder")
        return load_pretrained(folder, build)

    def save_pretrained(self, folder: Path | str) -> Path:
        """Write config.json and model.safetensors, the folder layout of the Hugging Face hub. No pickle."""
        return save_pretrained(self, folder)

    def push_to_hub(self, name: str, *, private: bool | None = None, revision: str | None = None) -> str:
        """Upload what ``save_pretrained`` writes to "user/name" on the Hugging Face hub; the address of the commit.

        The repository is made if there is none, ``private`` or not (None: as the account has it). ``revision`` is a
        branch, made if there is none. A short model card is added unless the repository has one. Needs the extra
        ``hub``, and a token (``hf auth login``).
        """
        return push(self, name, private=private, revision=revision)

    def _start(self, features: Any) -> Tensor:
        start = self.init(features)
        if not isinstance(start, Tensor):
            raise ValueError(f"Init must return a tensor to descend from, not {type(start).__name__}")
        return start
