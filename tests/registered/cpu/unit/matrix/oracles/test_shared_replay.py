"""Replays rounds from journals written by hand: a letter is a token, a page holds one."""

from dataclasses import asdict

import pytest

from specmatrix.engine.core.draft.ngram_index import NgramOptions
from specmatrix.engine.core.draft.suffix_tree import SuffixOptions
from specmatrix.matrix.oracles.shared_replay import ReplayError, Round, SharedReplay, corpus
from specmatrix.matrix.subjects.protocol import Served
from specmatrix.matrix.zoo.registry import CORPUS

SHAPE = {"page_size": 1, "num_draft_tokens": 4, "topk": 2, "num_steps": 3, "max_running_requests": 2}
RESOLVED = {"ngram": asdict(NgramOptions(max_bfs_breadth=2)), "suffix": None, **SHAPE}


def served(rid, text, prompt, account=0, retractions=0):
    return Served(f"r{rid}", rid, account or rid, tuple(map(ord, text)), prompt, retractions)


def rounds(requests, journal):
    replay = SharedReplay(RESOLVED, requests)
    replay.walk(journal)
    return replay.rounds


def read(account, tokens):
    return [("open", account, 0, ()), ("launch", account, tokens, ()), ("settle", account, tokens, ())]


def step(accepted):
    """A round of the given accounts, with the given number of accepted tokens each."""
    launches = [("launch", account, 4, ()) for account in accepted]
    return launches + [("settle", account, count, ()) for account, count in accepted.items()]


def test_a_round_accepts_the_repeated_text_and_a_bonus_token():
    """ababab: after the prompt aba and the first answer b the index proposes ab; the answer ends inside the draft."""
    assert rounds([served(1, "abababx", 3)], read(1, 3) + step({1: 3}) + [("close", 1, 0, ())]) == {
        1: [Round(3, False)]
    }
    found = rounds([served(1, "ababab", 3)], read(1, 3) + step({1: 4}))
    assert found == {1: [Round(3, True)]}
    assert [found[1][0].allows(n, 4) for n in (2, 3, 4)] == [False, True, True]


def test_rows_of_suffix_decoding_draft_one_after_the_other_and_as_many_as_are_likely():
    suffix = asdict(SuffixOptions(max_tree_depth=4))
    replay = SharedReplay({**SHAPE, "ngram": None, "suffix": suffix}, [served(1, "xabab1", 4), served(2, "zb1b1", 2)])
    replay.walk(read(1, 4) + read(2, 2) + step({1: 1, 2: 1}) + step({2: 2}))
    # xabab drafts ab, where its answer ends by 1; zb1 has no match, and then zb1b drafts 1.
    assert replay.rounds == {1: [Round(1, False, 3)], 2: [Round(1, False, 1), Round(2, True, 2)]} and replay.mixed == 1
    assert [Round(2, False, 2).allows(2, width) for width in (1, 2, 3)] == [False, True, False]


@pytest.mark.parametrize(("most", "last"), [(0, 3), (2, 2)])
def test_suffix_decoding_reads_a_preempted_request_anew_and_drafts_for_one_that_ends_are_no_round(most, last):
    """As in vLLM: it reads the prompt abcd, and the output from the preemption on. most: tokens of a step."""
    suffix, requests = asdict(SuffixOptions(max_tree_depth=4)), [served(1, "abcdabcdabcdab", 4, retractions=1)]
    replay = SharedReplay(
        {**SHAPE, "ngram": None, "suffix": suffix, "max_round": most}, [*requests, served(2, "qr", 1)]
    )
    replay.walk(read(1, 4) + step({1: 2}) + [("forget", 1, 0, ())] + read(1, 7) + step({1: 1}) + step({1: 1}))
    # Behind d the tree has nothing that follows, and then a and ab.
    assert replay.rounds[1] == [Round(2, False, 2), Round(1, False, 2), Round(2, False, 2)]
    replay.walk([("launch", 1, 4, ()), ("settle", 1, 1, ()), ("launch", 1, 4, ()), ("close", 1, 0, ())])
    assert replay.rounds[1][3:] == [Round(last, False, last)]
    replay.walk(read(2, 1) + step({2: 1}))
    assert len(replay.rounds[1]) == 4 and replay.rounds[2] == [Round(1, True, 1)]


def test_all_texts_of_a_round_are_read_before_the_first_draft():
    """The first text continues like the second, which the index only learns in this round."""
    requests = [served(1, "pqrs", 1), served(2, "mpqrs", 4)]
    journal = read(1, 1) + read(2, 4) + step({1: 3, 2: 1})
    assert rounds(requests, journal)[1] == [Round(3, True)]
    assert rounds(requests, read(1, 1) + read(2, 4) + step({1: 1}) + step({2: 1}))[1] == [Round(1, False)]


def test_what_earlier_workloads_said_is_known():
    requests = [served(1, "abcdefg", 4), served(2, "xabcdz", 2)]
    journal = read(1, 4) + step({1: 1}) + step({1: 1}) + [("close", 1, 0, ())] + read(2, 2) + step({2: 3})
    assert rounds(requests, journal)[2] == [Round(3, False)]
    assert rounds(requests[1:], read(2, 2) + step({2: 1}))[2] == [Round(1, False)]


def test_a_retracted_request_prefills_its_output():
    requests = [served(1, "aaaaaaaa", 2, retractions=1)]
    journal = [*read(1, 2), *step({1: 1}), ("close", 1, 0, ()), *read(1, 4), *step({1: 3})]
    assert [one.length for one in rounds(requests, journal)[1]] == [3, 4]


def test_a_turn_resumes_its_sessions_account():
    requests = [served(1, "abc", 2), served(2, "abcdabcd", 4, account=1)]
    journal = [*read(1, 2), ("hold", 1, 2, ()), ("resume", 1, 0, ()), ("launch", 1, 2, ()), ("settle", 1, 2, ())]
    assert rounds(requests, journal + step({1: 4}))[2] == [Round(4, True)]


def test_a_text_that_was_dropped_is_read_from_its_first_token():
    """With capacity for one text, the second one makes the first be read again: its old tokens are then the most
    recent."""
    requests = [served(1, "ab-cazzb", 5), served(2, "ad", 1)]
    journal = read(1, 5) + step({1: 1}) + read(2, 1) + step({2: 1}) + step({1: 1})
    texts = []
    for rows in (1, 2):
        replay = SharedReplay({**RESOLVED, "max_running_requests": rows}, requests)
        replay.walk(journal)
        texts.append(list(replay.grams.followers["a"]))
    assert texts == [["d", "b", "z"], ["b", "z", "d"]]


@pytest.mark.parametrize(
    ("requests", "journal", "text"),
    [
        (
            [(1, "abcdef", 3)],
            [*read(1, 3), ("launch", 1, 4, ()), ("settle", 1, 2, ()), ("settle", 1, 1, ()), ("launch", 1, 4, ())],
            "a round of r1 starts at position 6, but 6 tokens are known",
        ),
        ([], read(7, 1), "account 7 of the journal belongs to no answered request"),
        ([(1, "ab", 1)], [*read(1, 1), ("close", 1, 0, ()), *read(1, 1)], "account 1 of the journal"),
    ],
)
def test_a_round_before_the_one_before_was_read_and_an_account_without_a_request(requests, journal, text):
    with pytest.raises(ReplayError, match=text):
        rounds([served(*one) for one in requests], journal)


@pytest.mark.parametrize(("limits", "width", "length"), [({}, 0, 3), ({1: 6}, 2, 2), ({1: 5}, 1, 1), ({2: 5}, 0, 3)])
def test_a_tree_is_verified_up_to_its_first_node_without_room(limits, width, length):
    """aba|b drafts the tree of a, ab, b and so on, whose nodes behind one that is too deep are not verified either."""
    replay = SharedReplay(RESOLVED, [served(1, "abababx", 3)], limits)
    replay.walk(read(1, 3) + step({1: length}))
    assert replay.rounds == {1: [Round(length, False, width)]}
    assert replay.rounds[1][0].allows(length, 4) is (not width)


def test_the_zoos_corpus_is_used_where_the_start_requests_it():
    document = corpus()[0]
    text = "?" + document[5:9] + document[9:12]
    options = asdict(NgramOptions(max_bfs_breadth=2, external_corpus_path=CORPUS, external_sam_budget=3))
    for resolved, length in ((RESOLVED, 1), ({**RESOLVED, "ngram": options}, 4)):
        replay = SharedReplay(resolved, [served(1, text, 4)])
        replay.walk(read(1, 4) + step({1: length}))
        assert replay.rounds[1][0].length == length
