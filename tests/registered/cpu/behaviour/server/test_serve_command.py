"""`specmatrix serve` as a command."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from specmatrix.cli import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama-mini"], "unexpected argument 'llama-mini'; serve takes flags only"),
        (["--page-siz", "4"], "unknown flag '--page-siz'; did you mean --page-size?"),
        (["--max-body-bytes", "0"], "--max-body-bytes is 0; allowed: 1 to 1099511627776"),
        (["--model-path", "nowhere"], "model 'nowhere' is neither a folder nor in the zoo"),
        (["--port", "0", "--tp-size", "2"], "tp_size is 2; allowed: 1, as the server has its engine in its own"),
        (["--speculative-algorithm-file", "no.py"], "no.py"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", *words]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and err.startswith("specmatrix: ")


def test_without_its_packages_it_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    find = importlib.util.find_spec
    monkeypatch.setattr("specmatrix.extras.find_spec", lambda name: None if name == "uvicorn" else find(name))
    assert main(["serve"]) == 2
    text = "uvicorn is not installed; install the extra: pip install 'specmatrix[serve]'"
    assert capsys.readouterr().err == f"specmatrix: {text}\n"


def test_the_end_says_how_many_requests_were_cut_off(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    body = {"text": "Question:", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}, "stream": True}

    def client() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http:
            while True:
                with suppress(httpx.ConnectError):
                    http.get("/health")
                    break
            with http.stream("POST", "/generate", json=body) as answer:
                rows = answer.iter_lines()
                next(rows)
                os.kill(os.getpid(), signal.SIGTERM)
                assert [*rows][-2] == "data: [DONE]"

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(client)
        assert main(["serve", "--port", str(port), "--drain-seconds", "0"]) == 0
        done.result()
    found = r"drained; requests cut off after 0 s: 1; (\d+) of \1 pages are free or cached"
    assert re.fullmatch(found, capsys.readouterr().err.splitlines()[-1])


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_with_every_page_home(number: signal.Signals):
    command = [sys.executable, "-m", "specmatrix", "serve", "--port", "0", "--speculative-algorithm", "EAGLE3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None and process.stderr is not None
        said = process.stdout.readline()
        found = re.fullmatch(r"serving llama-mini \(EAGLE3\) on (http://127\.0\.0\.1:\d+)\n", said)
        assert found is not None, said
        body = {"text": "Question:", "sampling_params": {"max_new_tokens": 9}}
        assert httpx.post(f"{found[1]}/generate", json=body, trust_env=False).status_code == 200
        process.send_signal(number)
        *_, last = process.stderr.read().splitlines()
        assert process.wait(60) == 0 and re.fullmatch(r"drained; (\d+) of \1 pages are free or cached", last)
