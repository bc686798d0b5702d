"""The script of vLLM's findings, which names those of the page, says which it reproduced and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from specmatrix import HOME
from specmatrix.matrix.run.waivers import load_waivers

MADE_UP = """FINDINGS.clear()
FINDINGS["there"] = lambda: (0, model_folder())
FINDINGS["gone"] = lambda: (1, 1)
FINDINGS["ends"] = lambda: (1, sys.exit("no memory"))
model_folder = tempfile.mkdtemp


if __name__"""


def findings_of(engine: str) -> str:
    """An engine's section of the page."""
    page = (HOME / "docs" / "findings.md").read_text(encoding="utf-8")
    return page.partition(f"\n## {engine} ")[2].partition("\n## ")[0]


def test_sglangs_waivers_are_of_findings_on_the_page():
    waivers = load_waivers(HOME / "examples" / "sglang-waivers.yaml")
    gates = {"finish", "lossless", "session", "grammar", "oracle", "distribution", "rejection"}
    assert {waiver.gate for waiver in waivers} == gates
    assert {waiver.subject for waiver in waivers} == {"sglang"}
    assert all(waiver.issue is None or waiver.issue in findings_of("SGLang") for waiver in waivers)


def test_the_findings_and_their_waivers_are_those_of_the_page():
    spec = importlib.util.spec_from_file_location("vllm_findings", HOME / "docs" / "findings" / "in_vllm.py")
    assert spec is not None and spec.loader is not None
    findings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(findings)
    page = findings_of("vLLM")
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == sorted(findings.FINDINGS)
    waivers = load_waivers(HOME / "examples" / "vllm-waivers.yaml")
    assert {waiver.subject for waiver in waivers} == {"vllm", "vllm-suffix", "openai"}
    assert all(waiver.issue is None or waiver.issue in page for waiver in waivers)


def test_the_script_of_the_findings_says_which_were_reproduced_and_leaves_no_models(tmp_path: Path):
    script = tmp_path / "findings.py"
    text = (HOME / "docs" / "findings" / "in_vllm.py").read_text(encoding="utf-8")
    script.write_text(text.replace("if __name__", MADE_UP), encoding="utf-8")

    def run(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, str(script), *words]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        return done.returncode, done.stdout, done.stderr

    status, said, _ = run()
    name, _, folder, *rows = said.splitlines()
    assert (status, name, rows[0], rows[4], rows[-1]) == (
        1, "there", "  reproduced", "  not reproduced", "1 of 3 reproduced"
    )  # fmt: skip
    assert rows[5:8] == ["ends", "no memory", "  not reproduced: exit status 1"]
    assert folder.startswith("  is        /") and not Path(folder.split()[1]).exists()
    assert run("there")[0] == 0
    assert run("--help")[1].endswith("names: there, gone, ends\n")
    for words, message in (
        (("nope",), "unknown finding 'nope'; allowed: there, gone, ends"),
        (("--here",), "--here with 3 findings; allowed: one"),
    ):
        status, _, error = run(*words)
        assert status == 2 and error.endswith(f"{message}\n")
