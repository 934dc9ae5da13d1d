"""Domains: the sets that y is constrained to."""

from spen.domains.box import Box
from spen.domains.reals import Reals
from spen.domains.simplex import Simplex, project_simplex
from spen.protocols import Domain

__all__ = ["Box", "Domain", "Reals", "Simplex", "project_simplex"]
