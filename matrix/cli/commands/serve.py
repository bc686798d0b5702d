"""`specmatrix serve`: an engine over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Final

import torch

from specmatrix.engine.algorithm_file import load_algorithms
from specmatrix.engine.api import LLM
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.tiers import check_parallel
from specmatrix.matrix.cli.commands.flags import flags_of
from specmatrix.matrix.cli.commands.generate import ALGORITHM, configuration
from specmatrix.matrix.zoo.registry import resolve_path, verify_models
from specmatrix.reports.render.progress import waiting

if TYPE_CHECKING:
    from specmatrix.engine.server.app import ServerOptions

PACKAGES: Final = ("fastapi", "uvicorn", "prometheus_client")


def serve(words: list[str], file: Path | None, threads: int, options: Mapping[str, object]) -> int:
    """Serve until a signal; 0 if every page was freed, 1 if not. ConfigError on what cannot be served."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{missing[0]} is not installed; install the extra: pip install 'specmatrix[serve]'")
    from specmatrix.engine.server.app import ServerOptions, bind

    others, flags = flags_of(words)
    if others:
        raise ConfigError(f"unexpected argument {shown(others[0])}; serve takes flags only")
    check_parallel("threads", threads)
    torch.set_num_threads(threads)
    if file is not None:
        load_algorithms(file)
    chosen = ServerOptions(**options)  # type: ignore[arg-type]  # as the command line has parsed them
    chosen.check()
    asked = configuration({ALGORITHM: "NONE", **flags})  # as SGLang's server, which speculates only if asked to
    if asked.tp_size != 1:
        raise ConfigError(f"tp_size is {asked.tp_size}; allowed: 1, as the server has its engine in its own process")
    verify_models((asked.model_path, asked.speculative_draft_model_path))
    with bind(chosen) as listening:
        with waiting("loading the models"):
            llm = LLM(asked, resolve_path)
        for rewrite in llm.resolved.rewrites:
            print(f"rewritten {rewrite.field}: {rewrite.asked} -> {rewrite.got}: {rewrite.reason}", file=sys.stderr)
        host, port = listening.getsockname()[:2]
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        print(f"serving {llm.resolved.model_path} ({llm.resolved.algorithm}) on http://{place}", flush=True)
        return _run(llm, chosen, listening)


def _run(llm: LLM, options: ServerOptions, listening: socket) -> int:
    from specmatrix.engine.server.app import application, server

    app, engine = application(llm, resolve_path(llm.resolved.model_path), options)
    one = server(app, engine, options)

    async def served() -> None:
        await one.serve(sockets=[listening])
        if one.force is not None:
            # What still runs no longer matters, and the engine's thread may be in the middle of a step.
            print("stopped at once; requests were cut off", file=sys.stderr, flush=True)
            os._exit(128 + one.force)

    asyncio.run(served())
    pages = llm.loop.scheduler.ledger.counts
    cut = f"; requests cut off after {options.drain_seconds:g} s: {one.cut_off}" if one.cut_off else ""
    print(f"drained{cut}; {pages.free + pages.cached} of {pages.pages} pages are free or cached", file=sys.stderr)
    return int(pages.held > 0)
