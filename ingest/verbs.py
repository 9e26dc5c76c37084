"""What the verbs of the `ingest` command share."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ingest.units import count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

logger = logging.getLogger(__name__)


def add_verb(verbs: Any, run: Callable[[argparse.Namespace], int | None]) -> argparse.ArgumentParser:  # noqa: ANN401
    """Add the verb that `run` is named after and described by."""
    summary = (run.__doc__ or "").split("\n")[0]
    name = run.__name__.strip("_").removeprefix("run_")
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=summary, description=summary)
    verb.set_defaults(run=run)
    return verb


def show(noun: str) -> Callable[[int, int], None]:
    """Return what says how many of how many are done."""

    def say(done: int, total: int) -> None:
        logger.info("%d of %s", done, count(total, noun))

    return say
