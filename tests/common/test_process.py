"""When freed memory goes back to the system: where it costs nothing, or now and then."""

import pytest

from services.common.process import trims


@pytest.mark.parametrize("before", [[], [1.4], [1.4] * 5])
def test_an_idle_process_hands_memory_back_at_once(before: list[float]) -> None:
    assert trims([*before, 0.02])


@pytest.mark.parametrize("looks", [1, 2, 11])
def test_a_busy_process_keeps_what_it_will_soon_need_again(looks: int) -> None:
    assert not trims([1.4] * looks)


def test_a_process_that_is_never_idle_hands_memory_back_once_a_minute() -> None:
    assert trims([1.4] * 12)
