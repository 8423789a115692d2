"""A member of the consumer group with a pipeline that a test controls; as a process, too.

python -m tests.kafka.members BOOTSTRAP NAME [--exactly-once] [--instance-id ID] [--poison NAME] SLOW…

It reads no more from the documents named SLOW, and one named by --poison ends the process.
"""

import argparse
import asyncio
import contextlib
import os
from collections import Counter

from services.common.pb import ocr_pb2 as pb
from services.gateway.consumer import ConsumerOptions, JobConsumer
from services.gateway.kafka_io import KafkaSink, KafkaSource
from services.gateway.kafka_ports import KafkaOptions
from services.gateway.kafka_txn import KafkaTransactor
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


class Poisoned(Pipeline):
    """A document that ends the whole process, as a fault in a library would."""

    def __init__(self, poison, slow=()):
        super().__init__(slow)
        self.poison = poison

    async def __call__(self, job, **more):
        if job.job_id == self.poison:
            os._exit(9)
        return await super().__call__(job, **more)


@contextlib.asynccontextmanager
async def member(kafka: KafkaOptions, pipeline, *, exactly_once=False, **options):
    quick = {"flow": FlowLimits(64, 128 << 20, 1024), "commit_interval_s": 0.05, "progress_interval_s": 0.2}
    sink = KafkaTransactor(kafka) if exactly_once else KafkaSink(kafka)
    consumer = JobConsumer(kafka, ConsumerOptions(**{**quick, **options}), KafkaSource(kafka), sink, pipeline)
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.close()


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("name")
    parser.add_argument("slow", nargs="*")
    parser.add_argument("--exactly-once", action="store_true")
    parser.add_argument("--instance-id")
    parser.add_argument("--poison")
    asked = parser.parse_args()
    name = asked.name
    kafka = KafkaOptions(
        (asked.bootstrap,), f"{name}.jobs", f"{name}.results", f"{name}.dlq", name,
        group_instance_id=asked.instance_id, session_timeout_ms=2000,
    )  # fmt: skip
    async with member(kafka, Poisoned(asked.poison, asked.slow), exactly_once=asked.exactly_once):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
