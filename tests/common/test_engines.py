"""One set of promises over all engines and model sets, then what is particular to each."""

import builtins
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.engines import base, openvino, paddle, simulated
from services.common.engines.base import (
    Engine,
    EngineSpec,
    EngineUnavailable,
    GpuOptions,
    Head,
    Outputs,
    Pixels,
    SimulatedCost,
    Sizes,
    choose,
    choose_device,
    choose_engine,
    create_engine,
)
from services.common.models import MODEL_SETS, ModelFiles, PinnedSet, Role, fetch, resolve

FETCHED = [found for found in MODEL_SETS.values() if isinstance(found, PinnedSet)]
RUNNABLE = [(engine, found.name) for found in FETCHED for engine in found.engines]
EVERY = [*RUNNABLE, ("simulated", "simulated")]

CAN_CONVERT = all(importlib.util.find_spec(name) for name in ("paddle", "paddle2onnx"))
"""paddle2onnx has no wheel for Python 3.13."""


def parameters(pairs: list[tuple[str, str]]) -> pytest.MarkDecorator:
    """Runs of a test, marked where they need a real model."""
    runs = [
        pytest.param(engine, name, marks=() if engine == "simulated" else pytest.mark.model)
        for engine, name in pairs
    ]
    return pytest.mark.parametrize(("engine", "model_set"), runs)


every_engine = parameters(EVERY)
every_real_engine = parameters(RUNNABLE)


def model(model_set: str, role: Role) -> ModelFiles:
    if model_set == "simulated":
        return simulated.model_files(role)
    fetch(model_set)
    return resolve(model_set, role)


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if there were a GPU, and both engines installed for it."""
    monkeypatch.setattr(base, "_version", {"openvino": "1", "paddlepaddle-gpu": "1"}.get)
    monkeypatch.setattr(base, "_GPU", tmp_path)


@cache
def loaded(engine: str, model_set: str, role: Role, head: Head) -> Engine:
    if (engine, model_set) == ("openvino", "ppocr-v5-mobile") and not CAN_CONVERT:
        pytest.skip("needs paddle2onnx to convert the model: pip install 'ocr-serving[convert]'")
    shapes = ((4, 48, 320, 3),) if role == "rec" else ((1, 160, 320, 3),)
    return create_engine(
        EngineSpec(engine=engine, model=model(model_set, role), head=head, threads=1, shapes=shapes)
    )


def answer(engine: Engine, pixels: Pixels, sizes: Sizes | None = None) -> Outputs:
    """What an engine says, in arrays that last; the items fill their places unless sizes are given."""
    return tuple(output.copy() for output in engine.run(pixels, whole(pixels) if sizes is None else sizes))


def whole(pixels: Pixels) -> Sizes:
    return np.full((len(pixels), 2), pixels.shape[1:3], np.int32)


def drawn(text: str, height: int, width: int) -> Pixels:
    """Dark text on light paper: (1, H, W, 3)."""
    paper = np.full((height, width, 3), 235, np.uint8)
    cv2.putText(paper, text, (8, height // 2 + 10), cv2.FONT_HERSHEY_SIMPLEX, 1, (20, 30, 40), 2, cv2.LINE_AA)
    return paper[None]


def lines(width: int = 320) -> Pixels:
    return np.concatenate([drawn(text, 48, width) for text in ("Total 42.50", "INVOICE", "abc 12", "Q9-Z")])


def pages() -> Pixels:
    return np.concatenate([drawn("Total 42.50", 160, 320), drawn("INVOICE", 160, 320)])


# ---------------------------------------------------------------- the contract


@every_engine
def test_a_detector_gives_a_probability_for_each_pixel(engine: str, model_set: str) -> None:
    (found,) = answer(loaded(engine, model_set, "det", Head.RAW), pages())
    assert (found.shape, found.dtype) == ((2, 1, 160, 320), np.float32)
    assert 0 <= found.min() < 0.1
    assert 0.5 < found.max() <= 1 + 1e-6


@every_engine
def test_a_recognizer_gives_a_class_and_its_probability_for_each_step(engine: str, model_set: str) -> None:
    index, probability = answer(loaded(engine, model_set, "rec", Head.CTC), lines())
    assert (index.shape, index.dtype) == ((4, 40), np.int32)
    assert (probability.shape, probability.dtype) == ((4, 40), np.float32)
    assert 0 <= index.min() <= index.max() < len(model(model_set, "rec").charset)
    assert 0 <= probability.min() <= probability.max() <= 1 + 1e-6


@every_real_engine
def test_the_ctc_head_is_the_best_class_of_the_raw_head(engine: str, model_set: str) -> None:
    (raw,) = answer(loaded(engine, model_set, "rec", Head.RAW), lines())
    index, probability = answer(loaded(engine, model_set, "rec", Head.CTC), lines())
    assert np.array_equal(index, raw.argmax(axis=2))
    assert np.abs(probability - raw.max(axis=2)).max() <= 1e-6


@every_real_engine
def test_the_charset_belongs_to_the_model(engine: str, model_set: str) -> None:
    """The text that was drawn is the text that is read."""
    index, _ = answer(loaded(engine, model_set, "rec", Head.CTC), drawn("INVOICE", 48, 160))
    charset = model(model_set, "rec").charset
    changes = np.diff(index[0], prepend=0) != 0
    assert "".join(charset[found] for found in index[0][changes]) == "INVOICE"


@every_engine
@pytest.mark.parametrize(("role", "head"), [("det", Head.RAW), ("rec", Head.CTC)])
def test_the_same_batch_gives_the_same_answer(engine: str, model_set: str, role: Role, head: Head) -> None:
    runner, batch = loaded(engine, model_set, role, head), pages() if role == "det" else lines()
    for first, second in zip(answer(runner, batch), answer(runner, batch), strict=True):
        assert np.array_equal(first, second)


@every_engine
@pytest.mark.parametrize(("role", "head"), [("det", Head.RAW), ("rec", Head.CTC)])
def test_an_item_gets_the_same_answer_alone_and_in_a_batch(
    engine: str, model_set: str, role: Role, head: Head
) -> None:
    runner, batch = loaded(engine, model_set, role, head), pages() if role == "det" else lines()
    together = answer(runner, batch)
    for item in range(len(batch)):
        for alone, among in zip(answer(runner, batch[item : item + 1]), together, strict=True):
            assert np.abs(alone[0] - among[item]).max() <= 1e-5


@every_engine
def test_shapes_outside_the_closed_set_are_answered(engine: str, model_set: str) -> None:
    runner = loaded(engine, model_set, "rec", Head.CTC)
    before = answer(runner, lines())
    for width in range(64, 64 + 16 * 16, 16):  # more shapes than oneDNN's cache has room for
        assert answer(runner, lines(width)[:1])[0].shape == (1, width // 8)
    for first, second in zip(before, answer(runner, lines()), strict=True):
        assert np.abs(first - second).max() <= 1e-6


@every_engine
@pytest.mark.parametrize(("role", "head"), [("det", Head.RAW), ("rec", Head.CTC)])
def test_what_lies_in_the_padding_changes_no_digit(
    engine: str, model_set: str, role: Role, head: Head
) -> None:
    runner, clean = loaded(engine, model_set, role, head), pages() if role == "det" else lines()
    sizes = np.array([(clean.shape[1] - 7 * row, 250 - 9 * row) for row in range(len(clean))], np.int32)
    answers = []
    for seed in range(2):
        noisy = np.random.default_rng(seed).integers(0, 256, clean.shape, dtype=np.uint8)
        for place, item, (height, width) in zip(noisy, clean, sizes, strict=True):
            place[:height, :width] = item[:height, :width]
        answers.append(answer(runner, noisy, sizes))
    for first, second in zip(*answers, strict=True):
        assert np.array_equal(first, second)


@every_real_engine
def test_padding_looks_like_the_mean_colour(engine: str, model_set: str) -> None:
    """That is what zero means after normalisation, up to half a step of a pixel's value."""
    files = model(model_set, "det")
    runner = loaded(engine, model_set, "det", Head.RAW)
    grey = np.rint(np.array(files.mean) * 255).astype(np.uint8)
    nothing = np.broadcast_to(grey, (1, 160, 320, 3)).copy()
    (as_pixels,) = answer(runner, nothing)
    (as_padding,) = answer(runner, nothing, np.ones((1, 2), np.int32))
    assert np.abs(as_pixels - as_padding).max() < 0.01


@every_engine
@pytest.mark.parametrize(
    ("pixels", "sizes", "complaint"),
    [
        (np.zeros((1, 48, 320, 3), np.float32), np.ones((1, 2), np.int32), "uint8 with int32 sizes"),
        (np.zeros((1, 48, 320, 3), np.uint8), np.ones((1, 2)), "uint8 with float64"),
        (np.zeros((48, 320, 3), np.uint8), np.ones((1, 2), np.int32), "this one is \\(48, 320, 3\\)"),
        (np.zeros((1, 3, 48, 320), np.uint8), np.ones((1, 2), np.int32), "this one is \\(1, 3, 48, 320\\)"),
        (np.zeros((0, 48, 320, 3), np.uint8), np.ones((0, 2), np.int32), "not empty"),
        (np.zeros((2, 48, 320, 3), np.uint8), np.ones((1, 2), np.int32), "2 items need sizes"),
    ],
)
def test_a_batch_of_the_wrong_kind_is_refused_and_the_next_is_answered(
    engine: str, model_set: str, pixels: Pixels, sizes: Sizes, complaint: str
) -> None:
    runner = loaded(engine, model_set, "rec", Head.CTC)
    with pytest.raises(ValueError, match=complaint):
        runner.run(pixels, sizes)
    assert len(answer(runner, lines())) == 2


@pytest.mark.model
@pytest.mark.parametrize("model_set", ["ppocr-v4-mobile", "ppocr-v5-mobile"])
def test_the_same_weights_give_the_same_numbers_on_paddle_and_openvino(model_set: str) -> None:
    for role, batch in (("det", pages()), ("rec", lines())):
        ours, theirs = (
            answer(loaded(engine, model_set, role, Head.RAW), batch)  # type: ignore[arg-type]
            for engine in ("openvino", "paddle")
        )
        assert np.abs(ours[0] - theirs[0]).max() <= 1e-4


# ---------------------------------------------------------------- choosing


def test_an_engine_of_ones_own_is_named_by_its_factory() -> None:
    spec = EngineSpec(engine="tests.fakes.engines:marked", model=None, head=Head.RAW)
    assert create_engine(spec).version == "7"


@pytest.mark.parametrize("name", ["nosuch", "no.such.module:factory", "tests.fakes.engines:nosuch"])
def test_an_engine_that_cannot_be_found_is_unavailable(name: str) -> None:
    with pytest.raises(EngineUnavailable, match=r"nosuch|no"):
        create_engine(EngineSpec(engine=name, model=None, head=Head.RAW))


@pytest.mark.parametrize(
    ("installed", "device", "chosen"),
    [
        ({"openvino": "1", "paddlepaddle": "1"}, "cpu", "openvino"),
        ({"paddlepaddle": "1"}, "cpu", "paddle"),
        ({"openvino": "1", "paddlepaddle-gpu": "1"}, "gpu:0", "paddle"),
    ],
)
def test_auto_means_paddle_on_a_gpu_else_openvino_else_paddle(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], device: str, chosen: str
) -> None:
    monkeypatch.setattr(base, "_version", installed.get)
    assert choose_engine("auto", (device,)) == chosen
    assert choose_engine("simulated", (device,)) == "simulated"


@pytest.mark.parametrize(
    ("engine", "devices", "settled"),
    [
        ("auto", ("auto",), ("paddle", ("gpu:0",), "ppocr-v5-mobile")),
        ("paddle", ("auto",), ("paddle", ("gpu:0",), "ppocr-v5-mobile")),
        ("openvino", ("auto",), ("openvino", ("cpu",), "ppocr-v6-small")),
        ("auto", ("cpu",), ("openvino", ("cpu",), "ppocr-v6-small")),
        ("auto", ("cpu", "gpu:1"), ("paddle", ("cpu", "gpu:1"), "ppocr-v5-mobile")),
        ("simulated", ("auto",), ("simulated", ("cpu",), None)),
    ],
)
def test_on_a_machine_with_a_gpu_auto_means_the_gpu_where_the_engine_can_use_it(
    gpu_machine: None, engine: str, devices: tuple[str, ...], settled: tuple[object, ...]
) -> None:
    choice = choose(engine, devices, "auto")
    assert (choice.engine, choice.devices, choice.models) == settled


def test_a_gpu_without_a_paddle_for_gpus_is_not_chosen(
    gpu_machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_version", {"openvino": "1", "paddlepaddle": "1"}.get)
    assert choose("auto", ("auto",), "auto") == base.Choice("openvino", ("cpu",), "ppocr-v6-small")


def test_auto_without_any_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_version", lambda name: None)
    assert choose_device() == "cpu"
    with pytest.raises(EngineUnavailable, match=r"pip install 'ocr-serving\[openvino\]'"):
        choose("auto", ("auto",), "auto")


@pytest.mark.model
@pytest.mark.parametrize("engine", ["paddle", "openvino"])
def test_an_engine_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(EngineUnavailable, match=rf"ocr-serving\[{engine}\]"):
        create_engine(EngineSpec(engine=engine, model=model("ppocr-v4-mobile", "det"), head=Head.RAW))


@pytest.mark.parametrize("engine", ["paddle", "openvino"])
def test_an_engine_that_needs_a_model_says_so(engine: str) -> None:
    with pytest.raises(EngineUnavailable, match="needs a model"):
        create_engine(EngineSpec(engine=engine, model=None, head=Head.RAW))


@pytest.mark.model
@pytest.mark.parametrize("engine", ["paddle", "openvino"])
def test_a_dictionary_of_another_model_is_refused(engine: str) -> None:
    files = model("ppocr-v4-mobile", "rec")
    wrong = ModelFiles(**{**vars(files), "charset": files.charset[:-5]})
    spec = EngineSpec(engine=engine, model=wrong, head=Head.CTC)
    with pytest.raises(EngineUnavailable, match="belongs to another model"):
        answer(create_engine(spec), lines())


# ---------------------------------------------------------------- openvino


@pytest.mark.model
def test_openvino_runs_on_cpus_only() -> None:
    spec = EngineSpec(engine="openvino", model=model("ppocr-v4-mobile", "det"), head=Head.RAW, device="gpu:0")
    with pytest.raises(EngineUnavailable, match="use engine paddle"):
        create_engine(spec)


@pytest.mark.model
def test_a_model_is_converted_once_and_keeps_the_hash_of_its_own_weights() -> None:
    files = model("ppocr-v5-mobile", "det")
    loaded("openvino", "ppocr-v5-mobile", "det", Head.RAW)
    (converted,) = files.model.parent.glob("det-*.onnx")
    written = converted.stat().st_mtime_ns
    create_engine(EngineSpec(engine="openvino", model=files, head=Head.RAW))
    assert converted.stat().st_mtime_ns == written
    assert resolve("ppocr-v5-mobile", "det") == files


def test_a_failed_conversion_says_what_it_needs_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "inference.json").write_text("{}")
    (tmp_path / "inference.pdiparams").write_bytes(b"")
    spec = EngineSpec(engine="openvino", model=resolve(str(tmp_path), "det"), head=Head.RAW)
    with pytest.raises(EngineUnavailable, match=r"ocr-serving\[convert\]"):
        create_engine(spec)
    assert {path.name for path in tmp_path.iterdir()} == {"inference.json", "inference.pdiparams"}


def test_openvino_computes_in_full_precision_on_one_stream() -> None:
    settings = openvino._settings(EngineSpec(engine="openvino", model=None, head=Head.RAW, threads=3))
    assert settings["INFERENCE_PRECISION_HINT"] == "f32"
    assert (settings["NUM_STREAMS"], settings["INFERENCE_NUM_THREADS"]) == (1, 3)


@given(st.integers(1, 20_000))
def test_classes_are_parted_into_equal_groups(classes: int) -> None:
    groups = openvino._groups(classes)
    assert 1 <= groups <= 100
    assert classes % groups == 0


@pytest.mark.parametrize(("classes", "groups"), [(18_710, 10), (18_385, 5), (6_625, 5), (97, 1), (101, 1)])
def test_groups_of_known_dictionaries(classes: int, groups: int) -> None:
    assert openvino._groups(classes) == groups


# ---------------------------------------------------------------- paddle

SHAPES = ((1, 48, 160, 3), (8, 48, 160, 3), (8, 48, 320, 3), (8, 48, 3200, 3), (1, 48, 320, 3))


def files(format_: str) -> ModelFiles:
    suffix = {"pir": ".json", "paddle": ".pdmodel", "onnx": ".onnx"}[format_]
    half = (0.5, 0.5, 0.5)
    return ModelFiles(
        "any",
        "rec",
        format_,  # type: ignore[arg-type]
        Path("m/inference" + suffix),
        Path("m/inference.pdiparams"),
        "ab" * 32,
        (),
        half,
        half,
    )


def planned(format_: str = "paddle", **more: Any) -> dict[str, tuple[object, ...]]:
    spec = EngineSpec(engine="paddle", model=files(format_), head=Head.RAW, shapes=SHAPES, **more)
    return {call.method: call.arguments for call in paddle.plan(spec, files(format_), "x")}


def test_on_a_cpu_onednn_gets_a_cache_for_the_closed_set_and_some_more() -> None:
    calls = planned(threads=2)
    assert calls["set_cpu_math_library_num_threads"] == (2,)
    assert calls["set_mkldnn_cache_capacity"] == (len(SHAPES) + 8,)
    assert "enable_mkldnn" in calls
    assert "enable_use_gpu" not in calls
    assert planned()["set_cpu_math_library_num_threads"] == (base.usable_cores(),)


def test_on_a_gpu_device_memory_and_precision_are_set() -> None:
    calls = planned(device="gpu:1", gpu=GpuOptions(memory_pool_mb=900))
    assert calls["enable_use_gpu"] == (900, 1, "float32")
    assert "enable_tensorrt_engine" not in calls
    assert "enable_mkldnn" not in calls
    assert planned(device="gpu", gpu=GpuOptions(fp16=True))["enable_use_gpu"] == (2000, 0, "half")


def test_tensorrt_gets_its_shape_ranges_from_the_closed_set() -> None:
    options = GpuOptions(tensorrt=True, fp16=True, tensorrt_cache=Path("/kept"))
    calls = planned(device="gpu:0", gpu=options)
    assert calls["enable_tensorrt_engine"] == (1 << 30, 8, 3, "half", True, False)
    assert calls["set_trt_dynamic_shape_info"] == (
        {"x": [1, 3, 48, 160]},
        {"x": [8, 3, 48, 3200]},
        {"x": [8, 3, 48, 320]},
    )
    assert calls["set_optim_cache_dir"] == ("/kept",)


def test_a_conversion_for_tensorrt_is_kept_in_the_cache_or_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    trt = SimpleNamespace(
        Input=lambda **shapes: shapes,
        TensorRTConfig=lambda inputs: SimpleNamespace(),
        PrecisionMode=SimpleNamespace(FP32=1),
        convert=lambda graph, config: (
            made.append(graph),
            Path(config.save_model_dir).with_suffix(".json").touch(),
        ),
    )
    monkeypatch.setattr(paddle, "import_library", lambda *names: trt)
    scratch, kept = tmp_path / "scratch", tmp_path / "kept"
    for folder in (scratch, kept):
        folder.mkdir()
    for keep, place in ((None, scratch), (kept, kept), (kept, kept)):
        options = GpuOptions(tensorrt=True, tensorrt_cache=keep)
        spec = EngineSpec(
            engine="paddle", model=None, head=Head.RAW, device="gpu", shapes=SHAPES, gpu=options
        )
        assert paddle._prepared(spec, files("pir"), scratch).model.parent == place
    assert len(made) == 2
    assert paddle._prepared(spec, files("paddle"), scratch) == files("paddle")


def test_a_pir_model_is_converted_for_tensorrt_ahead_of_loading() -> None:
    options = GpuOptions(tensorrt=True, fp16=True)
    assert "enable_tensorrt_engine" not in planned("pir", device="gpu:0", gpu=options)
    spec = EngineSpec(engine="paddle", model=None, head=Head.RAW, device="gpu:0", shapes=SHAPES, gpu=options)
    conversion = paddle.plan_conversion(spec, files("pir"))
    assert conversion is not None
    assert (conversion.least, conversion.most) == ((1, 3, 48, 160), (8, 3, 48, 3200))
    assert conversion.precision == "FP16"
    assert paddle.plan_conversion(spec, files("paddle")) is None


def test_tensorrt_without_a_closed_set_is_refused() -> None:
    with pytest.raises(EngineUnavailable, match="closed set"):
        paddle.shape_range(())


@given(st.lists(st.tuples(*[st.integers(1, 9)] * 3, st.just(3)), min_size=1))
def test_the_shape_range_holds_every_shape_of_the_closed_set(shapes: list[tuple[int, int, int, int]]) -> None:
    least, usual, most = paddle.shape_range(tuple(shapes))
    as_read = [(items, channels, height, width) for items, height, width, channels in shapes]
    assert usual in as_read
    for shape in as_read:
        assert all(low <= axis <= high for low, axis, high in zip(least, shape, most, strict=True))


@pytest.mark.parametrize("device", ["tpu", "cpu:1", "gpu:x", ""])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(EngineUnavailable, match="write cpu or gpu:N"):
        paddle.parse_device(device)


@pytest.mark.model
def test_a_gpu_that_is_not_there_is_refused_with_what_to_install() -> None:
    """With a build for CPUs; on a GPU machine, the hundredth GPU is not there either."""
    spec = EngineSpec(engine="paddle", model=model("ppocr-v4-mobile", "det"), head=Head.RAW, device="gpu:99")
    with pytest.raises(EngineUnavailable, match=r"paddlepaddle-gpu|Paddle sees"):
        create_engine(spec)


@pytest.mark.model
def test_paddle_refuses_onnx_and_says_what_fits() -> None:
    spec = EngineSpec(engine="paddle", model=model("ppocr-v6-small", "det"), head=Head.RAW)
    with pytest.raises(EngineUnavailable, match="ppocr-v5-mobile, ppocr-v4-mobile, or use engine openvino"):
        create_engine(spec)


def test_a_plan_names_precisions_and_leaves_out_what_a_build_lacks() -> None:
    made: list[object] = []
    config = SimpleNamespace(enable_use_gpu=lambda *arguments: made.append(arguments))
    use = paddle.Call("enable_use_gpu", (1, 0, "half"))
    paddle.apply((use, paddle.Call("gone", optional=True)), config, {"half": builtins.float})
    assert made == [(1, 0, float)]
    with pytest.raises(EngineUnavailable, match=r"no Config\.gone"):
        paddle.apply((paddle.Call("gone"),), config, {})


@pytest.mark.model
def test_every_call_of_a_plan_exists_in_the_installed_paddle() -> None:
    inference = base.import_library("paddle.inference", "paddle")
    for calls in (planned(), planned(device="gpu:0", gpu=GpuOptions(tensorrt=True, tensorrt_cache=Path()))):
        for method in calls:
            assert hasattr(inference.Config, method), method


@pytest.mark.model
def test_the_installed_paddle_runs_pir_models_with_onednn() -> None:
    """Paddle 3.3.1 cannot, hence the pin to 3.2.2. If this fails after an upgrade, the pin still stands."""
    (found,) = answer(loaded("paddle", "ppocr-v5-mobile", "det", Head.RAW), pages())
    assert np.isfinite(found).all()


# ---------------------------------------------------------------- simulated


def test_the_simulated_detector_marks_the_lines_of_a_page_and_nothing_in_its_padding() -> None:
    page = np.full((1, 200, 400, 3), 255, np.uint8)
    for top in (40, 120):
        page[:, top : top + 12, 50:350:20] = 0  # letters 20 pixels apart
    page[:, 180:] = 0
    (found,) = simulated.probability_map(page, np.array([[180, 400]], np.int32))
    count, _, boxes, _ = cv2.connectedComponentsWithStats((found[0, 0] > 0.3).astype(np.uint8))
    assert count - 1 == 2
    assert (boxes[1:, cv2.CC_STAT_WIDTH] > 280).all()


def test_the_simulated_recognizer_tells_lines_apart_and_reads_nothing_in_padding() -> None:
    batch = np.concatenate([drawn("Total 42", 48, 320), drawn("Q9", 48, 320)])
    batch[:, :, 200:] = 0
    index, _ = simulated.classes(batch, np.array([[48, 200]] * 2, np.int32))
    assert (index[:, 25:] == 0).all()
    assert not np.array_equal(index[0], index[1])


@given(st.integers(1, 8), st.integers(1, 900), st.integers(1, 900))
def test_a_simulated_batch_costs_a_fixed_part_and_a_part_for_its_pixels(
    items: int, height: int, width: int
) -> None:
    batch = np.broadcast_to(np.uint8(0), (items, height, width, 3))
    cost = SimulatedCost(fixed_ms=3, ms_per_megapixel=50)
    assert simulated.seconds(cost, batch) == pytest.approx(0.003 + 0.05 * items * height * width / 1e6)
