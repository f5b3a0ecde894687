// SPDX-License-Identifier: Apache-2.0
// Ollama's own client against a gateway in front of a real llama-server.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Ollama } from 'ollama';

const client = new Ollama({ host: process.env.CGN_URL });
const ask = { model: 'tiny', messages: [{ role: 'user', content: 'Tell me about the sea.' }], options: { temperature: 0, seed: 1, num_predict: 12 } };

test('chat, streamed and whole', async () => {
	const whole = await client.chat({ ...ask, stream: false });
	assert.equal(whole.done, true);
	assert.equal(whole.eval_count, 12);
	assert.ok(whole.prompt_eval_count > 5 && whole.eval_duration > 0 && whole.total_duration >= whole.eval_duration);
	let text = '';
	let last;
	for await (const part of await client.chat({ ...ask, stream: true })) {
		text += part.message.content;
		last = part;
	}
	assert.equal(text, whole.message.content);
	assert.equal(last.done_reason, 'length');
	assert.equal(last.eval_count, 12);
});

test('generate, with and without a template', async () => {
	const chat = await client.generate({ model: 'tiny', prompt: 'once', options: ask.options, stream: false });
	const raw = await client.generate({ model: 'tiny', prompt: 'once', raw: true, options: ask.options, stream: false });
	assert.ok(chat.response.length > 0 && raw.response.length > 0);
	assert.ok(chat.prompt_eval_count > raw.prompt_eval_count);
});

test('structured output', async () => {
	const schema = { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] };
	const got = await client.chat({ ...ask, format: schema, options: { ...ask.options, num_predict: 200 }, stream: false });
	assert.equal(typeof JSON.parse(got.message.content).n, 'number');
});

test('lists', async () => {
	const { models } = await client.list();
	assert.deepEqual(models.map((m) => m.name).sort(), ['tiny', 'vectors']);
	assert.equal((await client.ps()).models.length, 2);
	assert.ok((await client.show({ model: 'tiny' })).capabilities.includes('completion'));
	assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
});

test('errors', async () => {
	await assert.rejects(client.chat({ ...ask, model: 'nope' }), (e) => e.status_code === 404 && /nope/.test(e.error));
	await assert.rejects(client.embed({ model: 'tiny', input: 'x' }), (e) => e.status_code === 501 && e.error.length > 0);
	await assert.rejects(client.pull({ model: 'tiny' }), (e) => e.status_code === 501);
});

test('an aborted stream', async () => {
	const parts = await client.chat({ ...ask, options: { ...ask.options, num_predict: 5000 }, stream: true });
	let n = 0;
	await assert.rejects(async () => {
		for await (const part of parts) {
			assert.equal(part.done, false);
			if (++n === 3) parts.abort();
		}
	}, { name: 'AbortError' });
});
