"""What the commands do with model sets: make sure that they are there, and tell about them."""

import contextlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from services.cli.errors import CliError, UsageError
from services.common import models
from services.common.engines.base import ENGINES, Choice, choose, sets_for
from services.common.errors import SetupError
from services.common.models import MODEL_SETS, MadeSet, PinnedSet
from services.common.settings import EngineSettings


@contextlib.contextmanager
def said_plainly() -> Iterator[None]:
    """Turn what the operator has to put right into the error of the command."""
    try:
        yield
    except SetupError as error:
        raise CliError(str(error)) from error


def choice(models_setting: str | None, engine_setting: str | None) -> Choice:
    """Engine, devices and models that services with these settings, and this environment, choose."""
    given = {"models": models_setting, "engine": engine_setting}
    try:
        settings = EngineSettings.model_validate({k: v for k, v in given.items() if v is not None})
    except ValidationError as error:
        raise UsageError(f"the services would refuse their settings: {_in_one_line(error)}") from error
    with said_plainly():
        chosen = choose(settings.engine, settings.devices, settings.models)
    _refuse_unknown_engine(chosen.engine)
    return chosen


def _in_one_line(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, problem['loc']))} = {problem['input']!r}: {problem['msg']}"
        for problem in error.errors()
    )


def _refuse_unknown_engine(engine: str) -> None:
    module, _, factory = engine.partition(":")
    if engine not in ENGINES and not factory:
        names = f"auto, {', '.join(ENGINES)} and package.module:factory"
        raise UsageError(f"no engine is called {engine!r}; there are {names}")
    if factory and not _is_importable(module):
        raise UsageError(f"engine {engine!r} cannot be loaded: there is no module {module}")


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require_engine(engine: str) -> None:
    """Raise `CliError` when the library of an engine that comes along is not installed."""
    if engine in ("openvino", "paddle") and importlib.util.find_spec(engine) is None:
        raise CliError(f"engine {engine} is not installed: pip install 'ocr-serving[{engine}]'")


def require_known(chosen: Choice) -> None:
    """Raise `UsageError` when there are no such models, or not for this engine. Fetches nothing."""
    for part in parts(chosen.models or ""):
        if part in MODEL_SETS:
            _refuse_other_engines(part, chosen.engine)
        elif chosen.models and not _is_official(part) and not Path(part).expanduser().exists():
            names = ", ".join(MODEL_SETS)
            raise UsageError(
                f"{part!r} is neither a model set ({names}) nor a folder or .onnx file that exists"
            )
    if chosen.engine == "paddle" and chosen.models:
        _refuse_what_paddle_cannot_read(chosen.models)


def _refuse_other_engines(name: str, engine: str) -> None:
    if engine in ENGINES and engine not in MODEL_SETS[name].engines:
        able = ", ".join(MODEL_SETS[name].engines)
        raise UsageError(
            f"engine {engine} cannot read model set {name} (it is for {able}); "
            f"give it one of {sets_for(engine)}"
        )


_FOREIGN_TO_PADDLE = {"onnx": "ONNX", "openvino-ir": "OpenVINO's own format"}


def _refuse_what_paddle_cannot_read(asked: str) -> None:
    for role in models.ROLES:
        with contextlib.suppress(SetupError):  # what is missing or damaged is said when it is to be loaded
            if (found := models.resolve(asked, role)).format in _FOREIGN_TO_PADDLE:
                raise UsageError(
                    f"engine paddle cannot read {found.model}, which is {_FOREIGN_TO_PADDLE[found.format]}; "
                    f"give it one of {sets_for('paddle')}, or use engine openvino"
                )


def wanted(models_setting: str | None, engine_setting: str | None) -> str | None:
    """The model set, folder or file that services with these settings load; None when they need none."""
    return choice(models_setting, engine_setting).models


def settled(models_setting: str | None, engine_setting: str | None) -> Choice:
    """The choice, once it is clear that the services can be started with it; else `CliError`."""
    chosen = choice(models_setting, engine_setting)
    require_known(chosen)
    require_engine(chosen.engine)
    return chosen


def missing(asked: str) -> str | None:
    """Why one of the models of `asked` cannot be loaded, or None when both can."""
    try:
        for role in models.ROLES:
            models.resolve(asked, role)
    except SetupError as error:
        return str(error)
    return None


def cache_problem() -> str | None:
    """Why nothing could be fetched here, or None."""
    return models.cache_problem()


def ensure(
    asked: str, *, offline: bool, fetching: Callable[[str], contextlib.AbstractContextManager[object]]
) -> None:
    """Fetch what is missing of `asked`, each part inside `fetching(name)`; else `CliError`."""
    why = missing(asked)
    if why is None:
        return
    if not _fetchable(asked):
        raise CliError(why)
    if offline:
        raise CliError(f"{why} (--offline forbids to fetch it now)")
    with said_plainly():
        for name in _fetchable(asked):
            with fetching(name):
                models.fetch(name)
        for role in models.ROLES:
            models.resolve(asked, role)


def _fetchable(asked: str) -> Sequence[str]:
    """The names in `asked`, which may be `det=ONE,rec=OTHER`, that can be had from somewhere."""
    return [part for part in parts(asked) if _is_pinned(part) or _is_official(part)]


def _is_pinned(part: str) -> bool:
    return isinstance(MODEL_SETS.get(part), PinnedSet)


def parts(asked: str) -> Sequence[str]:
    """The models in `asked`, which may be `det=ONE,rec=OTHER`."""
    return list(dict.fromkeys(re.findall(r"(?:det|rec)=([^,]+)", asked) or [asked]))


def _is_official(part: str) -> bool:
    return re.fullmatch(r"[\w.-]+_(det|rec)", part) is not None


def can_be_fetched(asked: str) -> bool:
    """Whether all of `asked` can be had from somewhere."""
    return list(_fetchable(asked)) == list(parts(asked))


def how_to_get(asked: str) -> str:
    """What to do about models that cannot be fetched."""
    made = [found for part in parts(asked) if isinstance(found := MODEL_SETS.get(part), MadeSet)]
    return made[0].command if made else "name a model set, or a folder or file with a model"


def rows() -> list[tuple[str, str, str, str]]:
    """Name, whether it is here, engines that can run it, and a summary, of every named set."""
    return [
        (one.name, _presence(one.name), ", ".join(one.engines), one.summary) for one in MODEL_SETS.values()
    ]


def _presence(name: str) -> str:
    if not (models.default_cache() / name).is_dir():
        return "not fetched" if _is_pinned(name) else "not made"
    return "damaged" if models.verify(name) else "present"


def verify(names: Sequence[str]) -> list[str]:
    """What is wrong with the named sets, or with all that are in the cache when none is named."""
    chosen = list(names) or [name for name in MODEL_SETS if (models.default_cache() / name).is_dir()]
    if not chosen:
        raise CliError("No model set is in the cache; fetch one with: ocrctl models fetch NAME")
    with said_plainly():
        return [problem for name in chosen for problem in models.verify(name)]


def fetch(name: str) -> Path:
    """Put one set into the cache; gives its folder."""
    with said_plainly():
        return models.fetch(name)
