"""Fetching from a server on this machine."""

import hashlib
import http.server
import json
import threading

import pytest

from p4sgd.host.data.fetch import LOCK_FILE, fetch
from p4sgd.host.errors import UserError

CONTENT = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path in ("/silent", "/nonsense"):
            self.wfile.write(b"" if self.path == "/silent" else b"nonsense\r\n\r\n")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        cut = len(self.server.content) // 2 if self.path == "/short" else None
        self.wfile.write(self.server.content[:cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.content = CONTENT
        server.requests = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def originals(server, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    names = ("good", "missing", "short", "silent", "nonsense")
    urls = {name: f"http://127.0.0.1:{server.server_port}/{name}" for name in names}
    monkeypatch.setattr("p4sgd.host.data.fetch.ORIGINALS", urls | {"nobody": "http://127.0.0.1:1/nobody"})


def test_first_download_is_pinned_and_kept(tmp_path, server):
    progress = []
    folder = tmp_path / "new" / "folder"
    done = fetch("good", folder, on_progress=lambda *now: progress.append(now))
    assert (done.path, done.sha256, done.downloaded, done.pinned) == (folder / "good", DIGEST, True, True)
    assert done.path.read_bytes() == CONTENT
    assert json.loads((folder / LOCK_FILE).read_text()) == {"good": DIGEST}
    assert progress[-1] == (len(CONTENT), len(CONTENT))
    assert sorted(path.name for path in folder.iterdir()) == [LOCK_FILE, "good"]
    again = fetch("good", folder)
    assert (again.downloaded, again.pinned) == (False, False)
    assert server.requests == ["/good"]
    done.path.write_bytes(b"something else")
    with pytest.raises(UserError, match="delete it and fetch it again"):
        fetch("good", folder)


def test_another_download_must_match(tmp_path, server):
    with pytest.raises(UserError, match=f"has SHA-256 {DIGEST}, not {'0' * 64} as given: .*give that checksum$"):
        fetch("good", tmp_path, sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []
    assert not fetch("good", tmp_path, sha256=DIGEST.upper()).pinned
    (tmp_path / "good").unlink()
    server.content = CONTENT + b"!"
    with pytest.raises(UserError, match=f"not {DIGEST} as before: .*remove its line from .*{LOCK_FILE}"):
        fetch("good", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
    server.content = CONTENT
    assert not fetch("good", tmp_path).pinned


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "the server says 404 Not Found: check the network, or get the file elsewhere and put it at"),
        ("silent", "/silent: cannot be reached .Remote end closed connection.*: check the network"),
        ("nonsense", r"/nonsense: cannot be reached .nonsense\s*.: check the network"),
        ("nobody", "/nobody: cannot be reached .*: check the network"),
        ("short", f"/short: broke off after {len(CONTENT) // 2} of {len(CONTENT)} bytes"),
        ("unknown", "there is no data set 'unknown' to fetch.* good, missing, short, silent, nonsense"),
    ],
)
def test_failures_leave_nothing(tmp_path, name, message):
    with pytest.raises(UserError, match=message):
        fetch(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1}'])
def test_a_damaged_lock_file(tmp_path, text):
    (tmp_path / LOCK_FILE).write_text(text)
    with pytest.raises(UserError, match=f"{LOCK_FILE}: must hold names and checksums as JSON: put it right or delete"):
        fetch("good", tmp_path)
