# SPDX-License-Identifier: Apache-2.0
"""Batches beside the other load: uploaded, carried out over kills and full disks, and each line compared."""
import http.client
import json
import random
import threading
import time

from load import CHAT, parse, Wrong, Cut
from world import HTTP, ask

BOUNDARY = "----soak"
LINES = 12
OVER = ("completed", "failed", "expired", "cancelled")
TROUBLE = (OSError, http.client.HTTPException, ValueError, KeyError)


def form(content):
    return (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{BOUNDARY}\r\nContent-Disposition: form-data; '
            f'name="file"; filename="in.jsonl"\r\nContent-Type: application/octet-stream\r\n\r\n').encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


class Batches(threading.Thread):
    """One batch after another, on one router then on the other, while |load| goes."""

    def __init__(self, world, load, faults, violation, seed):
        super().__init__(daemon=True)
        self.world, self.load, self.faults, self.violation = world, load, faults, violation
        self.dice = random.Random(f"{seed} batches")
        self.items = [i for i in load.items if i.path == CHAT and not i.tools]
        self.made = self.completed = self.lines = self.not_taken = 0
        self.idle, self.over = True, threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            if not self.load.going.wait(0.2):
                continue
            self.idle = False
            try:
                self.one(self.dice.choice(self.world.routers))
            except Exception as e:  # pylint: disable=broad-except
                self.violation("batch", f"{type(e).__name__}: {e}")
            self.idle = True
            self.over.wait(self.dice.uniform(0.5, 2))

    def ask(self, router, method, path, body=None, headers=None):
        return ask(self.world.at(router), HTTP, method, path, body, {**self.world.keys["bulk"], **(headers or {})}, wait_s=20)

    def one(self, router):
        chosen = [self.dice.choice(self.items) for _ in range(LINES)]
        content = "".join(json.dumps({"custom_id": str(i), "method": "POST", "url": CHAT, "body": item.body(False)}) + "\n"
                          for i, item in enumerate(chosen)).encode()
        begin = time.monotonic()
        try:
            file = self.ask(router, "POST", "/v1/files", form(content), {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}).json()
            if "id" not in file:
                raise KeyError(file)
            made = self.ask(router, "POST", "/v1/batches", {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}).json()
            if "id" not in made:
                raise KeyError(made)
            batch = made["id"]
        except TROUBLE as e:
            self.not_taken += 1
            if not self.faults.disks_during(begin, time.monotonic()):
                self.violation("batch", f"not taken by {router}: {e!r}")
            self.over.wait(1)
            return
        self.made += 1
        doc = self.ended(router, batch)
        if doc:
            self.judge(router, doc, chosen, begin)
            for name in ("input_file_id", "output_file_id", "error_file_id"):
                self.remove(router, doc.get(name))

    def ended(self, router, batch):
        end = time.monotonic() + 240
        while time.monotonic() < end and not self.over.is_set():
            try:
                a = self.ask(router, "GET", f"/v1/batches/{batch}")
                if a.status == 404:
                    self.violation("batch", f"{router} has lost {batch}")
                    return None
                if a.json().get("status") in OVER:
                    return a.json()
            except TROUBLE:
                pass
            self.over.wait(0.5)
        if not self.over.is_set():
            self.violation("batch", f"{batch} of {router} is not over in 240 s")
        return None

    def rows(self, router, file):
        if not file:
            return []
        end = time.monotonic() + 120
        while True:
            try:
                a = self.ask(router, "GET", f"/v1/files/{file}/content")
                if a.status == 200:
                    return [json.loads(row) for row in a.body.splitlines()]
            except TROUBLE:
                pass
            if time.monotonic() > end or self.over.is_set():
                raise AssertionError(f"{router} does not give {file}")
            self.over.wait(0.5)

    def judge(self, router, doc, chosen, begin):
        good, bad = self.rows(router, doc["output_file_id"]), self.rows(router, doc["error_file_id"])
        excused = self.faults.disks_during(begin, time.monotonic())
        if sorted(r["custom_id"] for r in good + bad) != sorted(str(i) for i in range(LINES)):
            self.violation("batch", f"{doc['id']} of {router}: not each line once: {[r['custom_id'] for r in good + bad]}; {doc}")
        if (bad or doc["status"] != "completed") and not excused:
            self.violation("batch", f"{doc['id']} of {router}: {doc['status']}, failed lines without a fault: {bad[:2]}")
        for row in good:
            try:
                got = parse(CHAT, False, json.dumps(row["response"]["body"]).encode())
            except (Wrong, Cut) as e:
                got = e
            if got != chosen[int(row["custom_id"])].want:
                self.violation("wrong", f"batch {doc['id']}, line {row['custom_id']}: {got}")
        self.completed += 1
        self.lines += len(good)

    def remove(self, router, file):
        try:
            if file:
                self.ask(router, "DELETE", f"/v1/files/{file}")
        except TROUBLE:
            pass
