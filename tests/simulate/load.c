/* SPDX-License-Identifier: Apache-2.0 */
/* load: clients that ask and judge the answers. The right answer is that of an engine beside the cluster. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/sse/sse.h"
#include "scenario.h"

#define TIMEOUT (200 * WORLD_SEC) /* Longer than the router lets a request wait */

/* The content of an answer. */
struct said {
	struct cgn_buf text, finish, error;
	uint64_t prompt_tokens, completion_tokens;
	unsigned events;
	bool done, odd; /* data: [DONE]; an event that is not JSON */
};

/* The API in which a request is sent. */
enum api { API_COMPLETIONS, API_CHAT, API_MESSAGES, API_RESPONSES, API_OLLAMA };

struct request {
	unsigned id;
	enum api api;
	bool stream, usage;
	struct tenant *tenant;     /* NULL: no key */
	bool sure;                 /* The outcome says whether the request counts */
	struct cgn_buf right_body; /* The same question in the twin's API */
	struct cgn_buf body;
	struct said right;
	int right_status;
};

/* ---- reading an answer ---- */

static void said_fini(struct said *s)
{
	cgn_buf_fini(&s->text);
	cgn_buf_fini(&s->finish);
	cgn_buf_fini(&s->error);
}

static void take_string(struct json_val object, const char *key, struct cgn_buf *out)
{
	struct json_val v;
	if (json_get(object, key, &v) && v.type == JSON_STRING)
		json_str_to(v, out);
}

/* The parts of a message of Anthropic, of a response of OpenAI, and of an answer of Ollama. */
static void take_parts(struct json_val list, struct said *s)
{
	struct json_val part, inner;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &part);) {
		take_string(part, "text", &s->text);
		if (json_get(part, "content", &inner) && inner.type == JSON_ARRAY)
			take_parts(inner, s);
	}
}

static void take_others(struct json_val doc, struct said *s)
{
	struct json_val v, type;
	bool typed = json_get(doc, "type", &type);
	if (json_get(doc, "content", &v) && v.type == JSON_ARRAY)
		take_parts(v, s);
	if (json_get(doc, "output", &v) && v.type == JSON_ARRAY)
		take_parts(v, s);
	if (json_get(doc, "message", &v) && !typed)
		take_string(v, "content", &s->text);
	if (!typed)
		return;
	if (cgn_str_eq(type.raw, CGN_STR("\"content_block_delta\"")) && json_get(doc, "delta", &v))
		take_string(v, "text", &s->text);
	if (cgn_str_eq(type.raw, CGN_STR("\"response.output_text.delta\"")))
		take_string(doc, "delta", &s->text);
	if (cgn_str_eq(type.raw, CGN_STR("\"error\"")) ||
		cgn_str_eq(type.raw, CGN_STR("\"response.failed\"")))
		cgn_buf_str(&s->error, doc.raw);
	s->done |= cgn_str_eq(type.raw, CGN_STR("\"message_stop\"")) ||
		cgn_str_eq(type.raw, CGN_STR("\"response.completed\"")) ||
		cgn_str_eq(type.raw, CGN_STR("\"response.incomplete\""));
}

static void take_choice(struct json_val choice, struct said *s)
{
	struct json_val inner;
	take_string(choice, "text", &s->text);
	if (json_get(choice, "delta", &inner) || json_get(choice, "message", &inner))
		take_string(inner, "content", &s->text);
	take_string(choice, "finish_reason", &s->finish);
}

static void take_document(struct cgn_str text, struct said *s)
{
	struct json_val doc, v;
	if (!cgn_ok(json_parse(text, &doc, NULL, NULL)) || doc.type != JSON_OBJECT) {
		s->odd = true;
		return;
	}
	if (json_get(doc, "error", &v) && v.type != JSON_NULL)
		cgn_buf_str(&s->error, v.raw);
	take_others(doc, s);
	s->done |= json_get_bool(doc, "done", false);
	if (json_get(doc, "choices", &v) && v.type == JSON_ARRAY) {
		struct json_iter it = json_iter_of(v);
		struct json_val choice;
		while (json_next_elem(&it, &choice))
			take_choice(choice, s);
	}
	if (json_get(doc, "usage", &v) && v.type == JSON_OBJECT) {
		s->prompt_tokens = json_get_u64(v, "prompt_tokens", json_get_u64(v, "input_tokens", 0)) +
			json_get_u64(v, "cache_read_input_tokens", 0);
		s->completion_tokens =
			json_get_u64(v, "completion_tokens", json_get_u64(v, "output_tokens", 0));
	}
}

static void on_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	struct said *s = arg;
	(void)name;
	s->events++;
	if (s->done)
		s->odd = true; /* Something after the end */
	if (data.n == 6 && memcmp(data.p, "[DONE]", 6) == 0)
		s->done = true;
	else
		take_document(data, s);
}

static void said_read(const struct http_got *got, struct said *s)
{
	struct cgn_str type = http_header(got, "content-type");
	*s = (struct said){0};
	if (type.n >= 17 && memcmp(type.p, "text/event-stream", 17) == 0) {
		struct sse_scan scan;
		sse_scan_init(&scan, 1 << 20, on_event, s);
		sse_scan_feed(&scan, cgn_buf_view(&got->body));
		sse_scan_fini(&scan);
	} else if (type.n >= 20 && memcmp(type.p, "application/x-ndjson", 20) == 0) {
		struct cgn_str rest = cgn_buf_view(&got->body);
		for (const char *end; (end = rest.n > 0 ? memchr(rest.p, '\n', rest.n) : NULL) != NULL;) {
			take_document((struct cgn_str){rest.p, (size_t)(end - rest.p)}, s);
			s->events++;
			rest.n -= (size_t)(end + 1 - rest.p);
			rest.p = end + 1;
		}
	} else if (got->body.n > 0) {
		take_document(cgn_buf_view(&got->body), s);
		s->done = true;
	}
}

/* ---- asking ---- */

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

static void request_draw(struct request *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf prompt = {0};
	r->stream = PLAN(stream) == 2 || (PLAN(stream) == 1 && world_chance(2));
	r->api = PLAN(chat) == 2 || (PLAN(chat) == 1 && world_chance(2)) ? API_CHAT : API_COMPLETIONS;
	if (PLAN(dialects) && world_chance(2))
		r->api = API_MESSAGES + (enum api)world_draw(3);
	r->usage = r->stream && PLAN(usage) != 0 && r->api <= API_CHAT;
	r->tenant = cluster.n_tenants > 0 ? &cluster.tenant[world_draw(cluster.n_tenants)] : NULL;
	put_prompt(&prompt);
	unsigned max = 1 + (unsigned)world_draw(PLAN(max_tokens));
	put_body(&r->body, r, r->api, cgn_buf_view(&prompt), max);
	/* The twin is asked for a whole answer, which tells its tokens. */
	struct request whole = {.stream = false};
	put_body(&r->right_body, &whole, r->api == API_OLLAMA ? API_CHAT : r->api, cgn_buf_view(&prompt),
		max);
}

static struct http_want want_of(const struct request *r, const struct part *p, uint16_t port)
{
	static const char *const paths[] = {"/v1/completions", "/v1/chat/completions", "/v1/messages",
		"/v1/responses", "/api/chat"};
	bool right = p == &cluster.twin;
	return (struct http_want){.ip = world_host_address(p->host),
		.port = port,
		.method = "POST",
		.path = paths[right && r->api == API_OLLAMA ? API_CHAT : r->api],
		.headers = r->tenant != NULL ? r->tenant->header : NULL,
		.body = cgn_buf_view(right ? &r->right_body : &r->body),
		.timeout = TIMEOUT};
}

static void request_learn(struct request *r)
{
	struct http_got got;
	struct http_want want = want_of(r, &cluster.twin, 8000);
	http_ask(&want, &got);
	if (got.end != HTTP_WHOLE)
		world_fail("the twin does not answer: %s", http_end_text(got.end));
	r->right_status = got.status;
	said_read(&got, &r->right);
	http_got_fini(&got);
}

/* ---- judging ---- */

static bool harmed_since(uint64_t when)
{
	return cluster.last_harm != 0 && cluster.last_harm >= when;
}

/* May a request that began at |when| find a cluster that has not recovered from a fault? */
static bool is_troubled(uint64_t when)
{
	return !odd_is_harmless((enum odd)PLAN(odd_engine)) ||
		harmed_since(when > 60 * WORLD_SEC ? when - 60 * WORLD_SEC : 1);
}

static bool begins_with(const struct cgn_buf *whole, const struct cgn_buf *part)
{
	return part->n <= whole->n && (part->n == 0 || memcmp(whole->p, part->p, part->n) == 0);
}

static bool bytes_equal(const struct cgn_buf *a, const struct cgn_buf *b)
{
	return a->n == b->n && begins_with(a, b);
}

static void judge_whole(struct request *r, const struct said *s)
{
	if (!bytes_equal(&s->text, &r->right.text))
		world_fail("a wrong answer: request %u got \"%.*s\", right is \"%.*s\"", r->id,
			(int)s->text.n, s->text.p, (int)r->right.text.n, r->right.text.p);
	if (r->api <= API_CHAT && !bytes_equal(&s->finish, &r->right.finish))
		world_fail("a wrong finish_reason: request %u got \"%.*s\", right is \"%.*s\"", r->id,
			(int)s->finish.n, s->finish.p, (int)r->right.finish.n, r->right.finish.p);
	bool told = r->api <= API_CHAT && (!r->stream || r->usage);
	if (told &&
		(s->completion_tokens != r->right.completion_tokens ||
			s->prompt_tokens != r->right.prompt_tokens))
		world_fail("a wrong usage: request %u got %llu and %llu tokens, right are %llu and %llu",
			r->id, (unsigned long long)s->prompt_tokens, (unsigned long long)s->completion_tokens,
			(unsigned long long)r->right.prompt_tokens,
			(unsigned long long)r->right.completion_tokens);
	cluster.answered++;
	r->sure = true;
	if (r->tenant != NULL) {
		r->tenant->answered++;
		r->tenant->prompt_tokens += r->right.prompt_tokens;
		r->tenant->completion_tokens += r->right.completion_tokens;
	}
}

/* The head said 200. */
static void judge_answer(struct request *r, const struct http_got *got, uint64_t began)
{
	struct said s;
	said_read(got, &s);
	if (s.odd)
		world_fail(
			"an answer that is not of its API: request %u got an event that is not JSON, or one after the end",
			r->id);
	if (s.error.n > 0) {
		/* Behind early comments a request that found no room ends with an error. */
		if (!is_troubled(began) && PLAN(concurrent) == 0)
			world_fail("an error without a fault: request %u got %.*s", r->id, (int)s.error.n,
				s.error.p);
		if (!begins_with(&r->right.text, &s.text))
			world_fail("a wrong beginning: request %u got \"%.*s\", right is \"%.*s\"", r->id,
				(int)s.text.n, s.text.p, (int)r->right.text.n, r->right.text.p);
		cluster.broken++;
	} else if (!s.done) {
		world_fail("a stream ended without its end: request %u, after %u events", r->id, s.events);
	} else {
		judge_whole(r, &s);
	}
	said_fini(&s);
}

static void judge_refusal(struct request *r, const struct http_got *got, uint64_t began)
{
	struct said s;
	said_read(got, &s);
	if (s.error.n == 0)
		world_fail("a refusal without a reason: request %u got status %d and \"%.*s\"", r->id,
			got->status, (int)got->body.n, got->body.p);
	if (got->status == 429 && memmem(s.error.p, s.error.n, "budget exhausted", 16) != NULL &&
		r->tenant != NULL) {
		r->tenant->over_budget++;
		cluster.refused++;
		r->sure = true;
		said_fini(&s);
		return;
	}
	/* Engines that answer only in pairs hand over completions and chats alone. */
	bool paired = got->status == 501 && PLAN(handoff) != DIALECT_NONE && r->api > API_CHAT;
	if (got->status != r->right_status && !paired && !is_troubled(began) && PLAN(concurrent) == 0)
		world_fail("a refusal without a fault: request %u got status %d, %.*s", r->id, got->status,
			(int)s.error.n, s.error.p);
	cluster.refused++;
	r->sure = true;
	said_fini(&s);
}

static void request_judge(struct request *r, const struct http_got *got, uint64_t began)
{
	/* A router that was killed cut its connections. */
	bool router_harmed = cluster.router.ends ||
		(cluster.router.harmed != 0 && cluster.router.harmed + 5 * WORLD_SEC >= began);
	world_tell("request %u: %s, status %d, %zu bytes, %.3f s", r->id, http_end_text(got->end),
		got->status, got->body.n, (double)got->took / 1e9);
	switch (got->end) {
	case HTTP_LEFT:
		cluster.left++;
		break;
	case HTTP_BROKEN:
		world_fail("an answer that is not HTTP: request %u", r->id);
	case HTTP_SILENT:
		if (!router_harmed)
			world_fail("a request waits without an end: request %u has got nothing for %.0f s",
				r->id, (double)TIMEOUT / 1e9);
		cluster.lost++;
		break;
	case HTTP_CUT:
	case HTTP_NOTHING:
	case HTTP_REFUSED:
		/* A document whose rest does not come is cut; a stream ends with an error. */
		if (!router_harmed && !(got->end == HTTP_CUT && !r->stream && is_troubled(began)))
			world_fail("the gateway cut a connection: request %u, %s after %zu bytes", r->id,
				http_end_text(got->end), got->body.n);
		cluster.lost++;
		break;
	case HTTP_WHOLE:
		if (got->status == 200)
			judge_answer(r, got, began);
		else
			judge_refusal(r, got, began);
		break;
	}
}

/* ---- clients ---- */

static unsigned running;

static void request_run(unsigned id)
{
	struct request r = {.id = id};
	struct http_got got;
	request_draw(&r);
	request_learn(&r);
	struct http_want want = want_of(&r, &cluster.router, 8080);
	if (cluster.over)
		; /* The last clients behave well */
	else if (PLAN(leaves) > 0 && world_chance(PLAN(leaves))) {
		want.leave_after = world_chance(2) ? 1 + world_draw(3000) : 0;
		want.leave_at = want.leave_after == 0 ? 1 + world_draw(2 * WORLD_SEC) : 0;
	} else if (PLAN(slow) > 0 && world_chance(PLAN(slow))) {
		want.pause = world_draw(300 * WORLD_MS);
	}
	uint64_t began = world_now();
	cluster.sent++;
	http_ask(&want, &got);
	request_judge(&r, &got, began);
	if (r.tenant != NULL) {
		r.tenant->sent++;
		r.tenant->unsure += !r.sure;
	}
	http_got_fini(&got);
	said_fini(&r.right);
	cgn_buf_fini(&r.body);
	cgn_buf_fini(&r.right_body);
}

static void client_run(void *arg)
{
	uint64_t mine = (uint64_t)(uintptr_t)arg, step = PLAN(clients);
	for (uint64_t id = mine; id < PLAN(requests); id += step) {
		world_sleep(world_draw(2 * PLAN(window_ms) * WORLD_MS * step / PLAN(requests) + 1));
		request_run((unsigned)id);
	}
	running--;
}

void load_one(void)
{
	static unsigned id = 10000;
	request_run(id++);
}

void load_run(void)
{
	running = (unsigned)PLAN(clients);
	for (uintptr_t i = 0; i < PLAN(clients); i++)
		world_spawn(client_run, (void *)i);
	while (running > 0)
		world_sleep(20 * WORLD_MS);
	if (cluster.sent != cluster.answered + cluster.refused + cluster.left + cluster.broken + cluster.lost)
		world_fail("requests are not accounted for: %llu sent", (unsigned long long)cluster.sent);
}
