"""Runs in a peer's own environment, as a script: paths of pages in, one JSON object a page out.

    PYTHON driver.py NAME '{"settings": "of the peer"}'

For each path on standard input it prints `{"seconds": …, "lines": [{"text", "points"}]}`; the seconds are
those of the peer's own call from the file to the texts. Imports nothing of this project, which is not
installed there.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Lines = list[dict[str, Any]]
Reader = Callable[[str], Lines]


def rapidocr(settings: Mapping[str, Any]) -> Reader:
    """RapidOCR; `settings` are its `params`, with the name of the engine as text."""
    library = importlib.import_module("rapidocr")
    params = {
        name: library.EngineType(value) if name.endswith("engine_type") else value
        for name, value in settings.items()
    }
    engine = library.RapidOCR(params=params)

    def read(path: str) -> Lines:
        found = engine(path)
        if found.txts is None:
            return []
        return [
            {"text": text, "points": box.tolist()} for text, box in zip(found.txts, found.boxes, strict=True)
        ]

    return read


def paddleocr(settings: Mapping[str, Any]) -> Reader:
    """PaddleOCR; `settings` are arguments of its class."""
    engine = importlib.import_module("paddleocr").PaddleOCR(**settings)

    def read(path: str) -> Lines:
        (page,) = engine.predict(path)
        texts = zip(page["rec_texts"], page["rec_polys"], strict=True)
        return [{"text": text, "points": polygon.tolist()} for text, polygon in texts]

    return read


READERS: Mapping[str, Callable[[Mapping[str, Any]], Reader]] = {
    "rapidocr": rapidocr,
    "paddleocr": paddleocr,
}


def main() -> None:
    """Command line."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # the peers print
    read = READERS[sys.argv[1]](json.loads(sys.argv[2]))
    for line in sys.stdin:
        start = time.perf_counter()
        lines = read(line.rstrip("\n"))
        seconds = time.perf_counter() - start
        answers.write(json.dumps({"seconds": seconds, "lines": lines}) + "\n")


if __name__ == "__main__":
    main()
