"""Traces: when requests come and how long they are."""

from loadgen.trace.trace import Trace, read_trace, trace_bytes, write_trace

__all__ = ["Trace", "read_trace", "trace_bytes", "write_trace"]
