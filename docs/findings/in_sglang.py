"""Reproduces SGLang findings of docs/findings.md on a running server that drafts:

    python docs/findings/in_sglang.py http://127.0.0.1:30000

Found with 0.5.12.post1 (v2) and 0.5.13.post1, EAGLE3. It needs Python alone, and any model that writes a few different
tokens. Each finding prints what should come out, what does, and whether it was reproduced. Exit status: 0 if every one
was, 1 if not, 2 without a server.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from typing import Any, Final

PROMPT: Final = (
    "Question: Olga buys 19 books for $467 each and 15 lamps for $415 each. How much does Olga pay?\nAnswer:"
)
TOKENS: Final = 32
TRIES: Final = 12


def ask(url: str, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - as the server answers
    """The JSON answer to a POST, None if it is other text."""
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url + path, data, kind), timeout=600) as answer:
        text = answer.read()
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def generate(url: str, prompt: dict[str, Any], tokens: int, **sampling: object) -> dict[str, Any]:
    """A greedy answer. prompt: fields of the body beside sampling_params."""
    greedy = {"temperature": 0, "max_new_tokens": tokens, **sampling}
    return dict(ask(url, "/generate", {**prompt, "sampling_params": greedy}))


def session_behind_the_stop(url: str) -> bool:
    """The next turn of a branching session has the earlier prompt, the answer up to its stop, and its own token."""
    whole = generate(url, {"text": PROMPT}, TOKENS)["output_ids"]
    stops = [token for index, token in enumerate(whole) if token not in whole[:index]][1:]
    for number, token in enumerate(stops[:TRIES]):
        session = ask(url, "/open_session", {"capacity_of_str_len": 10_000, "session_id": f"behind-{number}"})
        name = f"turn-{number}"
        turn = {"text": PROMPT, "rid": name, "session_params": {"id": session}}
        first = generate(url, turn, TOKENS, stop_token_ids=[token])["meta_info"]
        turn = {"input_ids": [whole[0]], "session_params": {"id": session, "rid": name}}
        second = generate(url, turn, 1)["meta_info"]
        ask(url, "/close_session", {"session_id": session})
        wanted = first["prompt_tokens"] + first["completion_tokens"] + 1
        if second["prompt_tokens"] != wanted:
            print(f"  stop token {token}: the next turn must begin behind {wanted} tokens")
            print(f"  it begins behind {second['prompt_tokens']}")
            return True
    return False


def stop_string_within_a_round(url: str) -> bool:
    """An answer ends at the first of its words that is a stop string."""
    whole = generate(url, {"text": PROMPT}, TOKENS)["text"]
    for word in list(dict.fromkeys(whole.split()))[1 : TRIES + 1]:
        wanted = whole[: whole.index(word)]
        answer = generate(url, {"text": PROMPT}, TOKENS, stop=[word])
        if answer["text"] != wanted or answer["meta_info"]["finish_reason"]["type"] != "stop":
            print(f"  stop {word!r}: the answer must be {wanted!r}")
            print(f"  it is {answer['text']!r}, of {answer['meta_info']['completion_tokens']} tokens")
            return True
    return False


def main(words: list[str]) -> int:
    """Exit status: see above."""
    if len(words) != 1 or not words[0].startswith("http"):
        print("give the URL of a running SGLang server, such as http://127.0.0.1:30000", file=sys.stderr)
        return 2
    missed, url = 0, words[0].rstrip("/")
    try:
        ask(url, "/flush_cache", {})
    except urllib.error.URLError as error:
        print(f"{url} cannot be used: {error}", file=sys.stderr)
        return 2
    for finding in (session_behind_the_stop, stop_string_within_a_round):
        name = finding.__name__.replace("_", "-")
        print(name)
        found = finding(url)
        print("  reproduced" if found else "  not reproduced")
        missed += not found
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
