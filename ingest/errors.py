"""The errors that ingest raises on purpose.

    IngestError
    |- ConfigError(ValueError)           a setting is unknown or impossible
    |- StoreError(OSError)               a store could not be read or written
    |  `- NotSealedError(FileNotFoundError)   no dataset.json there: never built, or not finished
    |- DataError(ValueError)             bytes are not what they should be
    |  |- CorruptImageError              one raw file cannot become a sample
    |  `- CorruptShardError              a shard, its offsets or the index do not agree
    |- DeviceError(RuntimeError)         an engine or device is missing or does not fit
    `- BuildError(RuntimeError)          a build stopped before its dataset was complete

Each also is the builtin that a caller would catch. Arguments go to ``super().__init__`` by position, so
that every error survives pickling on its way back from a Dask worker.
"""

import re

REJECT_CODES = (
    "empty",
    "not_an_image",
    "camera_raw",
    "unsupported",
    "truncated",
    "corrupt",
    "too_large",
    "too_small",
    "too_elongated",
    "unreadable",
    "no_label",
    "crashed",
    "out_of_memory",
    "timed_out",
)
"""Every reason for which a raw file becomes no sample; docs/format.md says what each means. Never renamed."""


class IngestError(Exception):
    """Base of every error that ingest raises on purpose; its text is one sentence for a person."""


class ConfigError(IngestError, ValueError):
    """A setting is unknown or has an impossible value; the text names the key and what is allowed."""


class StoreError(IngestError, OSError):
    """A folder, bucket or file could not be listed, read or written."""

    def __str__(self) -> str:
        """Return the sentence alone: ``OSError`` would print a tuple for two arguments."""
        return str(self.args[0]) if self.args else ""


class NotSealedError(StoreError, FileNotFoundError):
    """There is no ``dataset.json`` at the given place."""


class DataError(IngestError, ValueError):
    """Bytes are not what the format or the receipt says."""


class CorruptImageError(DataError):
    """One raw file cannot become a sample.

    Attributes:
        code: stable short name of the reason, one of `REJECT_CODES`.
        reason: one sentence for a person.
    """

    def __init__(self, code: str, reason: str) -> None:
        assert code in REJECT_CODES, code
        self.code = code
        self.reason = _in_one_line(reason)
        super().__init__(code, self.reason)

    def __str__(self) -> str:
        """Return the sentence, without the code."""
        return self.reason


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MOST_CHARACTERS = 400


def _in_one_line(text: str) -> str:
    """Return a text, in part perhaps a library's, so that it reads well and is the same in every run."""
    line = " ".join(_ADDRESS.sub("", text).split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 3]}..."


class CorruptShardError(DataError):
    """A shard, its offsets, its receipt or the index do not agree."""


class DeviceError(IngestError, RuntimeError):
    """An engine or a device is missing, or its version does not fit."""


class BuildError(IngestError, RuntimeError):
    """A build stopped before its dataset was complete; what was built is kept."""
