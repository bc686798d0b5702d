from itertools import pairwise, product

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.workloads.build import workload
from specmatrix.matrix.workloads.neighbours import ASKED
from specmatrix.matrix.workloads.request import RequestSpec

CELL = Cell.from_id("eagle3.s3.k4.n8.v2.p16.mixed_lengths.rules.stops")
CHAT = Cell.from_id("eagle3.s3.k4.n8.v2.p16.mixed_lengths.stream.mixed.stop_token")


def features(request: RequestSpec) -> dict[str, bool]:
    """What a request asks for, read from its fields."""
    scored = request.logprobs or bool(request.top_logprobs)
    found = request.ruled, request.temperature > 0, scored, bool(request.stop), request.seed is None, request.n > 1
    return dict(zip(ASKED, (*found, request.session is not None), strict=True))


def lines(seed: int, cell: Cell = CHAT) -> list[list[RequestSpec]]:
    """The long request of each line and the short ones beside it."""
    found: dict[str, list[RequestSpec]] = {}
    for request in workload(cell, seed):
        if request.name.startswith("w"):
            found.setdefault(request.name.partition(".")[0], []).append(request)
    return list(found.values())


def combined(one: RequestSpec, other: RequestSpec) -> set[tuple[object, ...]]:
    """Every pair of values of a feature of one and a feature of the other."""
    return set(product(features(one).items(), features(other).items()))


def test_every_two_features_meet_on_and_off_in_neighbours_and_in_successors_on_a_row():
    every = set(product(product(ASKED, (False, True)), repeat=2))
    for seed in (0, 3):
        rows = lines(seed)
        beside = set().union(*(combined(long, short) for long, *shorts in rows for short in shorts))
        behind = set().union(*(combined(*two) for _, *shorts in rows for two in pairwise(shorts)))
        assert beside == behind == every
        three = ((features(long), *map(features, two)) for long, *shorts in rows for two in pairwise(shorts))
        values = {(name, *(one[name] for one in each)) for each in three for name in ASKED}
        assert len(values) == 8 * len(ASKED), "of neighbour, predecessor and newcomer"


def test_a_short_one_follows_the_one_before_on_the_row_beside_an_older_long_one():
    names = [request.name for request in workload(CELL, 0)]
    for (long, first, *others), (before, *_, last) in zip(lines(0)[1:], lines(0), strict=False):
        assert set(long.after) == set(first.after) == {before.name, last.name}
        assert names.index(long.name) < names.index(first.name), "the older one keeps its place in a step"
        assert [one.after for one in others] == [(one.name,) for one in (first, *others[:-1])]
    assert set(lines(0, CELL)[0][0].after) == {name for name in names if name[0] != "w"}


def test_a_long_one_outlives_the_short_ones_beside_it(measured):
    run = measured(CELL.id).run
    closed = [account for operation, account, *_ in run.journal if operation == "close"]
    ends = {answer.name: closed.index(int(answer.meta_info["id"])) for answer in run.answers}
    for long, *shorts in lines(0, CELL):
        assert all(ends[short.name] < ends[long.name] for short in shorts)


def test_only_cells_of_rules_and_stops_without_chunks_and_of_chats_have_them():
    others = [
        CELL._replace(**{axis: value})
        for axis, value in (("prefill_chunk", "7"), ("finish", "eos"), ("sampling", "mixed"))
    ]
    assert not any(lines(0, cell) for cell in (*others, CHAT._replace(memory="tight")))
