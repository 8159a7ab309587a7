"""Results for people and programs, made from a run directory and from nothing else."""

from loadgen.report.result import Result, rebuild

__all__ = ["Result", "rebuild"]
