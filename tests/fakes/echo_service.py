"""A detector without a model, run as a process by the tests of `rpc.py`.

It does what the call's `source_width` says: 1 answers, 2 raises an error of the input, 3 a defect,
4 waits until the file `release` exists in the folder given first on the command line. It is not ready
while the file `broken` exists there, and cannot start when `unstartable` does.
"""

import asyncio
import os
import sys
from pathlib import Path

from services.common.errors import CorruptInput, Unavailable
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.rpc import run_service
from services.common.settings import ServerSettings, load


class Echo(ocr_pb2_grpc.DetectorServicer):
    names = ("ocr.v1.Detector",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.busy = 0

    def register(self, server):
        ocr_pb2_grpc.add_DetectorServicer_to_server(self, server)

    async def start(self):
        if (self.folder / "unstartable").exists():
            raise Unavailable("the weights are missing; run `ocrctl models fetch`")

    def not_ready(self):
        return "the predictor is dead" if (self.folder / "broken").exists() else None

    async def drain(self):
        while self.busy:
            await asyncio.sleep(0.01)

    async def close(self):
        (self.folder / "closed").touch()

    async def Detect(self, request, context):
        self.busy += 1
        try:
            return await self.answer(request)
        finally:
            self.busy -= 1

    async def answer(self, request):
        if request.source_width == 2:
            raise CorruptInput("the JPEG ends early")
        if request.source_width == 3:
            raise KeyError("secret")
        if request.source_width == 4:
            (self.folder / "entered").touch()
            while not (self.folder / "release").exists():
                await asyncio.sleep(0.01)
        return pb.DetectResponse(lines=[pb.DetectedLine(score=0.5)])


def main():
    folder, *argv = sys.argv[1:]
    settings = load(ServerSettings, argv)
    bound = int(os.environ.get("ECHO_MAX_CONCURRENT_CALLS", 0)) or None
    sys.exit(asyncio.run(run_service(Echo(Path(folder)), settings, name="echo", max_concurrent_calls=bound)))


if __name__ == "__main__":
    main()
