"""Each command refuses wrong options in one sentence that names the value or what is allowed, with exit status 2."""

import os
import shlex

import pytest

from specmatrix.cli import main
from specmatrix.matrix.zoo.registry import TEST

SANE = f"between 1 and {8 * (os.cpu_count() or 1)} (8 per CPU core), got "
EMPTY = "is empty, perhaps an unset shell variable; "
LEAST = "greater than or equal to "
# A command line, and key words of the sentence.
WRONG = {
    "--loud": "No such option: --loud; see `specmatrix --help`",
    "walk": "No such command 'walk'; see `specmatrix --help`",
    "explain": "Missing argument 'CELL'; see `specmatrix explain --help`",
    "explain nonsense": "cell id 'nonsense' has an unknown part",
    "explain topk": "cell id 'topk' has the axis name topk in place of a value",
    "cells list --tier gpu8 --cells tp=2": "tier 'gpu8' has none of the selected cells",
    "cells list --stage never": "stage 'never' is unknown",
    "cells list --subject never": "subject 'never' is unknown; it must be FILE.py:CLASS or one of reference, ",
    "run --cells nonsense": "'nonsense' is neither a cell id nor a selector",
    "run --cell x": "No such option: --cell; the closest is --cells; see `specmatrix run --help`",
    "run --workers abc": "--workers: Input should be a valid integer, unable to parse string as an integer, got 'abc'",
    "run --workers 0": f"workers must be {SANE}0",
    "run --workers 1000000000": f"workers must be {SANE}1000000000",
    "run --cells ''": f"--cells {EMPTY}give a value",
    "run --cells=' '": f"--cells {EMPTY}omit it to run every cell",
    "run --seed 1 --seed=2": "--seed is given twice; give it once",
    "run --cells none.v2 --cells nonsense": "'nonsense' is neither a cell id nor a selector",
    "run --cells --cells": "'--cells' is neither a cell id nor a selector",
    "run --tier tpu": "tier 'tpu' is unknown; it must be one of cpu, gpu1, gpu2, gpu4, gpu8",
    "run --limit": "'--limit' requires an argument; see `specmatrix run --help`",
    "run --limit 0": "limit must be at least 1, got 0",
    "run --json=3": "'--json' does not take a value; see `specmatrix run --help`",
    "run --stage weekly": "stage 'weekly' is unknown; it must be one of smoke, pr, nightly, product, speed",
    "run --stage speed --workers 2": "--workers must be 1, got 2",
    "run --stage speed --starts 1": "--starts must be between 2 and 100, got 1",
    "run --stage speed --starts 101": "--starts must be between 2 and 100, got 101",
    "run --stage pr --starts 24": "--starts is for the stage 'speed'; got stage 'pr'",
    "run --stage speed --cells none": "stage 'speed' measures no cell with algorithm=none",
    "run --stage speed --fault slow-rounds": "fault 'slow-rounds' is unknown in tier cpu; the closest is slow-round",
    "run --seed -1": "seed must be between 0 and 2147483647, got -1",
    "run --cells 'topk=2 and topk=4'": "matches no cell of stage 'pr'; no cell of the lock file matches it",
    "run --cells eagle3.tp4.pair": "none of the selected cells of stage 'pr'; its cells have 1 or 2 ranks",
    "run --out /dev/null/there --cells none": "cannot write /dev/null/there: Not a directory",
    "run --cells none.v2 --fault bonus-stride --subject transformers": "in the reference engine only",
    "run --requests q6,,q7": "requests 'q6,,q7' has an empty name",
    "run --api-key x": "--api-key is for a server; give --url or --launch too",
    "plan --tier cpu,gpu2 --shards 2 --matrix cpu=x": "--matrix has no runner for tier 'gpu2'; it has cpu",
    "plan --tier cpu,gpu2 --shards 2 --matrix cpu=x,gpu2=": "--matrix has no runner for tier 'gpu2'; it has cpu",
    "plan --tier cpu --shards 2 --matrix cpu=x --max-gpu-minutes 0": "--max-gpu-minutes: ",
    "plan --tier cpu --shards 2 --matrix h100": "--matrix must be like cpu=LABEL,gpu1=LABEL, got 'h100'",
    "plan --tier cpu --shards 2 --matrix cpu=x --json": "--matrix prints JSON itself; give it without --json",
    "plan": "Missing option '--shards'",
    "plan --shards 0": f"--shards: Input should be {LEAST}1, got '0'",
    "plan --shards 2 --tier cpu,cpu": "tier 'cpu' is given twice; give it once",
    "plan --shards 2 --tier cpu,": "tier '' is unknown",
    "plan --shards 2 --durations /no/report": "cannot read /no/report: No such file or directory",
    "run --shard 3/2": "shard must be NUMBER/COUNT with NUMBER from 1 to COUNT, such as 2/4",
    "run --cells none --shard 1/2": "shard count must be at most 1 for these cells, got 2",
    "plan --shards 4 --tier gpu1 --stage nightly --max-gpu-minutes 2": "--max-gpu-minutes is 2; choose a smaller",
    "compare '' out": f"an argument {EMPTY}",
    "compare /no/base /no/head": "cannot read /no/base: No such file or directory; give the folder that `run --out`",
    "history add": "Missing argument 'OUT'; see `specmatrix history add --help`",
    "history add a --max-age 1 --max-age 2": "No such option: --max-age; see ",
    "history flaky --days 0": f"--days: Input should be {LEAST}1, got '0'",
    "lock --durations out": "--durations is for --order",
    "lock --check --extend": "--check, --extend and --order are mutually exclusive",
    "faults none-such": "fault 'none-such' is unknown in tier cpu; `specmatrix faults --list` names all ",
    "faults --list --tier cpu9": "tier 'cpu9' is unknown",
    "faults --stage product": "stage 'product' is unknown; it must be one of smoke, pr, nightly",
    "faults --seed -1": "seed must be between 0 and 2147483647, got -1",
    "faults --workers 0": f"workers must be {SANE}0",
    "faults --first 0": f"--first: Input should be {LEAST}1, got '0'",
    "bench everything": "benchmark 'everything' is unknown; it must be one of ",
    "bench": "benchmark 'gpu' needs a GPU but this machine has none",
    "bench tune": "benchmark 'tune' needs a GPU but this machine has none",
    "bench delta": "benchmark 'delta' needs a GPU but this machine has none",
    "zoo lst": "No such command 'lst'; perhaps 'list'; see `specmatrix zoo --help`",
    "zoo train llama": "zoo model 'llama' is unknown; it must be one of llama-mini, ",
    "zoo train --minutes 0": "--minutes: ",
    "zoo train --device abacus": "device 'abacus' is not available; it must be one of cpu",
    "checkpoints check qwen": "checkpoint 'qwen' is unknown; it must be one of ",
    "accuracy --data /no/data": "cannot read /no/data: No such file or directory",
    f"accuracy --data {TEST} --task mmlu": "task 'mmlu' is unknown; it must be one of gsm8k",
    f"accuracy --data {TEST} --num-fewshot 6": "num_fewshot must be 0 to 5, got 6",
    f"accuracy --data {TEST} --max-new-tokens 0": "max_new_tokens must be at least 1, got 0",
    f"accuracy --data {TEST} --limit 0": "limit must be at least 1, got 0",
    f"accuracy --data {TEST} --cell eagle3.temperature.stop_string": "sets sampling=temperature finish=stop_string",
    f"accuracy --data {TEST} --cell eagle3.tp2.s3.k4.v2": "must have 1 rank for accuracy, got 2; omit tp2",
    f"accuracy --data {TEST} --cell eagle3 --checkpoint qwen3-8b.dflash": "--cell and --checkpoint are mutually",
    f"accuracy --data {TEST} --models x": "--models requires --checkpoint",
    f"accuracy --data {TEST} --checkpoint a --checkpoint b": "--checkpoint is given 2 times; several need --stage",
    f"accuracy --data {TEST} --stage pr --out x": "stage 'pr' has no accuracy run; it must be weights",
    f"accuracy --data {TEST} --stage weights": "--stage weights writes a report; give --out",
    f"accuracy --data {TEST} --stage weights --cell eagle3 --out x": "it excludes --cell",
    f"accuracy --data {TEST} --stage weights --checkpoint qwen3-8b.dflsh --out x": "the closest is qwen3-8b.dflash",
    "generate Hi --page-sise 4": "unknown flag '--page-sise'; did you mean --page-size?",
    "generate ''": f"an argument {EMPTY}",
    "generate ' ' --page-size 4": "the question is empty; give it as an argument",
    "generate Hi there": "unexpected argument 'there'; give a single question, in quotes",
    "generate": "the question is missing; give it as an argument",
    "generate Hi --page-size": "--page-size needs a value",
    "generate --page-size --kv-stamps Hi": "--page-size needs a value",
    "generate Hi --threads 0": f"threads must be {SANE}0",
    "generate Hi --model qwen3-mini --model-path=llama-mini": "--model-path is given twice; give it once",
    "generate Hi --speculative-algorithm-file /no/file.py": "algorithm file /no/file.py does not exist",
    "generate Hi --model-path /no/model": "model '/no/model' is neither a folder nor in the zoo",
    "generate Hi --temperature -1": "temperature is -1.0; allowed: 0, or a number from",
    "generate Hi --tp-size 3": "tp_size 3 cannot split a target with 4 attention heads",
    "generate Hi --max-total-tokens 1000000000000": "max_total_tokens 1000000000000 takes 2,190,470.6 GiB",
    "generate Hi --max-running-requests 1000000000": "max_running_requests 1000000000 of context_length",
    "contract": "0 algorithms given; give one Python file that registers algorithms, or one algorithm's name",
    "contract EAGLE3 DFLASH": "2 algorithms given; give one Python file",
    "contract EAGLE9": "'EAGLE9' is neither a file nor an algorithm",
    "contract EAGLE3 --tp-size 2": "tp_size must be 1 for contract, got 2",
    "contract EAGLE3 --timeout 0": "--timeout: ",
    "contract EAGLE3 --timeout inf": "--timeout: ",
    "contract /no/file.py": "algorithm file /no/file.py does not exist",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_options_are_refused_in_one_sentence(line: str, capsys: pytest.CaptureFixture[str]):
    assert main(shlex.split(line)) == 2
    said = capsys.readouterr()
    assert WRONG[line] in said.err
    # A slow machine shows progress before the refusal.
    assert said.err.splitlines()[-1].startswith("specmatrix: ") and said.err.count("specmatrix: ") == 1
    assert said.out == ""
