// SPDX-License-Identifier: Apache-2.0
// Anthropic's official client, through the gateway and straight at the engine's twin.
import test from 'node:test';
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { both, collect, defaultHeaders, env, expectAborted, key } from './lib.mjs';

const client = (url, apiKey = key) => new Anthropic({ baseURL: url, apiKey, defaultHeaders, maxRetries: 0 });
const twin = client(env('CGN_TWIN_URL'));
const gateway = client(env('CGN_URL'));
const ask = (how) => both(twin, gateway, how);
const user = (content) => [{ role: 'user', content }];
const body = { model: 'sim', max_tokens: 20, messages: user('Tell me about the sea.') };
const WEATHER = { name: 'weather', input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } };
const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';

test('a plain message', async () => {
	const answer = await ask((c) => c.messages.create(body));
	assert.equal(answer.stop_reason, 'max_tokens');
	assert.equal(answer.usage.output_tokens, 20);
	assert.ok(answer.content[0].text.length > 20);
});

test('a streamed one, event by event', async () => {
	const events = await ask(async (c) => collect(await c.messages.create({ ...body, stream: true })));
	assert.equal(events[0].type, 'message_start');
	assert.equal(events.at(-1).type, 'message_stop');
	const text = events.filter((e) => e.type === 'content_block_delta').map((e) => e.delta.text).join('');
	assert.equal(text, (await ask((c) => c.messages.create(body))).content[0].text);
	assert.equal(events.find((e) => e.type === 'message_delta').usage.output_tokens, 20);
});

test('the client\'s stream helper comes to its end', async () => {
	const answer = await ask((c) => c.messages.stream(body).finalMessage());
	assert.equal(answer.stop_reason, 'max_tokens');
});

test('system, images, stop sequences', async () => {
	const content = [{ type: 'text', text: 'What is this?' }, { type: 'image', source: { type: 'base64', media_type: 'image/png', data: PIXEL } }];
	const whole = await ask((c) => c.messages.create({ ...body, system: 'Be brief.', messages: user(content) }));
	const word = whole.content[0].text.split(' ')[3];
	const stopped = await ask((c) => c.messages.create({ ...body, system: 'Be brief.', messages: user(content), stop_sequences: [word] }));
	assert.equal(stopped.stop_reason, 'stop_sequence');
	assert.equal(stopped.stop_sequence, word);
});

test('tools, plain and streamed', async () => {
	const tools = { ...body, max_tokens: 100, tools: [WEATHER], tool_choice: { type: 'any' } };
	const answer = await ask((c) => c.messages.create(tools));
	assert.equal(answer.stop_reason, 'tool_use');
	const use = answer.content.find((b) => b.type === 'tool_use');
	assert.deepEqual(Object.keys(use.input), ['city']);
	const streamed = await ask((c) => c.messages.stream(tools).finalMessage());
	assert.deepEqual(streamed.content.find((b) => b.type === 'tool_use').input, use.input);
	const result = { type: 'tool_result', tool_use_id: use.id, content: 'sunny' };
	await ask((c) => c.messages.create({ ...body, tools: [WEATHER], messages: [...body.messages, { role: 'assistant', content: answer.content }, { role: 'user', content: [result] }] }));
});

test('tokens are counted before they are used', async () => {
	for (const more of [{}, { system: 'Be brief.', tools: [WEATHER] }]) {
		const { max_tokens: _, ...prompt } = { ...body, ...more };
		const { usage } = await gateway.messages.create({ ...body, ...more });
		assert.equal((await gateway.messages.countTokens(prompt)).input_tokens, usage.input_tokens + (usage.cache_read_input_tokens ?? 0));
	}
});

test('errors', async () => {
	await assert.rejects(gateway.messages.create({ ...body, model: 'nope' }), (e) => e instanceof Anthropic.NotFoundError && e.error.type === 'error' && e.error.error.type === 'not_found_error');
	const bad = await ask((c) => c.messages.create({ ...body, max_tokens: -1 }).catch((e) => ({ kind: e.constructor.name, error: e.error })));
	assert.equal(bad.kind, 'BadRequestError');
	if (key !== 'none') await assert.rejects(client(env('CGN_URL'), 'wrong').messages.create(body), Anthropic.AuthenticationError);
});

test('aborting ends it in the engine', async () => {
	await expectAborted(async (runs) => {
		const stream = gateway.messages.stream({ ...body, model: 'slow', max_tokens: 20000, ignore_eos: true });
		const ended = stream.done().catch((e) => e);
		await runs();
		stream.abort();
		assert.ok(await ended instanceof Anthropic.APIUserAbortError);
	});
});
