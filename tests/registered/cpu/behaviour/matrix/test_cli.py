"""The command line: each wrong input is one sentence and exit status 2; a run writes its four files."""

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pytest

from specmatrix.ci.commands.run import chosen_cells
from specmatrix.cli import ORDER, main
from specmatrix.engine.parallel.pool import GroupLease
from specmatrix.matrix.cli.commands.flags import flags_of
from specmatrix.matrix.cli.commands.generate import configuration
from specmatrix.reports.schema import ReportError
from specmatrix.reports.store import load

SANE = f"between 1 and {8 * (os.cpu_count() or 1)} (8 per CPU core)"
WRONG = {
    (): "Missing command; see `specmatrix --help`",
    ("--loud",): "No such option: --loud; see `specmatrix --help`",
    ("walk",): "No such command 'walk'; see `specmatrix --help`",
    ("runn",): "No such command 'runn'; the closest is 'run'; see `specmatrix --help`",
    ("ran",): "No such command 'ran'; see `specmatrix --help`",
    ("explain",): "Missing argument 'CELL'; see `specmatrix explain --help`",
    ("history", "add"): "Missing argument 'OUT'; see `specmatrix history add --help`",
    ("zoo", "lst"): "No such command 'lst'; the closest is 'list'; see `specmatrix zoo --help`",
    ("explain", "nonsense"): (
        "cell id 'nonsense' has an unknown part 'nonsense'; an id is an algorithm and values of other axes, as in "
    ),
    ("run", "--cells", "nonsense"): "'nonsense' is neither a cell id nor a selector; write axis=value, ",
    ("run", "--cell", "x"): "No such option: --cell; the closest is --cells; see `specmatrix run --help`",
    ("run", "--bogus"): "No such option: --bogus; see `specmatrix run --help`",
    ("run", "--workers", "abc"): "--workers takes a whole number, not 'abc'; see `specmatrix run --help`",
    ("run", "--workers=abc"): "--workers takes a whole number, not 'abc'; see `specmatrix run --help`",
    ("simulate", "--minutes", "1m"): "--minutes takes a number, not '1m'; see `specmatrix simulate --help`",
    ("run", "--cells", ""): "--cells is empty, perhaps an unset shell variable; give a value or omit it",
    ("run", "--cells= "): "--cells is empty, perhaps an unset shell variable; omit it to run every cell",
    ("run", "--out="): "--out is empty, perhaps an unset shell variable; give a value or omit it",
    ("run", "--cells", "none.v2", "--out", ""): "--out is empty, perhaps an unset shell variable; give a value",
    ("compare", "", "out"): "an argument is empty, perhaps an unset shell variable; give a value or omit it",
    ("run", "--cells", "none.v2", "--cells=none.v1"): "--cells is given twice; give it once",
    ("mutants", "--paths", "a", "--paths", "b", "--seed", "1", "--seed", "1"): "--seed is given twice; give it once",
    ("history", "add", "a", "--max-age", "1", "--max-age", "2"): "No such option: --max-age; see ",
    ("run", "--cells", "--cells"): "'--cells' is neither a cell id nor a selector; write axis=value, ",
    ("run", "--tier", "tpu"): "tier 'tpu' is unknown; it must be one of cpu, gpu1, gpu2, gpu4, gpu8",
    ("run", "--limit"): "--limit needs a value; see `specmatrix run --help`",
    ("run", "--json=3"): "Option '--json' does not take a value; see `specmatrix run --help`",
    ("run", "--stage", "weekly"): "stage 'weekly' is unknown; it must be one of smoke, pr, nightly, product, speed",
    (
        "run",
        "--stage",
        "speed",
        "--workers",
        "2",
    ): "stage 'speed' measures one cell at a time; --workers must be 1, got 2",
    ("run", "--stage", "speed", "--starts", "1"): "--starts must be between 2 and 100, got 1",
    ("run", "--stage", "speed", "--starts", "101"): "--starts must be between 2 and 100, got 101",
    ("run", "--stage", "pr", "--starts", "24"): "--starts is for the stage 'speed'; got stage 'pr'",
    ("run", "--stage", "speed", "--cells", "none"): (
        "stage 'speed' measures no cell with algorithm=none: it is what the others are compared with"
    ),
    ("run", "--stage", "speed", "--fault", "slow-rounds"): (
        "fault 'slow-rounds' is unknown in tier cpu; the closest is slow-round"
    ),
    ("faults", "--only", "slow-round"): "fault 'slow-round' is unknown in tier cpu; ",
    ("run", "--workers", "0"): f"workers must be {SANE}, got 0",
    ("run", "--seed", "1" + 30 * "0"): f"seed must be between 0 and 2147483647, got 1{30 * '0'}",
    ("run", "--workers", "1000000000"): f"workers must be {SANE}, got 1000000000",
    ("run", "--seed", "-1"): "seed must be between 0 and 2147483647, got -1",
    ("run", "--limit", "0"): "limit must be at least 1, got 0",
    ("run", "--cells", "topk=3"): "topk has no value '3'; it must be one of auto, 1, 2, 4",
    ("run", "--cells", "topk=2 and topk=4"): (
        "selector 'topk=2 and topk=4' matches no cell of stage 'pr'; no cell of the lock file matches it"
    ),
    ("run", "--cells", "none.tight"): (
        "cell none.tight is redundant (alone-under-pressure): a single request is never retracted"
    ),
    ("run", "--out", "/dev/null/there", "--cells", "none"): "cannot write in /dev/null/there: Not a directory",
    ("compare", "/no/base", "/no/head"): (
        "/no/base does not exist; give a report file or a directory with report.jsonl"
    ),
    ("explain", "topk"): "cell id 'topk' has the axis name topk in place of a value; its values are written k1, ",
    ("lock", "--durations", "out"): "--durations is for --order",
    ("faults", "--first", "0"): "--first must be at least 1, got 0",
    ("lock", "--check", "--extend"): "--check, --extend, --functions and --order are mutually exclusive",
    ("faults", "none-such"): "fault 'none-such' is unknown in tier cpu; `specmatrix faults --list` names all ",
    (
        "faults",
        "--only",
        "none-such",
    ): "fault 'none-such' is unknown in tier cpu; `specmatrix faults --list` names all ",
    ("faults", "--stage", "product"): "stage 'product' is unknown; it must be one of smoke, pr, nightly",
    ("faults", "--seed", "-1"): "seed must be between 0 and 2147483647, got -1",
    ("faults", "--workers", "0"): f"workers must be {SANE}, got 0",
    ("faults", "--workers", "1" + 30 * "0"): f"workers must be {SANE}, got 1{30 * '0'}",
    ("simulate", "--minutes", "0"): "minutes must be above 0 and finite, got 0.0",
    ("simulate", "--minutes", "1e999"): "minutes must be above 0 and finite, got inf",
    ("simulate", "--schedules", "0"): "schedules must be at least 1, got 0",
    ("simulate", "--seed", "-1"): "seed must be at least 0, got -1",
    ("simulate", "--replay", "-2"): "replay must be at least 0, got -2",
    ("bench", "everything"): "benchmark 'everything' is unknown; it must be one of ",
    ("accuracy", "--task", "gsm8k", "--data", "/no/data"): "cannot read /no/data: No such file or directory",
    ("zoo", "train", "llama"): "zoo model 'llama' is unknown; it must be one of llama-mini, ",
    ("zoo", "train", "--minutes", "0"): "minutes must be above 0 and finite, got 0",
    ("zoo", "train", "--minutes", "nan"): "minutes must be above 0 and finite, got nan",
    ("zoo", "train", "--device", "abacus"): "device 'abacus' is not available; it must be one of cpu",
    ("generate", "Hi", "--page-sise", "4"): "unknown flag '--page-sise'; did you mean --page-size?",
    ("generate", "Hi", "--bogus"): "unknown flag '--bogus'; it must be one of --model-path, ",
    ("generate", ""): "an argument is empty, perhaps an unset shell variable; give a value or omit it",
    ("generate", " ", "--page-size", "4"): "the question is empty; give it as an argument",
    ("generate", "Hi", "there"): "unexpected argument 'there'; give a single question, in quotes",
    ("generate",): "the question is missing; give it as an argument",
    ("generate", "--page-size", "4"): "the question is missing; give it as an argument",
    ("generate", "Hi", "--page-size"): "--page-size needs a value",
    ("generate", "--page-size", "--kv-stamps", "Hi"): "--page-size needs a value",
    ("generate", "Hi", "--model", "qwen3-mini", "--model-path=llama-mini"): "--model-path is given twice; give it once",
    (
        "generate",
        "Hi",
        "--speculative-algorithm-file",
        "/no/file.py",
    ): "algorithm file /no/file.py does not exist; pass ",
    ("contract",): "0 algorithms given; give one Python file that registers algorithms, or one algorithm's name",
    ("contract", "EAGLE9"): "'EAGLE9' is neither a file nor an algorithm; give a Python file or one of NONE, EAGLE, ",
    (
        "contract",
        "EAGLE3",
        "--tp-size",
        "2",
    ): "tp_size must be 1 for contract, got 2; tensor parallelism is tested by cells ",
    ("contract", "/no/file.py"): "algorithm file /no/file.py does not exist; pass a Python file that must call ",
    ("generate", "Hi", "--page-size", "4", "--page-size=5"): "--page-size is given twice; give it once",
    ("generate", "Hi", "--page-size", "0"): "page_size",
    ("generate", "Hi", "--model-path", "/no/model"): "model '/no/model' is neither a folder nor in the zoo",
    ("generate", "Hi", "--temperature", "-1"): "temperature is -1.0; allowed: 0, or a number from 2**-126 to 2**126",
    ("generate", "Hi", "--tp-size", "3"): "tp_size 3 cannot split a target with 4 attention heads, ",
    ("generate", "Hi", "--max-total-tokens", "1000000000000"): "max_total_tokens 1000000000000 takes 2,190,470.6 GiB ",
    ("generate", "Hi", "--max-running-requests", "1000000000"): "max_running_requests 1000000000 of context_length ",
    ("generate", "Hi", "--threads", "0"): f"threads must be {SANE}, got 0",
    ("generate", "Hi", "--threads", "1000000000"): f"threads must be {SANE}, got 1000000000",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_input_is_one_sentence(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    status = main(words)
    said = capsys.readouterr()
    assert status == 2
    assert WRONG[words] in said.err
    assert said.err.startswith("specmatrix: ") and said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize(
    ("tier", "there", "sentence"),
    [
        ("gpu1", 0, "tier 'gpu1' needs 1 GPU but this machine has none; use 'cpu'"),
        ("gpu4", 2, "tier 'gpu4' needs 4 GPUs but this machine has 2; use 'cpu'"),
        ("gpu2", 1, "tier 'gpu2' needs 2 GPUs but this machine has 1; use 'cpu'"),
        ("gpu8", 4, "tier 'gpu8' needs 8 GPUs but this machine has 4; use 'cpu'"),
    ],
)
def test_a_tier_names_the_gpus_that_are_missing(tier, there, sentence, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    assert main(["run", "--tier", tier]) == 2
    assert capsys.readouterr().err == f"specmatrix: {sentence}\n"


def test_one_gpu_runs_the_cells_of_the_cpu_and_those_in_bf16(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    cells = [cell for cell in chosen_cells("cpu", "smoke", None, None) if cell.ranks == 1]
    found = chosen_cells("gpu1", "smoke", None, None)
    assert [cell for cell in found if cell.numerics == "float32"] == cells != []
    assert {cell.numerics for cell in found} == {"float32", "bf16", "fast"}


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_several_gpus_run_the_cells_of_as_many_ranks(gpus, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    cells = chosen_cells(f"gpu{gpus}", "nightly", None, None)
    assert len(cells) >= 8 and {cell.ranks for cell in cells} == {gpus}
    assert main(["run", "--tier", f"gpu{gpus}", "--cells", "none.pair"]) == 2
    sentence = f"tier 'gpu{gpus}' has none of the selected cells of stage 'pr'; its cells have {gpus} ranks"
    assert capsys.readouterr().err == f"specmatrix: {sentence}\n"


def test_more_than_two_ranks_run_on_gpus_only(capsys):
    assert max(cell.ranks for cell in chosen_cells("cpu", "nightly", None, None)) == 2
    assert main(["run", "--cells", "eagle3.tp4.pair"]) == 2
    sentence = "tier 'cpu' has none of the selected cells of stage 'pr'; its cells have 1 or 2 ranks"
    assert capsys.readouterr().err == f"specmatrix: {sentence}\n"


def test_figures_of_a_gpu_need_one(capsys):
    assert main(["bench", "--gpu"]) == 2
    assert capsys.readouterr().err == "specmatrix: benchmark 'gpu' needs a GPU but this machine has none\n"
    assert main(["bench", "overhead", "--gpu"]) == 2
    assert "'overhead' cannot be combined with --gpu; give the name or --gpu, not both" in capsys.readouterr().err


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"specmatrix {version('specmatrix')}\n"


def test_help_says_in_a_whole_sentence_what_each_command_does(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    rows = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert len(rows) == len(ORDER) and [row for row in rows if row.endswith("...") or not row.endswith(".")] == []


@pytest.mark.parametrize(
    "modules",
    ["specmatrix.cli, specmatrix.matrix.plugin", "specmatrix.ci.commands.run", "specmatrix.matrix.faults.command"],
)
def test_what_only_starts_workers_imports_no_torch(modules):
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_run_writes_four_files_and_compares_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    status = main(["run", "--cells", "eagle3.k4", "--workers", "1", "--out", str(out), "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["cells"] == 1 and status == (summary["red"] > 0)
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.jsonl", "report.md", "summary.json"]
    assert load(out).header.thresholds["ledger"]
    assert main(["compare", str(out), str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "green"


@pytest.mark.nightly
def test_a_killed_run_leaves_no_readable_report(tmp_path: Path):
    words = ["run", "--cells", "batch=pair", "--workers", "1", "--out", str(tmp_path)]
    command = [sys.executable, "-c", "import sys; from specmatrix.cli import main; sys.exit(main())", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        partial = tmp_path / "report.jsonl.partial"
        while process.poll() is None and not (partial.exists() and partial.read_text().count("\n") > 1):
            os.sched_yield()
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(ReportError, match="did not finish"):
        load(tmp_path)


@pytest.mark.nightly
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("lines", [pytest.param(1, id="while the workers start"), 2])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_so_and_keeps_the_previous_report(number: int, status: int, lines: int, tmp_path: Path):
    report = tmp_path / "report.jsonl"
    report.write_text("of an earlier run")
    words = ["run", "--cells", "batch=pair", "--workers", "2", "--out", str(tmp_path)]
    command = [sys.executable, "-c", "import sys; from specmatrix.cli import main; sys.exit(main())", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        partial = tmp_path / "report.jsonl.partial"
        while process.poll() is None and not (partial.exists() and partial.read_text().count("\n") >= lines):
            os.sched_yield()
        os.killpg(process.pid, signal.SIGINT) if number == signal.SIGINT else process.send_signal(number)
        out, said = process.communicate()
    assert (process.returncode, out) == (status, "")
    assert said.strip().startswith("interrupted after ") and said.strip().count("\n") == 0, said
    assert said.strip().endswith(f"{partial}, which is not a report; {report} is from an earlier run")
    assert report.read_text() == "of an earlier run"
    with pytest.raises(ReportError, match="did not finish"):
        load(tmp_path)


@pytest.mark.parametrize("words", [("explain", "eagle3"), ("zoo", "list"), ("zoo", "list", "--json")])
def test_output_onto_a_full_disk_is_one_sentence(words: tuple[str, ...]):
    command = [sys.executable, "-c", "import sys; from specmatrix.cli import main; sys.exit(main())", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "specmatrix: cannot write the output: No space left on device\n"


@pytest.mark.nightly
def test_checkpoints_that_cannot_be_written_are_one_sentence(capsys: pytest.CaptureFixture[str]):
    assert main(["zoo", "train", "--quick", "--out", "/dev/null/zoo"]) == 2
    assert "specmatrix: cannot write checkpoints in /dev/null/zoo: " in capsys.readouterr().err


def test_explain_prints_the_resolution(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "algorithm=eagle3", "page_size=4"]) == 0
    assert "page_size: 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "model", "draft", "steps"),
    [
        ({}, "llama-mini", "llama-mini-eagle3", 5),
        (
            {"--model-path": "qwen3-mini", "--speculative-algorithm": "standalone"},
            "qwen3-mini",
            "qwen3-mini-standalone",
            5,
        ),
        ({"--model-path": "deepseek-mini", "--speculative-algorithm": "nextn"}, "deepseek-mini", None, "auto"),
        ({"--model-path": "/else", "--speculative-num-steps": "2"}, "/else", None, 2),
    ],
)
def test_generate_finds_the_draft_that_the_zoo_has_for_a_target(flags, model, draft, steps):
    asked = configuration(flags)
    assert (asked.model_path, asked.speculative_draft_model_path) == (model, draft)
    assert asked.speculative_num_steps == steps


def test_generate_streams_and_measures(capsys: pytest.CaptureFixture[str]):
    question = "Tom has 12 apples and buys 15 more. How many apples does he have?"
    assert main(["generate", question, "--max-new-tokens", "24", "--page-size=4", "--disable-radix-cache"]) == 0
    said = capsys.readouterr()
    assert said.out.strip()
    assert said.err.startswith("EAGLE3 accepts ") and said.err.strip().endswith("(same tokens)")
    assert "tokens/s; " in said.err and "times the speed without a drafter" in said.err


class Deadly(StringIO):
    """Ends a process before it takes a text."""

    def __init__(self, victim: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self.victim = victim

    def write(self, text: str) -> int:
        self.victim.kill()
        self.victim.wait()
        return super().write(text)


@pytest.mark.nightly
def test_generate_answers_over_ranks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    question = "Tom has 12 apples and buys 15 more. How many apples does he have?"
    words = ["generate", question, "--max-new-tokens", "24"]
    assert main(words) == 0
    alone = capsys.readouterr().out
    assert main([*words, "--tp-size", "2"]) == 0
    ranked = capsys.readouterr()
    assert ranked.out == alone and ranked.err.endswith("(same tokens)\n")
    # The ranks that answered are spare now, and one of them dies when the next answer begins.
    spare = GroupLease(2, "cpu")
    victim = spare.group.processes[1]
    spare.close()
    monkeypatch.setattr(sys, "stdout", Deadly(victim))
    assert main([*words, "--tp-size", "2"]) == 1
    assert capsys.readouterr().err.startswith("specmatrix: rank 1 of 2 died with exit code -9\nlog of rank 1:\n")


def test_generate_takes_engine_flags_before_the_question(capsys: pytest.CaptureFixture[str]):
    words = ["--page-size", "4", "--disable-radix-cache", "Hi", "--max-new-tokens", "4", "--kv-stamps", "true"]
    assert main(["generate", *words, "--speculative_algorithm=none"]) == 0
    assert capsys.readouterr().err.startswith("4 tokens; ")
    assert flags_of(["--page-size", "4", "--kv-stamps", "-- no flag", "--model=x"]) == (
        ["-- no flag"],
        {"page_size": "4", "kv_stamps": "true", "model_path": "x"},
    )


def test_generate_counts_the_first_answer_of_a_drafter_that_remembers(capsys: pytest.CaptureFixture[str]):
    """The same question again: n-grams of the first answer are accepted 7 to 10 at a time."""
    question = "Tom has 12 apples and buys 15 more. How many apples does he have?"
    assert main(["generate", question, "--speculative-algorithm", "NGRAM", "--spec-version", "v2"]) == 0
    rewritten, measured = capsys.readouterr().err.strip().splitlines()
    assert rewritten.startswith("rewritten spec_version: v2 -> v1: ")
    assert 1.0 < float(measured.split()[2]) < 3.0 and measured.endswith("(same tokens)")


def test_generate_finds_the_drafts_of_each_target(capsys: pytest.CaptureFixture[str]):
    for target, drafter in (("qwen3-mini", "EAGLE3"), ("deepseek-mini", "NEXTN")):
        assert main(["generate", "Hi", "--max-new-tokens", "8", "--model-path", target]) == 0
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"{drafter} accepts ")


def test_generate_leaves_the_depth_to_adaptive_steps(capsys: pytest.CaptureFixture[str]):
    assert main(["generate", "Hi", "--max-new-tokens", "8", "--speculative-adaptive"]) == 0
    assert "EAGLE3 accepts " in capsys.readouterr().err


def test_generate_without_a_drafter_compares_with_nothing(capsys: pytest.CaptureFixture[str]):
    assert main(["generate", "Hi", "--max-new-tokens", "4", "--speculative-algorithm", "NONE"]) == 0
    assert "drafter" not in capsys.readouterr().err


def test_the_zoo_is_listed_and_intact(capsys: pytest.CaptureFixture[str]):
    assert main(["zoo", "list"]) == 0
    assert "llama-mini-eagle3 (eagle3): " in capsys.readouterr().out
    assert main(["zoo", "list", "--json"]) == 0
    cards = {card["name"]: card for card in json.loads(capsys.readouterr().out)}
    assert 0.6 < cards["llama-mini"]["accuracy"]["test"]["share"] < 0.95
    assert main(["zoo", "verify"]) == 0
    assert "llama-mini-eagle3: whole" in capsys.readouterr().out
