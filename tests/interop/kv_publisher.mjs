// SPDX-License-Identifier: Apache-2.0
// An engine's publisher of KV events made of libzmq and @msgpack/msgpack. Each line on stdin is {"events": [...], "lose": false}: a batch, which
// is kept for replays and, unless lost, sent; its number is answered on stdout.
//   node kv_publisher.mjs EVENTS_ENDPOINT REPLAY_ENDPOINT array|map [topic-in-replay] [hash-bytes]
import { createInterface } from 'node:readline';
import { encode } from '@msgpack/msgpack';
import * as zmq from 'zeromq';

const [events, replay, form, ...options] = process.argv.slice(2);
const topic = 'kv@here';
const kept = [];

const FIELDS = {
	BlockStored: ['block_hashes', 'parent_block_hash', 'token_ids', 'block_size', 'lora_id', 'medium', 'lora_name'],
	BlockRemoved: ['block_hashes', 'medium'],
	AllBlocksCleared: [],
};

function number8(n) {
	const b = Buffer.alloc(8);
	b.writeBigInt64BE(BigInt(n));
	return b;
}

function hash(h) {
	if (h === null || !options.includes('hash-bytes')) return h;
	return Buffer.concat([Buffer.alloc(24, 0xab), number8(h)]);
}

function wire(event) {
	const e = { ...event };
	if (e.block_hashes) e.block_hashes = e.block_hashes.map(hash);
	if (e.parent_block_hash !== undefined) e.parent_block_hash = hash(e.parent_block_hash);
	if (form === 'map') return e;
	const fields = FIELDS[e.type].map((name) => e[name] ?? null);
	while (fields.length > 0 && fields.at(-1) === null) fields.pop();
	return [e.type, ...fields];
}

const pub = new zmq.Publisher();
const router = new zmq.Router();
await pub.bind(events);
await router.bind(replay);
console.log(JSON.stringify({ ready: true, zmq: zmq.version }));

async function answer() {
	const named = (part) => (options.includes('topic-in-replay') ? [part] : []);
	for await (const [peer, empty, from] of router) {
		for (let i = Number(from.readBigUInt64BE()); i < kept.length; i++)
			await router.send([peer, empty, ...named(topic), number8(i), kept[i]]);
		await router.send([peer, empty, ...named(''), number8(-1), Buffer.alloc(0)]);
	}
}
answer();

for await (const line of createInterface({ input: process.stdin })) {
	const { events: list, lose } = JSON.parse(line);
	const payload = Buffer.from(encode([Date.now() / 1000, list.map(wire)]));
	kept.push(payload);
	if (!lose) await pub.send([topic, number8(kept.length - 1), payload]);
	console.log(JSON.stringify({ batch: kept.length - 1 }));
}
process.exit(0);
