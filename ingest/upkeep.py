"""The verbs for a dataset that is there: looking at it, checking it, clearing it, taking samples out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.errors import ConfigError
from ingest.store import normalise
from ingest.units import count, format_bytes
from ingest.verbs import add_verb, show

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable


def _add_inspect(verbs: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    verb = add_verb(verbs, _run_inspect)
    verb.add_argument("dataset", help="folder or URL of a sealed dataset")
    what = verb.add_mutually_exclusive_group()
    what.add_argument("--rejects", action="store_true", help="list the files that became no sample, and why")
    what.add_argument(
        "--touched",
        nargs="?",
        const="",
        metavar="KIND",
        help="list the samples that something was done to; without KIND: how many there are of each kind",
    )
    what.add_argument("--duplicates", action="store_true", help="list the samples with the same raw bytes")
    what.add_argument("--source", help="print all that is known of one raw file, by its key or source")
    return verb


def _run_inspect(options: argparse.Namespace) -> None:
    """Print what is in a dataset."""
    from ingest.build.duplicates import list_duplicates  # noqa: PLC0415
    from ingest.inspect import (  # noqa: PLC0415
        count_touched,
        describe,
        describe_source,
        list_rejects,
        list_touched,
    )

    lines: Iterable[str]
    if options.touched:
        lines = list_touched(options.dataset, options.touched)
    elif options.duplicates:
        lines = list_duplicates(options.dataset)
    elif options.source is not None:
        lines = [describe_source(options.dataset, options.source)]
    elif options.touched is not None:
        lines = [count_touched(options.dataset)]
    else:
        lines = [list_rejects(options.dataset) if options.rejects else describe(options.dataset)]
    for line in lines:
        print(line)


def _add_verify(verbs: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    verb = add_verb(verbs, _run_verify)
    verb.add_argument("dataset", help="folder or URL of a sealed dataset")
    verb.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    verb.add_argument("--no-mark", action="store_true", help="leave no marker at shards that are damaged")
    verb.add_argument(
        "--against-raw",
        nargs="?",
        const="listing",
        choices=["listing", "content"],
        help="compare the raw files with the receipts instead, by listing them or by reading them too",
    )
    return verb


def _run_verify(options: argparse.Namespace) -> int:
    """Re-read every byte of a dataset."""
    from ingest.verify import verify  # noqa: PLC0415

    if options.against_raw:
        return _compare_raw(options.dataset, content=options.against_raw == "content")
    found = verify(options.dataset, cores=options.cores, on_done=show("shard"), mark=not options.no_mark)
    for fault in found.faults:
        print(fault)
    if found.unmarked:
        print(f"verify: damaged shards could not be marked for the next build: {found.unmarked}")
    verdict = count(len(found.faults), "fault") if found.faults else "no fault"
    marked = f"; {count(len(found.marked), 'shard')} marked: run snakemake again" if found.marked else ""
    print(f"verify: {count(found.samples, 'sample')}, {format_bytes(found.bytes)} read: {verdict}{marked}")
    return 1 if found.faults else 0


def _compare_raw(dataset: str, *, content: bool) -> int:
    from ingest.against import compare_raw  # noqa: PLC0415

    found = compare_raw(dataset, content=content)
    for line in found.lines():
        print(line)
    return 1 if found.counts else 0


def _add_gc(verbs: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    verb = add_verb(verbs, _run_gc)
    verb.add_argument("dataset", help="folder or URL of a sealed dataset")
    help_text = "how long an index is kept after the next one: 7d, 12h, 0 (default 7d)"
    verb.add_argument("--grace", default="7d", help=help_text)
    verb.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")
    _add_work(verb)
    return verb


def _run_gc(options: argparse.Namespace) -> None:
    """Remove the files of a dataset that no kept index names."""
    from ingest.build.collect import collect, parse_grace  # noqa: PLC0415

    grace, dataset = parse_grace(options.grace), normalise(options.dataset)
    found = collect(dataset, _work_folder(dataset, options.work), grace=grace, dry=options.dry_run)
    for line in found.lines():
        print(line)
    print(f"gc: {'would remove' if options.dry_run else 'removed'} {found.sentence()}")


def _add_forget(verbs: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    verb = add_verb(verbs, _run_forget)
    verb.add_argument("dataset", help="folder or URL of a dataset")
    verb.add_argument("names", nargs="+", metavar="URL_OR_KEY", help="source, path or key of a raw file")
    verb.add_argument("--duplicates", action="store_true", help="also the files with the same bytes")
    return verb


def _run_forget(options: argparse.Namespace) -> None:
    """Put raw files on the list of those that must not be in a dataset."""
    from ingest.forget import forget  # noqa: PLC0415

    done = forget(normalise(options.dataset), options.names, duplicates=options.duplicates)
    for line in done.lines():
        print(line)


def _add_status(verbs: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    verb = add_verb(verbs, _run_status)
    verb.add_argument("dataset", nargs="?", help="folder or URL of a dataset")
    verb.add_argument("--settings", type=Path, help="a YAML file that names the dataset, or several, instead")
    _add_work(verb)
    return verb


def _run_status(options: argparse.Namespace) -> None:
    """Print how far the build of a dataset is."""
    from ingest.status import describe_status  # noqa: PLC0415

    for dataset, work in _datasets_and_work(options):
        for line in describe_status(dataset, work):
            print(line)


def _datasets_and_work(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """Return each dataset that is asked for, and the folder of its build.

    Raises:
        ConfigError: none is named, or two are.
    """
    if (options.dataset is None) == (options.settings is None):
        raise ConfigError("expected a dataset, or --settings with a YAML file that names one")
    if options.settings is None:
        dataset = normalise(options.dataset)
        return [(dataset, _work_folder(dataset, options.work))]
    from ingest.build.config import load_settings  # noqa: PLC0415

    outputs = load_settings(options.settings).outputs
    return [(output.dataset_url, output.work_folder) for output in outputs]


def _add_work(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--work", default=".ingest", help="the config key 'work' of its build")


def _work_folder(dataset: str, work: str) -> Path:
    """Return the local folder of the build of a dataset."""
    from ingest.build.config import check_settings  # noqa: PLC0415

    return check_settings({"dataset": dataset, "work": work}).work_folder


UPKEEP = (_add_inspect, _add_verify, _add_gc, _add_forget, _add_status)
"""Each adds one verb to the command, and returns its parser."""
