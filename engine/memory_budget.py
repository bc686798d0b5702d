"""Computes what an engine will allocate and compares it with the free memory, before allocating anything."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch

from specmatrix.engine.core.config.asked import GIB, Resolved
from specmatrix.engine.core.draft.algorithms import algorithm
from specmatrix.engine.core.schedule.step import padded
from specmatrix.engine.device.pool import StateLayout
from specmatrix.engine.models.config import ModelConfig, load_model_config
from specmatrix.engine.models.eagle.formats import load_draft_config
from specmatrix.engine.models.weights import count_numbers, tensor_names
from specmatrix.engine.spec.builders import Locate
from specmatrix.errors import ConfigError
from specmatrix.kernels.gated_delta import scratch


def host_memory() -> int | None:
    """Host memory in bytes that this process may still allocate; None if unknown."""
    found = re.search(r"^MemAvailable: +(\d+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    return min([*([1024 * int(found[1])] if found else []), *group_memory()], default=None)


def group_memory(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Memory below the limit of each of this process's control groups; the page cache counts as free."""
    for line in _text(groups).splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top, limit, used = (
            (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            if kinds
            else (root, "memory.max", "memory.current")
        )
        inner = top / path.strip("/")
        for group in (inner, *inner.parents):
            if group.is_relative_to(top) and (most := _text(group / limit).strip()).isdecimal():
                files = re.search(r"^inactive_file (\d+)", _text(group / "memory.stat"), re.MULTILINE)
                yield int(most) - int(_text(group / used)) + (int(files[1]) if files else 0)


def _text(file: Path) -> str:
    """The text of a file, "" if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


# Host bytes per page and per row for Python lists, and for computing one rotation.
PAGE: Final = 48
ROW: Final = 40
ROTATION: Final = 24
# What an engine allocates after its start.
LATER: Final = ("CUDA graphs", "chunks of the delta rule", "tokens for logit rules")


class Need(NamedTuple):
    """Memory that one setting makes an engine allocate, in bytes on the device and on the host."""

    setting: str
    what: str
    device: int
    host: int = 0


class Model(NamedTuple):
    """A checkpoint that an engine loads: how many layers have KV, and how many numbers it holds."""

    folder: Path
    config: ModelConfig
    layers: int
    numbers: int


def afford(resolved: Resolved, locate: Locate, ranks: int = 1) -> None:
    """Raise ConfigError, with one sentence, if an engine with `ranks` ranks would not fit into the free memory.

    Reads only checkpoint headers; ConfigError on a bad one.
    """
    device = torch.device(resolved.device)
    found = needs(resolved, models_of(resolved, locate), ranks)
    if device.type == "cpu":
        # The ranks share the host's memory.
        fits(found, [ranks * (need.device + need.host) for need in found], host_memory(), "host memory")
        return
    fits(found, [need.device for need in found], _device_memory(device), "GPU memory")
    fits(found, [ranks * need.host for need in found], host_memory(), "host memory")


def fits(found: Sequence[Need], sizes: Sequence[int], free: int | None, place: str) -> None:
    """Raise ConfigError if the sizes, in bytes, exceed the free memory; it names the largest. None: unknown."""
    total = sum(sizes)
    if free is None or total <= free:
        return
    size, need = max(zip(sizes, found, strict=True), key=lambda pair: pair[0])
    raise ConfigError(
        f"{need.setting} takes {_gib(size)} for {need.what} and the engine {_gib(total)} in total, but only "
        f"{_gib(free)} of {place} is free; lower that setting or free memory"
    )


def _gib(size: int) -> str:
    """Bytes as text, with integer arithmetic: a float ends at 1e308."""
    tenths = size * 10 // GIB
    return f"{tenths // 10:,}.{tenths % 10} GiB"


def needs(resolved: Resolved, models: Sequence[Model], ranks: int) -> list[Need]:
    """What each setting makes one rank allocate. models: the target, which ranks share, and the draft if any.

    CUDA graphs, tokens that logit rules read and chunks of the delta rule count with their maximum; other temporary
    memory of a step does not count.
    """
    r, size = resolved, torch.empty(0, dtype=getattr(torch, resolved.dtype)).element_size()
    (target, *drafts), rows, page = models, r.max_running_requests + 1, r.page_size
    row = size * target.config.kept_numbers(ranks)
    windowed = sum(window is not None for window in target.config.windows[: target.layers])
    delta, states, recurrent = target.config.delta, 0, 0
    if delta is not None:
        layout = delta.share(ranks).layout(target.layers)
        recurrent, each = layout.layers, layout.bytes(size) + 8 * r.kv_stamps
        states = (1 + r.states + rows * r.max_draft_tokens) * each
    drafted = size * sum(draft.layers * draft.config.kept_numbers() for draft in drafts)
    carried = size * sum(max(draft.layers, 1) * draft.config.hidden_size for draft in drafts)
    chosen_late = r.parallel_drafting and (r.speculative_constrained_drafts or r.speculative_confidence_threshold > 0)
    if drafts and (r.speculative_acceptance != "match" or chosen_late):  # what the next drafts are drawn from
        together = r.parallel_drafting or r.enable_multi_layer_eagle
        carried += 4 * target.config.vocab_size * (r.max_steps if together else 1)
    spare = padded(r.max_running_requests) * max(r.max_steps * r.topk, r.max_draft_tokens)
    tables = 8 * r.positions * (1 + (windowed > 0)) * (1 + r.kv_stamps)
    full = (r.num_pages + 1) * page * ((target.layers - windowed - recurrent) * row + drafted + 8 * r.kv_stamps)
    window = (r.window_pages + 1) * page * (windowed * row + 8 * r.kv_stamps) if windowed else 0
    pairs = r.positions * sum(model.config.head_dim // 2 for model in models)
    found = [
        Need(f"max_total_tokens {r.max_total_tokens}", "KV", full + window, PAGE * (r.num_pages + r.window_pages)),
        Need(
            f"max_running_requests {r.max_running_requests} of context_length {r.context_length}",
            "slot tables and drafts",
            rows * (tables + carried) + spare * drafted,
            ROW * rows,
        ),
        Need(f"context_length {r.context_length}", "rotary positions", 8 * pairs, ROTATION * pairs),
    ]
    if states:
        setting = f"max_running_requests {r.max_running_requests} with state_interval {r.state_interval}"
        found.append(Need(setting, "recurrent states", states))
        if size == 2 and r.device != "cpu" and not r.enable_deterministic_inference:
            setting = f"chunked_prefill_size {r.chunked_prefill_size or -1}"
            found.append(Need(setting, "chunks of the delta rule", _chunks(r, layout)))
    if r.cuda_graph_max_bs:
        found.append(Need(f"cuda_graph_max_gb {r.cuda_graph_max_gb}", "CUDA graphs", r.cuda_graph_max_gb * GIB))
    for model in models:
        shared = ranks if model is target else 1
        found.append(Need(f"dtype {r.dtype} of {model.folder}", "weights", size * model.numbers // shared))
    known = 8 * rows * (r.positions + 1)
    return [*found, Need(f"max_running_requests {r.max_running_requests}", "tokens for logit rules", known)]


def _chunks(r: Resolved, layout: StateLayout) -> int:
    """Bytes of a layer's chunked delta rule at the most padded prefill: n rows are padded to the widest, which has at
    most the tokens of a step but one for each other row, and ends at a checkpoint."""
    most = r.chunked_prefill_size or r.context_length * r.max_running_requests
    wide = min(most, r.context_length, r.state_interval or most)
    rows = min(r.max_running_requests, max((most + 1) // 2, most - wide + 1))
    shape = layout.heads, layout.key_dim, layout.value_dim
    kinds = scratch(rows, min(wide, most - rows + 1), *shape, getattr(torch, r.dtype))
    return sum(math.prod(size) * kind.itemsize for size, kind in kinds)


def models_of(resolved: Resolved, locate: Locate) -> list[Model]:
    """The target, and the draft if the algorithm has one. Reads only headers. ConfigError on a bad checkpoint."""
    folder, traits = locate(resolved.model_path), algorithm(resolved.algorithm)
    config, own = load_model_config(folder), resolved.draft_path == resolved.model_path
    target = _model(folder, config)
    if traits.draft_weights != "bundled" or not own:  # nobody loads the prediction layers that it bundles
        target = target._replace(numbers=target.numbers - count_numbers(folder, config.bundled_prefixes))
    if not traits.needs_draft_model or resolved.draft_path is None:
        return [target]
    folder, words = locate(resolved.draft_path), config.vocab_size
    config = load_draft_config(folder)
    if traits.draft_weights != "bundled":
        return [target, _model(folder, config, words if resolved.algorithm == "EAGLE3" else 0)]
    numbers = 0 if own else count_numbers(folder, config.bundled_prefixes)
    return [target, Model(folder, config, resolved.num_steps if resolved.enable_multi_layer_eagle else 1, numbers)]


def _model(folder: Path, config: ModelConfig, words: int = 0) -> Model:
    """words: rows of the target's embedding, of which the draft keeps a normalised copy if it has none of its own.

    A tied head is a copy of the embedding in another layout. Layers are the smaller of the counts in config.json and in
    the weights: loading them reports missing layers.
    """
    names, copied = tensor_names(folder), 0
    if not any(name.endswith("embed_tokens.weight") for name in names):
        copied = words
    elif config.tie_embeddings and not any(name.endswith("lm_head.weight") for name in names):
        copied = config.vocab_size
    layers = 1 + max((int(found[1]) for name in names if (found := re.search(r"\blayers\.(\d+)\.", name))), default=0)
    return Model(folder, config, min(config.num_layers, layers), count_numbers(folder) + copied * config.hidden_size)


def _device_memory(device: torch.device) -> int:
    """Memory that the driver and torch's caching allocator have left."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
