"""progress and units: what a person reads is right in number and grammar."""

from __future__ import annotations

import logging

import pytest

from ingest.build.progress import Progress
from ingest.build.tally import Tally
from ingest.shard import ShardSummary
from ingest.units import count, format_bytes, format_duration


def _summary(name: str, samples: int, rejects: int) -> ShardSummary:
    return ShardSummary(
        name=name, samples=samples, rejects=rejects, bytes=0, sha256="", pixels=0,
        pixel_sum=(0, 0, 0), pixel_sum_squares=(0, 0, 0), engines={},
    )  # fmt: skip


def test_one_line_a_shard_without_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    """Each finished shard is one line with samples, rejects, done of total, rate and time left."""
    caplog.set_level(logging.INFO)

    with Progress(10, 2) as progress:
        progress.tick("0", Tally(3, 0, {"empty": 1}))
        progress.finish("0", _summary("train/000000-ab", 4, 1), Tally(5, 2, {"empty": 1}))
        progress.finish("1", _summary("train/000001-cd", 5, 0), Tally(5))

    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith(
        "train/000000-ab: 4 samples (2 enlarged), 1 reject: 1 empty; 5 of 10 images, 1 of 2 shards, "
    )
    assert "images/s, 1 reject: 1 empty, " in first
    assert second.startswith("train/000001-cd: 5 samples, 0 rejects; 10 of 10 images, 2 of 2 shards, ")
    assert second.endswith(", 0 s left")


def test_late_tick_takes_nothing_back() -> None:
    """A tick that arrives after its shard is done does not lower the counts."""
    with Progress(10, 2) as progress:
        progress.tick("0", Tally(3, 0, {"empty": 1}))
        progress.tick("0", Tally(2))
        assert progress.tally == Tally(3, 0, {"empty": 1})

        progress.finish("0", _summary("s", 4, 1), Tally(5, 0, {"empty": 1}))
        progress.tick("0", Tally(2))

        assert progress.tally == Tally(5, 0, {"empty": 1})


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (2_400_000, "2.4 MB"),
        (7.5e12, "7.5 TB"),
        (2e15, "2.0 PB"),
    ],
)
def test_bytes_read_well(num_bytes: float, text: str) -> None:
    """Bytes are given in decimal units."""
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (61, "1 min 01 s"),
        (3600, "1 h 00 min"),
        (12_000, "3 h 20 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    """Durations are given in their two largest units."""
    assert format_duration(seconds) == text


def test_counts_read_well() -> None:
    """One is singular, all else plural, thousands are grouped."""
    assert [count(n, "shard") for n in (0, 1, 2, 1234)] == ["0 shards", "1 shard", "2 shards", "1,234 shards"]
