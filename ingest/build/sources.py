"""Where raw photos come from: folders, globs and tables, one or several, each with a name. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from ingest import store
from ingest.errors import ConfigError

Raw = str | Sequence[str] | Mapping[str, str]
"""A folder, glob or table; or several, as a list or by names of their own."""

TABLE_SUFFIXES = ("csv", "tsv", "parquet", "jsonl", "ndjson")
_MAGIC = re.compile(r"[*?[]")


class Root(NamedTuple):
    """A place that files lie below.

    Attributes:
        name: part of the identity of all files below it; empty for a single root.
        url: folder, or the empty text: paths below it are whole URLs.
    """

    name: str
    url: str


class Source(NamedTuple):
    """What one entry of the config key `raw` stands for.

    Attributes:
        root: the folder that its files lie below.
        kind: whether the folder is listed, listed and sifted, or named row by row by a table.
        url: as configured: the folder, the glob or the table.
    """

    root: Root
    kind: Literal["folder", "glob", "table"]
    url: str

    def matches(self, path: bytes) -> bool:
        """Return whether the file at `path` below the root is asked for."""
        return self.kind != "glob" or bool(_pattern(self.url).fullmatch(path))


def name_sources(raw: Raw) -> dict[str, str]:
    """Return the URL of each source by its name, which is empty for a single one without a name of its own.

    Raises:
        ConfigError: there is none, or two have the same name.
    """
    if isinstance(raw, str):
        return {"": store.normalise(raw)}
    pairs = list(raw.items()) if isinstance(raw, Mapping) else _default_names(raw)
    named: dict[str, str] = {}
    for name, url in pairs:
        if name in named:
            message = f"config key 'raw': {named[name]} and {url} are both called {name!r}"
            raise ConfigError(f"{message}: give each a name of its own: raw: {{{name}: ..., other: ...}}")
        named[name] = store.normalise(url)
    if not named:
        raise ConfigError("config key 'raw' is empty: name a folder, URL, glob or table in it")
    return named


def _default_names(urls: Sequence[str]) -> list[tuple[str, str]]:
    return [(short_name(url) if len(urls) > 1 else "", url) for url in urls]


def short_name(url: str) -> str:
    """Return what a source is called where nothing else is said: the last part of its fixed path."""
    source = read_source("", store.normalise(url))
    if source.kind == "table":
        return source.url.rpartition("/")[2].rpartition(".")[0]
    return source.root.url.rpartition("/")[2] or "photos"


def read_source(name: str, url: str) -> Source:
    """Return what `url` stands for: a table by its ending, a glob by ``*``, ``?`` or ``[``, else a folder.

    A local folder may have such characters in its name: it is a folder if it is there.
    """
    if url.rpartition(".")[2].lower() in TABLE_SUFFIXES and not _is_folder(url):
        return Source(Root(name, url.rpartition("/")[0]), "table", url)
    if is_glob(url) and not _is_folder(url):
        return Source(Root(name, _fixed_part(url)), "glob", url)
    return Source(Root(name, url), "folder", url)


def is_glob(url: str) -> bool:
    """Return whether a place has characters that stand for others; a web server's ``?`` does not."""
    return not url.startswith(("http://", "https://")) and bool(_MAGIC.search(url))


def _is_folder(url: str) -> bool:
    return store.is_local(url) and store.local_path(url).is_dir()


def _fixed_part(url: str) -> str:
    """Return the folder that all matches of a glob lie below."""
    parts = url.split("/")
    magic = next(number for number, part in enumerate(parts) if _MAGIC.search(part))
    return "/".join(parts[:magic]) or "/"


_TOKENS = re.compile(rb"(?:(?<=/)|^)\*\*/|\*+|\?|\[[!^]?\]?[^\]]*\]|.", re.DOTALL)


@functools.lru_cache(64)
def _pattern(glob: str) -> re.Pattern[bytes]:
    """Return a glob as an expression for paths below its fixed part."""
    below = glob[len(_fixed_part(glob).rstrip("/")) + 1 :].encode(errors="surrogateescape")
    return re.compile(b"".join(map(_translate, _TOKENS.findall(below))), re.DOTALL)


def _translate(token: bytes) -> bytes:
    if token == b"**/":
        return rb"(?:.*/)?"
    if token.startswith(b"*"):
        return rb".*" if token == b"**" else rb"[^/]*"
    if token == b"?":
        return rb"[^/]"
    if token.startswith(b"[") and len(token) > 1:
        negated = token[1:2] in (b"!", b"^")
        inside = token[2:-1] if negated else token[1:-1]
        safe = inside.replace(b"\\", rb"\\").replace(b"]", rb"\]").replace(b"[", rb"\[")
        return b"(?!/)[" + (b"^" if negated else b"") + safe.replace(b"^", rb"\^") + b"]"
    return re.escape(token)
