// SPDX-License-Identifier: Apache-2.0
// A consumer of KV events made of libzmq and @msgpack/msgpack: everything from a replay, then so many live batches, as JSON lines.
//   node kv_subscriber.mjs EVENTS_ENDPOINT REPLAY_ENDPOINT TOPIC LIVE_BATCHES
import { decode } from '@msgpack/msgpack';
import * as zmq from 'zeromq';

const [events, replay, topic, live] = process.argv.slice(2);
const say = (kind, number, payload) => console.log(JSON.stringify({ kind, number, size: payload.length, outer: Array.isArray(decode(payload, { useBigInt64: true })) }));

const sub = new zmq.Subscriber();
sub.subscribe(topic);
sub.connect(events);
const dealer = new zmq.Dealer();
dealer.connect(replay);
await dealer.send(['', Buffer.alloc(8)]);
for await (const parts of dealer) {
	const [number, payload] = parts.slice(-2);
	if (number.readBigInt64BE() === -1n) break;
	say('replayed', Number(number.readBigUInt64BE()), payload);
}
console.log(JSON.stringify({ kind: 'ready' }));
let n = 0;
for await (const [, number, payload] of sub) {
	say('live', Number(number.readBigUInt64BE()), payload);
	if (++n === Number(live)) break;
}
process.exit(0);
