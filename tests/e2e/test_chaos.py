"""A short run of `python -m tests.chaos`: three brokers, every kind of fault, both ways of delivery."""

import pytest

from tests.chaos.plan import COMBINATIONS, Durations
from tests.chaos.run import Options, cluster, run

SECONDS = 30.0
DURATIONS = Durations(least_s=0.5, most_s=5.0, restart_least_s=0.1, restart_most_s=1.0)


@pytest.fixture(scope="module")
def brokers(kafka):
    """Three of Apache Kafka; the embedded broker has no copies and no group that loses a member."""
    if not kafka.is_apache:
        pytest.skip("no Apache Kafka on this machine")
    with cluster(3) as made:
        yield made


@pytest.mark.kafka
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_no_document_is_lost_whatever_dies(brokers, delivery, tmp_path):
    options = Options(
        documents=300,
        delivery=delivery,
        seed=20 + len(delivery),
        seconds=SECONDS,
        faults=len(COMBINATIONS),
        poison_share=0.06,
        durations=DURATIONS,
    )
    report = run(options, brokers, tmp_path, print)
    print(report)
    assert report.failures == []
    assert report.verdict.letters >= report.verdict.poison >= 12, "poison of every kind"
    assert {name for name in report.done if name != "scale"} == {f"{t} {k}" for t, k in COMBINATIONS}
