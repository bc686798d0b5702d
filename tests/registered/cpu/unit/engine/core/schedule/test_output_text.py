"""A transcript decodes accepted tokens when it is read, and not before."""

from __future__ import annotations

from specmatrix.engine.core.schedule.request import OutputText


class RunDecoder:
    """Records its calls; a token's text is its digit."""

    def __init__(self) -> None:
        self.runs = []

    def push(self, tokens):
        self.runs.append(list(tokens))
        return "".join(str(token) for run in self.runs for token in run)


def test_tokens_wait_until_the_text_is_read():
    stream = RunDecoder()
    transcript = OutputText(stream)
    assert transcript.read() == "" and not stream.runs
    for token in (4, 7):
        transcript.take(token)
    assert not stream.runs
    assert transcript.read() == transcript.read() == "47"
    transcript.take(1)
    assert transcript.read() == "471"
    assert stream.runs == [[4, 7], [1]]
