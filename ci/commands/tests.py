"""`specmatrix tests`: the registered tests of a tier with their estimated seconds, or one host's shard of them."""

from __future__ import annotations

import json
from pathlib import Path

from specmatrix.ci.partition import file_shard, of_stage
from specmatrix.ci.registry import read_registry
from specmatrix.errors import ConfigError
from specmatrix.matrix.run.provenance import ROOT


def list_tests(tier: str, stage: str, shard: str, paths: bool, json_: bool, root: Path = ROOT) -> int:
    """Print a table, only the paths (relative to `root`), or JSON. ConfigError on an invalid name, shard or file."""
    if paths and json_:
        raise ConfigError("--paths and --json are mutually exclusive")
    registered = read_registry(root)
    if not registered:
        raise ConfigError(f"{root} has no registered tests; run this in a checkout, not in an installed package")
    found = file_shard(of_stage(registered, tier, stage), shard)
    rows = [(file.est_seconds, file.path.as_posix()) for file in found.files]
    if json_:
        files = [{"path": path, "est_seconds": seconds} for seconds, path in rows]
        print(json.dumps({"tier": tier, "stage": stage, "shard": shard, "est_seconds": found.seconds, "files": files}))
    elif paths:
        print("\n".join(path for _, path in rows))
    else:
        count = "1 file" if len(rows) == 1 else f"{len(rows)} files"
        for seconds, name in [*rows, (found.seconds, f"{count} of tier {tier}, stage {stage}, shard {shard}")]:
            print(f"{seconds:>7g} s  {name}")
    return 0
