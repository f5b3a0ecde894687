// SPDX-License-Identifier: Apache-2.0
// ioredis at the store: run by test_kv_redis.py with CGN_RESP, the path of its socket, and CGN_RESP_PORT.
import assert from 'node:assert/strict';
import crypto from 'node:crypto';
import { after, test } from 'node:test';
import { Redis } from 'ioredis';

const local = new Redis({ path: process.env.CGN_RESP });
const tcp = new Redis({ host: '127.0.0.1', port: Number(process.env.CGN_RESP_PORT), connectionName: 'interop' });
after(() => Promise.all([local.quit(), tcp.quit()]));

test('binary values under binary keys', async () => {
	for (const size of [0, 1, 4096, 4097, 65536, 1 << 20, 64 << 20]) {
		const key = Buffer.from([0, 13, 10, 255, size & 255, size >> 8 & 255, size >> 16 & 255, size >> 24 & 255]);
		const value = crypto.randomBytes(size);
		assert.equal(await local.set(key, value), 'OK');
		assert.ok((await tcp.getBuffer(key)).equals(value));
		assert.equal(await tcp.strlen(key), size);
		assert.equal(await tcp.del(key), 1);
	}
});

test('a pipeline', async () => {
	const p = tcp.pipeline();
	for (let i = 0; i < 1000; i++) p.set(`p${i}`, 'x'.repeat(i)).get(`p${i}`);
	const got = await p.exec();
	assert.equal(got.length, 2000);
	for (let i = 0; i < 1000; i++) assert.deepEqual(got.slice(2 * i, 2 * i + 2), [[null, 'OK'], [null, 'x'.repeat(i)]]);
});

test('many at once, keys, times', async () => {
	assert.equal(await local.mset({ a: '1', b: '2' }), 'OK');
	assert.deepEqual(await local.mget('a', 'nope', 'b'), ['1', null, '2']);
	assert.equal(await local.set('a', '3', 'EX', 100, 'NX'), null);
	assert.equal(await local.set('a', '3', 'EX', 100), 'OK');
	assert.ok(await local.ttl('a') > 0);
	assert.equal(await local.exists('a', 'b', 'nope'), 2);
	assert.equal(await local.getrange('b', 0, 0), '2');
	assert.equal(await local.type('a'), 'string');
	await assert.rejects(local.hset('h', 'f', 'v'), /ERR unknown command 'hset'/);
});

test('a scan stream', async () => {
	const found = new Set();
	for await (const keys of local.scanStream({ match: 'p*', count: 100 })) for (const k of keys) found.add(k);
	assert.equal([...found].filter((k) => /^p\d+$/.test(k)).length, 1000);
});

test('what it says of itself', async () => {
	assert.match(await tcp.info(), /redis_version:/);
	assert.match(await tcp.client('LIST'), /name=interop/);
	assert.equal(await tcp.select(0), 'OK');
	await assert.rejects(tcp.select(3), /out of range/);
	assert.equal(await tcp.ping(), 'PONG');
});
