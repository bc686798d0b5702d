import pytest
from msgspec.json import decode, encode
from msgspec.structs import replace

from specmatrix.reports.schema import FAULTS, GateResult, Header, ReportError, Waiver, WaiverRule, check_cell, is_waived
from specmatrix.reports.store import ReportWriter
from tests.support.tables import table


def test_gate_finds_by_name(make_cell):
    assert make_cell().gate("lossless") == GateResult("lossless", "PASS", {"tokens": 256})
    assert make_cell().gate("accuracy") is None


@pytest.mark.parametrize(
    ("today", "waived"), [("2026-12-30", True), ("2026-12-31T23:59:59+00:00", True), ("2027-01-01", False)]
)
def test_a_waiver_holds_until_the_end_of_its_day(make_cell, today, waived):
    assert is_waived(make_cell(waived=Waiver("known", "2026-12-31")), today) is waived


@pytest.mark.parametrize(("state", "gates", "error"), table(__file__)["contradictions"])
def test_a_cell_that_contradicts_itself_is_refused(tmp_path, make_cell, make_header, state, gates, error):
    judged = tuple(GateResult(f"g{i}", each) for i, each in enumerate(gates))
    cell = replace(make_cell("a"), state=state, gates=judged, error=error)
    sentence = f"cell 'a' is {state}, but its gates are .*{gates[-1] if gates else 'none'}, error {error!r}"
    with pytest.raises(ReportError, match=sentence):
        check_cell(cell)
    with pytest.raises(ReportError, match=sentence), ReportWriter(tmp_path, make_header()) as writer:
        writer.write(cell)


@pytest.mark.parametrize(
    ("record", "text"),
    [(Waiver, f'{{"reason":"known","expiry":"{day}"}}') for day in ("", "soon", "20261231", "2026-W53-4")]
    + [
        (WaiverRule, '{"cells":"topk=4","reason":"known","expiry":"soon"}'),
        (Waiver, '{"reason":" ","expiry":"2026-12-31"}'),
    ],
)
def test_a_waiver_has_a_reason_and_a_day_that_compares_as_text(record, text):
    with pytest.raises(ValueError, match=r"Expected `str` matching regex .* - at `\$.(expiry|reason)`$"):
        decode(text, type=record)


@pytest.mark.parametrize(
    "time", ["soon", "2026-01-01 rubbish", "2026-01-01", "2026-01-01T10:00:00", "2026-02-30T10:00Z"]
)
def test_a_run_was_made_at_a_time_with_zone(make_header, time):
    text = encode(make_header()).replace(make_header().created.encode(), time.encode())
    with pytest.raises(ValueError, match=r"Expected `str` matching regex .* - at `\$.created`|^day is out of range"):
        decode(text, type=Header)


@pytest.mark.parametrize("address", ["http://x/y", "javascript:alert(1)", "https://x", 'https://x/"y', "https://x/y z"])
def test_a_repository_is_an_address_that_a_page_may_link(make_header, tmp_path, address):
    ok = make_header(repository="https://host.example:8443/owner/name")
    assert decode(encode(ok), type=Header) == ok
    with pytest.raises(ReportError, match=r"^the header cannot be written .* regex .* at `\$.repository`"):
        ReportWriter(tmp_path, replace(ok, repository=address))


def test_gpus_of_a_host_are_a_list(make_header):
    with pytest.raises(ValueError, match=r"^gpus of host must be a list, got 8$"):
        make_header(host={"gpus": 8})


@pytest.mark.parametrize(("gate", "name"), [(gate, name) for gate, names in FAULTS.items() for name in names])
def test_a_gate_that_found_a_fault_does_not_pass(make_cell, gate, name):
    value = "q6, token 2" if name == "first_divergence" else 5
    with pytest.raises(ReportError, match=f"has a gate {gate} that is PASS with {name}$"):
        check_cell(make_cell(gates=(GateResult(gate, "PASS", {name: value}),)))
    check_cell(make_cell(gates=(GateResult(gate, "FAIL", {name: value}),)))
    check_cell(make_cell(gates=(GateResult(gate, "PASS", {name: type(value)()}),)))
