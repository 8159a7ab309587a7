"""Facts about the machine of a run, for its header. Nothing that identifies a user."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe_machine() -> dict[str, str | int | float]:
    """Processor, cores that this process may use, memory, kernel."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: the architecture has to do
    return platform.machine()


def this_process() -> dict[str, int | str] | None:
    """What tells this process from every other, also from one that gets its number later.

    Its number, its start in clock ticks since boot (proc(5), field 22), and the boot's own id; None
    where there is no /proc.
    """
    return process_of(os.getpid())


def process_of(pid: int) -> dict[str, int | str] | None:
    """As `this_process`, of another one; None where it has ended, or waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else {"pid": pid, "ticks": int(fields[19]), "boot": boot}


def is_running(process: object) -> bool:
    """Whether the process that `this_process` told of is the one that has its number now."""
    pid = process.get("pid") if isinstance(process, dict) else None
    return isinstance(pid, int) and pid > 0 and process_of(pid) == process
