"""What a person sees while shards are built: a bar on a terminal, one line a shard elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from tqdm import tqdm

from ingest.units import count, format_duration

if TYPE_CHECKING:
    from types import TracebackType

    from ingest.shard import ShardSummary

logger = logging.getLogger(__name__)


def _has_terminal() -> bool:
    # A pseudo-terminal that nobody looks at has no width, and a bar on it would be empty.
    return sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0


class Progress:
    """Counts files over all shards and shows done / total, images/s, rejects so far and time left.

    Args:
        num_files: files to be done in this run.
        num_shards: shards to be built in this run.
    """

    def __init__(self, num_files: int, num_shards: int) -> None:
        self._num_files, self._num_shards = num_files, num_shards
        self._files: dict[str, int] = {}
        self._rejects: dict[str, int] = {}
        self._shards_done = 0
        self._begin = time.perf_counter()
        self._lock = threading.Lock()
        self._bar = tqdm(total=num_files, unit="image", disable=not _has_terminal(), dynamic_ncols=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()

    def tick(self, task: str, files: int, rejects: int) -> None:
        """Note that `task` has done so many files so far, so many of them rejected."""
        with self._lock:
            # Ticks travel beside results: one that arrives late must not take counts back.
            self._files[task] = max(files, self._files.get(task, 0))
            self._rejects[task] = max(rejects, self._rejects.get(task, 0))
            self._draw()

    def finish(self, task: str, summary: ShardSummary) -> None:
        """Note that `task` has built its shard, and say so in the log."""
        self.tick(task, summary.samples + summary.rejects, summary.rejects)
        self._shards_done += 1
        level = logging.INFO if self._bar.disable else logging.DEBUG
        logger.log(level, "%s: %s, %s; %s", summary.name, count(summary.samples, "sample"),
                   count(summary.rejects, "reject"), self.sentence())  # fmt: skip

    def _draw(self) -> None:
        if not self._bar.disable:
            self._bar.n = self.num_done
            self._bar.set_postfix_str(count(self.num_rejects, "reject"))

    @property
    def num_done(self) -> int:
        """Files done so far."""
        return sum(self._files.values())

    @property
    def num_rejects(self) -> int:
        """Rejects so far."""
        return sum(self._rejects.values())

    def sentence(self) -> str:
        """Return how far the run is, in a line."""
        seconds = max(1e-9, time.perf_counter() - self._begin)
        done = self.num_done
        left = format_duration(seconds / done * (self._num_files - done)) if done else "unknown time"
        return (
            f"{done:,} of {count(self._num_files, 'image')}, {self._shards_done:,} of "
            f"{count(self._num_shards, 'shard')}, {done / seconds:.1f} images/s, "
            f"{count(self.num_rejects, 'reject')}, {left} left"
        )
