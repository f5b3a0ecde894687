# SPDX-License-Identifier: Apache-2.0
"""An engine for coding agents: it streams /v1/responses and /v1/messages, asks for a command each turn until |rounds| commands were
run, and is silent where a test says so."""
import http.server
import json
import socket
import threading
import time

MODEL = "coder"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def plain(self, value, status=200):
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self):
        if self.path == "/v1/models":
            self.plain({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "test"}]})
        else:
            self.plain({}, 200 if self.path == "/health" else 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.split("?")[0] not in ("/v1/responses", "/v1/messages"):
            return self.plain({"detail": "Not Found"}, 404)
        run = {"path": self.path, "body": body, "headers": dict(self.headers), "ended": None}
        with self.server.lock:
            self.server.runs.append(run)
        try:
            (Response if self.path.startswith("/v1/responses") else Message)(self, body).run()
            run["ended"] = "done"
        except OSError:
            run["ended"] = "left"
            self.close_connection = True


class Answer:
    """The stream of one answer."""

    def __init__(self, handler, body):
        self.handler, self.body, self.script = handler, body, handler.server.script
        self.number = 0

    def chunk(self, data):
        self.handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.handler.wfile.flush()

    def event(self, kind, **members):
        if self.NUMBERED:
            members["sequence_number"] = self.number
            self.number += 1
        self.chunk(f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode())

    def pause(self, where):
        """Be silent; an agent that leaves meanwhile is noticed at the next byte."""
        time.sleep(self.script.get(where, 0))

    def run(self):
        self.pause("prefill")
        if not self.body.get("stream"):
            return self.handler.plain(self.whole())
        self.handler.send_response(200)
        self.handler.send_header("Content-Type", "text/event-stream")
        self.handler.send_header("Transfer-Encoding", "chunked")
        self.handler.end_headers()
        self.begin()
        self.pause("pause")
        names = self.tools()
        ran = self.ran()
        if names and ran < self.script.get("rounds", 0):
            self.call(*self.command(names, f"echo step-{ran}"))
        else:
            self.text([f"All {ran} steps ", "are ", "done."])
        self.handler.wfile.write(b"0\r\n\r\n")

    def die(self):
        """End the connection of the first answer as an engine that is killed does."""
        if self.script.get("dies") and len(self.handler.server.runs) == 1:
            self.handler.connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError

    def command(self, names, line):
        for name, arguments in (("shell", {"command": ["bash", "-c", line]}), ("shell_command", {"command": line}), ("exec_command", {"cmd": line}),
                                ("Bash", {"command": line, "description": "prints a word"})):
            if name in names:
                return name, arguments
        raise AssertionError(f"no tool for commands among {names}")


class Response(Answer):
    NUMBERED = True
    USAGE = {"input_tokens": 9, "output_tokens": 5, "total_tokens": 14, "input_tokens_details": {"cached_tokens": 0},
             "output_tokens_details": {"reasoning_tokens": 0}}

    def tools(self):
        return [t.get("name", t["type"]) for t in self.body.get("tools", [])]

    def ran(self):
        return sum(i.get("type") in ("function_call_output", "custom_tool_call_output") for i in self.body["input"] if isinstance(i, dict))

    def head(self, **members):
        return {"id": f"resp_{id(self)}", "object": "response", "created_at": 1, "status": "in_progress", "model": MODEL, "output": [],
                "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], **members}

    def begin(self):
        self.event("response.created", response=self.head())
        self.event("response.in_progress", response=self.head())

    def end(self, item):
        self.event("response.output_item.done", output_index=0, item=item)
        self.event("response.completed", response=self.head(status="completed", output=[item], usage=self.USAGE))

    def whole(self):
        return self.head(status="completed", usage=self.USAGE)

    def text(self, pieces):
        item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "".join(pieces), "annotations": []}]}
        self.event("response.output_item.added", output_index=0, item={**item, "status": "in_progress", "content": []})
        for piece in pieces:
            self.event("response.output_text.delta", item_id="m1", output_index=0, content_index=0, delta=piece)
        self.pause("middle")
        self.die()
        self.end(item)

    def call(self, name, arguments):
        text = json.dumps(arguments)
        item = {"type": "function_call", "id": f"fc_{self.ran()}", "call_id": f"call_{self.ran()}", "name": name, "arguments": text, "status": "completed"}
        self.event("response.output_item.added", output_index=0, item={**item, "arguments": "", "status": "in_progress"})
        self.event("response.function_call_arguments.delta", item_id=item["id"], output_index=0, delta=text[:5])
        self.pause("middle")
        self.event("response.function_call_arguments.delta", item_id=item["id"], output_index=0, delta=text[5:])
        self.end(item)


class Message(Answer):
    NUMBERED = False

    def tools(self):
        return [t.get("name") for t in self.body.get("tools", [])]

    def ran(self):
        return sum(part.get("type") == "tool_result" for m in self.body["messages"] if isinstance(m["content"], list) for part in m["content"])

    def head(self, **members):
        return {"id": f"msg_{id(self)}", "type": "message", "role": "assistant", "model": MODEL, "content": [], "stop_reason": None,
                "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 1}, **members}

    def whole(self):
        return self.head(content=[{"type": "text", "text": f"All {self.ran()} steps are done."}], stop_reason="end_turn")

    def begin(self):
        self.event("message_start", message=self.head())

    def end(self, why):
        self.event("content_block_stop", index=0)
        self.event("message_delta", delta={"stop_reason": why, "stop_sequence": None}, usage={"output_tokens": 5})
        self.event("message_stop")

    def text(self, pieces):
        self.event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for piece in pieces:
            self.event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
        self.pause("middle")
        self.die()
        self.end("end_turn")

    def call(self, name, arguments):
        text = json.dumps(arguments)
        self.event("content_block_start", index=0, content_block={"type": "tool_use", "id": f"toolu_{self.ran()}", "name": name, "input": {}})
        self.event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": text[:5]})
        self.pause("middle")
        self.event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": text[5:]})
        self.end("tool_use")


def serve():
    """Serve on threads. server.script: seconds of silence at "prefill", "pause" and "middle", "rounds", and "dies", in the
    middle of the first answer; server.runs: the requests."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.script, server.runs, server.lock = {}, [], threading.Lock()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server
