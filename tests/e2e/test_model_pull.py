# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl model pull from a hub, a server and a folder. The servers are written here, so that they can break off,
lie and change; interop has a real registry and a real S3."""
import hashlib
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.parse

import pytest

from cluster import BUILD, until

CTL = str(BUILD / "src/ctl/cgn-ctl")
COMMIT = "c0ffee0000000000000000000000000000000001"
BIG = bytes(range(256)) * 4096 * 3  # 3 MiB


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub of one model. Class attributes are the world: files by path, and how the server misbehaves."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", **fields):
        self.send_response(status)
        for k, v in fields.items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        w = self.world
        w.asked.append((self.path, self.headers.get("range"), self.headers.get("authorization")))
        if w.token and self.headers.get("authorization") != f"Bearer {w.token}" and not self.path.startswith("/cdn/"):
            return self.reply(401, b"no")
        if self.path == "/api/models/org/m/revision/main":
            return self.reply(200, json.dumps({"sha": COMMIT}).encode())
        if m := re.fullmatch(rf"/api/models/org/m/tree/{COMMIT}\?recursive=true(&page=(\d+))?", self.path):
            names, page = sorted(w.files), int(m[2] or 0)
            part = names[2 * page:2 * page + 2]
            rows = [{"type": "directory", "path": "d", "size": 0, "oid": "x"}] + [self.row(n) for n in part]
            more = {"link": f'<{w.url}/api/models/org/m/tree/{COMMIT}?recursive=true&page={page + 1}>; rel="next"'} if 2 * page + 2 < len(names) else {}
            if w.pages and page + 1 >= w.pages[0]:
                more = {"link": f'<{w.url}{w.pages[1]}>; rel="next"'}
            return self.reply(200, json.dumps(rows).encode(), **more)
        if self.path.startswith(f"/org/m/resolve/{COMMIT}/"):
            name = urllib.parse.unquote(self.path.split(COMMIT + "/")[1])
            if w.cdn:  # large files are redirected to another server
                return self.reply(302, location=f"{w.cdn}/cdn/{urllib.parse.quote(name)}")
            return self.send_file(name)
        if self.path.startswith(("/cdn/", "/file/")):
            return self.send_file(urllib.parse.unquote(self.path.split("/", 2)[2]))
        return self.reply(404)

    def row(self, name):
        data = self.world.files[name]
        row = {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
        if name.endswith(".bin"):
            row.update(size=133, lfs={"oid": sha(data), "size": len(data) + self.world.says_more, "pointerSize": 133})
        return row

    def send_file(self, name):
        w = self.world
        data, first = w.files.get(name), 0
        if data is None:
            return self.reply(404)
        if w.flip:
            data = data[:-1] + bytes([data[-1] ^ 1])
        etag = f'"{sha(data)[:16]}"'
        if w.refuse:
            return self.reply(w.refuse.pop(0), retry_after="0")
        m = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "")
        if m and w.ranges and self.headers.get("if-range", etag) == etag:
            first = int(m[1])
            if first >= len(data):
                return self.reply(416, content_range=f"bytes */{len(data)}")
        part = data[first:]
        self.send_response(206 if first else 200)
        if first:
            self.send_header("content-range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("etag", etag)
        self.send_header("content-length", str(len(part)))
        self.end_headers()
        for at in range(0, len(part), 65536):
            if w.cut and first + at >= w.cut[0]:
                w.cut.pop(0)
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return None
            self.wfile.write(part[at:at + 65536])
            time.sleep(w.pause)
        return None


class World:
    def __init__(self):
        self.files = {"config.json": b'{"a": 1}\n', "d/tokenizer.json": b"tokens " * 9000, "model.bin": BIG, "x y+z.bin": b"odd name" * 100}
        self.asked, self.cut, self.refuse = [], [], []
        self.token = self.cdn = None
        self.pages = None  # (N, PATH): page N of the list names PATH as the next one
        self.ranges, self.flip, self.says_more, self.pause = True, False, 0, 0
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Hub,), {"world": self}))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def ranges_of(self, name):
        return [r for path, r, _ in self.asked if path.endswith(name)]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def hub():
    w = World()
    yield w
    w.close()


def environment(hub):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CGN_", "HF_", "AWS_"))}
    return {**env, "HF_ENDPOINT": hub.url}


def pull(hub, source, *args, **env):
    return subprocess.run([CTL, "model", "pull", source, *map(str, args)], capture_output=True, text=True, timeout=120, env={**environment(hub), **env})


def has(folder, hub, names=None):
    names = hub.files if names is None else names
    assert {n: (folder / n).read_bytes() for n in names} == {n: hub.files[n] for n in names}
    left = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert left == {*names, ".cgn-pull.json"}


def test_all_files_of_a_hub_and_a_second_pull(hub, tmp_path):
    done = pull(hub, "hf:org/m", "--to", tmp_path / "m")
    assert done.returncode == 0 and "4 files" in done.stdout, done
    has(tmp_path / "m", hub)
    record = json.loads((tmp_path / "m/.cgn-pull.json").read_text())
    assert record["commit"] == COMMIT and {f["path"]: f["sha256"] for f in record["files"]} == {n: sha(d) for n, d in hub.files.items()}
    hub.asked.clear()
    again = json.loads(pull(hub, "hf:org/m", "--to", tmp_path / "m", "-o", "json").stdout)
    assert again["kept"] == again["files"] == 4 and again["commit"] == COMMIT
    assert not [a for a in hub.asked if "resolve" in a[0]]


@pytest.mark.parametrize("page, to, said", [
    (1, "/api/models/org/m/tree/{c}?recursive=true", "leads in a circle"),
    (2, "/api/models/org/m/tree/{c}?recursive=true&page=0", "leads in a circle"),
    (1, ".example/api/models/org/m/tree/{c}", "not an address below"),
    (1, "/" + "x" * 3000, "bytes)"),
], ids=["itself", "two pages", "another host", "too long"])
def test_a_list_that_does_not_end_is_refused(hub, tmp_path, page, to, said):
    hub.pages = (page, to.format(c=COMMIT))
    done = pull(hub, "hf:org/m", "--to", tmp_path / "m")
    assert done.returncode == 6 and said in done.stderr, done
    assert len(hub.asked) < 10 and not list(tmp_path.rglob("*.bin"))


def test_nothing_is_written_through_a_link(hub, tmp_path):
    (tmp_path / "else").mkdir()
    (tmp_path / "m").mkdir()
    (tmp_path / "m/d").symlink_to(tmp_path / "else")
    done = pull(hub, "hf:org/m", "--to", tmp_path / "m")
    assert done.returncode == 1 and f"{tmp_path}/m/d is a link" in done.stderr, done
    assert not list((tmp_path / "else").iterdir())
    (tmp_path / "m/d").unlink()
    (tmp_path / "way").symlink_to(tmp_path / "m")
    assert pull(hub, "hf:org/m", "--to", tmp_path / "way").returncode == 0, "the folder itself may be a link"
    (tmp_path / "m/loop").symlink_to(tmp_path / "m")
    done = pull(hub, str(tmp_path / "m"), "--to", tmp_path / "copy")
    assert done.returncode == 2 and f"{tmp_path}/m/loop is a link to a folder" in done.stderr, done


def test_a_part_of_the_files_and_the_default_folder(hub, tmp_path):
    listed = json.loads(pull(hub, "hf:org/m", "--include", "*.bin", "--dry-run", "-o", "json", XDG_DATA_HOME=str(tmp_path)).stdout)
    assert {f["file"]: f["sha256"] for f in listed} == {n: sha(hub.files[n]) for n in ("model.bin", "x y+z.bin")}
    assert list(tmp_path.iterdir()) == []
    assert pull(hub, "hf:org/m", "--include", "*.json", "--exclude", "d/*", XDG_DATA_HOME=str(tmp_path)).returncode == 0
    has(tmp_path / "cognitora/models/m", hub, ["config.json"])
    none = pull(hub, "hf:org/m", "--include", "*.gguf", "--to", tmp_path / "n")
    assert none.returncode == 1 and "leave none" in none.stderr


def test_after_kill_9_it_goes_on(hub, tmp_path):
    hub.pause = 0.02
    p = subprocess.Popen([CTL, "model", "pull", "hf:org/m", "--to", tmp_path / "m"], env=environment(hub), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    part = tmp_path / "m/model.bin.part"
    until(lambda: part.exists() and part.stat().st_size > 500_000, "a part is there")
    p.send_signal(signal.SIGKILL)
    p.wait(10)
    assert not (tmp_path / "m/model.bin").exists()
    size, hub.pause = part.stat().st_size, 0
    hub.asked.clear()
    assert pull(hub, "hf:org/m", "--to", tmp_path / "m").returncode == 0
    has(tmp_path / "m", hub)
    assert hub.ranges_of("model.bin") == [f"bytes={size}-"]


def test_ctrl_c_says_how_to_go_on(hub, tmp_path):
    hub.pause = 0.05
    p = subprocess.Popen([CTL, "model", "pull", "hf:org/m", "--to", tmp_path / "m"], env=environment(hub), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    part = tmp_path / "m/model.bin.part"
    until(lambda: part.exists() and part.stat().st_size > 100_000, "a part is there")
    p.send_signal(signal.SIGINT)
    out, said = p.communicate(timeout=30)
    assert p.returncode == 130 and "goes on where it was" in said and part.exists()


def test_a_connection_that_breaks_off_is_continued(hub, tmp_path):
    hub.cut = [1_000_000, 2_000_000]
    done = pull(hub, "hf:org/m", "--to", tmp_path / "m", "--parallel", 1)
    assert done.returncode == 0 and "trying again" in done.stderr
    has(tmp_path / "m", hub)
    assert len(hub.ranges_of("model.bin")) == 3 and hub.ranges_of("model.bin")[0] is None


def test_a_server_without_ranges(hub, tmp_path):
    hub.ranges, hub.cut = False, [1_000_000]
    assert pull(hub, "hf:org/m", "--to", tmp_path / "m", "--parallel", 1).returncode == 0
    has(tmp_path / "m", hub)


def test_a_file_that_changed_is_fetched_from_the_start(hub, tmp_path):
    """A file without a checksum: its ETag says whether a part can be continued."""
    hub.files = {"plain.dat": BIG}
    hub.cut = [1_000_000]
    first = pull(hub, hub.url + "/file/plain.dat", "--to", tmp_path, "--retries", 0)
    assert first.returncode == 4 and (tmp_path / "plain.dat.part.etag").exists()
    hub.files = {"plain.dat": BIG[::-1]}
    assert pull(hub, hub.url + "/file/plain.dat", "--to", tmp_path).returncode == 0
    has(tmp_path, hub)
    assert re.fullmatch(r"bytes=\d+-", hub.ranges_of("plain.dat")[-1])


def test_a_wrong_byte_is_never_kept(hub, tmp_path):
    hub.flip = True
    done = pull(hub, "hf:org/m", "--to", tmp_path / "m", "--include", "model.bin")
    assert done.returncode == 6 and "checksum" in done.stderr and sha(BIG) in done.stderr
    assert not list((tmp_path / "m").glob("model.bin*"))
    hub.flip = False
    assert pull(hub, "hf:org/m", "--to", tmp_path / "m", "--include", "model.bin").returncode == 0
    has(tmp_path / "m", hub, ["model.bin"])


def test_a_list_that_lies_about_the_size(hub, tmp_path):
    hub.says_more = 10
    done = pull(hub, "hf:org/m", "--to", tmp_path / "m", "--include", "x*")
    assert done.returncode == 6 and "810" in done.stderr
    hub.says_more = -10
    done = pull(hub, "hf:org/m", "--to", tmp_path / "n", "--include", "x*")
    assert done.returncode == 6 and "more than the 790 bytes" in done.stderr
    assert not list(tmp_path.rglob("x y+z.bin"))


def test_keys(hub, tmp_path):
    hub.token = "secret-token"
    done = pull(hub, "hf:org/m", "--to", tmp_path / "m")
    assert done.returncode == 1 and "401" in done.stderr and "HF_TOKEN" in done.stderr and "a key is asked for" in done.stderr
    done = pull(hub, "hf:org/m", "--to", tmp_path / "m", HF_TOKEN="other")
    assert done.returncode == 1 and "the key is refused" in done.stderr and "other" not in done.stderr
    (tmp_path / "token").write_text("secret-token\n")
    assert pull(hub, "hf:org/m", "--to", tmp_path / "m", "--token-file", tmp_path / "token").returncode == 0
    has(tmp_path / "m", hub)


def test_the_key_is_not_sent_to_another_server(hub, tmp_path):
    other = World()
    hub.token, hub.cdn = "secret-token", other.url.replace("127.0.0.1", "localhost")
    assert pull(hub, "hf:org/m", "--to", tmp_path / "m", HF_TOKEN="secret-token").returncode == 0
    has(tmp_path / "m", hub)
    assert other.asked and {a for _, _, a in other.asked} == {None}
    other.close()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "d/../../evil", "a\nb", "C:\\evil"])
def test_names_that_lead_out_of_the_folder(hub, tmp_path, name):
    hub.files[name] = b"evil"
    done = pull(hub, "hf:org/m", "--to", tmp_path / "in/m")
    assert done.returncode == 6 and "outside the folder" in done.stderr
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_busy_server_is_asked_again(hub, tmp_path):
    hub.refuse = [503, 429]
    assert pull(hub, "hf:org/m", "--to", tmp_path / "m", "--parallel", 1).returncode == 0
    has(tmp_path / "m", hub)


def test_one_file_with_a_checksum(hub, tmp_path):
    url = hub.url + "/file/model.bin"
    done = pull(hub, url, "--to", tmp_path, "--sha256", "00" * 32)
    assert done.returncode == 6 and "checksum" in done.stderr and not (tmp_path / "model.bin").exists()
    assert pull(hub, url, "--to", tmp_path, "--sha256", sha(BIG)).returncode == 0
    has(tmp_path, hub, ["model.bin"])
    with open(tmp_path / "model.bin", "r+b") as f:  # a byte that rots: the size stays
        f.write(bytes([BIG[0] ^ 1]))
    assert pull(hub, url, "--to", tmp_path, "--sha256", sha(BIG)).returncode == 0
    has(tmp_path, hub, ["model.bin"])
    for args, said in (((url, "--sha256", "12"), "64 hexadecimal"), (("hf:org/m", "--sha256", sha(BIG)), "tell the sums themselves"),
                       (("http://u:secret@127.0.0.1:1/x",), "URL has a user name"),
                       (("hf:org",), "hf:ORG/REPO"), (("ftp://x/y",), "no such kind"), ((hub.url + "/file/none",), "404")):
        done = pull(hub, *args, "--to", tmp_path / "x")
        assert done.returncode != 0 and said in done.stderr, done


def test_a_folder_and_its_check(hub, tmp_path):
    source = tmp_path / "from"
    for name, data in hub.files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    assert pull(hub, str(source), "--to", tmp_path / "m").returncode == 0
    has(tmp_path / "m", hub)
    fine = pull(hub, str(source), "--to", tmp_path / "m", "--check")
    assert fine.returncode == 0 and "all 4 files" in fine.stdout
    target = tmp_path / "m/model.bin"
    target.write_bytes(BIG[:-1] + b"x")
    bad = pull(hub, str(source), "--to", tmp_path / "m", "--check")
    assert bad.returncode == 8 and str(target) in bad.stdout and "1 of 4" in bad.stderr
    assert pull(hub, str(tmp_path / "nothing"), "--to", tmp_path / "n").returncode == 1


def test_a_disk_without_room(hub, tmp_path):
    """A file system of 2 MiB in a mount namespace of its own: refused before anything is fetched."""
    room = tmp_path / "room"
    room.mkdir()
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(room)], capture_output=True).returncode != 0:
        pytest.skip("no mounts here")
    script = f"mount -t tmpfs -o size=2m tmpfs {room} && exec {CTL} model pull hf:org/m --to {room}/m"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=60, env=environment(hub))
    assert done.returncode == 8 and "3.1 MiB are missing" in done.stderr and "room for" in done.stderr, done
    assert not [a for a in hub.asked if "resolve" in a[0]]
    hub.files = {"plain.dat": BIG}  # of a size that is not known before
    script = script.replace("hf:org/m", hub.url + "/file/plain.dat")
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=60, env=environment(hub))
    assert done.returncode == 8 and "No space left" in done.stderr


def test_two_pulls_into_one_folder(hub, tmp_path):
    hub.pause = 0.05
    p = subprocess.Popen([CTL, "model", "pull", "hf:org/m", "--to", tmp_path / "m"], env=environment(hub), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    part = pathlib.Path(tmp_path / "m/model.bin.part")
    until(lambda: part.exists() and part.stat().st_size > 100_000, "the first one writes")
    second = pull(hub, "hf:org/m", "--to", tmp_path / "m", "--include", "model.bin")
    assert second.returncode == 1 and "another pull" in second.stderr
    p.kill()
    p.wait(10)


def test_a_signature_in_a_url_is_shown_and_recorded_nowhere(hub, tmp_path):
    url = hub.url + "/file/none?X-Signature=secret"
    done = pull(hub, url, "--to", tmp_path / "a")
    assert done.returncode == 1 and "404" in done.stderr and "secret" not in done.stderr + done.stdout
    assert not list((tmp_path / "a").glob("none*"))  # an empty part does not stay behind
    away = pull(hub, "http://127.0.0.1:1/x?X-Signature=secret", "--to", tmp_path / "a", "--retries", 0)
    assert away.returncode == 4 and "secret" not in away.stderr
    hub.files = {"plain.dat?X-Signature=secret": b"x" * 100}
    done = pull(hub, hub.url + "/file/plain.dat?X-Signature=secret", "--to", tmp_path / "b")
    assert done.returncode == 0 and "secret" not in done.stdout + done.stderr + (tmp_path / "b/.cgn-pull.json").read_text()
