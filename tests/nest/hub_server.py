"""A server in the Hub's layout, with the tricks that networks and servers play."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "c0ffee" + "0" * 34
NEXT = "decade" + "1" * 34


class Hub:
    """Files by repository, commit and path; those in `large` are answered by a redirect to `cdn`.

    The redirect goes to another origin (`localhost` instead of 127.0.0.1) and states the digest.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.branches: dict[str, str] = {"org/small@main": COMMIT}
        self.card_data: dict[str, object] = {}
        self.large: set[str] = set()
        self.asked: list[str] = []
        self.tokens: list[str | None] = []
        self.ranges: list[str | None] = []
        self.sent = 0
        # Names of files, and how their answers go wrong.
        self.cut: dict[str, list[int]] = {}  # bytes of each answer that come through, in turn
        self.lies: set[str] = set()  # the last byte is another one
        self.status: dict[str, list[tuple[int, dict[str, str]]]] = {}  # instead of an answer
        self.no_ranges: set[str] = set()
        self.wrong_ranges: dict[str, str] = {}  # name -> Content-Range
        self.slow: dict[str, float] = {}
        self.tags: dict[str, str] = {}
        self.moved: dict[str, str] = {}  # path -> where it is, on the same host
        # What was made here, and large files that no commit names yet.
        self.made: dict[str, dict[str, object]] = {}
        self.stored: dict[str, bytes] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            def do_POST(self) -> None:
                hub.take(self)

            def do_PUT(self) -> None:
                hub.take(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.cdn = f"http://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def put(self, name: str, content: bytes, repo: str = "org/small", commit: str = COMMIT) -> None:
        """The repository holds the file at the commit; weights are large files."""
        path = f"{repo}/resolve/{commit}/{name}"
        self.files[path] = content
        if name.endswith(".safetensors"):
            self.large.add(path)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(request.path.partition("?")[0].removeprefix("/"))
        self.asked.append(path)
        self.tokens.append(request.headers["Authorization"])
        self.ranges.append(request.headers["Range"])
        name = path.rpartition("/")[2]
        if path.startswith("api/models/"):
            self.describe(request, path)
            return
        if self.status.get(name):
            status, headers = self.status[name].pop(0)
            self.refuse(request, status, headers)
            return
        if path in self.moved:
            request.send_response(307)
            request.send_header("Location", self.moved[path])
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        content = self.files.get(path.removeprefix("cdn/"))
        if content is None:
            self.refuse(request, 404, {"X-Error-Code": "EntryNotFound"})
        elif path in self.large:
            request.send_response(302)
            request.send_header("Location", f"{self.cdn}/cdn/{path}?signature=hidden")
            request.send_header("X-Linked-ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            request.send_header("X-Linked-Size", str(len(content)))
            request.send_header("Content-Length", "0")
            request.end_headers()
        else:
            self.send(request, path, name, content)

    def refuse(self, request: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def describe(self, request: BaseHTTPRequestHandler, path: str) -> None:
        """`api/models/ORG/NAME/revision/REVISION`."""
        match = re.fullmatch(r"api/models/([^/]+/[^/]+)/revision/(.+)", path)
        repo, revision = (match[1], match[2]) if match else ("", "")
        if self.status.get("revision"):
            self.refuse(request, *self.status["revision"].pop(0))
            return
        commit = self.branches.get(f"{repo}@{revision}", revision)
        start = f"{repo}/resolve/{commit}/"
        names = [one.removeprefix(start) for one in self.files if one.startswith(start)]
        if not names:
            known = any(one.startswith(f"{repo}/") for one in self.files)
            code = "RevisionNotFound" if known else "RepoNotFound"
            self.refuse(request, 404, {"X-Error-Code": code})
            return
        document = {
            "sha": commit,
            "siblings": [{"rfilename": name} for name in names],
            "cardData": self.card_data,
        }
        body = json.dumps(document).encode()
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def send(self, request: BaseHTTPRequestHandler, path: str, name: str, content: bytes) -> None:
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        digest = hashlib.sha256(content).hexdigest()
        tag = self.tags.get(name, f'"cdn-{digest[:8]}"' if path.startswith("cdn/") else f'"{blob}"')
        total = len(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers["Range"] or "")
        same = request.headers["If-Range"] in (None, tag)
        if asked and same and name not in self.no_ranges:
            start = int(asked[1])
            end = min(int(asked[2]) + 1 if asked[2] else total, total)
            if start >= total:
                self.refuse(request, 416, {"Content-Range": f"bytes */{total}"})
                return
            request.send_response(206)
            stated = self.wrong_ranges.get(name, f"bytes {start}-{end - 1}/{total}")
            request.send_header("Content-Range", stated)
        else:
            start, end = 0, total
            request.send_response(200)
        if tag:
            request.send_header("ETag", tag)
        request.send_header("Content-Length", str(end - start))
        request.end_headers()
        if name in self.lies:
            content = content[:-1] + bytes([content[-1] ^ 1])
        body = content[start:end]
        if self.cut.get(name):
            body = body[: self.cut[name].pop(0)]
        if name in self.slow:
            time.sleep(self.slow[name])
        self.sent += len(body)
        with contextlib.suppress(OSError):  # the reader may have seen enough
            request.wfile.write(body)

    # --- taking: the requests of huggingface_hub for a repository, large files and a commit ------

    def take(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(request.path.partition("?")[0].removeprefix("/"))
        body = request.rfile.read(int(request.headers["Content-Length"] or 0))
        self.asked.append(path)
        self.tokens.append(request.headers["Authorization"])
        name = path.rpartition("/")[2]
        if self.status.get(name):
            self.refuse(request, *self.status[name].pop(0))
        elif path == "api/repos/create":
            self.reply(request, self.create(json.loads(body)))
        elif path == "api/validate-yaml":
            self.reply(request, {"warnings": [], "errors": []})
        elif match := re.fullmatch(r"api/models/([^/]+/[^/]+)/preupload/main", path):
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self.reply(request, {"files": modes})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{self.cdn}/lfs/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            self.reply(request, {"transfer": "basic", "objects": objects})
        elif path.startswith("lfs/"):
            assert hashlib.sha256(body).hexdigest() == name
            self.stored[name] = body
            self.reply(request, {})
        elif match := re.fullmatch(r"api/models/([^/]+/[^/]+)/commit/main", path):
            self.reply(request, self.commit(match[1], body))
        else:
            self.refuse(request, 404, {})

    def create(self, asked: dict[str, object]) -> dict[str, object]:
        repo = f"{asked['organization']}/{asked['name']}"
        self.made[repo] = asked
        return {"url": f"{self.url}/{repo}", "name": repo, "id": repo}

    def commit(self, repo: str, body: bytes) -> dict[str, object]:
        commit = hashlib.sha1(body).hexdigest()
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.put(value["path"], base64.b64decode(value["content"]), repo, commit)
            elif line["key"] == "lfsFile":
                self.put(value["path"], self.stored[value["oid"]], repo, commit)
        self.branches[f"{repo}@main"] = commit
        url = f"{self.url}/{repo}/commit/{commit}"
        return {"commitUrl": url, "commitOid": commit, "success": True}

    def reply(self, request: BaseHTTPRequestHandler, document: dict[str, object]) -> None:
        body = json.dumps(document).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
