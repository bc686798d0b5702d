"""The workflows: what they run exists, who may do what, and each tier that has faults plants them every night."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from specmatrix import HOME, __version__
from specmatrix.matrix.cells.tiers import TIERS
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.faults.fault import catalogue
from tests.support.command_words import parsed

WORKFLOWS = HOME / ".github" / "workflows"
NIGHTLY = WORKFLOWS / "nightly.yml"


CI = HOME / "ci"
FILES = [
    *sorted(WORKFLOWS.iterdir()),
    CI / "github" / "action.yml",
    *CI.glob("gitlab/*"),
    *CI.glob("buildkite/*"),
    *CI.glob("kuberay/*"),
]
# Of GitHub, and of a shell; an optional word of a shell stands for itself.
EXPRESSION = re.compile(r"\$\{\{.*?\}\}|\$\{\w+:\+(.*)\}(?= --out)|\$+\(\(.*?\)\)")
SCRIPTS = [*sorted((CI / "github").glob("*.sh"))]


def texts(node: object) -> Iterator[str]:
    """The commands of a file of GitHub, GitLab or Buildkite."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("run", "script", "commands", "entrypoint") and isinstance(value, str | list):
                yield from [value] if isinstance(value, str) else value
            else:
                yield from texts(value)
    elif isinstance(node, list):
        for value in node:
            yield from texts(value)


def steps(file: Path) -> list[list[str]]:
    """The words of every command; an expression or a variable is replaced by 1."""
    read = file.read_text(encoding="utf-8")
    found = read.splitlines() if file.suffix == ".sh" else texts(yaml.safe_load(read))
    lines = [line for text in found for line in text.splitlines() if not line.lstrip().startswith("#")]
    masked = [EXPRESSION.sub(lambda match: match[1] or "1", line) for line in lines]
    commands = [re.split(r"\s*\|\|\s*|\)$", line)[0].removeprefix("matrix=$(") for line in masked]
    program = r'^\s*(?:specmatrix|\.venv/bin/specmatrix|"\$(?:SPECMATRIX|specmatrix)"|python -m specmatrix) '
    return [shlex.split(re.sub(program, "x/specmatrix ", line)) for line in commands if line.count("'") % 2 == 0]


def ours(file: Path) -> list[list[str]]:
    return [words for words in steps(file) if words[:1] == ["x/specmatrix"]]


def options_of(words: list[str]) -> dict[str, Any]:
    """The options of a specmatrix command, by name; an unknown one raises."""
    # The positions of values are what counts, so numbers stand for variables.
    return parsed([re.sub(r"^\$+\{?[\w\[@\]]+\}?$", "1", word) for word in words[1:]])[1]


@pytest.mark.parametrize("file", [*FILES, *SCRIPTS], ids=lambda file: f"{file.parent.name}/{file.name}")
def test_commands_exist(file: Path):
    found = [options_of(words) for words in ours(file)]
    tiers = {tier.name for tier in TIERS} | {"1"}
    assert all(options.get("tier", "1") in tiers for options in found)
    assert found or file.name in ("pull-request.yml",)
    folders = [word for words in steps(file) if "pytest" in words for word in words if word.startswith("tests/")]
    assert all((WORKFLOWS.parents[1] / folder).is_dir() for folder in folders)


def test_the_ray_job_gives_the_tier_what_a_task_needs():
    job = yaml.safe_load((CI / "kuberay" / "rayjob.yml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]["rayClusterSpec"]
    (words,) = ours(CI / "kuberay" / "rayjob.yml")
    options = options_of(words)
    assert options["on"] == "auto" and f"ray=={spec['rayVersion']}" in (HOME / "requirements-test.txt").read_text()
    mounts = spec["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert any(Path(mount["mountPath"]) in options["out"].parents for mount in mounts)
    (group,) = spec["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    needed = find_tier(options["tier"]).gpus
    assert int(limits["nvidia.com/gpu"]) >= needed and int(limits["cpu"]) >= needed and group["minReplicas"] >= 1


def test_every_tier_with_faults_plants_them_nightly():
    planted = {options_of(words)["tier"] for words in ours(NIGHTLY) if "faults" in words}
    assert planted == {tier.name for tier in TIERS if any(one.runs_on(tier.name) for one in catalogue())} >= {"gpu1"}


def uses(node: object) -> Iterator[dict[str, Any]]:
    """The steps and jobs of a workflow that use another one's code."""
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from uses(value)
    if isinstance(node, dict) and "uses" in node:
        yield node


@pytest.mark.parametrize(
    "file", [*sorted(WORKFLOWS.iterdir()), CI / "github" / "action.yml"], ids=lambda file: file.name
)
def test_actions_are_pinned_and_keep_no_credentials(file: Path):
    for step in uses(yaml.safe_load(file.read_text(encoding="utf-8"))):
        name, _, commit = step["uses"].partition("@")
        assert name.startswith("./") or re.fullmatch(r"[0-9a-f]{40}", commit), step
        assert name != "actions/checkout" or step["with"]["persist-credentials"] is False, step


@pytest.mark.parametrize("file", sorted(WORKFLOWS.iterdir()), ids=lambda file: file.name)
def test_permissions_are_stated_and_only_three_jobs_may_write(file: Path):
    whole = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert whole["permissions"] in ({}, {"contents": "read"})
    may = {
        f"{name}: {scope}"
        for name, job in whole["jobs"].items()
        for scope, level in job.get("permissions", {}).items()
        if level == "write"
    }
    assert may == {
        "specmatrix-comment.yml": {"post: checks", "post: pull-requests"}, "pull-request.yml": {"store: contents"},
        "release.yml": {"publish: id-token"},
    }.get(file.name, set())  # fmt: skip


def test_no_expression_of_a_user_is_pasted_into_a_command():
    for file in [*WORKFLOWS.iterdir(), CI / "github" / "action.yml"]:
        assert not [text for text in texts(yaml.safe_load(file.read_text(encoding="utf-8"))) if "${{" in text], file


def test_the_comment_needs_no_more_than_its_requirements_and_they_are_pinned_alike():
    files = HOME / "requirements.txt", HOME / "requirements-test.txt"
    pinned = {line for file in files for line in file.read_text(encoding="utf-8").splitlines()}
    lines = (CI / "github" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert {line for line in lines if not line.startswith("#")} <= pinned


def test_a_red_commit_of_main_is_stored_too():
    """Else what it broke would be red now and not before in every later pull request."""
    job = yaml.safe_load((WORKFLOWS / "pull-request.yml").read_text(encoding="utf-8"))["jobs"]["store"]
    assert job["needs"] == "cells" and "!cancelled()" in job["if"] and "github.event_name == 'push'" in job["if"]


def test_a_run_without_a_report_gets_a_comment_that_says_so():
    job = yaml.safe_load((WORKFLOWS / "specmatrix-comment.yml").read_text(encoding="utf-8"))["jobs"]["post"]
    (download,) = (step for step in job["steps"] if "download-artifact" in step.get("uses", ""))
    (render,) = (step["run"] for step in job["steps"] if "specmatrix review" in step.get("run", ""))
    assert download["continue-on-error"] is True and "mkdir -p reports-of-run/whole/" in render


def test_a_release_is_what_installs_on_every_python_and_its_version_is_said_alike():
    jobs = yaml.safe_load((WORKFLOWS / "release.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["publish"]["needs"] == "install" and jobs["install"]["needs"] == "build"
    assert jobs["install"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert yaml.safe_load((HOME / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__
    newest = re.findall(r"^## \[(\d.*)\]", (HOME / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0]
    assert newest == __version__
