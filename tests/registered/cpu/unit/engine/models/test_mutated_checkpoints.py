"""1,500 seeded mutations of checkpoints: an engine starts and answers, or refuses them in one sentence. Whatever is
wrong with a draft, the answer is its target's."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import monotonic
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.models.config import TARGET_ARCHITECTURES
from specmatrix.engine.models.draft_config import DRAFT_ARCHITECTURES
from specmatrix.errors import ConfigError
from tests.support.mutated_json import TOKENS, VALUES, with_other_value

MUTATIONS = 1500
# One in so many is tried with every change.
SAMPLE = 9
# The longest sentence quotes 200 characters of a file and lists all architectures.
MAX_TEXT = 300 + len(", ".join(TARGET_ARCHITECTURES + DRAFT_ARCHITECTURES))
# Nats below which two libraries may choose either token.
CLOSE = 1e-3
SECONDS = 10
# Algorithm, target and draft.
PAIRS = (
    ("NONE", "llama-mini", None),
    ("EAGLE", "llama-mini", "llama-mini-eagle"),
    ("EAGLE3", "llama-mini", "llama-mini-eagle3"),
    ("EAGLE3", "qwen3-mini", "qwen3-mini-eagle3"),
    ("DFLASH", "llama-mini", "llama-mini-dflash"),
    ("STANDALONE", "llama-mini", "llama-mini-standalone"),
    ("NEXTN", "deepseek-mini", None),
)
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
# Fields that the zoo's configurations lack, with values that published ones have.
PUBLISHED = {
    "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 1024},
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "beta_fast": 32, "mscale": 1.0,
                        "original_max_position_embeddings": 1024},
    "quantization_config": {"quant_method": "fp8"},
    "speculators_model_type": "eagle3",
    "transformer_layer_config": {"hidden_size": 128, "num_hidden_layers": 1},
    "target_hidden_size": 128,
    "draft_vocab_size": 768,
    "sliding_window": 16,
    "use_sliding_window": True,
    "layer_types": ["full_attention", "sliding_attention"],
}  # fmt: skip


@pytest.fixture(scope="module")
def sharded(zoo: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The zoo's checkpoints, with two shards and an index."""
    root = tmp_path_factory.mktemp("sharded")
    for name in {name for _, *names in PAIRS for name in names if name}:
        shutil.copytree(zoo(name), root / name)
        tensors = sorted(load_file(zoo(name) / SINGLE).items())
        (root / name / SINGLE).unlink()
        shards = {"a.safetensors": dict(tensors[::2]), "b.safetensors": dict(tensors[1::2])}
        for file, held in shards.items():
            save_file(held, root / name / file)
        index = {"metadata": {"total_size": 1}, "weight_map": {t: f for f, held in shards.items() for t in held}}
        (root / name / INDEX).write_text(json.dumps(index))
    return lambda name: root / name


def mutate(folder: Path, draw: Random) -> None:
    """Change one or a few files of a checkpoint, config.json most often."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        names = sorted(file.name for file in folder.iterdir())
        others = [name for name in names if name not in ("config.json", "card.json", "special_tokens_map.json")]
        file = folder / (draw.choice(others) if not draw.randrange(3) else "config.json")
        kind = draw.randrange(12)
        if kind == 0:
            replace(file, draw)
        elif kind == 1 and file.is_file():
            text = file.read_bytes()
            begin, length = draw.randrange(len(text) + 1), draw.choice((0, 1, 7, 300, len(text)))
            file.write_bytes(text[:begin] + draw.choice((b"", draw.randbytes(8), *TOKENS)) + text[begin + length :])
        elif file.suffix == ".safetensors" and file.is_file():
            draw.choice((change_header, change_numbers))(file, draw)
        elif file.suffix == ".json" and file.is_file():
            record = parsed(file.read_bytes())
            if record is None:
                continue
            if file.name == "config.json" and not draw.randrange(3):
                name = draw.choice(list(PUBLISHED))
                record[name] = draw.choice((PUBLISHED[name], draw.choice(VALUES)))
            file.write_bytes(with_other_value(json.dumps(record).encode(), draw))


def parsed(text: bytes) -> dict | None:
    """The JSON object of a text, None if an earlier change left none."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if type(record) is dict else None


def replace(file: Path, draw: Random) -> None:
    """Replace a file by something else."""
    kind = draw.randrange(6)
    if file.is_dir():
        file.rmdir()
    else:
        file.unlink(missing_ok=True)
    if kind == 0:
        file.mkdir()
    elif kind == 1:
        file.symlink_to(file)
    elif kind == 2:
        file.symlink_to("nowhere")
    elif kind == 3:
        file.write_bytes(b"")
    elif kind == 4:
        file.write_bytes(draw.choice(TOKENS))


def change_header(file: Path, draw: Random) -> None:
    """Change the JSON header of a safetensors file, or its length."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + length], data[8 + length :]
    if parsed(header) is not None and draw.randrange(4):
        header = with_other_value(header, draw)
        length = len(header)
    else:
        length = draw.choice((0, 1, max(length - 1, 0), length + 1, 2**31, 2**63, 2**64 - 1))
    file.write_bytes(length.to_bytes(8, "little") + header + rest)


def change_numbers(file: Path, draw: Random) -> None:
    """Change some bytes of a safetensors file after its header."""
    data = bytearray(file.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    length = draw.choice((1, 4, 64, 10_000))
    if begin + length < len(data):
        at = draw.randrange(begin, len(data) - length)
        data[at : at + length] = draw.choice((bytes(length), draw.randbytes(length), b"\x7f" * length))
        file.write_bytes(data)


class Encoded(NamedTuple):
    prompt: tuple[int, ...]
    output: tuple[int, ...]


def start(pair: tuple[str, str, str | None], folders: dict[str, Path]) -> Encoded:
    """Start an engine and let it answer."""
    algorithm, target, draft = pair
    path = None if draft is None else str(folders[draft])
    sizes = {"context_length": 64, "max_running_requests": 1, "max_total_tokens": 96}
    sizes["enable_deterministic_inference"] = True
    llm = LLM(EngineConfig(str(folders[target]), algorithm, path, **sizes))
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    (out,), (again,) = llm.generate(["Hello"], params), llm.generate(["Hello"], params)
    assert llm.health == "ok" and out.finish.reason == "length", (llm.health, out.finish)
    assert llm.drafter_error is None and again.output_ids == out.output_ids
    out.text.encode()
    return Encoded(tuple(llm.tokenizer.encode("Hello")), out.output_ids)


def continuation(folder: Path, prompt: tuple[int, ...], tokens: int) -> tuple[int, ...] | None:
    """The tokens with which transformers continues a prompt, None if it does not load the checkpoint or two tokens are
    close."""
    ids = list(prompt)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        with torch.inference_mode():
            for _ in range(tokens):
                best = model(torch.tensor([ids])).logits[0, -1].topk(2)
                if not best.values[0] - best.values[1] > CLOSE:
                    return None
                ids.append(int(best.indices[0]))
    except Exception:  # it has its own rules for what it refuses
        return None
    return tuple(ids[len(prompt) :])


def judged(pair: tuple[str, str, str | None], folders: dict[str, Path], due: Encoded | None) -> tuple[str, str]:
    """How a mutated checkpoint ended ("answered", "refused" or "broke"), and what is wrong with that, "" if
    nothing. due: the answer of a target that is whole; else it is transformers'."""
    begin = monotonic()
    try:
        answer = start(pair, folders)
        how, expected = "answered", due.output if due else continuation(folders[pair[1]], answer.prompt, 6)
        wrong = "" if expected in (None, answer.output) else f"answered {answer.output} instead of {expected}"
    except ConfigError as refusal:
        text, paths = str(refusal), sum(len(str(folder)) for folder in folders.values())
        good = "\n" not in text and len(text) < paths + MAX_TEXT and text == text.encode(errors="replace").decode()
        how, wrong = "refused", "" if good and text.isprintable() else f"refused in the words {text[:200]!r}"
    except Exception as error:
        frame = error.__traceback__
        while frame.tb_next:
            frame = frame.tb_next
        where = f"{frame.tb_frame.f_code.co_qualname}:{frame.tb_lineno}"
        return "broke", f"{type(error).__name__}: {str(error)[:200]} in {where}"
    seconds = monotonic() - begin
    return how, wrong or (f"it took {seconds:.0f} s" if seconds > SECONDS else "")


EVERY = pytest.param(range(MUTATIONS), marks=pytest.mark.nightly, id="every")


@pytest.mark.parametrize("numbers", [pytest.param(range(0, MUTATIONS, SAMPLE), id="sample"), EVERY])
def test_a_mutated_checkpoint_runs_or_is_refused_in_one_sentence(zoo, sharded, tmp_path: Path, numbers: range):
    alone = {target: start(("NONE", target, None), {target: zoo(target)}) for _, target, _ in PAIRS}
    wrong, ends = {}, Counter[tuple[str, str]]()
    for number in numbers:
        draw = Random(number)
        pair = draw.choice(PAIRS)
        source = zoo if draw.randrange(4) else sharded
        names = [name for name in pair[1:] if name is not None]
        folders = {name: source(name) for name in names}
        name = draw.choice(names)
        folders[name] = tmp_path / str(number)
        shutil.copytree(source(name), folders[name])
        mutate(folders[name], draw)
        role = "target" if name == pair[1] else "draft"
        how, found = judged(pair, folders, alone[pair[1]] if role == "draft" else None)
        ends[role, how] += 1
        if found:
            wrong[number] = found
        shutil.rmtree(folders[name])
    assert not wrong, "\n".join(f"mutation {number}: {found}" for number, found in wrong.items())
    # Otherwise the mutations prove less than they say.
    least = len(numbers) // 20
    assert min(ends[role, how] for role in ("target", "draft") for how in ("answered", "refused")) > least, ends
