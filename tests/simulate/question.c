/* SPDX-License-Identifier: Apache-2.0 */
#include "question.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>
#include <zstd.h>

#include "base/core/err.h"
#include "base/json/json.h"
#include "base/mix/mix.h"

/* ---- questions ---- */

static void put_prompt(struct cgn_buf *b)
{
	static const char *const words[] = {"sea", "wind", "salt", "gull", "rope", "tide", "moon", "sand",
		"wave", "ship", "fog", "bell", "star", "dune", "reef", "kelp"};
	uint64_t family = world_draw(PLAN(families)), n = 1 + world_draw(PLAN(prompt)), common = n * 3 / 4;
	for (uint64_t i = 0; i < n; i++)
		cgn_buf_fmt(b, "%s ", words[i < common ? (family * 7 + i * i + i / 3) % 16 : world_draw(16)]);
}

#define PICTURE "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
#define TOOL    "look_up"

static void put_text_part(struct json_out *o, const char *type, struct cgn_str text)
{
	json_open(o, '{');
	json_key_z(o, "type", type);
	json_key_str(o, "text", text);
	json_close(o, '}');
}

static void put_picture(struct json_out *o, enum api api)
{
	static const char url[] = "data:image/png;base64," PICTURE;
	json_open(o, '{');
	json_key_z(o, "type",
		api == API_MESSAGES            ? "image"
			: api == API_RESPONSES ? "input_image"
					       : "image_url");
	if (api == API_MESSAGES) {
		json_key_open(o, "source", '{');
		json_key_z(o, "type", "base64");
		json_key_z(o, "media_type", "image/png");
		json_key_z(o, "data", PICTURE);
		json_close(o, '}');
	} else if (api == API_RESPONSES) {
		json_key_z(o, "image_url", url);
	} else {
		json_key_open(o, "image_url", '{');
		json_key_z(o, "url", url);
		json_close(o, '}');
	}
	json_close(o, '}');
}

static void put_images(struct json_out *o)
{
	json_key_open(o, "images", '[');
	json_put_z(o, PICTURE);
	json_close(o, ']');
}

static void put_message(struct json_out *o, const struct request *r, enum api api, struct cgn_str prompt)
{
	json_key_open(o, api == API_RESPONSES ? "input" : "messages", '[');
	json_open(o, '{');
	json_key_z(o, "role", "user");
	if (r->picture && api != API_OLLAMA) {
		json_key_open(o, "content", '[');
		put_text_part(o, api == API_RESPONSES ? "input_text" : "text", prompt);
		put_picture(o, api);
		json_close(o, ']');
	} else {
		json_key_str(o, "content", prompt);
	}
	if (r->picture && api == API_OLLAMA)
		put_images(o);
	json_close(o, '}');
	json_close(o, ']');
}

/* Offer a tool; the prompt has its name, so that it is called. */
static void put_tools(struct json_out *o, enum api api, bool forced)
{
	static const char schema[] =
		"{\"type\":\"object\",\"properties\":{\"place\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}";
	bool inner = api == API_CHAT || api == API_OLLAMA;
	json_key_open(o, "tools", '[');
	json_open(o, '{');
	if (api != API_MESSAGES)
		json_key_z(o, "type", "function");
	if (inner)
		json_key_open(o, "function", '{');
	json_key_z(o, "name", TOOL);
	json_key(o, api == API_MESSAGES ? "input_schema" : "parameters");
	json_put_raw(o, cgn_str_of(schema));
	if (inner)
		json_close(o, '}');
	json_close(o, '}');
	json_close(o, ']');
	if (forced && api == API_MESSAGES) {
		json_key_open(o, "tool_choice", '{');
		json_key_z(o, "type", "any");
		json_close(o, '}');
	} else if (forced) {
		json_key_z(o, "tool_choice", "required");
	}
}

static void put_stop(struct json_out *o, const char *stop, enum api api)
{
	json_key_open(o, api == API_MESSAGES ? "stop_sequences" : "stop", '[');
	json_put_z(o, stop);
	json_close(o, ']');
}

static void put_limits(struct json_out *o, const struct request *r, enum api api)
{
	if (api >= API_OLLAMA) {
		json_key_open(o, "options", '{');
		json_key_u64(o, "num_predict", r->max);
		if (r->stop[0] != '\0')
			put_stop(o, r->stop, api);
		json_close(o, '}');
		return;
	}
	json_key_u64(o, api == API_RESPONSES ? "max_output_tokens" : "max_tokens", r->max);
	if (r->stop[0] != '\0')
		put_stop(o, r->stop, api);
}

/* Put the request in the words of |api|: for the client as it wants it, for the twin as a document. */
static void put_body(struct cgn_buf *b, const struct request *r, enum api api, struct cgn_str prompt,
	const char *model, bool right)
{
	struct json_out o = json_out_to(b);
	b->n = 0;
	json_open(&o, '{');
	json_key_z(&o, "model", model);
	if (api == API_COMPLETIONS || api == API_GENERATE || (api == API_RESPONSES && !r->picture))
		json_key_str(&o, api == API_RESPONSES ? "input" : "prompt", prompt);
	else
		put_message(&o, r, api, prompt);
	if (api == API_GENERATE && r->picture)
		put_images(&o);
	if (r->tool)
		put_tools(&o, api, r->forced);
	put_limits(&o, r, api);
	if (r->n > 1)
		json_key_u64(&o, "n", r->n);
	if (r->logprobs && api == API_COMPLETIONS)
		json_key_u64(&o, "logprobs", 2);
	else if (r->logprobs) {
		json_key_bool(&o, "logprobs", true);
		json_key_u64(&o, "top_logprobs", 2);
	}
	json_key_bool(&o, "stream", !right && r->stream);
	if (!right && r->usage) {
		json_key_open(&o, "stream_options", '{');
		json_key_bool(&o, "include_usage", true);
		json_close(&o, '}');
	}
	json_close(&o, '}');
}

/* ---- routes that give no text ---- */

static const struct route routes[] = {
	{"POST", "/v1/embeddings", "{\"model\":\"m\",\"input\":\"%s\"}", 200, NULL},
	{"POST", "/v1/embeddings",
		"{\"model\":\"m\",\"input\":[\"%s\",\"sea\"],\"encoding_format\":\"base64\",\"dimensions\":32}",
		200, NULL},
	{"POST", "/rerank", "{\"model\":\"m\",\"query\":\"tide\",\"documents\":[\"%s\",\"sand\"]}", 200,
		NULL},
	{"POST", "/v1/rerank",
		"{\"model\":\"m\",\"query\":\"tide\",\"documents\":[\"%s\",\"sand\"],\"top_n\":1}", 200,
		NULL},
	{"POST", "/v1/score", "{\"model\":\"m\",\"text_1\":\"tide\",\"text_2\":[\"%s\",\"sand\"]}", 200,
		NULL},
	{"POST", "/tokenize", "{\"model\":\"m\",\"prompt\":\"%s\"}", 200, NULL},
	{"POST", "/detokenize", "{\"model\":\"m\",\"tokens\":[7,8,9]}", 200, NULL},
	{"POST", "/api/embed", "{\"model\":\"m\",\"input\":\"%s\"}", 200, "\"embeddings\""},
	{"POST", "/v1/messages/count_tokens",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", 200,
		"\"input_tokens\""},
	{"GET", "/v1/models", NULL, 200, "\"m\""},
	{"GET", "/v1/models/m", NULL, 200, "\"m\""},
	{"GET", "/v1/models/nobody", NULL, 404, NULL},
	{"GET", "/api/tags", NULL, 200, "\"m\""},
	{"GET", "/api/ps", NULL, 200, "\"models\""},
	{"POST", "/api/show", "{\"model\":\"m\"}", 200, "\"capabilities\""},
	{"GET", "/api/version", NULL, 200, "\"version\""},
	{"GET", "/healthz", NULL, 200, ""},
	{"GET", "/version", NULL, 200, ""},
	{"POST", "/v1/quote", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", 200,
		""},
	{"POST", "/v1/chat/completions",
		"{\"model\":\"nobody\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", 404, NULL},
	{"POST", "/v1/messages", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%s", 400,
		NULL},
	{"POST", "/api/chat", "{\"model\":\"m\",\"messages\":7}", 400, NULL},
	{"POST", "/v1/responses", "{\"input\":\"%s\"}", 400, NULL},
	{"GET", "/v1/chat/completions", NULL, 405, NULL},
	{"POST", "/v1/nothing", "{}", 404, NULL},
	{"POST", "/api/pull", "{\"model\":\"m\"}", 501, NULL},
	{"POST", "/v1/audio/speech", "{\"model\":\"m\",\"input\":\"%s\",\"voice\":\"x\"}", 501, NULL},
};

static void put_route(struct request *r, struct cgn_str prompt)
{
	r->route = &routes[world_draw(CGN_COUNT(routes))];
	const char *at = r->route->body;
	for (const char *mark; at != NULL && (mark = strstr(at, "%s")) != NULL; at = mark + 2) {
		cgn_buf_add(&r->body, at, (size_t)(mark - at));
		cgn_buf_str(&r->body, prompt);
	}
	if (at != NULL)
		cgn_buf_putz(&r->body, at);
	cgn_buf_str(&r->right_body, cgn_buf_view(&r->body));
}

/* ---- sending ---- */

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
	if (r->must == 0 && PLAN(max_body) > 0 && r->body.n > PLAN(max_body) * 1024)
		r->must = 413;
	if (cluster.over || r->body.n == 0)
		return; /* The last clients send plainly */
	if (r->must == 0 && one_of(PLAN(coded)))
		body_code(r);
	r->old = one_of(PLAN(old_http));
	r->chunks = !r->old && one_of(PLAN(pieces));
	r->expects = !r->old && one_of(PLAN(expects));
}

/* ---- fields of the router ---- */

static void put_fields(struct request *r)
{
	static const char *const fields[] = {"X-Cgn-Priority: high", "X-Cgn-Priority: 0",
		"X-Cgn-Deadline-Ms: 60000", "X-Cgn-Session: s1", "X-Cgn-Session: s2", "X-Cgn-Resume: 0",
		"X-Cgn-Resume: 1", "X-Cgn-Retry: off", "X-Cgn-Retry: unbegun", "X-Cgn-Cascade: off",
		"X-Cgn-Cascade: only-small",
		"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"};
	uint64_t how = world_draw(10);
	if (how == 0) {
		r->must = 400;
		cgn_buf_putz(&r->headers,
			world_chance(2) ? "X-Cgn-Priority: 17\r\n" : "X-Cgn-Deadline-Ms: soon\r\n");
	} else if (how == 1) {
		r->may_refuse = true;
		cgn_buf_putz(&r->headers,
			world_chance(2) ? "Prefer: if-available\r\n" : "X-Cgn-Deadline-Ms: 5\r\n");
	} else {
		cgn_buf_fmt(&r->headers, "%s\r\n", fields[world_draw(CGN_COUNT(fields))]);
	}
}

/* ---- the hook ---- */

#define BOOKS 64 /* More than a run has requests; the last one is that of the last clients */
static struct hook_book books[BOOKS];

static struct hook_book *book_of(uint64_t id)
{
	return &books[id < BOOKS ? id : BOOKS - 1];
}

struct hook_book *request_book(struct cgn_str question)
{
	static const char mark[] = "\"client_id\":\"try-";
	const char *at = memmem(question.p, question.n, mark, sizeof mark - 1);
	return at != NULL ? book_of(strtoull(at + sizeof mark - 1, NULL, 10)) : NULL;
}

const struct hook_book *request_hook(const struct request *r)
{
	return book_of(r->id);
}

/* ---- a request ---- */

static const char *const paths[API_COUNT] = {"/v1/completions", "/v1/chat/completions", "/v1/messages",
	"/v1/responses", "/api/chat", "/api/generate"};

struct http_want request_want(const struct request *r, const struct part *p, uint16_t port)
{
	bool right = p == &cluster.twin;
	struct http_want want = {.ip = world_host_address(p->host),
		.port = port,
		.method = r->route != NULL ? r->route->method : "POST",
		.path = r->route != NULL ? r->route->path
					 : paths[right && r->api >= API_OLLAMA ? API_CHAT : r->api],
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

void request_describe(const struct request *r, char *out, size_t cap)
{
	const struct {
		bool is;
		const char *text;
	} words[] = {{r->stream, ", streamed"}, {r->tool, ", a tool"}, {r->picture, ", a picture"},
		{r->n > 1, ", several"}, {r->logprobs, ", log-probabilities"},
		{r->stop[0] != '\0', ", a stop"}, {r->old, ", HTTP/1.0"}, {r->chunks, ", in chunks"},
		{r->expects, ", waits for 100"}, {r->model[0] != 'm', ", another model"},
		{r->must != 0, ", must be refused"}, {r->tenant == cluster.tenant, ", tenant-0"}};
	size_t n = (size_t)snprintf(out, cap, "%s", r->route != NULL ? r->route->path : paths[r->api]);
	for (size_t i = 0; i < CGN_COUNT(words); i++)
		if (words[i].is && n < cap)
			n += (size_t)snprintf(out + n, cap - n, "%s", words[i].text);
}

static void request_learn(struct request *r)
{
	struct http_want want = request_want(r, &cluster.twin, 8000);
	http_got_fini(&r->right_got);
	said_fini(&r->right);
	http_ask(&want, &r->right_got);
	if (r->right_got.end != HTTP_WHOLE)
		world_fail("the twin does not answer: %s", http_end_text(r->right_got.end));
	said_read(&r->right_got, &r->right);
}

/* The answer ends at a text that it would have, behind its first word: a simulated engine resumes no answer that is shorter. */
static bool draw_stop(struct request *r)
{
	const struct cgn_buf *text = &r->right.choice[0].text;
	const char *word = text->n > 0 ? memchr(text->p, ' ', text->n) : NULL;
	size_t n = 1 + world_draw(8), behind = word != NULL ? text->n - (size_t)(word + 1 - text->p) : 0;
	if (behind < n)
		return false;
	const char *from = word + 1 + world_draw(behind - n + 1);
	for (size_t i = 0; i < n; i++)
		if ((from[i] & 0x80) != 0 || from[i] < ' ')
			return false;
	(void)snprintf(r->stop, sizeof r->stop, "%.*s", (int)n, from);
	return true;
}

static void draw_api(struct request *r)
{
	r->stream = PLAN(stream) == 2 || (PLAN(stream) == 1 && world_chance(2));
	r->api = PLAN(chat) == 2 || (PLAN(chat) == 1 && world_chance(2)) ? API_CHAT : API_COMPLETIONS;
	if (PLAN(dialects) && world_chance(2))
		r->api = API_MESSAGES + (enum api)world_draw(API_COUNT - API_MESSAGES);
	r->usage = r->stream && PLAN(usage) != 0 && r->api <= API_CHAT;
	r->max = 1 + (unsigned)world_draw(PLAN(max_tokens));
	r->n = 1;
	static const char *const names[] = {"m", "m", "nick", "s"};
	r->model = PLAN(models) ? names[world_draw(CGN_COUNT(names))] : "m";
}

static void draw_members(struct request *r)
{
	if (cluster.over)
		return; /* The last clients ask for nothing special */
	r->picture = r->api != API_COMPLETIONS && one_of(PLAN(pictures));
	r->tool = r->api != API_COMPLETIONS && r->api != API_GENERATE && one_of(PLAN(tools));
	r->forced = r->tool && r->api < API_OLLAMA && world_chance(3);
	r->max += r->tool && !world_chance(6) ? 60 : 0;
	if (r->api <= API_CHAT && one_of(PLAN(several)))
		r->n = r->tool ? 1 : 2 + (unsigned)world_draw(SAID_CHOICES - 1);
	r->logprobs = r->api <= API_CHAT && !r->tool && one_of(PLAN(logprobs));
}

static void request_swap(struct request *r)
{
	struct said right = r->right;
	struct http_got got = r->right_got;
	r->right = r->small;
	r->right_got = r->small_got;
	r->small = right;
	r->small_got = got;
}

void request_take_small(struct request *r)
{
	if (r->small_got.status != 0)
		request_swap(r);
}

/* Put the request, and learn the right answer. */
static void put_bodies(struct request *r, struct cgn_str prompt)
{
	enum api right = r->api >= API_OLLAMA ? API_CHAT : r->api;
	put_body(&r->body, r, r->api, prompt, r->model, false);
	if (PLAN(cascade) && strcmp(r->model, "s") != 0) {
		put_body(&r->right_body, r, right, prompt, "s", true);
		request_learn(r);
		request_swap(r);
	}
	put_body(&r->right_body, r, right, prompt, strcmp(r->model, "s") == 0 ? "s" : "m", true);
	request_learn(r);
}

/* The question itself is drawn from the seed and its number alone, so that a load can be repeated. */
void request_draw(struct request *r, unsigned id)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf prompt = {0};
	uint64_t others = world_stream(mix_seeded(plan.seed) ^ mix_seeded(id));
	*r = (struct request){.id = id};
	*book_of(id) = (struct hook_book){0};
	draw_api(r);
	r->tenant = cluster.n_tenants > 0 ? &cluster.tenant[world_draw(cluster.n_tenants)] : NULL;
	if (r->tenant != NULL)
		cgn_buf_putz(&r->headers, r->tenant->header);
	cgn_buf_fmt(&r->headers, "X-Request-Id: try-%u\r\n", id);
	put_prompt(&prompt);
	bool elsewhere = !cluster.over && one_of(PLAN(routes));
	if (!elsewhere)
		draw_members(r);
	if (!elsewhere && !cluster.over && one_of(PLAN(fields)))
		put_fields(r);
	(void)world_stream(others);
	if (elsewhere) {
		put_route(r, cgn_buf_view(&prompt));
		r->stream = false;
		if (r->route->status == 200 && r->route->has == NULL)
			request_learn(r);
		r->must = r->route->status != 200 ? r->route->status : 0;
	} else {
		if (r->tool)
			cgn_buf_putz(&prompt, TOOL);
		put_bodies(r, cgn_buf_view(&prompt));
		if (!cluster.over && !r->tool && !r->logprobs && r->api != API_RESPONSES &&
			one_of(PLAN(stops)) && draw_stop(r)) {
			put_bodies(r, cgn_buf_view(&prompt));
		}
	}
	draw_sending(r);
	(void)cgn_buf_z(&r->headers);
}

void request_fini(struct request *r)
{
	request_swap(r);
	said_fini(&r->right);
	http_got_fini(&r->right_got);
	said_fini(&r->small);
	http_got_fini(&r->small_got);
	cgn_buf_fini(&r->body);
	cgn_buf_fini(&r->right_body);
	cgn_buf_fini(&r->headers);
}
