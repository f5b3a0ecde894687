// SPDX-License-Identifier: Apache-2.0
// Official clients, and fetch, of a gateway that sends comments while nothing else comes (router.sse_keepalive).
import test from 'node:test';
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import Anthropic from '@anthropic-ai/sdk';
import { collect, env } from './lib.mjs';

const url = env('CGN_URL');
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 });
const ask = { model: 'slow', max_tokens: 6, messages: [{ role: 'user', content: 'Tell me about the sea.' }] };

test('the comments are there, before the first event and between events', async () => {
	const answer = await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ ...ask, stream: true }) });
	const blocks = (await answer.text()).split('\n\n').filter(Boolean);
	assert.equal(blocks[0], ': keep-alive');
	assert.ok(blocks.slice(blocks.findIndex((b) => b.startsWith('data:'))).includes(': keep-alive'));
	assert.equal(blocks.at(-1), 'data: [DONE]');
});

test('OpenAI: chat and responses', async () => {
	const whole = await openai.chat.completions.create(ask);
	const chunks = await collect(await openai.chat.completions.create({ ...ask, stream: true }));
	assert.equal(chunks.map((c) => c.choices[0]?.delta.content ?? '').join(''), whole.choices[0].message.content);
	const events = await collect(await openai.responses.create({ model: 'slow', input: 'hello', max_output_tokens: 6, stream: true }));
	assert.match(events.at(-1).type, /^response\.(completed|incomplete)$/);
});

test('Anthropic: messages', async () => {
	const whole = await anthropic.messages.create(ask);
	const streamed = await anthropic.messages.stream(ask).finalMessage();
	assert.equal(streamed.content[0].text, whole.content[0].text);
});

test('a failure behind the head is an error of the client', async () => {
	const hangs = { ...ask, model: 'hangs', stream: true };
	await assert.rejects(async () => collect(await openai.chat.completions.create(hangs)), /first byte/);
	await assert.rejects(async () => collect(await anthropic.messages.create(hangs)), /first byte/);
});
