"""Results for people and programs, made from a run directory and from nothing else."""

from loadgen.report.result import Result, read_result, rebuild

__all__ = ["Result", "read_result", "rebuild"]
