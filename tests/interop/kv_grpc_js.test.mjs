// SPDX-License-Identifier: Apache-2.0
// cgn-kvcached's gRPC against @grpc/grpc-js. KV_UDS, KV_ADDR (in clear) and KV_TLS_ADDR with KV_PKI name running stores.
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import path from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
const load = (file) => grpc.loadPackageDefinition(protoLoader.loadSync(file, { keepCase: true, longs: String, enums: String, defaults: true, includeDirs: [path.join(root, "proto")] }));
const { Kv, Metrics } = Object.assign({}, load(path.join(root, "proto/cognitora/v1/kv.proto")).cognitora.v1, load(path.join(root, "proto/cognitora/v1/metrics.proto")).cognitora.v1);
const { Health } = load(path.join(root, "proto/grpc/health.proto")).grpc.health.v1;
const { KV_UDS, KV_ADDR, KV_TLS_ADDR, KV_PKI } = process.env;
const insecure = grpc.credentials.createInsecure();
const options = { "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 };
const S = grpc.status;

const key = (name, segment = 0) => ({ digest: createHash("sha256").update(name).digest(), segment });
const unary = (client, method, request, call = {}) =>
  new Promise((resolve, reject) => client[method](request, new grpc.Metadata(), call, (e, reply) => (e ? reject(e) : resolve(reply))));
const fails = (promise, code, sentence) => assert.rejects(promise, (e) => (assert.equal(e.code, code, e.message), assert.match(e.details, sentence), true));

// |head| goes with the first chunk; |chunks| are Buffers.
function put(client, head, chunks, call = {}) {
  return new Promise((resolve, reject) => {
    const stream = client.Put(new grpc.Metadata(), call, (e, reply) => (e ? reject(e) : resolve(reply)));
    const messages = chunks.length ? chunks.map((data, i) => (i === 0 ? { head, data } : { data })) : [{ head }];
    (async () => {
      for (const m of messages) if (!stream.write(m)) await new Promise((r) => stream.once("drain", r));
      stream.end();
    })();
  });
}
const putValue = (client, k, value, more = {}) => {
  const chunks = [];
  for (let at = 0; at < value.length; at += 1 << 18) chunks.push(value.subarray(at, at + (1 << 18)));
  return put(client, { key: k, size: value.length, ...more }, chunks);
};

function get(client, request, onChunk = () => {}) {
  return new Promise((resolve, reject) => {
    const stream = client.Get(request);
    const parts = [];
    let entry = null;
    stream.on("data", (m) => { entry ??= m.entry; parts.push(m.data); onChunk(stream, parts.length); });
    stream.on("error", reject);
    stream.on("end", () => resolve({ entry, value: Buffer.concat(parts), chunks: parts.length }));
  });
}

for (const [name, addr] of [["the Unix socket", `unix:${KV_UDS}`], ["TCP", KV_ADDR]]) {
  describe(`grpc-js over ${name}`, () => {
    let client;
    before(() => { client = new Kv(addr, insecure, options); });
    after(() => client.close());

    test("a value comes back, with what is known of it", async () => {
      const value = randomBytes(100000);
      const entry = await putValue(client, key("a"), value, { model: "mödel", tokens: 16, ttl_ms: 3600000 });
      assert.equal(entry.size, "100000");
      assert.equal(entry.tiers & 2, 2);
      const got = await get(client, { key: key("a") });
      assert.ok(got.value.equals(value));
      assert.equal(got.entry.model, "mödel");
      assert.equal(got.entry.tokens, 16);
      assert.equal(got.entry.checksum, entry.checksum);
      assert.ok(Number(got.entry.expires_unix_ms) - Number(got.entry.created_unix_ms) === 3600000);
      const again = await unary(client, "Lookup", { key: key("a") });
      assert.equal(again.size, "100000");
      assert.equal((await unary(client, "Lookup", { key: key("a", 1) })).tiers, 0);
    });

    test("parts of it, and none", async () => {
      const value = randomBytes(200000);
      await putValue(client, key("parts"), value);
      assert.ok((await get(client, { key: key("parts"), offset: 70000 })).value.equals(value.subarray(70000)));
      assert.ok((await get(client, { key: key("parts"), offset: 1, length: 65537 })).value.equals(value.subarray(1, 65538)));
      assert.equal((await get(client, { key: key("parts"), offset: 200000 })).value.length, 0);
      await fails(get(client, { key: key("parts"), offset: 200001 }), S.INVALID_ARGUMENT, /has 200000 bytes: no 0 from 200001 on/);
      await fails(get(client, { key: key("parts"), offset: 1, length: 200000 }), S.INVALID_ARGUMENT, /no 200000 from 1 on/);
      await fails(get(client, { key: key("parts"), offset: "18446744073709551615", length: 2 }), S.INVALID_ARGUMENT, /has 200000 bytes/);
      await fails(get(client, { key: key("nowhere") }), S.NOT_FOUND, /./);
      const empty = await put(client, { key: key("empty"), size: 0 }, []);
      assert.equal(empty.size, "0");
      assert.equal((await get(client, { key: key("empty") })).value.length, 0);
    });

    test("64 MiB, the most there is", async () => {
      const value = randomBytes(64 << 20);
      const entry = await putValue(client, key("big"), value);
      const got = await get(client, { key: key("big") });
      assert.ok(got.value.equals(value));
      assert.equal(got.entry.checksum, entry.checksum);
      assert.ok(got.chunks > 1000);
      const same = await putValue(client, key("big"), value, { checksum: entry.checksum });
      assert.equal(same.checksum, entry.checksum);
      await fails(put(client, { key: key("big"), size: (64 << 20) + 1 }, []), S.OUT_OF_RANGE, /at most 67108864/);
      await unary(client, "Remove", { keys: [key("big")] });
    });

    test("what is no value is refused in a sentence", async () => {
      const b = Buffer.from("abc");
      await fails(put(client, { key: { digest: b }, size: 3 }, [b]), S.INVALID_ARGUMENT, /digest has 3 bytes, not 32/);
      await fails(put(client, { size: 3 }, [b]), S.INVALID_ARGUMENT, /has no key/);
      await fails(put(client, { key: key("x"), size: 4 }, [b]), S.INVALID_ARGUMENT, /1 bytes of the value are missing/);
      await fails(put(client, { key: key("x"), size: 2 }, [b]), S.INVALID_ARGUMENT, /1 bytes more than/);
      await fails(put(client, { key: key("x"), size: 3, checksum: 7 }, [b]), S.INVALID_ARGUMENT, /checksum/);
      await fails(put(client, null, [b]), S.INVALID_ARGUMENT, /has no head/);
      await fails(put(client, { key: key("x"), size: 3, model: "m".repeat(257) }, [b]), S.INVALID_ARGUMENT, /257/);
      await fails(put(client, { key: key("x"), size: 2 << 20 }, [Buffer.alloc(2 << 20)]), S.RESOURCE_EXHAUSTED, /./);
      assert.equal((await unary(client, "Lookup", { key: key("x") })).tiers, 0);
      await putValue(client, key("x"), b);
      await fails(put(client, { key: key("x"), size: 3, only_if_absent: true }, [b]), S.ALREADY_EXISTS, /has a value/);
      await unary(client, "Remove", { keys: [key("x")] });
      await fails(unary(client, "BatchLookup", { keys: Array.from({ length: 4097 }, () => key("x")) }), S.INVALID_ARGUMENT, /4097 keys: at most 4096/);
    });

    test("many at once", async () => {
      const keys = Array.from({ length: 4096 }, (_, i) => key("many", i));
      await Promise.all(keys.slice(0, 200).map((k, i) => putValue(client, k, Buffer.alloc(i, i))));
      const { entries } = await unary(client, "BatchLookup", { keys });
      assert.equal(entries.length, 4096);
      entries.forEach((e, i) => assert.equal(e.tiers !== 0, i < 200));
      const got = await Promise.all(keys.slice(0, 200).map((k) => get(client, { key: k })));
      got.forEach((g, i) => assert.ok(g.value.equals(Buffer.alloc(i, i))));
      assert.equal((await unary(client, "Remove", { keys })).removed, 200);
    });

    test("pin, promote, stats, metrics, health", async () => {
      await putValue(client, key("p"), Buffer.from("abc"), { model: "m" });
      assert.equal((await unary(client, "Pin", { key: key("p"), pinned: true })).pinned, true);
      assert.equal((await unary(client, "Pin", { key: key("p") })).pinned, false);
      await fails(unary(client, "Pin", { key: key("nowhere"), pinned: true }), S.NOT_FOUND, /./);
      assert.equal((await unary(client, "Promote", { key: key("p") })).model, "m");
      await fails(unary(client, "Promote", { key: key("nowhere") }), S.NOT_FOUND, /./);
      const stats = await unary(client, "Stats", {});
      const ram = stats.tiers.find((t) => t.tier === "KV_TIER_RAM");
      assert.ok(Number(ram.blocks) >= 1 && Number(ram.bytes) <= Number(ram.budget_bytes) && stats.node_id && stats.version);
      const metrics = new Metrics(addr, insecure);
      assert.match((await unary(metrics, "Scrape", {})).text, /cgn_kv_blocks/);
      metrics.close();
      const health = new Health(addr, insecure);
      assert.equal((await unary(health, "Check", {})).status, "SERVING");
      health.close();
    });

    test("watch: all of it, then what changes, numbered", async () => {
      await putValue(client, key("w0"), Buffer.from("abc"));
      const stream = client.Watch({});
      const known = new Map();
      let seq = 0, synced = false;
      stream.on("error", () => {});
      const until = (what) => new Promise((resolve) => {
        const look = () => what() && (stream.off("data", look), resolve());
        stream.on("data", look);
        look();
      });
      stream.on("data", (ev) => {
        assert.equal(Number(ev.seq), ++seq);
        synced ||= ev.synced;
        for (const c of ev.changes) known.set(c.key.digest.toString("hex"), c);
      });
      const of = (name) => known.get(key(name).digest.toString("hex"));
      await until(() => synced);
      assert.equal(of("w0").size, "3");
      await putValue(client, key("w1"), Buffer.from("abcd"));
      await until(() => of("w1")?.tiers === 2);
      await unary(client, "Remove", { keys: [key("w1")] });
      await until(() => of("w1")?.tiers === 0);
      stream.cancel();
    });

    test("a deadline, a cancel, a reader that stops", async () => {
      const value = randomBytes(8 << 20);
      await putValue(client, key("slow"), value);
      await fails(new Promise((resolve, reject) => {
        const stream = client.Put(new grpc.Metadata(), { deadline: Date.now() + 200 }, (e) => (e ? reject(e) : resolve()));
        stream.on("error", () => {});
        stream.write({ head: { key: key("never"), size: 10 } }); // and then nothing
      }), S.DEADLINE_EXCEEDED, /./);
      await assert.rejects(get(client, { key: key("slow") }, (stream, n) => n === 3 && stream.cancel()), (e) => e.code === S.CANCELLED);
      const stream = client.Get({ key: key("slow") });
      stream.on("error", () => {});
      await new Promise((r) => stream.once("data", r));
      stream.pause(); // others get on meanwhile
      for (let i = 0; i < 50; i++) assert.ok((await get(client, { key: key("slow"), length: 1000 })).value.length === 1000);
      const rest = [];
      await new Promise((r) => { stream.on("data", (m) => rest.push(m.data)); stream.on("end", r); stream.resume(); });
      assert.equal(Buffer.concat(rest).length, 8 << 20);
      assert.equal((await unary(client, "Lookup", { key: key("never") })).tiers, 0);
    });
  });
}

describe("over TLS", () => {
  const pem = (name) => readFileSync(path.join(KV_PKI, name));
  test("with a certificate of the cluster, and not without", async () => {
    const trusted = new Kv(KV_TLS_ADDR, grpc.credentials.createSsl(pem("ca.pem"), pem("admin.key"), pem("admin.pem")), options);
    const value = randomBytes(1 << 20);
    await putValue(trusted, key("tls"), value);
    assert.ok((await get(trusted, { key: key("tls") })).value.equals(value));
    trusted.close();
    for (const credentials of [grpc.credentials.createSsl(pem("ca.pem")), insecure]) {
      const stranger = new Kv(KV_TLS_ADDR, credentials, options);
      await fails(unary(stranger, "Lookup", { key: key("tls") }, { deadline: Date.now() + 5000 }), S.UNAVAILABLE, /./);
      stranger.close();
    }
  });
});
