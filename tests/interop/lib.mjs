// SPDX-License-Identifier: Apache-2.0
// What the client tests share: addresses from the environment, masks, and asking both the engine's twin and the gateway.
import assert from 'node:assert/strict';

export const env = (name) => {
	const value = process.env[name];
	assert.notEqual(value, undefined, `${name} is not set: run by tests/interop/test_node.py`);
	return value;
};
export const key = env('CGN_KEY') || 'none';

// Engines make their ids from this one, so that the twin's and the gateway's are equal too.
export const defaultHeaders = { 'X-Request-Id': 'interop' };

const INNER_ID = /\b(call|msg)_[0-9a-f]{24}\b/g;
// The client's id in the engine's answers; where keys are asked for, an engine gets one of the router's own.
const REQUEST_ID = /interop|req-[0-9a-f]{24}/g;

// Times, and the ids inside an answer, are an engine's own. Everything else has to be equal.
export function masked(value) {
	if (typeof value === 'string') return value.replace(INNER_ID, '$1_').replace(REQUEST_ID, 'interop');
	if (Array.isArray(value)) return value.map(masked);
	if (value === null || typeof value !== 'object') return value;
	const shown = Object.entries(value).filter(([k]) => k !== '_request_id'); // the client's own, from X-Request-Id, which an engine does not give
	return Object.fromEntries(shown.map(([k, v]) => [k, k === 'created' || k === 'created_at' ? typeof v : masked(v)]));
}

// Ask the twin engine and the gateway the same; their answers must be the same, field by field. Gives the gateway's.
export async function both(twin, gateway, ask) {
	const direct = await ask(twin);
	const routed = await ask(gateway);
	assert.deepEqual(masked(routed), masked(direct));
	return routed;
}

export async function collect(stream) {
	const all = [];
	for await (const event of stream) all.push(event);
	return all;
}

export async function slowEngine() {
	return (await fetch(env('CGN_SLOW_ENGINE_URL') + '/sim/state')).json();
}

// The first true value of |what|. A bound, not a measure: the engine would go on for minutes.
export async function until(what, why, seconds = 20) {
	const end = Date.now() + seconds * 1000;
	for (;;) {
		const got = await what();
		if (got) return got;
		assert.ok(Date.now() < end, `never: ${why}`);
		await new Promise((done) => setTimeout(done, 10));
	}
}

// Run |request| against the slow engine; it starts something long and gives it up. The engine has to see that.
export async function expectAborted(request) {
	const before = await slowEngine();
	await request(() => until(async () => (await slowEngine()).running === 1, 'it runs'));
	const after = await until(async () => {
		const now = await slowEngine();
		return now.running === 0 && now.aborted > before.aborted && now;
	}, 'the engine sees its request closed');
	assert.equal(after.aborted, before.aborted + 1);
	assert.equal(after.completed, before.completed);
	assert.ok(after.recent[0].tokens < 1000, `${after.recent[0].tokens} tokens were made`);
}
