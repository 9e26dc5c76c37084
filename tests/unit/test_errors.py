"""errors: what a person reads of a file that became no sample."""

from __future__ import annotations

import io
import pickle

from ingest.errors import CorruptImageError


def test_words_of_a_library_are_one_line_that_is_the_same_in_every_run() -> None:
    """Addresses, line ends and endless texts do not get into a receipt."""
    words = [f"cannot identify\n\t {io.BytesIO()!r}\r\n  or so: {'x' * 1000}" for _ in range(2)]
    first, second = (CorruptImageError("corrupt", f"It does not decode: {text}") for text in words)

    assert first.reason == second.reason == str(first)
    assert first.reason.startswith("It does not decode: cannot identify <_io.BytesIO object> or so: xxx")
    assert (len(first.reason), first.reason[-4:]) == (400, "x...")
    assert pickle.loads(pickle.dumps(first)).reason == first.reason


def test_short_reason_is_left_alone() -> None:
    """A sentence of ours stays as it is."""
    assert CorruptImageError("empty", "The file is empty.").reason == "The file is empty."
