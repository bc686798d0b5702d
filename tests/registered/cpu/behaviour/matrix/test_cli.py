"""The command line: its help, what a run writes, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from io import StringIO
from itertools import chain
from pathlib import Path

import pytest
import typer

from specmatrix.cli import COMMANDS, command_line, main
from specmatrix.engine.parallel.group import GroupLease
from specmatrix.errors import ConfigError
from specmatrix.matrix.cli.flags import FLAGS, flags_of
from specmatrix.matrix.cli.generate import configuration
from specmatrix.matrix.cover.selection import chosen_cells
from specmatrix.reports.schema import ReportError
from specmatrix.reports.store import load


@pytest.mark.parametrize(
    ("tier", "there", "sentence"),
    [
        ("gpu1", 0, "tier 'gpu1' needs 1 GPU but this machine has none; use 'cpu'"),
        ("gpu4", 2, "tier 'gpu4' needs 4 GPUs but this machine has 2; use 'cpu'"),
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


def test_more_than_two_ranks_run_on_gpus_only():
    assert max(cell.ranks for cell in chosen_cells("cpu", "nightly", None, None)) == 2


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"specmatrix {version('specmatrix')}\n"


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_help_says_in_a_whole_sentence_what_each_command_does(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(words) == 0
    sections = [part.splitlines() for part in capsys.readouterr().out.partition("Run cells ")[2].split("\n\n")]
    rows = [row for head, *rows in sections for row in rows]
    assert len(sections) == 4 and [row.split()[0] for row in rows] == [name for name in COMMANDS if " " not in name]
    assert [row for row in rows if row.endswith("...") or not row.endswith(".")] == []
    assert all(head.endswith("`):") for head, *_ in sections)


@pytest.mark.parametrize("word", [name for name, row in COMMANDS.items() if not row.function])
def test_a_word_that_only_stands_before_others_prints_them(word, capsys):
    assert main([word]) == 0
    assert f"Usage: specmatrix {word} [OPTIONS] COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("command", [name for name, row in COMMANDS.items() if row.engine_flags])
def test_commands_that_take_engine_flags_have_a_line_on_each(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "-h"]) == 0
    lines = capsys.readouterr().out.partition("\nEngine flags:\n")[2].splitlines()
    assert [line.split()[0] for line in lines if line.strip()[0] == "-"] == list(FLAGS)
    assert "Engine flags" not in command_line().commands["run"].get_help(typer.Context(command_line()))


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("hi", ["history"]),
        ("run --rerun", ["--rerun-failed"]),
        ("history fl", ["flaky"]),
        ("zoo ", ["list", "verify", "train"]),
    ],
)
def test_a_shell_completes_commands_and_options(typed, completed, capsys, monkeypatch):
    monkeypatch.setenv("_SPECMATRIX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"specmatrix {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" "))))
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == completed


def test_several_selectors_pick_the_cells_of_each_and_every_one_once():
    pair, page = "algorithm=none and batch=pair", "eagle3.s2.k2.n6.v2.p64.c7.pair"
    found = chosen_cells("cpu", "smoke", [pair, page, "batch=pair"], None)
    alone = [chosen_cells("cpu", "smoke", [text], None) for text in (pair, page, "batch=pair")]
    assert found == list(dict.fromkeys(chain(*alone))) and len(found) == 1 + len(alone[2]) < sum(map(len, alone))
    assert chosen_cells("cpu", "smoke", [page, pair], 1) == alone[1]


@pytest.mark.parametrize(("cell", "status"), [("eagle3.s3.k4.n8", 0), ("eagle3.k4", 2), ("none.mixed", 2)])
def test_explaining_a_refused_cell_is_no_success(cell, status, capsys):
    assert main(["explain", cell]) == status
    assert main(["explain", "eagle3.pair", cell, "--json"]) == status


@pytest.mark.parametrize(
    "modules", ["specmatrix.cli, specmatrix.matrix.plugin", "specmatrix.ci.run", "specmatrix.matrix.faults.command"]
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


@pytest.mark.parametrize(
    ("flags", "model", "draft", "steps"),
    [
        ({}, "llama-mini", "llama-mini-eagle3", 5),
        ({"--model-path": "qwen3-mini"}, "qwen3-mini", "qwen3-mini-eagle3", 5),
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
    for words in (["--speculative-use-rejection-sampling"], ["--rejection-sample-method", "standard"]):
        assert flags_of([*words, "--model", "x"])[1] == {"speculative_acceptance": "reject", "model_path": "x"}
    with pytest.raises(ConfigError, match="--rejection-sample-method must be one of standard, block, got 'reject'"):
        flags_of(["--rejection-sample-method=reject"])


def test_generate_counts_the_first_answer_of_a_drafter_that_remembers(capsys: pytest.CaptureFixture[str]):
    """The same question again: n-grams of the first answer are accepted 7 to 10 at a time."""
    question = "Tom has 12 apples and buys 15 more. How many apples does he have?"
    assert main(["generate", question, "--speculative-algorithm", "NGRAM", "--spec-version", "v2"]) == 0
    rewritten, measured = capsys.readouterr().err.strip().splitlines()
    assert rewritten.startswith("rewritten spec_version: v2 -> v1: ")
    assert 1.0 < float(measured.split()[2]) < 3.0 and measured.endswith("(same tokens)")


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
