// SPDX-License-Identifier: Apache-2.0
// The official OpenAI client for JavaScript carries out a batch.
import test from 'node:test';
import assert from 'node:assert/strict';
import OpenAI, { toFile } from 'openai';

const client = new OpenAI({ baseURL: process.env.CGN_URL + '/v1', apiKey: process.env.CGN_KEY, maxRetries: 0 });
const line = (i) => JSON.stringify({
	custom_id: `c${i}`, method: 'POST', url: '/v1/chat/completions',
	body: { model: 'sim', messages: [{ role: 'user', content: `number ${i}` }], max_tokens: 5 },
});

test('a batch, from the upload to the answers', async () => {
	const lines = Array.from({ length: 20 }, (_, i) => line(i));
	const file = await client.files.create({ file: await toFile(Buffer.from(lines.join('\n')), 'in.jsonl'), purpose: 'batch' });
	let batch = await client.batches.create({ input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' });
	while (!['completed', 'failed', 'expired', 'cancelled'].includes(batch.status)) {
		await new Promise((done) => setTimeout(done, 20));
		batch = await client.batches.retrieve(batch.id);
	}
	assert.equal(batch.status, 'completed');
	assert.deepEqual(batch.request_counts, { total: 20, completed: 20, failed: 0 });
	const rows = (await (await client.files.content(batch.output_file_id)).text()).trim().split('\n').map((row) => JSON.parse(row));
	assert.deepEqual(rows.map((row) => row.custom_id).sort(), lines.map((row) => JSON.parse(row).custom_id).sort());
	assert.ok(rows.every((row) => row.response.body.choices[0].message.content.length > 0));
	const listed = [];
	for await (const b of client.batches.list())
		listed.push(b.id);
	assert.ok(listed.includes(batch.id));
	assert.equal((await client.files.delete(file.id)).deleted, true);
	await assert.rejects(client.files.retrieve(file.id), OpenAI.NotFoundError);
});
