"""What the commands do with model sets: make sure that they are there, and tell about them."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from services.cli.errors import CliError
from services.common import models
from services.common.engines.base import Choice, choose
from services.common.errors import SetupError
from services.common.models import MODEL_SETS
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
        raise CliError(f"the services would refuse their settings: {error}") from error
    with said_plainly():
        return choose(settings.engine, settings.devices, settings.models)


def wanted(models_setting: str | None, engine_setting: str | None) -> str | None:
    """The model set, folder or file that services with these settings load; None when they need none."""
    return choice(models_setting, engine_setting).models


def missing(asked: str) -> str | None:
    """Why one of the models of `asked` cannot be loaded, or None when both can."""
    try:
        for role in models.ROLES:
            models.resolve(asked, role)
    except SetupError as error:
        return str(error)
    return None


def ensure(
    asked: str, *, offline: bool, fetching: Callable[[str], contextlib.AbstractContextManager[object]]
) -> None:
    """Fetch what is missing of `asked`, each part inside `fetching(name)`; else `CliError`."""
    why = missing(asked)
    if why is None:
        return
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
    parts = re.findall(r"(?:det|rec)=([^,]+)", asked) or [asked]
    return [
        part
        for part in dict.fromkeys(parts)
        if part in MODEL_SETS or re.fullmatch(r"[\w.-]+_(det|rec)", part)
    ]


def rows() -> list[tuple[str, str, str, str]]:
    """Name, whether it is here, engines that can run it, and a summary, of every named set."""
    return [
        (one.name, _presence(one.name), ", ".join(one.engines), one.summary) for one in MODEL_SETS.values()
    ]


def _presence(name: str) -> str:
    if not (models.default_cache() / name).is_dir():
        return "not fetched"
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
