"""A model on a hub is scanned by range requests; a local server stands for the hub."""

import http.server
import json
import re
import threading

import pytest
import torch
from checkpoint_making import write_safetensors
from test_layouts import gated

from gacprof.checkpoint import open_tensors, scan
from gacprof.checkpoint.folder import HubFolder
from gacprof.checkpoint.scanning import inventory_of
from gacprof.core.errors import CheckpointError

pytest.importorskip("huggingface_hub")


class Hub(http.server.ThreadingHTTPServer):
    """Answers what huggingface_hub asks for one repository, and counts the bytes it gives."""

    def __init__(self, folder, *, ranges=True):
        super().__init__(("127.0.0.1", 0), Answers)
        self.folder, self.ranges, self.served = folder, ranges, 0
        self.endpoint = f"http://127.0.0.1:{self.server_port}"


class Answers(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self):
        listing = re.fullmatch(r"/api/models/org/name(/revision/[^/?]+)?(\?.*)?", self.path)
        file = re.fullmatch(r"/org/name/resolve/c0ffee/(.+)", self.path)
        if listing:
            files = [
                {"rfilename": p.name, "size": p.stat().st_size}
                for p in self.server.folder.iterdir()
            ]
            body = json.dumps({"id": "org/name", "sha": "c0ffee", "siblings": files}).encode()
            self._answer(200, body)
        elif file:
            self._file(self.server.folder / file.group(1))
        else:
            self._answer(404, b"{}")

    def _file(self, path):
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        with path.open("rb") as opened:
            if wanted and self.server.ranges:
                first, last = int(wanted.group(1)), int(wanted.group(2))
                opened.seek(first)
                self._answer(206, opened.read(last - first + 1))
            else:
                self._answer(200, opened.read())

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.served += len(body)

    def log_message(self, *_):
        """Quiet."""


def serve(folder, **how):
    hub = Hub(folder, **how)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    yield hub
    hub.shutdown()
    hub.server_close()
    thread.join()


@pytest.fixture
def hub(tmp_path):
    yield from serve(tmp_path)


def shards(folder):
    """Three shards of 16 MB each."""
    weight_map = {}
    for i in range(3):
        shapes = gated(f"model.layers.{i}.mlp", 2731, 1024)
        write_safetensors(folder / f"model-{i}.safetensors", shapes)
        weight_map |= dict.fromkeys(shapes, f"model-{i}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text('{"intermediate_size": 2731}')


def test_headers_are_enough(hub):
    shards(hub.folder)
    folder = HubFolder("org/name", hub.endpoint)
    remote = inventory_of("org/name", folder, "model.safetensors.index.json")
    local = scan(hub.folder)
    assert (remote.modules, remote.dims, remote.config) == (local.modules, local.dims, local.config)
    assert remote.fingerprint == local.fingerprint
    whole = sum(p.stat().st_size for p in hub.folder.iterdir())
    assert hub.served < 1_000_000 < 45_000_000 < whole


def test_torch_files_are_scanned_too(hub):
    torch.save({"w": torch.ones(1000, 1000)[:, :500]}, hub.folder / "pytorch_model.bin")
    folder = HubFolder("org/name", hub.endpoint)
    remote = inventory_of("org/name", folder, "pytorch_model.bin")
    assert remote.tensors["w"].shape == (1000, 500) and remote.tensors["w"].offset is None
    assert hub.served < 1_000_000


def test_scan_takes_an_id_with_a_revision(hub, monkeypatch):
    shards(hub.folder)
    monkeypatch.setattr(
        "gacprof.checkpoint.scanning.HubFolder", lambda name: HubFolder(name, hub.endpoint)
    )
    inventory = scan("org/name@main")
    assert inventory.path == "org/name@main" and len(inventory.dims) == 3
    with pytest.raises(CheckpointError, match="not on this machine"):
        open_tensors(inventory)


def test_a_server_without_ranges_is_refused_before_the_download(tmp_path):
    shards(tmp_path)
    for hub in serve(tmp_path, ranges=False):
        folder = HubFolder("org/name", hub.endpoint)
        with pytest.raises(CheckpointError, match="range request"):
            inventory_of("org/name", folder, "model-0.safetensors")


def test_a_repository_that_is_not_there(hub):
    with pytest.raises(CheckpointError, match="org/other") as refusal:
        HubFolder("org/other", hub.endpoint)
    assert "\n" not in str(refusal.value)
