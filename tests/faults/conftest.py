"""Worker processes and their stage, as the tests of processes have them."""

from tests.processes.conftest import crew, folder, locker, sink, stage, watcher

__all__ = ["crew", "folder", "locker", "sink", "stage", "watcher"]
