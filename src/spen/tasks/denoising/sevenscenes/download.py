"""Resumable downloads of 7-Scenes, verified by length and sha256.

The publisher gives no checksums. So the first complete download of a file is *recorded* in a lock file beside it
(`spen.lock.json`: bytes and sha256), and every later one is *verified* against the record. The first download is
checked by the length that the server announced and by the checksums within the zip files.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pooch
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from spen.storage import write_whole
from spen.tasks.locations import cache_folder

SEVENSCENES = "http://download.microsoft.com/download/2/8/5/28564B23-0828-408F-8631-23B1EFF1DAC8/"
SCENES = ("chess", "fire", "heads", "office", "pumpkin", "redkitchen", "stairs")
LOCK = "spen.lock.json"
_CHUNK = 1 << 18

Report = Callable[[int, int | None], None]
"""(bytes so far, bytes in all or None)."""


class DownloadError(RuntimeError):
    """A download that could not be finished or verified; the message is one sentence that says what to do."""


def downloads() -> Path:
    """The folder of downloaded scenes."""
    return cache_folder() / "raw" / "7scenes"


def fetch_scene(folder: Path | None, *, scene: str = "redkitchen") -> list[Path]:
    """`spen data fetch 7scenes`."""
    return [fetch_sevenscenes(scene, folder or downloads(), show_progress=sys.stderr.isatty())]


def fetch_sevenscenes(scene: str, folder: str | Path, *, base: str = SEVENSCENES, show_progress: bool = True) -> Path:
    """Download a scene into `folder` and unpack it: returns `folder/scene`, which `sevenscenes.prepare` reads.

    Interrupted downloads resume. The licence of the data is its publisher's (research use).
    """
    if scene not in SCENES:
        raise ValueError(f"scene is {scene!r} but 7-Scenes has {', '.join(SCENES)}")
    folder = Path(folder)
    target = folder / scene
    done = target / ".complete"
    if done.is_file():
        return target
    archive = fetch(f"{base.rstrip('/')}/{scene}.zip", folder / f"{scene}.zip", show_progress=show_progress)
    unpack(archive, folder)
    # The archive holds one zip a sequence.
    for inner in sorted(target.glob("*.zip")):
        unpack(inner, target)
        inner.unlink()
    if not target.is_dir():
        raise DownloadError(f"{archive} does not hold a folder {scene}; delete it and fetch again")
    done.touch()
    archive.unlink()
    return target


def fetch(url: str, path: str | Path, *, show_progress: bool = True) -> Path:
    """`path` with the bytes of `url`, verified against the lock file beside it, or recorded there the first time."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        part = path.with_name(path.name + ".part")
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(TextColumn("{task.description}"), *columns, disable=not show_progress) as bar:
            task = bar.add_task(path.name, total=None)
            _receive(url, part, lambda have, total: bar.update(task, completed=have, total=total))
        _verify(url, part, path)
        part.replace(path)
        _notes(part).unlink(missing_ok=True)
    else:
        _verify(url, path, path)
    return path


def unpack(archive: Path, folder: Path) -> None:
    """Extract a zip whose checksums hold and whose names stay within `folder`."""
    try:
        with zipfile.ZipFile(archive) as zipped:
            root = folder.resolve()
            for name in zipped.namelist():
                if not (root / name).resolve().is_relative_to(root):
                    raise DownloadError(f"{archive}: the entry {name} would be written outside of {folder}")
            zipped.extractall(folder)
    except (zipfile.BadZipFile, EOFError):
        raise DownloadError(f"{archive}: is not a whole zip file; delete it and fetch again") from None


def _receive(url: str, part: Path, report: Report) -> None:
    """Append to `part` until it has the announced length."""
    have = part.stat().st_size if part.is_file() else 0
    version = _read_json(_notes(part)).get("version")
    headers = {"User-Agent": "spen"}
    if have and version:
        # If-Range: the rest is sent only if the file is still the one that the first half came from.
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            if answer.status != 206:
                have = 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length is not None else None
            new = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
            _notes(part).write_text(json.dumps({"version": new}))
            with part.open("ab" if have else "wb") as file:
                report(have, total)
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    report(have, total)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left to send, or the file has become shorter
            part.unlink()
            return _receive(url, part, report)
        raise DownloadError(f"{url} answered {error.code} ({error.reason}); check the address") from None
    except OSError as error:  # covers URLError, timeouts and connections cut off
        raise DownloadError(f"{url} could not be read ({error}); run the same command again to go on") from None
    if total is not None and have < total:
        raise DownloadError(f"{url} stopped after {have} of {total} bytes; run the same command again to go on")


def _verify(url: str, file: Path, path: Path) -> None:
    """Compare with the lock file's entry for `path`, or write one."""
    lock = path.with_name(LOCK)
    entries = _read_json(lock)
    size, digest = file.stat().st_size, pooch.file_hash(file)
    known = entries.get(path.name)
    if known is None:
        entries[path.name] = {"url": url, "bytes": size, "sha256": digest}
        write_whole(lock, json.dumps(entries, indent=2, sort_keys=True) + "\n")
    elif (known["bytes"], known["sha256"]) != (size, digest):
        if file != path:  # keep nothing that a later run would take for a good beginning
            file.unlink()
            _notes(file).unlink(missing_ok=True)
        raise DownloadError(
            f"{path}: has {size} bytes and sha256 {digest[:12]}…, but {lock.name} records {known['bytes']} bytes and "
            f"{known['sha256'][:12]}…; delete the file to fetch it again, or its entry to accept a new version"
        )


def _notes(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError):
        content = None
    if not isinstance(content, dict):
        raise DownloadError(f"{path}: is not the JSON that was written there; delete it and fetch again")
    return content
