from services.gateway.intake import Breaker, BreakerLimits

LIMITS = BreakerLimits(failures=3, trials=2, wait_s=1.0, max_wait_s=3.0)


def broken(at=0.0):
    breaker = Breaker(LIMITS)
    for _ in range(LIMITS.failures):
        breaker.failed("nobody there", at)
    return breaker


def test_as_long_as_somebody_answers_there_is_no_limit():
    breaker = Breaker(LIMITS)
    for _ in range(20):
        breaker.failed("busy", 0.0)
        breaker.failed("busy", 0.0)
        breaker.answered()
    assert (breaker.allowance(0.0), breaker.why()) == (None, None)


def test_when_nobody_answers_intake_is_interrupted_and_says_why():
    breaker = broken()
    assert breaker.allowance(0.5) == 0
    assert breaker.why() == "backends do not answer: nobody there"


def test_after_a_wait_a_few_documents_are_let_through_and_an_answer_ends_it():
    breaker = broken()
    assert breaker.allowance(1.0) == LIMITS.trials
    breaker.answered()
    assert (breaker.allowance(1.0), breaker.why()) == (None, None)


def test_each_trial_that_fails_doubles_the_wait_up_to_its_limit():
    breaker, waits, now = broken(), [], 0.0
    for _ in range(4):
        began = now
        while breaker.allowance(now) == 0:
            now += 0.25
        waits.append(now - began)
        breaker.failed("still nobody", now)
    assert waits == [1.0, 2.0, 3.0, 3.0]


def test_documents_that_were_on_their_way_before_do_not_lengthen_the_wait():
    breaker = broken()
    for _ in range(50):
        breaker.failed("nobody there", 0.5)
    assert breaker.allowance(1.0) == LIMITS.trials


def test_a_backend_that_is_not_ready_interrupts_until_it_is():
    breaker = Breaker(LIMITS)
    breaker.health("the detector is not ready: it says NOT_SERVING")
    assert (breaker.allowance(9.0), breaker.why()) == (0, "the detector is not ready: it says NOT_SERVING")
    breaker.health(None)
    assert (breaker.allowance(9.0), breaker.why()) == (None, None)
