"""The engines of programs of shares, by name."""

from __future__ import annotations

from custom_inference.compiled.admixture.cvb0 import AdmixtureCvb0
from custom_inference.compiled.admixture.engine import AdmixturePoints, AdmixtureVB

#: Name -> engine.
ENGINES: dict[str, type[AdmixturePoints]] = {one.name: one for one in (AdmixtureVB, AdmixturePoints, AdmixtureCvb0)}
