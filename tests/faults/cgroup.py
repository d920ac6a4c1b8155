"""A control group of the kernel (version 1 or 2) around a running process: less memory, or less processor, than it needs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support import eventually_sync

ROOT = Path("/sys/fs/cgroup")


class Group:
    """One control group. Both versions are told apart by their files."""

    def __init__(self, controller: str) -> None:
        """`controller` is `memory` or `cpu`. Skips the test, aloud, where no group can be made."""
        parent = ROOT / controller if (ROOT / controller).is_dir() else ROOT
        self.path = parent / f"fleet-{uuid4().hex[:8]}"
        try:
            self.path.mkdir()
            self.one = (self.path / "memory.limit_in_bytes").exists() or (self.path / "cpu.cfs_quota_us").exists()
            if not self.one and not (self.path / ("memory.max" if controller == "memory" else "cpu.max")).exists():
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            with suppress(OSError):
                self.path.rmdir()
            pytest.skip(f"NOT TESTED HERE: the kernel lets nobody make a control group for {controller}: {error}")

    def limit_memory(self, size_bytes: int) -> None:
        """Let the kernel kill whoever takes more, and not swap instead."""
        if self.one:
            (self.path / "memory.limit_in_bytes").write_text(str(size_bytes))
            return
        (self.path / "memory.max").write_text(str(size_bytes))
        with suppress(OSError):  # there is no such file where there is no swap
            (self.path / "memory.swap.max").write_text("0")

    def limit_processor(self, percent: int) -> None:
        """Give so much of one processor, in periods of 100 ms."""
        quota = percent * 1000
        if self.one:
            (self.path / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (self.path / "cpu.max").write_text(f"{quota} 100000")

    def free_processor(self) -> None:
        if self.one:
            (self.path / "cpu.cfs_quota_us").write_text("-1")
        else:
            (self.path / "cpu.max").write_text("max 100000")

    def take(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def count(self, file: str, name: str) -> int:
        """Return a number out of one of the kernel's tables for this group."""
        lines = dict(line.split() for line in (self.path / file).read_text().splitlines())
        return int(lines.get(name, 0))

    def killed(self) -> int:
        """How many processes of the group the kernel has killed for want of memory."""
        return self.count("memory.oom_control" if self.one else "memory.events", "oom_kill")

    def throttled(self) -> int:
        """In how many periods the processes of the group had used up what they were given."""
        return self.count("cpu.stat", "nr_throttled")

    def remove(self) -> None:
        for pid in (self.path / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (self.path.parent / "cgroup.procs").write_text(pid)

        def gone() -> bool:
            with suppress(OSError):
                self.path.rmdir()
            return not self.path.exists()

        eventually_sync(gone)


@contextmanager
def control_group(controller: str) -> Iterator[Group]:
    group = Group(controller)
    try:
        yield group
    finally:
        group.remove()
