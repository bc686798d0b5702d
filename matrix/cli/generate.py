"""`specmatrix generate`: stream one answer and measure the speed-up by speculation.

`specmatrix serve`: an engine over HTTP.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from socket import socket
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from specmatrix.engine.core.config.asked import EngineConfig, Resolved
from specmatrix.engine.core.config.defaults import SHAPE
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.errors import ConfigError, shown
from specmatrix.extras import require
from specmatrix.matrix.cells.cell import DRAFTS, MODELS, model_facts
from specmatrix.matrix.cells.tiers import check_parallel
from specmatrix.matrix.cli.flags import flags_of
from specmatrix.matrix.zoo.gsm_mini import prompt_of
from specmatrix.matrix.zoo.registry import resolve_path, verify_models
from specmatrix.reports.render.console import waiting

if TYPE_CHECKING:
    from specmatrix.engine.api import LLM, Output
    from specmatrix.engine.parallel.client import RankedLLM
    from specmatrix.engine.server.app import ServerOptions

# Number of timed runs, each on a new engine; the fastest counts.
TIMED: Final = 3
# Warm-up prompt; unrelated to the answer, so drafters that remember texts gain nothing from it.
WARM_UP: Final = "Sam walks to the sea."
ALGORITHM: Final = "speculative_algorithm"
# Further drafter-only fields; the baseline engine runs without them.
SPECULATIVE: Final = "speculative_"
DRAFTER_FIELDS: Final = {"enable_multi_layer_eagle"}


def generate(
    question: list[str] | None = None,
    max_new_tokens: int = 160,
    temperature: float = 0.0,
    seed: int = 0,
    threads: int = 1,
    speculative_algorithm_file: Path | None = None,
) -> int:
    """Stream the answer, then print acceptance length, tokens per second and the speed-up over no drafter.

    question: with engine flags as typed. An algorithm that the file registers alone is the default. ConfigError or
    RequestError on an invalid option.
    """
    import torch

    from specmatrix.engine.parallel.group import RankLost, RanksDiverged
    from specmatrix.engine.plugin import load_algorithms

    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    questions, flags = flags_of(question or [])
    words = _only(questions)
    check_parallel("threads", threads)
    torch.set_num_threads(threads)
    if speculative_algorithm_file is not None:
        names = [traits.name for traits in load_algorithms(speculative_algorithm_file)]
        if ALGORITHM not in flags and len(names) > 1:
            raise ConfigError(
                f"{speculative_algorithm_file} registers {', '.join(names)}; choose one with --speculative-algorithm"
            )
        flags.setdefault(ALGORITHM, names[0])
    asked = configuration(flags)
    verify_models((asked.model_path, asked.speculative_draft_model_path))
    prompt = prompt_of(words)
    # A drafter error is reported once, at the end.
    warnings.filterwarnings("ignore", message="the drafter of ", category=RuntimeWarning)
    try:
        return _answer(asked, prompt, params)
    except (RankLost, RanksDiverged) as ended:
        print(f"specmatrix: {ended}", file=sys.stderr)
        return 1


def _answer(asked: EngineConfig, prompt: str, params: SamplingParams) -> int:
    """Stream and measure; 0 unless the drafter was disabled."""
    resolved, drafter_error = _shown(asked, prompt, params)
    for rewrite in resolved.rewrites:
        print(f"rewritten {rewrite.field}: {rewrite.asked} -> {rewrite.got}: {rewrite.reason}", file=sys.stderr)
    with waiting("timing the answer"):
        output, seconds = _timed(asked, prompt, params)
    parts = [f"{len(output.output_ids)} tokens", f"{len(output.output_ids) / seconds:,.0f} tokens/s"]
    if resolved.algorithm != "NONE":
        with waiting("timing it without a drafter"):
            reference, plain_seconds = _timed(_without_drafter(asked), prompt, params)
        length = output.meta_info.get("spec_accept_length", 1.0)
        drawn = params.temperature > 0 and asked.speculative_acceptance != "match"
        other = "other tokens of the same distribution" if drawn else "OTHER TOKENS"
        same = "same tokens" if reference.output_ids == output.output_ids else other
        ratio = plain_seconds / seconds * len(output.output_ids) / max(len(reference.output_ids), 1)
        parts = [f"{resolved.algorithm} accepts {length:.2f} tokens per round", *parts]
        parts.append(f"{ratio:.2f} times the speed without a drafter ({same})")
    print("; ".join(parts), file=sys.stderr)
    wrong = output.finish.message or drafter_error
    if wrong is not None:
        print(wrong, file=sys.stderr)
    return int(wrong is not None)


def _only(questions: list[str]) -> str:
    if not questions:
        raise ConfigError("the question is missing; give it as an argument")
    if not questions[0].strip():
        raise ConfigError("the question is empty; give it as an argument")
    if len(questions) > 1:
        raise ConfigError(f"unexpected argument {shown(questions[1])}; give a single question, in quotes")
    try:
        # Python escapes the bytes of an argument that the locale's encoding lacks.
        return questions[0].encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        raise ConfigError(f"the question {shown(questions[0])} is not UTF-8 text") from None


def configuration(flags: Mapping[str, str]) -> EngineConfig:
    """The engine configuration of these flags; defaults to the zoo's first target and its draft."""
    asked: dict[str, Any] = {flag.removeprefix("--").replace("-", "_"): value for flag, value in flags.items()}
    target = asked.setdefault("model_path", next(iter(MODELS.values())))
    drafts = {(MODELS[model], name): draft for (model, name), draft in DRAFTS.items()}
    bundled = target in MODELS.values() and model_facts(target).bundled is not None
    algorithm = asked.setdefault("speculative_algorithm", "NEXTN" if bundled else "EAGLE3").lower()
    if (target, algorithm) in drafts:
        asked.setdefault("speculative_draft_model_path", drafts[target, algorithm])
    adapts = asked.get("speculative_adaptive", "false").lower() != "false"
    if algorithm in {name for _, name in drafts} and not asked.keys() & {*SHAPE} and not adapts:
        # On a CPU the default tree for a Llama verifies too many nodes to pay off; a chain does.
        asked["speculative_num_steps"] = "5"
    return EngineConfig.from_flags(asked)


def _without_drafter(config: EngineConfig) -> EngineConfig:
    plain: dict[str, Any] = {
        field.name: field.default
        for field in fields(EngineConfig)
        if field.name.startswith(SPECULATIVE) or field.name in DRAFTER_FIELDS
    }
    return replace(config, **plain)


@contextmanager
def _started(asked: EngineConfig) -> Iterator[LLM | RankedLLM]:
    """An engine in this process, or in one process per rank. The caller must keep no reference: the next engine needs
    its memory."""
    from specmatrix.engine.api import LLM
    from specmatrix.engine.parallel.client import RankedLLM

    if asked.tp_size == 1:
        yield LLM(asked, resolve_path)
        return
    with RankedLLM(asked, resolve_path) as ranked:
        yield ranked


def _shown(asked: EngineConfig, prompt: str, params: SamplingParams) -> tuple[Resolved, str | None]:
    """Stream the answer; returns the resolved configuration and the error that disabled the drafter."""
    with ExitStack() as stack:
        with waiting("loading the models"):
            llm = stack.enter_context(_started(asked))
        for text in llm.stream(prompt, params):
            print(text, end="", flush=True)
        print()
        return llm.resolved, llm.drafter_error


def _timed(asked: EngineConfig, prompt: str, params: SamplingParams) -> tuple[Output, float]:
    """The answer and its shortest time, each on a new engine, as an engine may remember earlier texts."""
    timed = [_first(asked, prompt, params) for _ in range(TIMED)]
    return timed[-1][0], min(seconds for _, seconds in timed)


def _first(asked: EngineConfig, prompt: str, params: SamplingParams) -> tuple[Output, float]:
    with _started(asked) as llm:
        llm.generate([prompt_of(WARM_UP)], params)
        start = perf_counter()
        return llm.generate([prompt], params)[0], perf_counter() - start


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
