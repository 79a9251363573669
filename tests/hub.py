"""A local stand-in of the Hugging Face Hub: the part of its HTTP API that uploads and downloads use."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

GATED = "someone/gated"


class Hub(ThreadingHTTPServer):
    """Repositories as {name: {path: content}}; `private` has the names of private ones."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.served: list[str] = []  # files that were downloaded

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serve_hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def commit_of(files: dict[str, bytes]) -> str:
    return hashlib.sha1(b"".join(name.encode() + files[name] for name in sorted(files))).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, status: int, content: object = None, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self._body()
        if self.headers.get("Authorization") != "Bearer secret":
            self._answer(401, {"error": "Invalid username or password."})
        elif path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            self.server.repos.setdefault(name, {})
            if wanted.get("visibility") == "private":
                self.server.private.add(name)
            self._answer(200, {"url": f"{self.server.address}/{name}", "name": name})
        elif path == "/api/validate-yaml":  # of the model card
            self._answer(200, {"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            files = json.loads(body)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self._answer(200, {"files": modes})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            repo = self.server.repos[found[1]]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    repo[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del repo[line["value"]["path"]]
            oid = commit_of(repo)
            self._answer(
                200, {"commitUrl": f"{self.server.address}/{found[1]}/commit/{oid}", "commitOid": oid}
            )
        else:
            self._answer(404, {"error": path})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        name = "/".join(path.removeprefix("/api/models/").strip("/").split("/")[:2])
        if name == GATED:
            self._answer(403, {"error": "gated"}, X_Error_Code="GatedRepo")
        elif name not in self.server.repos:
            self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        else:
            self._answer_about(path, name, self.server.repos[name])

    do_HEAD = do_GET

    def _answer_about(self, path: str, name: str, files: dict[str, bytes]) -> None:
        commit = commit_of(files)
        if path.startswith(f"/api/models/{name}/tree/"):
            entries = [
                {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for file, content in files.items()
            ]
            self._answer(200, entries)
        elif found := re.fullmatch(f"/api/models/{name}/revision/(main|{commit})", path):
            siblings = [{"rfilename": file} for file in files]
            self._answer(
                200, {"id": name, "sha": commit, "siblings": siblings, "private": name in self.server.private}
            )
        elif path.startswith(f"/api/models/{name}/revision/"):
            self._answer(404, {"error": "Revision not found"}, X_Error_Code="RevisionNotFound")
        elif found := re.fullmatch(f"/{name}/resolve/[^/]+/(.+)", path):
            content = files.get(found[1])
            if content is None:
                self._answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
            else:
                self.server.served += [found[1]] if self.command == "GET" else []
                self._answer(
                    200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=commit
                )
        else:
            self._answer(404, {"error": path})
