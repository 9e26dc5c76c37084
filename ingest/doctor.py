"""doctor: what of ingest can run on this machine, and the command that mends what cannot."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ingest.errors import IngestError

if TYPE_CHECKING:
    from collections.abc import Callable


Finding = tuple[str, bool, str]
"""Name of a part, whether it can run, and a sentence."""


def examine() -> list[Finding]:
    """Return a finding for each part of ingest; formats have one more for each package that they lack."""
    checks = {"workflow": _workflow, "load": _load, "gpu": _gpu}
    return [("build", *_run(_build)), *_formats(), *((name, *_run(check)) for name, check in checks.items())]


def _run(check: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, check()
    except ImportError as error:
        return False, f"{error}"
    except IngestError as error:
        return False, str(error)


def _build() -> str:
    image = _import("ingest.build.image", "ingest[build]")
    image.check_single_pil()
    return ", ".join(f"{name} {version}" for name, version in image.engine_versions().items())


def _formats() -> list[Finding]:
    """Say which picture formats can be read, and what brings the others.

    Without `--no-deps` pip might lay Pillow over a pillow-simd; what those packages need is there.
    """
    try:
        formats = _import("ingest.build.image", "ingest[build]").readable_formats()
    except ImportError as error:
        return [("formats", False, str(error))]
    by_missing: dict[str | None, list[str]] = {None: []}
    for name, missing in formats.items():
        by_missing.setdefault(missing, []).append(name)
    readable = ", ".join(by_missing.pop(None)) or "none"
    lacking = ((", ".join(names), missing) for missing, names in by_missing.items())
    mends = [("formats", False, f"{names}: pip install --no-deps {missing}") for names, missing in lacking]
    return [("formats", True, readable), *mends]


def _workflow() -> str:
    return f"snakemake {_import('snakemake', 'ingest[build]').__version__}, " + ", ".join(
        f"{name} {_import(name, 'ingest[build]').__version__}" for name in ("dask", "distributed")
    )


def _load() -> str:
    torch = _import("torch", "ingest[load,cuda13]")
    dali = _import("nvidia.dali", "ingest[load,cuda13]")
    return f"torch {torch.__version__}, DALI {dali.__version__}"


def _gpu() -> str:
    torch = _import("torch", "ingest[load,cuda13]")
    if not torch.cuda.is_available():
        raise IngestError('no CUDA device: batches are made on the CPU (device="cpu")')
    return f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}"


def _import(module: str, extra: str) -> Any:  # noqa: ANN401  any module
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{module} cannot be imported ({error}): pip install "{extra}"') from error
