// SPDX-License-Identifier: Apache-2.0
// gRPC against @grpc/grpc-js, both ways: its client on our server, our client on its server (tests/helpers/grpc_echo.c is ours).
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
const echoProgram = path.join(process.env.CGN_BUILD ?? path.join(root, "build"), "grpc_echo");
const load = (file) => grpc.loadPackageDefinition(protoLoader.loadSync(file, { keepCase: true, longs: Number, enums: String, defaults: true, includeDirs: [path.join(root, "proto")] }));
const { Echo } = load(path.join(root, "tests/helpers/echo.proto")).test;
const { Health } = load(path.join(root, "proto/grpc/health.proto")).grpc.health.v1;
const insecure = grpc.credentials.createInsecure();

// Our server, listening on a port of its choice.
function serve(...args) {
  const child = spawn(echoProgram, ["serve", "0", ...args], { stdio: ["ignore", "pipe", "inherit"] });
  return new Promise((resolve, reject) => {
    child.stdout.on("data", (line) => resolve({ child, addr: `127.0.0.1:${String(line).match(/listening on (\d+)/)[1]}` }));
    child.on("exit", (code) => reject(new Error(`grpc_echo ended with ${code}`)));
  });
}

const unary = (client, method, request, options = {}) =>
  new Promise((resolve, reject) => client[method](request, new grpc.Metadata(), options, (e, reply) => (e ? reject(e) : resolve(reply))));

// All answers of a stream, then its status.
function collect(stream, onData = () => {}) {
  return new Promise((resolve) => {
    const got = [];
    let status = null;
    stream.on("data", (m) => { got.push(m); onData(m, got.length); });
    stream.on("error", (e) => { status = e; });
    stream.on("status", (s) => { status = s; });
    stream.on("close", () => resolve({ got, status }));
    stream.on("end", () => setImmediate(() => resolve({ got, status })));
  });
}

// The counter of calls that were left, once it is what is wanted: the server hears of it a moment later.
async function leftBehind(client, wanted) {
  for (;;) {
    const { seq } = await unary(client, "Stats", {});
    if (seq >= wanted) return seq;
    await new Promise((r) => setTimeout(r, 10));
  }
}

describe("grpc-js's client on our server", () => {
  let server, client;
  before(async () => {
    server = await serve();
    client = new Echo(server.addr, insecure, { "grpc.max_receive_message_length": -1 });
  });
  after(() => { client.close(); server.child.kill(); });

  test("unary", async () => {
    const reply = await unary(client, "Unary", { text: "hällo", size: 10 });
    assert.equal(reply.text, "hällo");
    assert.equal(reply.blob.length, 10);
  });

  test("many at once", async () => {
    const replies = await Promise.all(Array.from({ length: 500 }, (_, i) => unary(client, "Unary", { text: `t${i}`, delay_ms: i % 7 })));
    assert.deepEqual(replies.map((r) => r.text), Array.from({ length: 500 }, (_, i) => `t${i}`));
  });

  test("server streaming, with answers larger than the windows", async () => {
    const { got, status } = await collect(client.Down({ text: "x", count: 300, size: 20000 }));
    assert.equal(got.length, 300);
    assert.deepEqual(got.map((m) => m.seq), Array.from({ length: 300 }, (_, i) => i + 1));
    assert.equal(got.reduce((n, m) => n + m.blob.length, 0), 300 * 20000);
    assert.equal(status.code, grpc.status.OK);
  });

  test("a slow reader slows the server and loses nothing", async () => {
    const stream = client.Down({ count: 500, size: 50000 });
    const done = collect(stream, (_, n) => {
      if (n % 100 === 0) { stream.pause(); setTimeout(() => stream.resume(), 50); }
    });
    const { got } = await done;
    assert.equal(got.length, 500);
  });

  test("client streaming", async () => {
    const reply = await new Promise((resolve, reject) => {
      const call = client.Up((e, r) => (e ? reject(e) : resolve(r)));
      for (let i = 0; i < 200; i++) call.write({ blob: Buffer.alloc(5000) });
      call.end();
    });
    assert.equal(reply.seq, 200);
    assert.equal(reply.total, 1000000);
  });

  test("both directions at once, answered before the half-close", async () => {
    const call = client.Bidi();
    const done = collect(call, (m, n) => { if (n < 20) call.write({ text: `m${n}` }); else call.end(); });
    call.write({ text: "m0" });
    const { got, status } = await done;
    assert.deepEqual(got.map((m) => m.text), Array.from({ length: 20 }, (_, i) => `m${i}`));
    assert.equal(status.code, grpc.status.OK);
  });

  test("messages of 4 MiB pass, larger ones are RESOURCE_EXHAUSTED", async () => {
    const fits = 4 * 1024 * 1024 - 64;
    const reply = await unary(client, "Unary", { blob: Buffer.alloc(fits), size: fits });
    assert.equal(reply.total, fits);
    assert.equal(reply.blob.length, fits);
    const refused = await unary(client, "Unary", { blob: Buffer.alloc(fits + 100) }).catch((e) => e);
    assert.equal(refused.code, grpc.status.RESOURCE_EXHAUSTED);
    assert.match(refused.details, /at most 4194304/);
    assert.equal((await unary(client, "Unary", { text: "still there" })).text, "still there");
  });

  test("every status, with a sentence in UTF-8", async () => {
    const sentence = "50 % über\n\"dem\" Ziel ☃";
    for (const code of [1, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 16]) {
      const e = await unary(client, "Unary", { fail: code, text: sentence }).catch((err) => err);
      assert.equal(e.code, code);
      assert.equal(e.details, sentence);
    }
    const { got, status } = await collect(client.Down({ fail: 5, text: "gone" }));
    assert.equal(got.length, 0);
    assert.equal(status.code, 5);
  });

  test("an unknown method is UNIMPLEMENTED", async () => {
    const e = await new Promise((r) => client.makeUnaryRequest("/test.Echo/Nothing", (x) => x, (x) => x, Buffer.alloc(0), r));
    assert.equal(e.code, grpc.status.UNIMPLEMENTED);
  });

  test("a compressed message is UNIMPLEMENTED", async () => {
    const gzip = new Echo(server.addr, insecure, { "grpc.default_compression_algorithm": grpc.compressionAlgorithms.gzip });
    const e = await unary(gzip, "Unary", { text: "x".repeat(5000) }).catch((err) => err);
    gzip.close();
    assert.equal(e.code, grpc.status.UNIMPLEMENTED);
  });

  test("deadlines end the call on both sides", async () => {
    const before = (await unary(client, "Stats", {})).seq;
    const e = await unary(client, "Unary", { delay_ms: 60000 }, { deadline: Date.now() + 100 }).catch((err) => err);
    assert.equal(e.code, grpc.status.DEADLINE_EXCEEDED);
    assert.equal(await leftBehind(client, before + 1), before + 1);
    assert.equal((await unary(client, "Unary", { text: "in time" }, { deadline: Date.now() + 20000 })).text, "in time");
  });

  test("a cancelled call is seen by the server", async () => {
    const before = (await unary(client, "Stats", {})).seq;
    const stream = client.Down({ count: 1000000, size: 1000 });
    const { status } = await collect(stream, (_, n) => { if (n === 5) stream.cancel(); });
    assert.equal(status.code, grpc.status.CANCELLED);
    assert.equal(await leftBehind(client, before + 1), before + 1);
  });

  test("health", async () => {
    const health = new Health(server.addr, insecure);
    assert.equal((await unary(health, "Check", {})).status, "SERVING");
    assert.equal((await unary(health, "Check", { service: "test.Echo" })).status, "SERVING");
    const e = await unary(health, "Check", { service: "nobody" }).catch((err) => err);
    assert.equal(e.code, grpc.status.NOT_FOUND);
    const watch = health.Watch({});
    const first = await new Promise((r) => watch.once("data", r));
    assert.equal(first.status, "SERVING");
    watch.on("error", () => {});
    watch.cancel();
    health.close();
  });

  test("a server that was killed and started again is found", async () => {
    const mine = await serve();
    const port = mine.addr.split(":")[1];
    const c = new Echo(mine.addr, insecure, { "grpc.initial_reconnect_backoff_ms": 50, "grpc.max_reconnect_backoff_ms": 100 });
    await unary(c, "Unary", { text: "a" });
    const hanging = unary(c, "Unary", { delay_ms: 60000 }).catch((err) => err);
    await new Promise((r) => setTimeout(r, 50));
    mine.child.kill("SIGKILL");
    assert.equal((await hanging).code, grpc.status.UNAVAILABLE);
    const again = spawn(echoProgram, ["serve", port], { stdio: "ignore" });
    let reply;
    while (!reply) {
      reply = await unary(c, "Unary", { text: "b" }).catch(() => null);
      if (!reply) await new Promise((r) => setTimeout(r, 20));
    }
    assert.equal(reply.text, "b");
    c.close();
    again.kill();
  });
});

// Our client, on arguments; its lines of output.
const call = (addr, method, ...args) =>
  execFileSyncAsync(echoProgram, ["call", addr, method, ...args]);
function execFileSyncAsync(program, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"] });
    let out = "";
    child.stdout.on("data", (d) => { out += d; });
    child.on("error", reject);
    child.on("close", () => resolve(out.trim().split("\n").map((l) => l.trim())));
  });
}

describe("our client on grpc-js's server", () => {
  let server, addr, cancelled = 0;
  before(async () => {
    server = new grpc.Server({ "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 });
    const fail = (rq) => Object.assign(new Error(rq.text), { code: rq.fail, details: rq.text });
    server.addService(Echo.service, {
      Unary: (c, done) => {
        c.on("cancelled", () => { cancelled++; });
        const answer = () => (c.request.fail ? done(fail(c.request)) : done(null, { text: c.request.text, total: c.request.blob.length, blob: Buffer.alloc(c.request.size) }));
        c.request.delay_ms ? setTimeout(answer, c.request.delay_ms).unref() : answer();
      },
      Down: async (c) => {
        const gone = new Promise((r) => { c.on("cancelled", () => { cancelled++; r(); }); });
        if (c.request.fail) { c.write({ text: "one" }); c.emit("error", fail(c.request)); return; }
        for (let i = 1; i <= c.request.count && !c.cancelled; i++)
          if (!c.write({ seq: i, blob: Buffer.alloc(c.request.size) })) await Promise.race([new Promise((r) => { c.once("drain", r); }), gone]);
        c.end();
      },
      Up: (c, done) => {
        let seq = 0, total = 0;
        c.on("data", (m) => { seq++; total += m.blob.length; });
        c.on("end", () => done(null, { text: "up", seq, total }));
      },
      Bidi: (c) => {
        c.on("data", (m) => c.write({ text: m.text, blob: m.blob }));
        c.on("end", () => c.end());
      },
      Stats: (_, done) => done(null, { seq: cancelled }),
    });
    const port = await new Promise((r, no) => server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (e, p) => (e ? no(e) : r(p))));
    addr = `127.0.0.1:${port}`;
  });
  after(() => server.forceShutdown());

  test("unary", async () => {
    assert.deepEqual(await call(addr, "Unary", "text=hällo", "size=7"), ["answer 0 7 7 hällo", "status FINE"]);
  });
  test("server streaming", async () => {
    const lines = await call(addr, "Down", "count=400", "size=0");
    assert.equal(lines.length, 401);
    assert.equal(lines[399], "answer 400 0 0");
    assert.equal(lines[400], "status FINE");
  });
  test("server streaming, large", async () => {
    const lines = await call(addr, "Down", "count=100", "size=100000");
    assert.equal(lines[99], "answer 100 0 100000");
    assert.equal(lines[100], "status FINE");
  });
  test("client streaming, beyond all windows", async () => {
    assert.deepEqual(await call(addr, "Up", "send=300", "size=20000"), ["answer 300 6000000 0 up", "status FINE"]);
  });
  test("both directions", async () => {
    const lines = await call(addr, "Bidi", "send=50", "text=b", "size=1000");
    assert.equal(lines.filter((l) => l === "answer 0 0 1000 b").length, 50);
    assert.equal(lines.at(-1), "status FINE");
  });
  test("a big message", async () => {
    assert.deepEqual(await call(addr, "Unary", "size=4000000"), ["answer 0 4000000 4000000", "status FINE"]);
  });
  test("an answer over the limit", async () => {
    const lines = await call(addr, "Down", "count=1", "size=4194304");
    assert.match(lines[0], /^status OVERLOADED .*at most 4194304/);
  });
  test("errors before and after the first answer", async () => {
    assert.deepEqual(await call(addr, "Unary", "fail=5", "text=nö % da"), ["status NOT_FOUND nö % da"]);
    assert.deepEqual(await call(addr, "Down", "fail=14", "text=later"), ["answer 0 0 0 one", "status UNAVAILABLE later"]);
    assert.match((await call(addr, "Nothing"))[0], /^status UNSUPPORTED /);
  });
  test("deadlines", async () => {
    assert.match((await call(addr, "Unary", "delay=60000", "timeout=100"))[0], /^status DEADLINE /);
    assert.deepEqual(await call(addr, "Unary", "delay=50", "timeout=20000", "text=ok"), ["answer 0 0 0 ok", "status FINE"]);
  });
  test("cancelling", async () => {
    const before = cancelled;
    assert.deepEqual((await call(addr, "Down", "count=1000000", "size=1000", "stop=3")).slice(-2), ["answer 3 0 1000", "cancelled"]);
    while (cancelled === before) await new Promise((r) => setTimeout(r, 10));
  });
  test("nobody there", async () => {
    assert.match((await call("127.0.0.1:1", "Unary"))[0], /^status UNAVAILABLE .*Connection refused/);
  });
});

describe("mutual TLS, both ways", () => {
  const dir = mkdtempSync(path.join(tmpdir(), "cgn-grpc-"));
  const file = (name) => path.join(dir, name);
  const openssl = (...args) => execFileSync("openssl", args, { cwd: dir, stdio: "pipe" });
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
  before(() => {
    openssl("req", "-x509", ...key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test ca", "-days", "2");
    for (const name of ["server", "client"]) {
      writeFileSync(file(`${name}.ext`), "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n");
      openssl("req", ...key, "-keyout", `${name}.key`, "-out", `${name}.csr`, "-subj", `/CN=${name}`);
      openssl("x509", "-req", "-in", `${name}.csr`, "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", `${name}.crt`, "-days", "2", "-extfile", `${name}.ext`);
    }
  });
  const pem = (name) => readFileSync(file(name));

  test("grpc-js's client on our server, with and without a certificate", async () => {
    const server = await serve(file("ca.crt"), file("server.crt"), file("server.key"));
    const known = new Echo(server.addr, grpc.credentials.createSsl(pem("ca.crt"), pem("client.key"), pem("client.crt")));
    assert.equal((await unary(known, "Unary", { text: "tls" })).text, "tls");
    const { got } = await collect(known.Down({ count: 100, size: 30000 }));
    assert.equal(got.length, 100);
    const nobody = new Echo(server.addr, grpc.credentials.createSsl(pem("ca.crt")));
    const e = await unary(nobody, "Unary", {}, { deadline: Date.now() + 5000 }).catch((err) => err);
    assert.ok([grpc.status.UNAVAILABLE, grpc.status.DEADLINE_EXCEEDED].includes(e.code), `${e}`);
    known.close();
    nobody.close();
    server.child.kill();
  });

  test("our client on grpc-js's server, with and without a certificate", async () => {
    const server = new grpc.Server();
    server.addService(Echo.service, { Unary: (c, done) => done(null, { text: c.request.text }) });
    const creds = grpc.ServerCredentials.createSsl(pem("ca.crt"), [{ private_key: pem("server.key"), cert_chain: pem("server.crt") }], true);
    const port = await new Promise((r, no) => server.bindAsync("127.0.0.1:0", creds, (e, p) => (e ? no(e) : r(p))));
    const ca = `ca=${file("ca.crt")}`;
    assert.deepEqual(await call(`127.0.0.1:${port}`, "Unary", "text=tls", ca, `cert=${file("client.crt")}`, `key=${file("client.key")}`), ["answer 0 0 0 tls", "status FINE"]);
    assert.match((await call(`127.0.0.1:${port}`, "Unary", ca))[0], /^status UNAVAILABLE /);
    server.forceShutdown();
  });
});
