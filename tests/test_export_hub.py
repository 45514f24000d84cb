"""Bundles by name: a server on this machine that answers as the Hugging Face hub does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from budgetvdr.bundle import load_manifest
from budgetvdr.encoders.hub import is_hub_name
from budgetvdr.encoders.open import bundled_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"

_OPEN = """
import sys
from budgetvdr.encoders.open import open_encoder
from budgetvdr.errors import BudgetVDRError
try:
    encoder = open_encoder(sys.argv[1], threads=1)
    print(encoder.manifest.fingerprint, len(encoder.encode_query("who signs?", encoder.manifest.depths[0]).vectors))
except BudgetVDRError as error:
    print(f"{type(error).__name__}: {error}")
"""


Repositories = dict[str, dict[str, bytes]]


def answer(repositories: Repositories, path: str) -> tuple[bytes, str]:
    """What the hub sends for a path, and its tag; KeyError for what it does not have."""
    for name, files in repositories.items():
        if f"{path}/".startswith(f"/api/models/{name}/"):
            listed = [
                {"type": "file", "path": file, "rfilename": file, "size": len(data), "oid": "0" * 40}
                for file, data in files.items()
            ]
            info = {"id": name, "modelId": name, "sha": COMMIT, "siblings": listed, "tags": []}
            return json.dumps(listed if "/tree/" in path else info).encode(), "info"
        if path.startswith(f"/{name}/resolve/"):
            data = files[path.rpartition("/")[2]]
            return data, hashlib.sha1(data).hexdigest()
    raise KeyError(path)


class Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        path = self.path.partition("?")[0]
        try:
            data, tag = answer(self.server.repositories, path)
            self.send_response(200)
        except KeyError:
            data, tag = b"", ""
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("ETag", f'"{tag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.server.asked.append(path)
            self.wfile.write(data)

    do_GET = do_HEAD


class HubServer(ThreadingHTTPServer):
    """asked: paths that were fetched."""

    def __init__(self, repositories: Repositories) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = repositories
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def open(self, name: str, home: Path, *, reachable: bool = True) -> str:
        """What opening an encoder by name prints, in a process of its own."""
        port = self.server_port if reachable else 9
        settings = {
            "HF_ENDPOINT": f"http://127.0.0.1:{port}",
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-W", "ignore", "-c", _OPEN, name]
        done = subprocess.run(
            command, env={**os.environ, **settings}, cwd=home, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


@pytest.fixture
def hub() -> Iterator[HubServer]:
    bundle = {path.name: path.read_bytes() for path in bundled_folder().iterdir() if path.is_file()}
    config = json.dumps({"model_type": "colqwen2", "vlm_config": {"text_config": {"num_hidden_layers": 28}}}).encode()
    checkpoint = {"config.json": config, "model.safetensors": b"large", "adapter.bin": b"pickle"}
    # As vidore/colqwen2-v1.0 and others are published.
    base = {"peft_type": "LORA", "base_model_name_or_path": "vidore/colqwen2-base", "lora_alpha": 32}
    adapter = {"adapter_config.json": json.dumps(base).encode(), "adapter_model.safetensors": b"large"}
    trained = {"elastic.json": b'{"family": "qwen2_vl"}', "heads.safetensors": b"large"}
    others = {"other.pkl": b"pickle", "other.pt": b"pickle", "weights.bin.old": b"old"}
    made = HubServer(
        {
            "someone/reader-bundle": bundle | others,
            "someone/colqwen": checkpoint,
            "someone/colqwen2-v1.0": adapter,
            "someone/trained": trained,
            "someone/cats": {"cat.png": b"cat"},
        }
    )
    yield made
    made.shutdown()
    made.server_close()


def test_a_bundle_opens_by_name_and_then_without_a_connection(hub: HubServer, tmp_path: Path) -> None:
    manifest = load_manifest(bundled_folder())
    expected = manifest.fingerprint
    assert hub.open("someone/reader-bundle", tmp_path).startswith(expected)
    fetched = {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}
    assert fetched == {*manifest.files, "manifest.json"}
    hub.asked.clear()
    assert hub.open("someone/reader-bundle", tmp_path, reachable=False).startswith(expected)
    assert hub.asked == []


@pytest.mark.parametrize("name", ["colqwen", "colqwen2-v1.0", "trained", "colqwen@main"])
def test_a_checkpoint_gives_the_command_and_its_weights_are_not_downloaded(
    hub: HubServer, tmp_path: Path, name: str
) -> None:
    said = hub.open(f"someone/{name}", tmp_path)
    assert said.startswith(f"BundleError: someone/{name} is a checkpoint")
    plain = name.partition("@")[0]
    assert f"python -m budgetvdr.export someone/{name} --dtype int8 --out {plain}-bundle" in said
    assert not any("safetensors" in path for path in hub.asked)


@pytest.mark.parametrize(("name", "reachable"), [("someone/nothing", True), ("someone/reader-bundle", False)])
def test_a_name_that_leads_nowhere_is_a_bundle_error(
    hub: HubServer, tmp_path: Path, name: str, reachable: bool
) -> None:
    said = hub.open(name, tmp_path, reachable=reachable)
    assert said.startswith(f"BundleError: {name} is neither a folder here nor can it be read")


def test_a_repository_of_something_else_is_no_bundle(hub: HubServer, tmp_path: Path) -> None:
    assert "is not an encoder bundle" in hub.open("someone/cats", tmp_path)


def test_names_and_revisions() -> None:
    assert all(map(is_hub_name, ["a/b", "vidore/colqwen2-v1.0", "a/b@main", "a/b@refs/pr/1"]))
    assert not any(map(is_hub_name, ["a", "a/b/c", "/a/b", "./a", "../b", "a/", "a/b@"]))
