"""The OpenAPI description and the server agree: schemathesis makes requests from the one and checks the other."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.checks import CHECKS

from tests.support.served import Served

pytestmark = pytest.mark.register(est_seconds=4, stage="pr")

# A body may be right by its schema and wrong by its values: a token outside the vocabulary, a prompt over the context.
LEFT_OUT = {"positive_data_acceptance"}
EXAMPLES = {"few": 3, "many": 300}


@pytest.mark.parametrize("examples", ["few", pytest.param("many", marks=pytest.mark.nightly)])
def test_schemathesis_finds_nothing(server: Served, examples: str):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    checks = [check for name, check in CHECKS.items() if name not in LEFT_OUT]
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 12
    for operation in operations:
        for mode in schemathesis.GenerationMode:
            try:
                cases = operation.as_strategy(generation_mode=mode)
            except Exception:
                continue
            judge(server, cases, checks, EXAMPLES[examples])
    assert server.held() == 0


def judge(server: Served, cases, checks, examples: int) -> None:
    from hypothesis import given

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def one(case: Case) -> None:
        case.call_and_validate(base_url=server.url, checks=checks)

    one()
