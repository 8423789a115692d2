"""The furniture around a model: which host gets a batch, what is warmed up, what the answers say of time."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.batch_contract import Completed
from services.common.batch_queue import BatchLimits, Priority
from services.common.engines import base, simulated
from services.common.engines.base import Head
from services.common.errors import (
    InvalidJob,
    OcrError,
    PredictorFailed,
    SetupError,
    ShuttingDown,
    Unavailable,
)
from services.common.model_service import (
    ModelPlan,
    PredictorPool,
    ServedModel,
    batch_limits,
    batch_shapes,
    default_predictors,
    plan,
    stage_timing,
)
from services.common.models import ModelMissing
from services.common.pb import ocr_pb2 as pb
from services.common.predictor import Batch
from services.common.settings import BatchSettings, EngineSettings, ServerSettings, load
from services.common.telemetry import METRICS
from tests.fakes.engines import HANG
from tests.fakes.model_server import FakeHost

LIMITS = BatchLimits(4, 0.0, 10**9, 100, 1000.0, (1, 2, 4))


def host_in(state):
    host = FakeHost()
    host.state = state
    return host


def canvas(height, width):
    return 8, 16


def image(value):
    return np.full((8, 10, 3), value, np.uint8)


def batch(value):
    return Batch([image(value)], (8, 16))


def pool(*hosts):
    return PredictorPool(hosts, canvas)


def served(*hosts):
    return ServedModel("test", pb.ModelInfo(model_set="fake"), hosts, canvas, LIMITS)


async def submit(model, *values):
    images = [image(value) for value in values]
    return await model.submit_all(images, priority=Priority.ONLINE, deadline=None)


async def test_images_run_on_the_canvas_that_the_service_names():
    host = FakeHost()
    model = served(host)
    await model.start()
    await submit(model, 1, 2)
    assert [(len(batch), batch.canvas) for batch in host.batches] == [(2, (8, 16))]
    await model.close()


async def test_batches_run_side_by_side_on_all_hosts():
    hosts = FakeHost(), FakeHost()
    for host in hosts:
        host.gate.clear()
    both = pool(*hosts)
    runs = [asyncio.create_task(both.run(batch(value))) for value in (1, 2)]
    await asyncio.gather(*(host.entered.wait() for host in hosts))
    for host in hosts:
        host.gate.set()
    assert [float((await run).outputs[0][0]) for run in runs] == [2.0, 4.0]
    await both.close()


async def test_a_ready_host_is_taken_before_one_that_restarts():
    restarting, ready = host_in("restarting"), FakeHost()
    both = pool(restarting, ready)
    for value in range(3):
        await both.run(batch(value))
    assert len(ready.batches) == 3
    await both.close()


async def test_a_host_that_works_is_waited_for_rather_than_one_that_restarts():
    restarting, busy = host_in("restarting"), FakeHost()
    busy.gate.clear()
    both = pool(restarting, busy)
    runs = [asyncio.create_task(both.run(batch(value))) for value in range(2)]
    await busy.entered.wait()
    busy.gate.set()
    await asyncio.gather(*runs)
    assert (len(busy.batches), len(restarting.batches)) == (2, 0)
    await both.close()


async def test_a_host_that_has_restarted_takes_what_waits_for_a_busy_one():
    restarting, busy = host_in("restarting"), FakeHost()
    busy.gate.clear()
    both = pool(restarting, busy)
    runs = [asyncio.create_task(both.run(batch(value))) for value in range(2)]
    await busy.entered.wait()
    restarting.state = "ready"
    await runs[1]
    assert len(restarting.batches) == 1
    busy.gate.set()
    await runs[0]
    await both.close()


async def test_a_failed_host_gets_no_batch_while_another_works():
    failed, busy = host_in("failed"), FakeHost()
    busy.gate.clear()
    both = pool(failed, busy)
    runs = [asyncio.create_task(both.run(batch(value))) for value in range(2)]
    await busy.entered.wait()
    busy.gate.set()
    await asyncio.gather(*runs)
    assert len(busy.batches) == 2
    await both.close()


async def test_waiting_for_a_host_ends_when_the_last_one_fails():
    failed, failing = host_in("failed"), FakeHost()
    failing.gate.clear()
    both = pool(failed, failing)
    runs = [asyncio.create_task(both.run(batch(value))) for value in range(2)]
    await failing.entered.wait()
    failing.state = "failed"
    failed.error = failing.error = Unavailable("this predictor has failed")
    failing.gate.set()
    await runs[0]
    with pytest.raises(Unavailable):
        await runs[1]
    await both.close()


async def test_life_of_a_model_from_start_to_close():
    host = host_in("starting")
    model = served(host)
    assert model.not_ready() == "starting"
    with pytest.raises(Unavailable, match="still starting"):
        await submit(model, 1)
    await model.start()
    assert model.not_ready() is None
    answers = await submit(model, 1, 2)
    assert [float(answer.output[0]) for answer in answers] == [2.0, 4.0]
    host.state = "restarting"
    assert "restarting" in model.not_ready()
    await model.drain()
    assert model.not_ready() == "draining"
    with pytest.raises(ShuttingDown):
        await submit(model, 1)
    await model.close()
    assert host.closed


async def test_draining_finishes_accepted_work():
    host = FakeHost()
    host.gate.clear()
    model = served(host)
    await model.start()
    waiting = asyncio.create_task(submit(model, 1))
    await host.entered.wait()
    draining = asyncio.create_task(model.drain())
    host.gate.set()
    await draining
    assert float((await waiting)[0].output[0]) == 2.0
    await model.close()


async def test_a_model_that_cannot_start_says_what_to_do():
    class NoEngine(FakeHost):
        async def start(self):
            raise SetupError("install the engine")

    model = served(NoEngine())
    with pytest.raises(SetupError, match="install the engine"):
        await model.start()
    await model.close()


async def test_work_in_a_thread_returns_or_raises_what_the_work_does():
    model = served(FakeHost())
    assert await model.in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await model.in_thread(divmod, 7, 0)
    await model.close()


class Settings(ServerSettings, EngineSettings, BatchSettings):
    """A process for the tests."""


DEFAULTS = Settings()


@pytest.mark.parametrize(("most", "sizes"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_batch_sizes_are_powers_of_two_and_the_largest(most, sizes):
    assert batch_limits(Settings(max_batch_size=most)).allowed_batch_sizes == sizes


@given(st.integers(1, 12), st.integers(1, 10**7), st.integers(1, 64), st.integers(1, 5000))
def test_every_batch_that_the_queue_can_form_was_warmed_up(most, budget, height, width):
    update = {"max_batch_size": most, "max_batch_pixels": budget}
    limits = batch_limits(DEFAULTS.model_copy(update=update))
    warmed = {shape[0] for shape in batch_shapes([(height, width)], limits)}
    assert {limits.size_for(min(items, limits.full_size(height * width))) for items in range(1, 40)} == warmed


@pytest.mark.parametrize(
    ("device", "cores", "predictors"), [("cpu", 1, 1), ("cpu", 2, 2), ("cpu", 64, 4), ("gpu:1", 64, 1)]
)
def test_a_cpu_has_a_predictor_for_each_of_its_first_cores_and_a_gpu_has_one(device, cores, predictors):
    assert default_predictors(device, cores) == predictors


@pytest.mark.parametrize(
    ("given", "hosts", "threads"), [({}, 4, 2), ({"predictors": 1}, 1, 8), ({"threads": 3}, 4, 3)]
)
def test_predictors_share_the_cores_unless_told_otherwise(monkeypatch, given, hosts, threads):
    monkeypatch.setattr("services.common.model_service.usable_cores", lambda: 8)
    made = []
    monkeypatch.setattr(
        "services.common.model_service.PredictorHost", lambda spec, **_: made.append(spec.threads)
    )
    plan(EngineSettings(engine="simulated", **given), "det").hosts(Head.RAW, ())
    assert made == [threads] * hosts


def test_nothing_is_loaded_for_a_model_that_is_not_there(tmp_path):
    settings = load(
        Settings, ["--engine", "openvino", "--models", "ppocr-v6-small", "--models-dir", str(tmp_path)]
    )
    with pytest.raises(ModelMissing, match="ocrctl models fetch ppocr-v6-small"):
        plan(settings, "det")


def test_what_a_model_says_of_itself_names_all_that_shapes_the_output():
    info = plan(Settings(engine="simulated"), "rec").info({"rule": 3}, max_side=960)
    assert info.engine == info.model_set == "simulated"
    assert len(info.weights_sha256) == 64
    assert info.engine_version
    assert info.settings["rule"] == "3"
    assert info.settings["devices"] == "cpu"
    assert info.settings["mean"] == "0.5 0.5 0.5"
    assert len(info.settings["charset_sha256"]) == 64
    assert info.max_side == 960


def test_another_dictionary_shows_in_what_a_model_says_of_itself():
    chosen = plan(Settings(engine="simulated"), "rec")
    other = replace(chosen, files=replace(chosen.files, charset=("", "x", " ")))
    assert chosen.info({}).settings["charset_sha256"] != other.info({}).settings["charset_sha256"]
    assert "charset_sha256" not in plan(Settings(engine="simulated"), "det").info({}).settings


def test_by_default_a_gpu_is_used_and_named(monkeypatch, tmp_path):
    monkeypatch.setattr(base, "_version", {"openvino": "1", "paddlepaddle-gpu": "3"}.get)
    monkeypatch.setattr(base, "_GPU", tmp_path)
    (tmp_path / "inference.json").touch()
    (tmp_path / "inference.pdiparams").touch()
    chosen = plan(Settings(models=str(tmp_path)), "det")
    assert (chosen.engine, chosen.devices) == ("paddle", ("gpu:0",))
    info = chosen.info({})
    assert (info.settings["devices"], info.model_set) == ("gpu:0", f"folder:{tmp_path.name}")
    assert str(tmp_path) not in str(info)


def own_engine(name, **settings):
    """A model on an engine of the tests, in a real process."""
    chosen = ModelPlan(
        f"tests.fakes.engines:{name}", ("cpu",), simulated.model_files("det"), Settings(**settings)
    )
    hosts = chosen.hosts(Head.RAW, ((1, 8, 16, 3),))
    return ServedModel("test", chosen.info({}), hosts, canvas, replace(LIMITS, allowed_batch_sizes=(1,)))


async def test_an_engine_of_ones_own_tells_its_name_and_version_in_results():
    model = own_engine("marked")
    assert model.info.engine == "tests.fakes.engines:marked"
    await model.start()
    assert (model.info.engine, model.info.engine_version) == ("marked", "7")
    await model.close()


async def test_a_service_is_not_ready_while_its_predictor_is_stuck_and_ready_afterwards():
    restarts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(METRICS.restarts, "add", lambda *what: restarts.append(what))
        model = own_engine("marked", run_timeout_s=2, predictors=1)
        await model.start()
        hanging = asyncio.create_task(submit(model, HANG))
        reason = await when(model.not_ready)
        assert "stuck" in reason
        assert not hanging.done()
        [answer] = await hanging
        assert isinstance(answer, PredictorFailed)
        await when(lambda: model.not_ready() is None)
        [answer] = await submit(model, 0)
        assert not isinstance(answer, OcrError)
        await model.close()
    assert restarts == [(1, {"stage": "detector"})]  # counted without waiting for a batch


async def when(true):
    """What `true` gives, once it gives something."""
    async with asyncio.timeout(60):
        while not (found := true()):
            await asyncio.sleep(0.01)
    return found


def completed(batch_id, queue_ms, model_ms, size):
    return Completed(output=(), queue_ms=queue_ms, model_ms=model_ms, batch_size=size, batch_id=batch_id)


def test_model_time_counts_each_batch_once():
    answers = [completed(1, 5, 10, 8), completed(1, 7, 10, 8), completed(2, 1, 4, 2), PredictorFailed("dead")]
    timing = stage_timing(answers, process_ms=1.5, total_ms=20)
    assert timing == pb.StageTiming(
        queue_ms=7, model_ms=14, process_ms=1.5, total_ms=20, batches=2, mean_batch_size=5
    )


def test_a_call_without_an_answer_has_no_batches():
    assert stage_timing([InvalidJob("no")], process_ms=1, total_ms=2) == pb.StageTiming(
        process_ms=1, total_ms=2
    )
