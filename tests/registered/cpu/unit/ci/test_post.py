"""Posting a review to a server that speaks the part of GitHub's API that is used."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from specmatrix.ci.github import post
from specmatrix.ci.github.post import MARKER, main

SHA = "a" * 40


class Hub(ThreadingHTTPServer):
    """Pull request 7 of `fork:topic` at SHA, and comments."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.comments = [{"id": 1, "user": None, "body": f"{MARKER} not by a bot"}]
        self.checks: list[dict] = []
        self.sha, self.status, self.tokens = SHA, 200, set()


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def answer(self, body):
        self.server.tokens.add(self.headers["Authorization"])
        data = json.dumps(body).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def given(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self):
        if self.path.startswith("/repos/o/n/pulls?state=open&head=fork%3Atopic"):
            return self.answer([{"number": 7, "head": {"sha": self.server.sha}}])
        page = int(self.path.rpartition("=")[2])
        return self.answer(self.server.comments[100 * (page - 1) : 100 * page])

    def do_POST(self):
        if self.path == "/repos/o/n/check-runs":
            self.server.checks.append(self.given())
            return self.answer({})
        assert self.path == "/repos/o/n/issues/7/comments"
        number = len(self.server.comments) + 1
        self.server.comments.append({"id": number, "user": {"type": "Bot"}, "body": self.given()["body"]})
        return self.answer({})

    def do_PATCH(self):
        number = int(self.path.removeprefix("/repos/o/n/issues/comments/"))
        self.server.comments[number - 1]["body"] = self.given()["body"]
        return self.answer({})

    def log_message(self, *_: object):
        pass


@pytest.fixture
def hub(monkeypatch):
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("GITHUB_API_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("GITHUB_TOKEN", "secret")
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def out(tmp_path):
    (tmp_path / "comment.md").write_text(f"{MARKER}\nfirst")
    (tmp_path / "check.json").write_text('{"name": "specmatrix", "conclusion": "success"}')
    return tmp_path


def run(out):
    return main([str(out), "--repository", "o/n", "--sha", SHA, "--head", "fork:topic"])


def test_the_comment_is_written_once_and_renewed_then(hub, out, capsys):
    assert run(out) == 0 and capsys.readouterr().out == "check run posted; comment of #7 written\n"
    (out / "comment.md").write_text(f"{MARKER}\nsecond")
    assert run(out) == 0 and capsys.readouterr().out == "check run posted; comment of #7 updated\n"
    assert [comment["body"] for comment in hub.comments[1:]] == [f"{MARKER}\nsecond"]
    assert hub.comments[0]["body"] == f"{MARKER} not by a bot"
    assert hub.checks[0] == {"name": "specmatrix", "conclusion": "success", "head_sha": SHA}
    assert hub.tokens == {"Bearer secret"}


def test_a_comment_behind_a_hundred_others_is_found(hub, out, capsys):
    hub.comments += [{"id": n + 2, "user": {"type": "User"}, "body": "talk"} for n in range(150)]
    assert run(out) == run(out) == 0
    assert sum(comment["body"].startswith(f"{MARKER}\n") for comment in hub.comments) == 1


def test_a_branch_that_moved_on_gets_no_comment(hub, out, capsys):
    hub.sha = "b" * 40
    assert run(out) == 0 and "no open pull request of fork:topic is at aaaa" in capsys.readouterr().out
    assert len(hub.comments) == 1 and len(hub.checks) == 1


def test_what_github_refuses_is_one_line_without_the_token(hub, out, capsys):
    hub.status = 403
    assert run(out) == 2
    error = capsys.readouterr().err
    assert error.startswith("post: GitHub answered POST check-runs with 403") and "secret" not in error


def test_a_text_that_is_no_review_is_not_posted(hub, out, capsys):
    for text in ("no marker", MARKER + "x" * 70_000):
        (out / "comment.md").write_text(text)
        assert run(out) == 2 and "comment.md must begin with" in capsys.readouterr().err
    (out / "check.json").unlink()
    assert run(out) == 2 and "cannot read the review in" in capsys.readouterr().err
    assert hub.checks == []


def test_a_missing_token_and_a_server_that_is_gone_are_one_line(out, capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    assert run(out) == 2 and "GITHUB_TOKEN is not set" in capsys.readouterr().err
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:1")
    assert run(out) == 2 and "post: POST check-runs failed:" in capsys.readouterr().err
    monkeypatch.setenv("GITHUB_API_URL", "file:///etc")
    assert run(out) == 2 and "GITHUB_API_URL must be an http address" in capsys.readouterr().err


def test_it_needs_only_the_standard_library():
    lines = Path(post.__file__).read_text().splitlines()
    names = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert names <= set(sys.stdlib_module_names)
