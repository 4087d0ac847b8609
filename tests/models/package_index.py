"""A package index on a real socket that serves one wheel, with ranges, and can break the connection."""

from __future__ import annotations

import hashlib
import io
import re
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WHEEL = "tiny_model-1.0-py3-none-any.whl"


def wheel(files: dict[str, bytes]) -> bytes:
    """A wheel by the packaging specification; its RECORD is empty, which only installing would mind."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: does-not-exist-anywhere\n",
        )
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return buffer.getvalue()


class PackageIndex:
    """Serves `/simple/tiny-model/` and the wheel; counts what is asked for."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.promised_sha256 = hashlib.sha256(content).hexdigest()
        self.metadata = zipfile.ZipFile(io.BytesIO(content)).read("tiny_model-1.0.dist-info/METADATA")
        self.ranges: list[str | None] = []
        """The Range header of each request for the wheel."""
        self.break_after: list[int] = []
        """For the next wheel requests: bytes after which the connection breaks."""
        self.refuse_direct = False
        """Answer 403 to everybody but pip, as an index with credentials does."""
        index = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                if self.path.endswith(".metadata"):
                    self.answer(200, index.metadata, {})
                elif self.path.endswith(WHEEL):
                    index.serve_wheel(self)
                elif self.path == "/simple/tiny-model/":
                    page = (
                        f'<!DOCTYPE html><a href="/files/{WHEEL}#sha256={index.promised_sha256}" '
                        f'data-core-metadata="sha256={hashlib.sha256(index.metadata).hexdigest()}">{WHEEL}</a>'
                    )
                    self.answer(200, page.encode(), {"content-type": "text/html"})
                else:
                    self.answer(404, b"", {})

            def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in ({"content-length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/simple/"

    def serve_wheel(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("range")
        is_pip = handler.headers.get("user-agent", "").startswith("pip/")
        if self.refuse_direct and not is_pip:
            handler.answer(403, b"", {})  # type: ignore[attr-defined]
            return
        self.ranges.append(asked)
        start = int(match[1]) if asked and (match := re.fullmatch(r"bytes=(\d+)-", asked)) else 0
        if start >= len(self.content):
            handler.answer(416, b"", {"content-range": f"bytes */{len(self.content)}"})  # type: ignore[attr-defined]
            return
        body = self.content[start:]
        handler.send_response(206 if start else 200)
        handler.send_header("content-length", str(len(body)))
        handler.send_header("content-type", "application/octet-stream")
        if start:
            handler.send_header("content-range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        handler.end_headers()
        if self.break_after:
            body = body[: self.break_after.pop(0)]
            handler.close_connection = True
        handler.wfile.write(body)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
