"""tally and limits: counts add up, and the rules for too many rejects and another try hold to the letter."""

from __future__ import annotations

import json

import pytest

from ingest.build.limits import Limits, format_limit
from ingest.build.tally import Tally, describe_rejects, too_many, too_many_sentence


def _tally(files: int, rejects: int) -> Tally:
    return Tally(files, rejects={"corrupt": rejects})


def test_tallies_add_up() -> None:
    """Counts add up by code, and the first example of each code is kept."""
    one = Tally(5, 1, {"empty": 2}, {"empty": "a"})
    other = Tally(4, 2, {"empty": 1, "corrupt": 1}, {"empty": "b", "corrupt": "c"})

    total = one + other

    assert total == Tally(9, 3, {"empty": 3, "corrupt": 1}, {"empty": "a", "corrupt": "c"})
    assert (total.samples, total.num_rejects) == (5, 4)
    assert Tally() + one == one


@pytest.mark.parametrize(
    ("tally", "sentence"),
    [
        (Tally(1003, 12, {"empty": 1, "truncated": 2}),
         "1,000 samples (12 enlarged), 3 rejects: 2 truncated, 1 empty"),
        (Tally(1), "1 sample, 0 rejects"),
        (Tally(2, rejects={"timed_out": 1, "empty": 1}), "0 samples, 2 rejects: 1 empty, 1 timed_out"),
    ],
)  # fmt: skip
def test_sentence_counts_enlarged_and_rejects(tally: Tally, sentence: str) -> None:
    """Codes stand with the commonest first, equals in their fixed order; nothing is said of none."""
    assert tally.sentence() == sentence


def test_codes_of_later_versions_are_counted_too() -> None:
    """A receipt may hold a code that this version does not know."""
    assert describe_rejects({"haunted": 2, "empty": 1}) == "3 rejects: 2 haunted, 1 empty"
    assert describe_rejects({"haunted": 2, "empty": 1}, most=1) == "3 rejects: 2 haunted"


@pytest.mark.parametrize(
    ("max_rejects", "files", "rejects", "expected"),
    [
        (0.5, 99, 99, False),  # too early to tell
        (0, 99, 99, False),
        (0.5, 100, 50, False),  # half is allowed
        (0.5, 100, 51, True),
        (0.25, 1000, 250, False),
        (0.25, 1000, 251, True),
        (0.0, 100, 0, False),
        (0.0, 100, 1, True),
        (0, 100, 0, False),
        (0, 100, 1, True),
        (10, 10**6, 10, False),
        (10, 10**6, 11, True),
        (1, 100, 1, False),  # a number, not a share of all
        (None, 10**6, 10**6, False),
    ],
)
def test_too_many_rejects(max_rejects: float | None, files: int, rejects: int, expected: bool) -> None:  # noqa: FBT001
    """A count is exceeded by one more, a share by more than that of the files seen, none before 100 files."""
    assert too_many(max_rejects, _tally(files, rejects)) is expected


def test_sentence_of_too_many_rejects() -> None:
    """It names the three commonest reasons with their numbers, a file of the commonest, key and remedy."""
    rejects = {"empty": 1, "truncated": 40, "corrupt": 5, "not_an_image": 30}
    tally = Tally(
        100, rejects=rejects, examples={"empty": "/p/e: x.", "truncated": "/p/t.jpg: The end is missing."}
    )

    assert too_many_sentence(0.5, tally) == (
        "76 of 100 files were rejected (40 truncated, 30 not_an_image, 5 corrupt), more than the config key "
        "'max_rejects' allows (0.5); for example /p/t.jpg: The end is missing. Mend the cause, or raise "
        "'max_rejects' (null: never stop), and run again"
    )


def test_limits_survive_as_json() -> None:
    """Limits in a mark come back as they were; bytes that hold none are below all limits."""
    limits = Limits(time_limit=0.5, memory_limit=2**28)

    assert Limits.from_json(limits.to_json()) == limits
    assert json.loads(limits.to_json()) == {"time_limit": 0.5, "memory_limit": 2**28}
    for data in (b"", b"{}", b"[1]", b"\xff", b'{"time_limit": null, "memory_limit": 1}'):
        assert limits.allow_more_than(Limits.from_json(data), "timed_out")


@pytest.mark.parametrize(
    ("code", "time_limit", "memory_limit", "expected"),
    [
        ("timed_out", 11, 100, True),
        ("timed_out", 10, 200, False),
        ("out_of_memory", 10, 101, True),
        ("out_of_memory", 20, 100, False),
        ("too_large", 10, 101, True),
        ("too_large", 10, 99, False),
    ],
)
def test_another_try_takes_a_higher_limit(
    code: str,
    time_limit: float,
    memory_limit: int,
    expected: bool,  # noqa: FBT001
) -> None:
    """Only the limit that cost the file its place counts."""
    now, before = (
        Limits(time_limit=time_limit, memory_limit=memory_limit),
        Limits(time_limit=10, memory_limit=100),
    )

    assert now.allow_more_than(before, code) is expected


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(4 * 2**30, "4 GiB"), (2**28, "256 MiB"), (3 * 2**29, "1536 MiB"), (10**9, "954 MiB")],
)
def test_memory_limit_reads_as_it_is_written(num_bytes: int, text: str) -> None:
    """Limits are given in binary units, as in the configuration."""
    assert format_limit(num_bytes) == text
