"""What a person sees while shards are built: a bar on a terminal, one line a shard elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from tqdm import tqdm

from ingest.build.tally import Tally, describe_rejects
from ingest.units import count, format_duration

if TYPE_CHECKING:
    from types import TracebackType

    from ingest.shard import ShardSummary

logger = logging.getLogger(__name__)

_MOST_CODES = 3
"""Reasons of rejects that are shown beside their number: more do not fit a line."""


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
        self._begun: dict[str, Tally] = {}
        self._finished: set[str] = set()
        self._done = Tally()  # of the finished ones: thousands of shards are not added up at each tick
        self._begin = time.perf_counter()
        self._lock = threading.Lock()
        self._bar = tqdm(total=num_files, unit="image", disable=not _has_terminal(), dynamic_ncols=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()

    def tick(self, task: str, tally: Tally) -> None:
        """Note what became of the files that `task` has done so far."""
        with self._lock:
            # Ticks travel beside results: one that arrives late must not take counts back.
            if task not in self._finished and tally.files >= self._begun.get(task, Tally()).files:
                self._begun[task] = tally
        self._draw()

    def finish(self, task: str, summary: ShardSummary, tally: Tally) -> None:
        """Note that `task` has built its shard of these files, and say so in the log."""
        with self._lock:
            self._begun.pop(task, None)
            self._finished.add(task)
            self._done += tally
        self._draw()
        level = logging.INFO if self._bar.disable else logging.DEBUG
        logger.log(level, "%s: %s; %s", summary.name, tally.sentence(), self.sentence())

    def _draw(self) -> None:
        if not self._bar.disable:
            tally = self.tally
            with self._lock:
                self._bar.n = tally.files
                self._bar.set_postfix_str(describe_rejects(tally.rejects, _MOST_CODES))

    @property
    def tally(self) -> Tally:
        """What became of all files that are done so far, those of shards that failed since included."""
        with self._lock:
            return sum(self._begun.values(), start=self._done)

    def sentence(self) -> str:
        """Return how far the run is, in a line."""
        seconds = max(1e-9, time.perf_counter() - self._begin)
        tally = self.tally
        done = tally.files
        left = format_duration(seconds / done * (self._num_files - done)) if done else "unknown time"
        return (
            f"{done:,} of {count(self._num_files, 'image')}, {len(self._finished):,} of "
            f"{count(self._num_shards, 'shard')}, {done / seconds:.1f} images/s, "
            f"{describe_rejects(tally.rejects, _MOST_CODES)}, {left} left"
        )
