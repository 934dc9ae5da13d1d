"""Combinations of energy and domain that run but make no sense."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from spen.domains import Box, Reals, Simplex
from spen.energies.compose import EntropySmoothed, NegativeEntropy, Scaled, Sum
from spen.protocols import Domain


def refuse_foreign_entropy(energy: nn.Module, domain: Domain) -> None:
    """Raise ValueError if the energy holds an entropy over another domain.

    It looks into ``Sum``, ``Scaled`` and ``EntropySmoothed`` only: any other wrapper may pass on a changed y.
    """
    for entropy in _entropies(energy):
        if isinstance(domain, Reals):
            raise ValueError(
                "the energy holds an entropy, which needs probabilities, but the domain is Reals(): use a Box or a "
                "Simplex, or leave the entropy out"
            )
        wanted = "box" if isinstance(domain, Box) else "simplex"
        if isinstance(domain, Box | Simplex) and entropy.over != wanted:
            raise ValueError(
                f'the energy holds an entropy over="{entropy.over}", but the domain is {domain}: '
                f'write EntropySmoothed(energy, over="{wanted}") or NegativeEntropy("{wanted}")'
            )
        if isinstance(domain, Box) and not domain.within_unit:
            raise ValueError(
                f"the energy holds an entropy, which needs 0 ≤ y ≤ 1, but the domain is {domain}: use Box() and scale "
                "y inside the energy, or leave the entropy out"
            )


def _entropies(energy: nn.Module) -> Iterator[NegativeEntropy]:
    if isinstance(energy, NegativeEntropy):
        yield energy
    elif isinstance(energy, Sum):
        for part in energy.parts.values():
            yield from _entropies(part)
    elif isinstance(energy, Scaled):
        yield from _entropies(energy.energy)
    elif isinstance(energy, EntropySmoothed):
        yield from _entropies(energy.energy)
        yield from _entropies(energy.entropy)
