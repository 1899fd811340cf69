from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from django.apps import AppConfig
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

SPANS = "spans"


class FileExporter(SpanExporter):
    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            for span in spans:
                assert span.context is not None
                line = {
                    "name": span.name,
                    "trace": f"{span.context.trace_id:032x}",
                    "span": f"{span.context.span_id:016x}",
                    "parent": f"{span.parent.span_id:016x}" if span.parent else None,
                    "process": os.getpid(),
                }
                file.write(f"{json.dumps(line)}\n")  # one small write, so that processes can share the file
        return SpanExportResult.SUCCESS


class TracedConfig(AppConfig):
    name = "tests.observing.traced"

    def ready(self) -> None:
        provider = TracerProvider()
        directory = Path(os.environ["ACCEPTANCE_DIRECTORY"])
        provider.add_span_processor(SimpleSpanProcessor(FileExporter(directory / SPANS)))
        trace.set_tracer_provider(provider)
