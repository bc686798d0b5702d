"""The command: choosing faults, the JSON form and the exit status, with faults really planted."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.selection import in_order
from specmatrix.matrix.faults.command import faults, kill_table, list_faults, select
from specmatrix.matrix.faults.fault import catalogue, delays
from specmatrix.matrix.faults.kill_matrix import DETECTORS, Kill, Matrix
from specmatrix.reports.render.console import WIDE


def test_all_faults_or_the_named_ones():
    here, there = select([]), select([], "gpu1")
    assert [fault for fault in catalogue() if fault in here or fault in there] == list(catalogue())
    assert {fault.tier for fault in here} == {"cpu"} and all(f.also_on == ("gpu1",) for f in here if f in there)
    twice = select(["v2-downgraded", "bonus-stride", "v2-downgraded"])
    assert [fault.id for fault in twice] == ["v2-downgraded", "bonus-stride"]


def test_an_unknown_fault_names_the_closest_one_or_the_list():
    with pytest.raises(ConfigError, match=r"in tier cpu; the closest is bonus-stride$"):
        faults(names=["bonus-strid"])
    with pytest.raises(ConfigError, match=rf"`specmatrix faults --list` names all {len(select([]))}$"):
        faults(names=["xxx"])
    with pytest.raises(
        ConfigError, match=rf"`specmatrix faults --list --tier gpu1` names all {len(select([], 'gpu1'))}$"
    ):
        select(["xxx"], "gpu1", more=delays())


def test_the_list_describes_each_fault(capsys):
    assert list_faults([], "cpu", json_=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [fault.id for fault in select([])]
    assert list_faults(["v2-downgraded"], "cpu", json_=True) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["category"] == "silent fallback / ignored parameter" and listed["why"] in "\n".join(lines)


def test_the_table_fits_its_terminal():
    """Names are not cut, in 72 columns too."""
    one, longest = catalogue()[0], max(catalogue(), key=lambda fault: len(fault.id))
    kills = (
        Kill(one, DETECTORS[5:10], None, {}, 12.34),
        Kill(longest, (), None, {}, 1234.5),
        Kill(longest, (), "SIGSEGV", {}, 1.0, infra=True),
        Kill(longest, DETECTORS, None, {}, 0.0),
    )
    for width in (72, 80, WIDE):
        console = Console(width=width, file=StringIO())
        console.print(kill_table(Matrix(kills, ())))
        text = console.file.getvalue()
        assert all(len(line.rstrip()) <= width for line in text.splitlines())
        assert all(f"{kill.fault.id} " in text for kill in kills) and all(gate in text for gate in DETECTORS)
        assert "SURVIVED" in text and "INFRA" in text and " 1234.5 \n" in text and " 12.3 \n" in text
    row = next(line for line in text.splitlines() if one.id in line)
    assert row.split(maxsplit=1)[1].strip().startswith(", ".join(DETECTORS[5:10]))


def test_faults_of_a_gpu_need_one(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"^tier 'gpu1' needs 1 GPU but this machine has none; use 'cpu'$"):
        faults(names=["graphs-dropped"], tier="gpu1")


@pytest.mark.nightly
def test_json_on_a_real_fault(capsys):
    assert faults(stage="smoke", json_=True, names=["v2-downgraded"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {*found.pop("cell_seconds")} >= {*found["faults"][0].pop("cells")} > set()
    assert "effective" in found["faults"][0].pop("killed_by")
    fault = {"id": "v2-downgraded", "category": "silent fallback / ignored parameter", "origin": "sglang#21062"}
    assert found == {
        "total": 1,
        "killed": 1,
        "faults": [fault | {"state": "killed", "crashed": False}],
    }


@pytest.mark.nightly
def test_the_first_cells_of_the_stage_run_before_a_faults_own_up_to_a_red_one(tmp_path):
    cells = [cell.id for cell in in_order(stage_cells("pr"))]
    own = select(["bonus-stride"])[0].cells
    red = cells.index(next(cell for cell in cells if cell in own))
    assert faults(stage="pr", names=["bonus-stride", "nextn-pair-swapped"], first=red + 1, out=tmp_path, workers=1) == 0
    one, other = json.loads((tmp_path / "faults.json").read_text())["faults"]
    assert one["cells"] == [cells[red]]
    assert len(other["cells"]) == 1 and other["cells"] != one["cells"]


@pytest.fixture(scope="module")
def planted() -> str:
    """What the command prints for two faults."""
    with redirect_stdout(StringIO()) as out:
        assert faults(stage="smoke", names=["bonus-stride"], verbose=True) == 0
    return out.getvalue()


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["README.md", "docs/reading-a-report.md"])
def test_the_pages_quote_the_messages_of_a_planted_fault(planted, page):
    def masked(text: str) -> str:
        return re.sub(r"\d[\d.]*", "#", text)

    messages = re.findall(r"^bonus-stride: \w+: \S+: (.*)$", planted, re.MULTILINE)
    text = masked((HOME / page).read_text(encoding="utf-8"))
    # A run's own output, which the README quotes, cuts long messages.
    assert len(messages) == 2 and all(masked(message)[:80] in text for message in messages)


@pytest.mark.nightly
def test_a_stopped_matrix_keeps_and_shows_finished_faults(tmp_path: Path):
    words = ["v2-downgraded", "path-not-compacted", "--stage", "smoke", "--workers", "1", "--out", str(tmp_path)]
    main_code = "import sys; from specmatrix.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", main_code, "faults", *words]
    file, pipe = tmp_path / "faults.json", subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        while process.poll() is None and not (file.exists() and json.loads(file.read_text())["total"]):
            os.sched_yield()
        process.send_signal(signal.SIGTERM)
        shown, said = process.communicate()
    # On a busy machine a line on progress comes first.
    assert process.returncode == 143 and said.endswith("interrupted after 1 of 2 faults\n"), said
    text = " ".join(shown.split())
    assert "1 of 1 fault killed" in text and "not run: 1 fault, from path-not-compacted on" in text
    kept = json.loads(file.read_text())
    assert (kept["missing"], kept["total"]) == (["path-not-compacted"], 1)
    assert [fault["id"] for fault in kept["faults"]] == ["v2-downgraded"]
    with pytest.raises(ProcessLookupError):  # the trial that ran has ended with its parent
        os.killpg(process.pid, 0)
