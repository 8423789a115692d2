"""A member of the consumer group with a pipeline that a test controls.

python -m tests.kafka.members BOOTSTRAP NAME SLOW…     # reads no more from the documents named SLOW
"""

import asyncio
import contextlib
import sys
from collections import Counter

from services.common.pb import ocr_pb2 as pb
from services.gateway.consumer import ConsumerOptions, JobConsumer
from services.gateway.kafka_io import KafkaSink, KafkaSource
from services.gateway.kafka_ports import KafkaOptions
from services.gateway.offsets import FlowLimits


class Pipeline:
    """Answers at once with the document as the text, except for those in `slow`, which wait for `go`."""

    def __init__(self, slow=(), errors=None, text="read"):
        self.slow = set(slow)
        self.errors = errors or {}
        self.text = text
        self.go = asyncio.Event()
        self.calls = Counter()
        self.changed = asyncio.Event()

    async def __call__(self, job, *, priority, deadline, received):
        self.calls[job.job_id] += 1
        self.changed.set()
        if job.job_id in self.slow:
            await self.go.wait()
        if job.job_id in self.errors:
            raise self.errors[job.job_id]
        return pb.Result(job_id=job.job_id, status=pb.OK, lines=[pb.Line(text=self.text)])

    async def until(self, condition, timeout=30.0):
        async def wait():
            while not condition():
                self.changed.clear()
                await self.changed.wait()

        await asyncio.wait_for(wait(), timeout)


@contextlib.asynccontextmanager
async def member(kafka: KafkaOptions, pipeline, **options):
    quick = {"flow": FlowLimits(64, 128 << 20, 1024), "commit_interval_s": 0.05, "progress_interval_s": 0.2}
    consumer = JobConsumer(
        kafka, ConsumerOptions(**{**quick, **options}), KafkaSource(kafka), KafkaSink(kafka), pipeline
    )
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.close()


async def main(bootstrap, name, *slow):
    kafka = KafkaOptions(
        (bootstrap,), f"{name}.jobs", f"{name}.results", f"{name}.dlq", name, session_timeout_ms=2000
    )
    async with member(kafka, Pipeline(slow)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
