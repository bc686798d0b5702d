"""What each of this package's subjects shows, from profiles.json. Imports the standard library only, as `protocol`."""

from __future__ import annotations

import json
from pathlib import Path

from specmatrix.matrix.subjects.limits import reasons
from specmatrix.matrix.subjects.protocol import AcceptanceRule, Capability, Profile


def profile_of(name: str) -> Profile:
    """A subject's profile. What it cannot show has a reason in the file, or a limit with that reason."""
    row = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))[name]
    row["capabilities"] = frozenset(map(Capability, row["capabilities"]))
    cannot = row.get("cannot", {}).items()
    row["cannot"] = {Capability(what): reasons(name)[why] if "!=" in why else why for what, why in cannot}
    row["acceptance"] = {algorithm: AcceptanceRule(**rule) for algorithm, rule in row.get("acceptance", {}).items()}
    return Profile(**row)
