"""The rivals on real models."""

import pytest

from loadgen.studies.bare import BareFinder, BareReader
from loadgen.studies.rivals import Fifo, OneLock
from services.common.models import default_set, fetch

SLIP = "receipt-057.jpg"


@pytest.fixture(scope="module")
def models():
    fetch(default_set("openvino"))
    return BareFinder(960, threads=1), BareReader(threads=1)


@pytest.mark.model
@pytest.mark.parametrize(
    "build", [OneLock, lambda find, read: Fifo([find], [read])], ids=["one lock", "fifo"]
)
def test_a_rival_reads_a_real_slip(models, build, slips, expected):
    server = build(*models)
    texts = server.submit(slips[SLIP].read_bytes()).result(60)
    server.close()
    whole = "".join(texts).replace(" ", "").casefold()
    found = [string.replace(" ", "").casefold() in whole for string in expected[SLIP]]
    assert sum(found) >= 0.8 * len(found), texts
