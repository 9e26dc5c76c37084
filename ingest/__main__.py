"""The `ingest` command: one verb a room, plus what a person asks of a dataset.

Every verb prints what it did in a line and ends with status 1 and one sentence where it could not.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.build.lifeline import follow_workflow
from ingest.errors import ConfigError, IngestError
from ingest.processes import forgo_pandas
from ingest.units import count, format_bytes
from ingest.upkeep import UPKEEP
from ingest.verbs import add_verb, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.build.config import Room

logger = logging.getLogger("ingest")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit status."""
    options = _parser().parse_args(arguments)
    if arguments is None:  # this process is the command, and nobody else's
        forgo_pandas()
    _configure_logging(options.log)
    follow_workflow()
    try:
        status: int | None = options.run(options)
        sys.stdout.flush()
    except IngestError as error:
        logger.error("ingest %s: %s", options.verb, error)  # noqa: TRY400  a sentence, not a traceback
        return 1
    except ImportError as error:
        logger.error("ingest %s: %s: pip install what is missing, see `ingest doctor`", options.verb, error)  # noqa: TRY400
        return 1
    except BrokenPipeError:  # as in `ingest inspect ... | head`; nothing more can be printed, at exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        logger.error("ingest %s: stopped; what is whole is kept", options.verb)  # noqa: TRY400
        return 130
    return status or 0


def _configure_logging(log: Path | None) -> None:
    """Show our own messages on the terminal, and those of others and our details too in the log file."""
    logger.setLevel(logging.DEBUG)
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.INFO)
    terminal.addFilter(logging.Filter("ingest"))
    handlers: list[logging.Handler] = [terminal]
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(log, mode="w")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        handlers.append(file)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=handlers)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ingest", description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for add in (
        _add_demo,
        _add_scan,
        _add_plan,
        _add_shrink,
        _add_seal,
        *UPKEEP,
        _add_doctor,
    ):
        verb = add(verbs)
        verb.add_argument("--log", type=Path, default=None, help="write a log to this file too")
    return parser


def _add_demo(verbs: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    verb = add_verb(verbs, _run_demo)
    verb.add_argument("--done", type=Path, required=True, help="file to write at the end, beside the photos")
    verb.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    return verb


def _run_demo(options: argparse.Namespace) -> None:
    """Write a small sample of camera-like photos."""
    from ingest.build.demo import write_demo_photos  # noqa: PLC0415

    folder = options.done.parent
    number = write_demo_photos(folder, workers=options.cores, on_done=show("sample photo"))
    logger.info("demo: %s in %s", count(number, "sample photo"), folder)
    _mark(options.done, {"photos": number})


def _add_scan(verbs: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    verb = add_verb(verbs, _run_scan)
    verb.add_argument("--settings", required=True, help="a YAML file, or the settings of this room as JSON")
    verb.add_argument(
        "--manifest", type=Path, help="Parquet file to write (with a YAML file: in its work folder)"
    )
    return verb


def _run_scan(options: argparse.Namespace) -> None:
    """List the raw files into a manifest."""
    from ingest.build.scan import describe_skipped, list_settings, scan  # noqa: PLC0415

    values = _settings(options.settings, "scan")
    manifest = options.manifest or _work_file(options.settings, "manifest.parquet")
    raw = values["raw"]
    found = scan(raw, manifest, list_settings(values), identify=values.get("identify", False))
    places = raw if isinstance(raw, str) else ", ".join(raw.values())
    what = f"{count(found.candidates, 'candidate')} ({format_bytes(found.bytes)}) in {places}"
    logger.info("scan: %s; %s; %s", what, describe_skipped(found.skipped), _news(changed=found.changed))


def _add_plan(verbs: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    verb = add_verb(verbs, _run_plan)
    verb.add_argument("--settings", required=True, help="a YAML file, or the settings of this room as JSON")
    verb.add_argument("--manifest", type=Path, help="what scan left (with a YAML file: in its work folder)")
    verb.add_argument("--plan", type=Path, help="Parquet file to write (with a YAML file: likewise)")
    verb.add_argument("--diff", action="store_true", help="say what would change, and write nothing")
    verb.add_argument("--reshuffle", action="store_true", help="deal all files anew; samples are copied")
    verb.add_argument("--allow-delete", action="store_true", help="though many files have vanished")
    return verb


def _run_plan(options: argparse.Namespace) -> None:
    """Deal the files of a manifest to shards."""
    if options.settings.lstrip().startswith("{"):
        if options.manifest is None or options.plan is None:
            raise ConfigError("--settings is JSON, which names no files: give --manifest and --plan too")
        _plan(options, _settings(options.settings, "plan"), options.manifest, options.plan)
        return
    from ingest.build.config import load_settings  # noqa: PLC0415

    outputs = load_settings(Path(options.settings)).outputs
    manifest = options.manifest or outputs[0].work_folder / "manifest.parquet"
    for output in outputs:
        plan = options.plan or output.work_folder / "plan.parquet"
        _plan(options, json.loads(output.of_room("plan")), manifest, plan)


def _plan(options: argparse.Namespace, values: dict[str, Any], manifest: Path, plan: Path) -> None:
    from ingest.build.history import update_plan  # noqa: PLC0415
    from ingest.build.plan import PlanSettings  # noqa: PLC0415
    from ingest.recipe import Recipe  # noqa: PLC0415

    allow_delete = values.pop("allow_delete", False)
    done = update_plan(
        manifest,
        plan,
        PlanSettings(**{**values, "recipe": Recipe.from_dict(values["recipe"])}),
        allow_delete=options.allow_delete or allow_delete,
        reshuffle=options.reshuffle,
        dry=options.diff,
    )
    for line in done.changes.sentences() if done.changes else []:
        logger.info("plan: %s", line)
    what = f"{count(done.head.num_files, 'file')} in {count(len(done.head.shards), 'shard')}"
    logger.info("plan: %s for %s; %s", what, done.head.dataset, _news(changed=done.changed))


def _add_shrink(verbs: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    verb = add_verb(verbs, _run_shrink)
    verb.add_argument("--settings", default="{}", help="a YAML file, or the settings of this room as JSON")
    verb.add_argument("--plan", type=Path, nargs="+", required=True, help="what plan left, for each dataset")
    verb.add_argument(
        "--cores", type=int, default=os.cpu_count() or 1, help="worker processes on this machine"
    )
    verb.add_argument(
        "--done", type=Path, nargs="*", default=[], help="files to write when all shards are there"
    )
    return verb


def _run_shrink(options: argparse.Namespace) -> None:
    """Build every shard of a plan that is not there yet."""
    from ingest.build.drive import ShrinkSettings, shrink  # noqa: PLC0415
    from ingest.build.image import check_single_pil  # noqa: PLC0415
    from ingest.build.limits import Limits  # noqa: PLC0415

    check_single_pil()
    values = _settings(options.settings, "shrink")
    limits = Limits(**{name: values.pop(name) for name in ("time_limit", "memory_limit") if name in values})
    done = shrink(options.plan, ShrinkSettings(**values, cores=options.cores, limits=limits))
    made = f": {done.tally.sentence()}" if done.built else ""
    logger.info("shrink: %s of %s to build%s", f"{done.built:,}", count(done.planned, "shard"), made)
    for marker in options.done:
        _mark(marker, {"shards": done.planned})


def _add_seal(verbs: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    verb = add_verb(verbs, _run_seal)
    verb.add_argument("--settings", default="{}", help="a YAML file, or the settings of this room as JSON")
    verb.add_argument("--plan", type=Path, required=True, help="what plan left")
    verb.add_argument("--done", type=Path, default=None, help="write this file when the dataset is sealed")
    return verb


def _run_seal(options: argparse.Namespace) -> None:
    """Write offsets, rejects and, last, the index of a dataset."""
    from ingest.build.drive import clean_up, hold_dataset, missing_shards  # noqa: PLC0415
    from ingest.build.planned import read_plan_head  # noqa: PLC0415
    from ingest.build.seal import seal  # noqa: PLC0415
    from ingest.build.tally import DEFAULT_MAX_REJECTS, describe_rejects  # noqa: PLC0415

    max_rejects = _settings(options.settings, "seal").get("max_rejects", DEFAULT_MAX_REJECTS)
    head = read_plan_head(options.plan)
    with hold_dataset(head.dataset, options.plan.parent):
        clean_up(head)
        done = seal(head, missing_shards(head, as_sealed=False), max_rejects)
    rejects, twice = describe_rejects(done.rejects), done.duplicates.sentence()
    what = f"{count(done.samples, 'sample')} in {count(done.shards, 'shard')}, {rejects}, {twice}"
    logger.info("seal: %s in %s; %s", what, head.dataset, _news(changed=done.changed))
    if options.done is not None:
        _mark(
            options.done,
            {"samples": done.samples, "rejects": sum(done.rejects.values()), "dataset": head.dataset},
        )


def _add_doctor(verbs: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    return add_verb(verbs, _run_doctor)


def _run_doctor(_: argparse.Namespace) -> None:
    """Print what of ingest can run on this machine."""
    from ingest.doctor import examine  # noqa: PLC0415

    for name, works, sentence in examine():
        print(f"{name:9} {'yes' if works else 'no '} {sentence}")


def _settings(text: str, room: Room) -> dict[str, Any]:
    """Return the settings of one room, from its own JSON or from a whole configuration file."""
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise ConfigError(f"--settings is no JSON ({error}): {text[:80]}") from error
    from ingest.build.config import load_settings  # noqa: PLC0415

    return dict(json.loads(load_settings(Path(text)).of_room(room)))


def _work_file(settings: str, name: str) -> Path:
    """Return a file of the work folder that a YAML file of settings names.

    Raises:
        ConfigError: the settings are JSON, which names none.
    """
    if settings.lstrip().startswith("{"):
        raise ConfigError(f"--settings is JSON, which names no {name}: give it as an option, or a YAML file")
    from ingest.build.config import load_settings  # noqa: PLC0415

    return load_settings(Path(settings)).outputs[0].work_folder / name


def _news(*, changed: bool) -> str:
    return "changed" if changed else "nothing changed"


def _mark(path: Path, values: dict[str, Any]) -> None:
    from ingest.store import write_bytes  # noqa: PLC0415

    write_bytes(str(path), (json.dumps(values, sort_keys=True) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
