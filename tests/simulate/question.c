/* SPDX-License-Identifier: Apache-2.0 */
#include "question.h"

#include <stdio.h>
#include <string.h>

#include <zlib.h>
#include <zstd.h>

#include "base/core/err.h"

/* ---- what is asked ---- */

static void put_prompt(struct cgn_buf *b)
{
	static const char *const words[] = {"sea", "wind", "salt", "gull", "rope", "tide", "moon", "sand",
		"wave", "ship", "fog", "bell", "star", "dune", "reef", "kelp"};
	uint64_t family = world_draw(PLAN(families)), n = 1 + world_draw(PLAN(prompt)), common = n * 3 / 4;
	for (uint64_t i = 0; i < n; i++)
		cgn_buf_fmt(b, "%s ", words[i < common ? (family * 7 + i * i + i / 3) % 16 : world_draw(16)]);
}

static void put_body(struct cgn_buf *b, const struct request *r, enum api api, struct cgn_str prompt,
	unsigned max)
{
	static const char *const begins[] = {"\"prompt\":\"",
		"\"messages\":[{\"role\":\"user\",\"content\":\"",
		"\"messages\":[{\"role\":\"user\",\"content\":\"", "\"input\":\"",
		"\"messages\":[{\"role\":\"user\",\"content\":\""};
	static const char *const ends[] = {"\"", "\"}]", "\"}]", "\"", "\"}]"};
	cgn_buf_putz(b, "{\"model\":\"m\",");
	cgn_buf_putz(b, begins[api]);
	cgn_buf_str(b, prompt);
	cgn_buf_putz(b, ends[api]);
	cgn_buf_fmt(b, ",\"%s\":%s%u%s",
		api == API_RESPONSES        ? "max_output_tokens"
			: api == API_OLLAMA ? "options"
					    : "max_tokens",
		api == API_OLLAMA ? "{\"num_predict\":" : "", max, api == API_OLLAMA ? "}" : "");
	cgn_buf_fmt(b, ",\"stream\":%s%s}", r->stream ? "true" : "false",
		r->usage ? ",\"stream_options\":{\"include_usage\":true}" : "");
}

/* ---- how it is sent ---- */

static const char *body_zstd(struct cgn_buf *b)
{
	struct cgn_buf out = {0};
	size_t cap = ZSTD_compressBound(b->n);
	cgn_buf_grew(&out, ZSTD_compress(cgn_buf_room(&out, cap), cap, b->p, b->n, 1));
	cgn_buf_fini(b);
	*b = out;
	return "zstd";
}

/* With gzip's head, zlib's, or none. */
static const char *body_deflate(struct cgn_buf *b, int window)
{
	struct cgn_buf out = {0};
	z_stream z = {.next_in = (Bytef *)b->p, .avail_in = (uInt)b->n};
	size_t cap = b->n + 1024;
	if (deflateInit2(&z, 6, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY) != Z_OK)
		world_fail("no memory");
	z.next_out = (Bytef *)cgn_buf_room(&out, cap);
	z.avail_out = (uInt)cap;
	(void)deflate(&z, Z_FINISH);
	cgn_buf_grew(&out, cap - z.avail_out);
	(void)deflateEnd(&z);
	cgn_buf_fini(b);
	*b = out;
	return window > 15 ? "gzip" : "deflate";
}

/* Code the body; in one of eight wrongly, so that it must be refused. */
static void body_code(struct request *r)
{
	static const int windows[] = {31, 31, 15, -15};
	uint64_t how = world_draw(6);
	const char *name = how < 4 ? body_deflate(&r->body, windows[how]) : body_zstd(&r->body);
	if (world_chance(8)) {
		uint64_t wrong = world_draw(3);
		r->must = wrong == 0 ? 415 : 400;
		name = wrong == 0 ? "br" : name;
		if (wrong == 1)
			r->body.n -= 1 + world_draw(r->body.n / 2);
		else if (wrong == 2)
			cgn_buf_putz(&r->body, "more");
	}
	cgn_buf_fmt(&r->headers, "Content-Encoding: %s\r\n", name);
}

static bool one_of(uint64_t many)
{
	return many > 0 && world_chance(many);
}

static void draw_sending(struct request *r)
{
	if (cluster.over)
		return; /* The last clients send plainly */
	if (one_of(PLAN(coded)))
		body_code(r);
	r->old = one_of(PLAN(old_http));
	r->chunks = !r->old && one_of(PLAN(pieces));
	r->expects = !r->old && one_of(PLAN(expects));
}

/* ---- a request ---- */

void request_draw(struct request *r, unsigned id)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf prompt = {0};
	*r = (struct request){.id = id};
	r->stream = PLAN(stream) == 2 || (PLAN(stream) == 1 && world_chance(2));
	r->api = PLAN(chat) == 2 || (PLAN(chat) == 1 && world_chance(2)) ? API_CHAT : API_COMPLETIONS;
	if (PLAN(dialects) && world_chance(2))
		r->api = API_MESSAGES + (enum api)world_draw(3);
	r->usage = r->stream && PLAN(usage) != 0 && r->api <= API_CHAT;
	r->tenant = cluster.n_tenants > 0 ? &cluster.tenant[world_draw(cluster.n_tenants)] : NULL;
	if (r->tenant != NULL)
		cgn_buf_putz(&r->headers, r->tenant->header);
	put_prompt(&prompt);
	unsigned max = 1 + (unsigned)world_draw(PLAN(max_tokens));
	put_body(&r->body, r, r->api, cgn_buf_view(&prompt), max);
	/* The twin is asked for a whole answer, which tells its tokens. */
	struct request whole = {.stream = false};
	put_body(&r->right_body, &whole, r->api == API_OLLAMA ? API_CHAT : r->api, cgn_buf_view(&prompt),
		max);
	draw_sending(r);
	(void)cgn_buf_z(&r->headers);
}

void request_fini(struct request *r)
{
	said_fini(&r->right);
	cgn_buf_fini(&r->body);
	cgn_buf_fini(&r->right_body);
	cgn_buf_fini(&r->headers);
}

struct http_want request_want(const struct request *r, const struct part *p, uint16_t port)
{
	static const char *const paths[] = {"/v1/completions", "/v1/chat/completions", "/v1/messages",
		"/v1/responses", "/api/chat"};
	bool right = p == &cluster.twin;
	struct http_want want = {.ip = world_host_address(p->host),
		.port = port,
		.method = "POST",
		.path = paths[right && r->api == API_OLLAMA ? API_CHAT : r->api],
		.body = cgn_buf_view(right ? &r->right_body : &r->body),
		.timeout = 200 * WORLD_SEC /* Longer than the router lets a request wait */};
	if (right)
		return want;
	want.headers = r->headers.n > 0 ? r->headers.p : NULL;
	want.old = r->old;
	want.chunks = r->chunks;
	want.between = PLAN(pieces) > 0 ? 50 * WORLD_MS : 0;
	want.expects = r->expects;
	return want;
}
