"""A model by its name on the hub: an imitation of it on this machine serves a folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tool_folders import restored

PAGE = re.compile(r"/org/model/resolve/[^/]+/(.+)")


class Hub(BaseHTTPRequestHandler):
    """Files of one model, whole or by a range of bytes, as the hub's ``resolve`` serves them."""

    folder: Path
    sent: dict[str, int]

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        page = PAGE.fullmatch(self.path)
        file = self.folder / page[1] if page else self.folder
        if not file.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()
            return
        content, bounds = file.read_bytes(), re.search(r"(\d+)-(\d+)", str(self.headers["Range"]))
        if bounds:
            content = content[int(bounds[1]) : int(bounds[2]) + 1]
        self.send_response(206 if bounds else 200)
        self.send_header("ETag", '"1"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.sent[file.name] = self.sent.get(file.name, 0) + len(content)
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A server of a model whose weights are zeros behind a real checkpoint's header."""
    Hub.folder, Hub.sent = restored("base_mha", tmp_path), {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def lint_of(name: str, server: ThreadingHTTPServer, home: Path) -> subprocess.CompletedProcess[str]:
    endpoint = f"http://127.0.0.1:{server.server_port}"
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
    command = [sys.executable, "-m", "gacprof", "lint", name, "--json"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_name_on_the_hub_needs_a_config_and_headers_and_no_weights(
    hub: ThreadingHTTPServer, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    done = lint_of("org/model", hub, tmp_path)
    report = json.loads(done.stdout)
    assert report["model"] == "org/model" and report["model_type"] == "llama"
    assert report["outcome"] == "ok" and report["tensors"] > 0
    assert "config.json" in Hub.sent
    weights = Hub.folder / "model.safetensors"
    assert Hub.sent[weights.name] < weights.stat().st_size / 10


def test_a_name_that_the_hub_does_not_have_is_one_line(
    hub: ThreadingHTTPServer, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    done = lint_of("org/none", hub, tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
