"""`python -m services.recognizer`: the recognizer as a process."""

import sys
from collections.abc import Sequence

from services.common.model_service import plan
from services.common.process import run
from services.common.rpc import run_service
from services.recognizer.model import serve_model
from services.recognizer.service import RecognizerService
from services.recognizer.settings import RecognizerSettings


async def serve(settings: RecognizerSettings) -> int:
    """Run until a signal comes; the exit status."""
    chosen = plan(settings, "rec")
    service = RecognizerService(serve_model(chosen, settings), chosen.files.charset, settings)
    return await run_service(service, settings, name="recognizer")


def main(argv: Sequence[str] | None = None) -> int:
    """Read the settings and serve."""
    return run(RecognizerSettings, serve, argv, prog="ocr-recognizer")


if __name__ == "__main__":
    sys.exit(main())
