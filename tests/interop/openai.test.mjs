// SPDX-License-Identifier: Apache-2.0
// The official OpenAI client for JavaScript, through the gateway and straight at the engine's twin.
import test from 'node:test';
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { both, collect, defaultHeaders, env, expectAborted, key } from './lib.mjs';

const client = (url, apiKey = key) => new OpenAI({ baseURL: url + '/v1', apiKey, defaultHeaders, maxRetries: 0 });
const twin = client(env('CGN_TWIN_URL'));
const gateway = client(env('CGN_URL'));
const ask = (how) => both(twin, gateway, how);
const user = (content) => [{ role: 'user', content }];
const chat = (body) => ask((c) => c.chat.completions.create({ model: 'sim', messages: user('Tell me about the sea.'), max_tokens: 20, ...body }));
const streamed = (body) => ask(async (c) => collect(await c.chat.completions.create({
	model: 'sim', messages: user('Tell me about the sea.'), max_tokens: 20, stream: true, stream_options: { include_usage: true }, ...body,
})));
const textOf = (chunks, index = 0) => chunks.flatMap((c) => c.choices).filter((c) => c.index === index).map((c) => c.delta.content ?? '').join('');
const finishOf = (chunks) => chunks.flatMap((c) => c.choices).map((c) => c.finish_reason).filter(Boolean);
const PIXEL = 'data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const WEATHER = {
	type: 'function',
	function: { name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city', 'days'] } },
};
const SCHEMA = { type: 'object', properties: { name: { type: 'string' }, age: { type: 'integer' } }, required: ['name', 'age'], additionalProperties: false };

test('a plain chat', async () => {
	const answer = await chat({});
	assert.equal(answer.choices[0].finish_reason, 'length');
	assert.equal(answer.usage.completion_tokens, 20);
	assert.ok(answer.choices[0].message.content.length > 20);
});

test('a streamed chat says what the plain one says, and its usage', async () => {
	const chunks = await streamed({});
	const plain = await chat({});
	assert.equal(textOf(chunks), plain.choices[0].message.content);
	assert.deepEqual(finishOf(chunks), ['length']);
	assert.equal(chunks.at(-1).usage.completion_tokens, 20);
	assert.ok(chunks.length > 20);
});

test('the client\'s stream helper comes to its end', async () => {
	const answer = await ask((c) => c.chat.completions.stream({ model: 'sim', messages: user('hi'), max_tokens: 9 }).finalChatCompletion());
	assert.equal(answer.choices[0].finish_reason, 'length');
});

test('a second turn reuses the cache as the twin does', async () => {
	const messages = [...user('a long beginning '.repeat(60)), { role: 'assistant', content: 'yes' }, ...user('and on')];
	await chat({ messages });
	assert.ok((await chat({ messages })).usage.prompt_tokens_details.cached_tokens > 0);
});

test('several choices with logprobs', async () => {
	const answer = await chat({ n: 2, logprobs: true, top_logprobs: 3 });
	assert.equal(answer.choices.length, 2);
	assert.equal(answer.choices[1].logprobs.content.length, 20);
	assert.equal(answer.choices[1].logprobs.content[0].top_logprobs.length, 3);
	const chunks = await streamed({ n: 2, logprobs: true });
	assert.equal(textOf(chunks, 1), answer.choices[1].message.content);
});

test('stop', async () => {
	const whole = (await chat({})).choices[0].message.content;
	const word = whole.split(' ')[3];
	const answer = await chat({ stop: [word] });
	assert.equal(answer.choices[0].finish_reason, 'stop');
	assert.ok(!answer.choices[0].message.content.includes(word));
	assert.deepEqual(finishOf(await streamed({ stop: word })), ['stop']);
});

test('tools, and their result in the next turn', async () => {
	const body = { tools: [WEATHER], tool_choice: 'required', max_tokens: 100 };
	const { message, finish_reason } = (await chat(body)).choices[0];
	assert.equal(finish_reason, 'tool_calls');
	const call = message.tool_calls[0];
	assert.equal(call.function.name, 'weather');
	assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ['city', 'days']);
	const chunks = await streamed(body);
	const pieces = chunks.flatMap((c) => c.choices).flatMap((c) => c.delta.tool_calls ?? []);
	assert.equal(pieces.map((p) => p.function.arguments ?? '').join(''), call.function.arguments);
	const next = await chat({ messages: [...user('Weather?'), message, { role: 'tool', tool_call_id: call.id, content: '{"c": 20}' }], tools: [WEATHER], tool_choice: 'none' });
	assert.ok(next.choices[0].message.content);
});

test('images in the content', async () => {
	const content = [{ type: 'text', text: 'What is this?' }, { type: 'image_url', image_url: { url: PIXEL, detail: 'low' } }];
	assert.ok((await chat({ messages: user(content) })).choices[0].message.content);
	assert.deepEqual(finishOf(await streamed({ messages: user(content) })), ['length']);
});

test('response_format', async () => {
	const object = await chat({ response_format: { type: 'json_object' }, max_tokens: 100 });
	assert.equal(typeof JSON.parse(object.choices[0].message.content), 'object');
	const response_format = { type: 'json_schema', json_schema: { name: 'person', strict: true, schema: SCHEMA } };
	const person = JSON.parse((await chat({ response_format, max_tokens: 100 })).choices[0].message.content);
	assert.deepEqual(Object.keys(person), ['name', 'age']);
	assert.equal(typeof person.age, 'number');
	assert.deepEqual(JSON.parse(textOf(await streamed({ response_format, max_tokens: 100 }))), person);
});

test('fields that only the engine knows go through', async () => {
	const answer = await chat({ min_tokens: 8, ignore_eos: true, max_tokens: 8, temperature: 0, metadata: { a: 'b' } });
	assert.equal(answer.usage.completion_tokens, 8);
});

test('completions', async () => {
	const body = { model: 'sim', prompt: ['Once', 'Twice'], max_tokens: 6, logprobs: 2 };
	const answer = await ask((c) => c.completions.create(body));
	assert.equal(answer.choices.length, 2);
	assert.equal(answer.choices[1].logprobs.tokens.length, 6);
	const chunks = await ask(async (c) => collect(await c.completions.create({ ...body, stream: true, stream_options: { include_usage: true } })));
	const second = chunks.flatMap((c) => c.choices).filter((c) => c.index === 1).map((c) => c.text).join('');
	assert.equal(second, answer.choices[1].text);
	assert.equal(chunks.at(-1).usage.completion_tokens, 12);
});

test('responses', async () => {
	const body = { model: 'sim', input: 'Tell me about the sea.', max_output_tokens: 12 };
	const answer = await ask((c) => c.responses.create(body));
	assert.equal(answer.status, 'incomplete');
	assert.equal(answer.usage.output_tokens, 12);
	const events = await ask(async (c) => collect(await c.responses.create({ ...body, stream: true })));
	assert.equal(events[0].type, 'response.created');
	const text = events.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta).join('');
	assert.equal(text, answer.output_text);
	assert.equal(events.at(-1).response.usage.output_tokens, 12);
});

test('embeddings, as numbers and in base64', async () => {
	const body = { model: 'sim', input: ['one', 'two'], dimensions: 16 };
	const numbers = await ask((c) => c.embeddings.create({ ...body, encoding_format: 'float' }));
	assert.equal(numbers.data[1].embedding.length, 16);
	const packed = await ask((c) => c.embeddings.create(body)); // the client asks for base64 and unpacks it
	assert.ok(Math.abs(packed.data[1].embedding[3] - numbers.data[1].embedding[3]) < 1e-6);
	assert.equal((await ask((c) => c.embeddings.create({ ...body, encoding_format: 'base64' }))).data.length, 2);
});

test('models', async () => {
	const ids = (await collect(await gateway.models.list())).map((m) => m.id).sort();
	assert.deepEqual(ids, ['sim', 'slow']);
	const model = await gateway.models.retrieve('slow');
	assert.equal(model.id, 'slow');
	assert.equal(model.object, 'model');
	await assert.rejects(gateway.models.retrieve('nope'), (e) => e instanceof OpenAI.NotFoundError && e.code === 'model_not_found');
});

test('errors of the gateway', async () => {
	const missing = gateway.chat.completions.create({ model: 'nope', messages: user('hi') });
	await assert.rejects(missing, (e) => e instanceof OpenAI.NotFoundError && e.code === 'model_not_found' && e.param === 'model' && e.requestID === 'interop');
	await assert.rejects(gateway.chat.completions.create({ messages: user('hi') }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'model');
	const large = user('x'.repeat(Number(env('CGN_MAX_BODY')) + 1));
	await assert.rejects(gateway.chat.completions.create({ model: 'sim', messages: large }), (e) => e.status === 413 && e.code === 'request_too_large');
	assert.ok((await chat({})).id); // and the next request is served
});

test('errors of the engine are its own', async () => {
	for (const body of [{ max_tokens: -4 }, { messages: 7 }, { max_tokens: 20, n: 0 }, { max_tokens: 99999999, stream: true }]) {
		const error = await ask(async (c) => {
			try {
				await c.chat.completions.create({ model: 'sim', messages: user('hi'), ...body });
			} catch (e) {
				return { kind: e.constructor.name, status: e.status, message: e.message, param: e.param, code: e.code, type: e.type };
			}
			throw new Error(`${JSON.stringify(body)} was answered`);
		});
		assert.equal(error.kind, 'BadRequestError');
	}
});

test('keys', { skip: key === 'none' && 'this gateway asks for none' }, async () => {
	for (const c of [client(env('CGN_URL'), 'wrong'), client(env('CGN_URL'), 'sk-cgn-' + 'a'.repeat(40))]) {
		await assert.rejects(c.chat.completions.create({ model: 'sim', messages: user('hi') }),
			(e) => e instanceof OpenAI.AuthenticationError && e.code === 'invalid_api_key');
		await assert.rejects(async () => collect(await c.models.list()), OpenAI.AuthenticationError);
	}
});

const endless = { model: 'slow', messages: user('on and on'), max_tokens: 20000, ignore_eos: true };

test('leaving a stream ends it in the engine', async () => {
	await expectAborted(async (runs) => {
		const stream = await gateway.chat.completions.create({ ...endless, stream: true });
		let seen = 0;
		for await (const _ of stream) {
			if (++seen === 5) await runs();
			if (seen > 5) break;
		}
		assert.equal(seen, 6);
	});
});

test('aborting a stream or a plain request ends it in the engine', async () => {
	for (const stream of [true, false]) {
		await expectAborted(async (runs) => {
			const abort = new AbortController();
			const asked = (async () => {
				const answer = await gateway.chat.completions.create({ ...endless, stream }, { signal: abort.signal });
				if (stream) await collect(answer);
			})().catch((e) => e);
			await runs();
			abort.abort();
			const e = await asked;
			assert.ok(!stream ? e instanceof OpenAI.APIUserAbortError : true, String(e));
		});
	}
});

test('a client that loses patience ends it in the engine', async () => {
	await expectAborted(async () => {
		await assert.rejects(gateway.chat.completions.create(endless, { timeout: 300 }), OpenAI.APIConnectionTimeoutError);
	});
});

test('many at once', async () => {
	const answers = await Promise.all(Array.from({ length: 40 }, (_, i) => i % 2
		? gateway.chat.completions.create({ model: 'sim', messages: user(`number ${i >> 1}`), max_tokens: 30 }).then((a) => a.choices[0].message.content)
		: gateway.chat.completions.create({ model: 'sim', messages: user(`number ${i >> 1}`), max_tokens: 30, stream: true }).then(collect).then(textOf)));
	for (let i = 0; i < 40; i += 2) assert.equal(answers[i], answers[i + 1]);
	assert.ok(new Set(answers).size > 10);
});
