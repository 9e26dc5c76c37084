"""What goes wrong between here and a store: what may pass is tried again, the rest is said in one sentence.

No sentence of this module shows a secret: passwords and signatures in URLs are blotted out.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import re
import socket
import ssl
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from ingest.errors import StoreError
from ingest.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Result = TypeVar("Result")

logger = logging.getLogger(__name__)

PATIENCE_VARIABLE = "INGEST_PATIENCE"
"""Name of the environment variable that says for how many seconds a fault of a store is borne."""

DEFAULT_PATIENCE_S = 120.0
"""Long enough for a server that restarts; a build that was stopped goes on where it was anyway."""

_LONGEST_PAUSE_S = 15.0
_FIRST_PAUSE_S = 0.2
_QUIET_S = 2.0  # nobody misses two seconds
_LINE_EVERY_S = 5.0  # one line for all threads of a process

# ---- secrets

# A container of Azure stands before an @ too: abfs://container@account.
_USER = re.compile(r"(?<=://)[^/\s@'\":]*:[^/\s'\"]*@|(?<=\bhttp://)[^/\s@'\"]+@|(?<=\bhttps://)[^/\s@'\"]+@")
_SECRET_PARAMETER = re.compile(
    r"(?i)([?&][\w.-]*(?:sig|token|credential|passw|secret|key|sas|auth)[\w.-]*=)[^&\s'\"<>]+"
)


def redact(text: str) -> str:
    """Return `text` with the secrets of every URL in it blotted out.

    Those are the user and password before the host, and the values of parameters that sign or open: the
    ``X-Amz-Signature`` of a presigned URL, the ``sig`` of a shared access signature, tokens and keys.
    """
    return _SECRET_PARAMETER.sub(r"\1***", _USER.sub("***@", text)) if "://" in text else text


class RedactingFormatter(logging.Formatter):
    """Blots secrets out of every line of a log, whatever put them there."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`, with its traceback if it has one, without secrets."""
        return redact(super().format(record))


# ---- which faults may pass

_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 509})
_PASSING_ERRNO = frozenset(
    {
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT),
        *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET),
    }
)
_CREDENTIAL_CODES = frozenset(
    {
        *(
            "ExpiredToken",
            "InvalidAccessKeyId",
            "InvalidToken",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
        ),
        *("RequestTimeTooSkewed", "AccountProblem", "NotSignedUp", "InvalidSecurity"),
    }
)
_CREDENTIAL_ERRORS = (
    ("botocore.exceptions", "NoCredentialsError"),
    ("botocore.exceptions", "PartialCredentialsError"),
    ("botocore.exceptions", "CredentialRetrievalError"),
    ("botocore.exceptions", "TokenRetrievalError"),
    ("botocore.exceptions", "ProfileNotFound"),
    ("google.auth.exceptions", "DefaultCredentialsError"),
    ("google.auth.exceptions", "RefreshError"),
    ("azure.core.exceptions", "ClientAuthenticationError"),
)
_CONNECTION_ERRORS = (
    ("aiohttp", "ClientConnectionError"),
    ("aiohttp", "ClientPayloadError"),
    ("azure.core.exceptions", "IncompleteReadError"),
    ("azure.core.exceptions", "ServiceRequestError"),
    ("azure.core.exceptions", "ServiceResponseError"),
    ("botocore.exceptions", "ConnectionError"),
    ("botocore.exceptions", "FlexibleChecksumError"),
    ("botocore.exceptions", "HTTPClientError"),
    ("botocore.exceptions", "IncompleteReadError"),
    ("botocore.exceptions", "ResponseStreamingError"),
    ("botocore.parsers", "ResponseParserError"),
    ("gcsfs.retry", "ChecksumError"),
    ("google.auth.exceptions", "TransportError"),
)
_LIBRARY_ERRORS = (
    ("aiohttp", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
)
_DEFINITE = (
    (FileNotFoundError, errno.ENOENT, (404, 410)),
    (NotADirectoryError, errno.ENOTDIR, ()),
    (IsADirectoryError, errno.EISDIR, ()),
    (PermissionError, errno.EACCES, (403,)),
)
"""What to raise for it, with which number; and the HTTP statuses that mean the same."""


class CutShortError(StoreError):
    """Fewer bytes came, or arrived, than there are; worth another try."""


def _loaded(names: tuple[tuple[str, str], ...]) -> tuple[type[BaseException], ...]:
    """Return those classes whose modules are loaded: one that is not has raised nothing."""
    return tuple(getattr(sys.modules[module], name) for module, name in names if module in sys.modules)


def store_errors() -> tuple[type[BaseException], ...]:
    """Return every kind of error that a file system of fsspec raises when its store or network fails."""
    return (OSError, NotImplementedError, *_loaded(_LIBRARY_ERRORS), *_loaded(_CONNECTION_ERRORS))


def passes(error: BaseException) -> bool:
    """Return whether trying again may help: the network failed, or the store is busy."""
    if isinstance(error, StoreError) and not isinstance(error, CutShortError):
        return False  # all has been tried
    causes = list(_causes(error))
    if _is_out_of_memory(error) or any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return False
    # A body that was cut short has a status of its own for aiohttp, 400.
    return any(_is_of_the_network(cause) for cause in causes) or _first_status(error) in _PASSING_STATUS


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _first_status(error: BaseException) -> int | None:
    return next((found for cause in _causes(error) if (found := _status(cause))), None)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error tells of; every library has a place of its own for it."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        names = ("status", "status_code", "code")
        found = next((value for name in names if (value := getattr(error, name, None))), None)
    return found if isinstance(found, int) else None


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether memory ran out, though a library may call that a fault of the network."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def _is_of_the_network(error: BaseException) -> bool:
    kinds = (CutShortError, ConnectionError, TimeoutError, socket.gaierror)
    is_of_them = isinstance(error, (*kinds, *_loaded(_CONNECTION_ERRORS)))
    return is_of_them or (isinstance(error, OSError) and error.errno in _PASSING_ERRNO)


def _is_of_credentials(error: BaseException) -> bool:
    for cause in _causes(error):
        response: Any = getattr(cause, "response", None)
        code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
        if isinstance(cause, _loaded(_CREDENTIAL_ERRORS)) or code in _CREDENTIAL_CODES:
            return True
    return False


# ---- trying again


def patience() -> float:
    """Return for how many seconds a fault that may pass is borne before it is an error."""
    try:
        return max(0.0, float(os.environ[PATIENCE_VARIABLE]))
    except (KeyError, ValueError):
        return DEFAULT_PATIENCE_S


def patiently(url: str, action: str, attempt: Callable[[], Result]) -> Result:
    """Return what `attempt` returns; call it again, after growing pauses, while its faults may pass.

    Args:
        url: the place that it is about, for the sentence.
        action: what it does there, such as ``read``.
        attempt: can be called any number of times.

    Raises:
        FileNotFoundError: nothing is there.
        NotADirectoryError: a parent of it is a file.
        IsADirectoryError: a folder is there.
        PermissionError: the store forbids it.
        StoreError: it failed for another reason, or the fault did not pass.
        MemoryError: memory ran out on the way.
    """
    retrying = _retrying(patience())
    begin = time.monotonic()
    try:
        return retrying(_call, attempt, url, action)  # type: ignore[no-any-return]
    except store_errors() as error:
        if _is_out_of_memory(error):
            raise MemoryError from error
        tried = f"tried {retrying.statistics['attempt_number']} times in "
        raise explain(url, action, error, tried + format_duration(time.monotonic() - begin)) from error


@functools.cache
def _retrying(seconds: float) -> Any:  # noqa: ANN401  tenacity is imported late
    """Return what tries again, one for all calls and threads.

    One for each call would leave a `threading.local` for each to the garbage collector, and that deadlocks
    with `sys._current_frames`, which profilers such as Dask's call all the time (python/cpython#106883).
    """
    # A tenth of a second that a build on local disks need not pay.
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential  # noqa: PLC0415

    return Retrying(
        retry=retry_if_exception(passes),
        wait=wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=min(_LONGEST_PAUSE_S, seconds / 4)),
        stop=stop_after_delay(seconds),
        before_sleep=_say,
        reraise=True,
    )


def _call(attempt: Callable[[], Result], _url: str, _action: str) -> Result:
    return attempt()


_SAYING = threading.Lock()
_said = {"at": 0.0}


def _say(state: Any) -> None:  # noqa: ANN401  tenacity is imported late
    _, url, action = state.args
    now, waited = time.monotonic(), state.seconds_since_start
    with _SAYING:
        if waited < _QUIET_S or now - _said["at"] < _LINE_EVERY_S:
            return
        _said["at"] = now
    tried = f"tried {state.attempt_number} times in {format_duration(waited)}"
    reason = describe(state.outcome.exception())
    logger.warning("%s: cannot %s yet (%s): %s, trying on", redact(url), action, reason, tried)


# ---- sentences


def describe(error: BaseException) -> str:
    """Return what an error says, in one line and without secrets."""
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    status = _first_status(error)
    prefix = f"HTTP {status}: " if status and str(status) not in str(words) else ""
    return redact(" ".join(f"{prefix}{words}".split()).rstrip(" :."))


def explain(url: str, action: str, error: BaseException, tried: str) -> OSError:
    """Return the error to raise for one that a file system of fsspec raised.

    Args:
        url: the place.
        action: what was done there.
        error: as it was caught.
        tried: how often and how long, for a fault that may pass.
    """
    place = redact(url)
    if isinstance(error, StoreError) and not isinstance(error, CutShortError):
        return error
    if passes(error):
        remedy = "see whether the store and the network are up, and run again"
        return StoreError(f"{place}: cannot {action}: {describe(error)} ({tried}): {remedy}")
    if _is_of_credentials(error):
        remedy = "see to the credentials for it in the environment or in their file, and run again"
        return StoreError(f"{place}: cannot {action}: {describe(error)}: {remedy}")
    for kind, number, statuses in _DEFINITE:
        if isinstance(error, kind) or _first_status(error) in statuses:
            return kind(number, os.strerror(number), place)
    return StoreError(f"{place}: cannot {action}: {describe(error)}")
