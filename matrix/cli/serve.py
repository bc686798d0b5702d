"""`specmatrix serve`: an engine over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Final

from specmatrix.errors import ConfigError, shown
from specmatrix.extras import require
from specmatrix.matrix.cells.tiers import check_parallel
from specmatrix.matrix.cli.flags import flags_of
from specmatrix.matrix.cli.generate import ALGORITHM, configuration
from specmatrix.matrix.zoo.registry import resolve_path, verify_models
from specmatrix.reports.render.progress import waiting

if TYPE_CHECKING:  # the help of the command needs no torch
    from specmatrix.engine.api import LLM
    from specmatrix.engine.server.app import ServerOptions

PACKAGES: Final = ("fastapi", "uvicorn", "prometheus_client")


def serve(
    words: list[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 30000,
    api_key: str | None = None,
    served_model_name: str | None = None,
    max_queued_requests: int = 128,
    max_connections: int = 512,
    max_body_bytes: int = 4 * 2**20,
    drain_seconds: float = 60.0,
    threads: int = 1,
    speculative_algorithm_file: Path | None = None,
) -> int:
    """Serve until a signal; 0 if every page was freed, 1 if not. ConfigError if the configuration cannot be served."""
    for name in PACKAGES:
        require(name)
    import torch

    from specmatrix.engine.api import LLM
    from specmatrix.engine.plugin import load_algorithms
    from specmatrix.engine.server.app import ServerOptions, bind

    others, flags = flags_of(words or [])
    if others:
        raise ConfigError(f"unexpected argument {shown(others[0])}; serve takes flags only")
    check_parallel("threads", threads)
    torch.set_num_threads(threads)
    if speculative_algorithm_file is not None:
        load_algorithms(speculative_algorithm_file)
    chosen = ServerOptions(
        host=host,
        port=port,
        key=api_key,
        model=served_model_name,
        max_queued_requests=max_queued_requests,
        max_connections=max_connections,
        max_body_bytes=max_body_bytes,
        drain_seconds=drain_seconds,
    )
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
            # Running requests no longer matter, and the engine's thread may be in the middle of a step.
            print("stopped at once; requests were cut off", file=sys.stderr, flush=True)
            os._exit(128 + one.force)

    asyncio.run(served())
    pages = llm.loop.scheduler.ledger.counts
    cut = f"; requests cut off after {options.drain_seconds:g} s: {one.cut_off}" if one.cut_off else ""
    print(f"drained{cut}; {pages.free + pages.cached} of {pages.pages} pages are free or cached", file=sys.stderr)
    return int(pages.held > 0)
