/* SPDX-License-Identifier: Apache-2.0 */
/* load: clients that ask and judge the answers. The right answer is that of an engine beside the cluster. */
#include <stdio.h>
#include <string.h>

#include "base/core/err.h"
#include "base/json/json.h"
#include "question.h"

/* ---- judging ---- */

static bool harmed_since(uint64_t when)
{
	return cluster.last_harm != 0 && cluster.last_harm >= when;
}

/* A router that ends, or was killed, cut its connections. */
static bool router_harmed(uint64_t since)
{
	return cluster.router.ends ||
		(cluster.router.harmed != 0 && cluster.router.harmed + 5 * WORLD_SEC >= since);
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

static void part_right(const struct request *r, const char *what, const struct cgn_buf *got,
	const struct cgn_buf *right)
{
	if (!bytes_equal(got, right))
		world_fail("a wrong %s: request %u got \"%.*s\", right is \"%.*s\"", what, r->id, (int)got->n,
			got->p, (int)right->n, right->p);
}

/* Does the answer tell its tokens? */
static bool tells_usage(const struct request *r)
{
	return !r->stream || r->usage || r->api > API_CHAT;
}

/* Where an answer is resumed behind a token that a stop string cut, the engine and the router count that token once each: the sum
 * is right. */
static bool usage_right(const struct request *r, const struct said *s, bool troubled)
{
	const struct said *right = &r->right;
	if (r->stop[0] != '\0' && troubled)
		return s->prompt_tokens + s->completion_tokens ==
			right->prompt_tokens + right->completion_tokens;
	return s->completion_tokens == right->completion_tokens && s->prompt_tokens == right->prompt_tokens;
}

static void judge_finish(struct request *r, const struct said_choice *c, const struct said_choice *right)
{
	/* Ollama knows no end by a tool. */
	if (r->api >= API_OLLAMA && r->tool && c->finish.n == 4 && right->finish.n == 10)
		return;
	part_right(r, "finish_reason", &c->finish, &right->finish);
}

static void judge_choice(struct request *r, const struct said_choice *c, const struct said_choice *right)
{
	part_right(r, "answer", &c->text, &right->text);
	judge_finish(r, c, right);
	/* A document of Anthropic's has an empty call in the place of one that was cut. */
	if (r->api != API_MESSAGES || right->finish.n != 10)
		part_right(r, "tool call", &c->calls, &right->calls);
	part_right(r, "list of log-probabilities", &c->logprobs, &right->logprobs);
}

/* The request was answered with all of its answer. */
static void judge_hook(const struct request *r)
{
	const struct hook_book *h = request_hook(r);
	if ((PLAN(hook) & 1) && !PLAN(hook_allow) && h->allowed == 0)
		world_fail("an answer that the hook before did not allow: request %u, asked %u times", r->id,
			h->refused + h->failed);
	if ((PLAN(hook) & 2) && !PLAN(hook_allow) && h->after_allowed == 0)
		world_fail("an answer that the hook after did not allow: request %u, asked %u times", r->id,
			h->after_refused + h->after_failed);
	/* A hook's word that comes too late does not count. */
	if (cluster.last_harm == 0 &&
		((h->refused > 0 && h->allowed + h->failed == 0) || h->after_refused > 0))
		world_fail("an answer that the hook refused: request %u", r->id);
}

static void judge_whole(struct request *r, const struct said *s, const struct http_got *got)
{
	for (size_t i = 0; i < SAID_CHOICES; i++)
		judge_choice(r, &s->choice[i], &r->right.choice[i]);
	if (!cgn_str_eq(cgn_buf_view(&s->model), cgn_str_of(r->model)))
		world_fail("a wrong model: request %u for %s got %.*s", r->id, r->model, (int)s->model.n,
			s->model.p);
	judge_hook(r);
	if (!tells_usage(r) && s->prompt_tokens + s->completion_tokens > 0)
		world_fail("a usage that its client did not ask for: request %u", r->id);
	if (tells_usage(r) && !usage_right(r, s, is_troubled(r->began)))
		world_fail("a wrong usage: request %u got %llu and %llu tokens, right are %llu and %llu",
			r->id, (unsigned long long)s->prompt_tokens, (unsigned long long)s->completion_tokens,
			(unsigned long long)r->right.prompt_tokens,
			(unsigned long long)r->right.completion_tokens);
	if (!r->stream && r->api < API_OLLAMA &&
		!said_same(cgn_buf_view(&got->body), cgn_buf_view(&r->right_got.body)))
		world_fail("another document: request %u got %.*s, right is %.*s", r->id, (int)got->body.n,
			got->body.p, (int)r->right_got.body.n, r->right_got.body.p);
	cluster.answered++;
	r->sure = PLAN(cascade) == 0; /* A smaller model's tokens are charged too */
	if (r->tenant != NULL) {
		r->tenant->answered++;
		r->tenant->prompt_tokens += r->right.prompt_tokens;
		r->tenant->completion_tokens += r->right.completion_tokens;
		uint64_t tokens = r->right.prompt_tokens + r->right.completion_tokens;
		r->tenant->most_tokens = tokens > r->tenant->most_tokens ? tokens : r->tenant->most_tokens;
	}
}

/* A route that gives no text was answered with 200. */
static void judge_route(struct request *r, const struct http_got *got, uint64_t began)
{
	const struct route *t = r->route;
	/* An engine's error is the answer where no other engine is left. */
	if (is_troubled(began) && memmem(got->body.p, got->body.n, "\"error\"", 7) != NULL) {
		cluster.broken++;
		return;
	}
	if (t->has == NULL && !said_same(cgn_buf_view(&got->body), cgn_buf_view(&r->right_got.body)))
		world_fail("another document: request %u, %s, got %.*s, right is %.*s", r->id, t->path,
			(int)got->body.n, got->body.p, (int)r->right_got.body.n, r->right_got.body.p);
	if (t->has != NULL && t->has[0] != '\0' && !is_troubled(began) &&
		memmem(got->body.p, got->body.n, t->has, strlen(t->has)) == NULL)
		world_fail("an answer that lacks something: request %u, %s, got %.*s", r->id, t->path,
			(int)got->body.n, got->body.p);
	cluster.answered++;
}

/* May a request end with an error because of the hook? */
static bool is_hooked(const struct request *r)
{
	const struct hook_book *h = request_hook(r);
	return h->refused + h->after_refused > 0 || (!PLAN(hook_allow) && h->failed + h->after_failed > 0);
}

/* Ollama's API has no word for a call that was cut: the answer ends with an error. */
static bool is_cut_call(const struct request *r)
{
	return r->api >= API_OLLAMA && r->tool && r->right.choice[0].finish.n == strlen("length");
}

static void part_begins(const struct request *r, const struct said_choice *c, const struct said_choice *right)
{
	if (!begins_with(&right->text, &c->text))
		world_fail("a wrong beginning: request %u got \"%.*s\", right is \"%.*s\"", r->id,
			(int)c->text.n, c->text.p, (int)right->text.n, right->text.p);
	if (!begins_with(&right->calls, &c->calls) && right->finish.n != 10)
		world_fail("a wrong beginning of a call: request %u got \"%.*s\", right is \"%.*s\"", r->id,
			(int)c->calls.n, c->calls.p, (int)right->calls.n, right->calls.p);
}

/* The head said 200. */
static void judge_answer(struct request *r, const struct http_got *got, uint64_t began)
{
	struct said s;
	struct cgn_str step = http_header(got, "x-cgn-cascade-step");
	if (cgn_str_starts(step, "1/2"))
		request_take_small(r);
	if (r->must != 0)
		world_fail("a wrong request is answered: request %u, which is %d", r->id, r->must);
	if (r->route != NULL) {
		judge_route(r, got, began);
		return;
	}
	said_read(got, &s);
	if (r->old && (s.odd != NULL || !s.done) && s.error.n == 0 && router_harmed(began)) {
		cluster.lost++; /* The end of a connection is that of an answer of HTTP/1.0 */
		said_fini(&s);
		return;
	}
	if (s.odd != NULL && !(PLAN(odd_engine) == ODD_BEHIND && strstr(s.odd, "behind the end") != NULL))
		world_fail("an answer that is not of its API: request %u, %s", r->id, s.odd);
	if (s.error.n > 0) {
		/* Behind early comments a request that found no room ends with an error. */
		if (!is_troubled(began) && PLAN(concurrent) == 0 && !is_cut_call(r) && !is_hooked(r))
			world_fail("an error without a fault: request %u got %.*s", r->id, (int)s.error.n,
				s.error.p);
		for (size_t i = 0; i < SAID_CHOICES; i++)
			part_begins(r, &s.choice[i], &r->right.choice[i]);
		cluster.broken++;
	} else if (!s.done) {
		world_fail("a stream ended without its end: request %u, after %u events", r->id, s.events);
	} else {
		judge_whole(r, &s, got);
	}
	said_fini(&s);
}

static int right_status(const struct request *r)
{
	return r->must != 0 ? r->must : r->route != NULL && r->route->has != NULL ? 200 : r->right_got.status;
}

/* Refusals that have their reason in the request. */
static bool is_known_refusal(struct request *r, int status)
{
	/* Engines that answer only in pairs hand over completions and chats alone. */
	if (status == 501 && PLAN(handoff) != DIALECT_NONE &&
		(r->api > API_CHAT || r->route != NULL || r->n > 1))
		return true;
	/* Whether there is a model is known when all agents have announced themselves. */
	if (status == 503 && r->must == 404 && world_now() < 12 * WORLD_SEC)
		return true;
	const struct hook_book *h = request_hook(r);
	r->sure &= h->after_refused + h->after_failed == 0; /* The tokens are charged */
	if (is_hooked(r) && (status == 403 || status == 503))
		return true;
	if (r->may_refuse && (status == 503 || status == 504))
		return true;
	if (PLAN(rate) > 0 && status == 429)
		return true;
	if (status == 413 && r->must != 0 && PLAN(max_body) > 0)
		return true;
	r->sure &= !is_cut_call(r);
	return status == 502 && is_cut_call(r);
}

/* Is it the refusal of a budget? Ollama's API has no codes. */
static bool tells_budget(const struct cgn_buf *error)
{
	static const char *const texts[] = {"insufficient_quota", "budget exhausted", "has a budget of"};
	for (size_t i = 0; i < CGN_COUNT(texts); i++)
		if (memmem(error->p, error->n, texts[i], strlen(texts[i])) != NULL)
			return true;
	return false;
}

static void judge_refusal(struct request *r, const struct http_got *got, uint64_t began)
{
	struct said s;
	said_read(got, &s);
	r->sure = true;
	if (s.error.n == 0)
		world_fail("a refusal without a reason: request %u got status %d and \"%.*s\"", r->id,
			got->status, (int)got->body.n, got->body.p);
	if (got->status == 429 && tells_budget(&s.error) && r->tenant != NULL) {
		r->tenant->over_budget++;
		cluster.refused++;
		r->sure = true;
		said_fini(&s);
		return;
	}
	if (got->status != right_status(r) && !is_known_refusal(r, got->status) && !is_troubled(began) &&
		PLAN(concurrent) == 0)
		world_fail("a refusal without a fault: request %u got status %d, %.*s", r->id, got->status,
			(int)s.error.n, s.error.p);
	cluster.refused++;
	said_fini(&s);
}

/* An engine told a length that ends within its document: the client sees that the rest is missing. */
static bool is_cut_short(const struct request *r, const struct http_got *got)
{
	struct json_val doc;
	return PLAN(odd_engine) == ODD_SHORTER && (!r->stream || got->status != 200) &&
		!cgn_ok(json_parse(cgn_buf_view(&got->body), &doc, NULL, NULL));
}

static void request_judge(struct request *r, const struct http_got *got, uint64_t began)
{
	char kind[160];
	request_describe(r, kind, sizeof kind);
	world_tell("request %u (%s): %s, status %d, %zu bytes, %.3f s", r->id, kind, http_end_text(got->end),
		got->status, got->body.n, (double)got->took / 1e9);
	switch (got->end) {
	case HTTP_LEFT:
		cluster.left++;
		break;
	case HTTP_BROKEN:
		world_fail("an answer that is not HTTP: request %u", r->id);
	case HTTP_SILENT:
		if (!router_harmed(began))
			world_fail("a request waits without an end: request %u has got nothing for %.0f s",
				r->id, 200.0);
		cluster.lost++;
		break;
	case HTTP_CUT:
	case HTTP_NOTHING:
	case HTTP_REFUSED:
		/* A document whose rest does not come is cut; a stream ends with an error. */
		if (!router_harmed(began) &&
			!(got->end == HTTP_CUT && (!r->stream || got->status != 200) && is_troubled(began)))
			world_fail("the gateway cut a connection: request %u, %s after %zu bytes", r->id,
				http_end_text(got->end), got->body.n);
		cluster.lost++;
		break;
	case HTTP_WHOLE:
		if (is_cut_short(r, got)) {
			cluster.broken++;
			break;
		}
		if (got->status == 200)
			judge_answer(r, got, began);
		else
			judge_refusal(r, got, began);
		break;
	}
}

/* ---- clients ---- */

static unsigned running;

/* Some clients leave early, or read slowly. */
static void draw_manners(struct http_want *want)
{
	if (cluster.over)
		return; /* The last clients behave well */
	if (PLAN(leaves) > 0 && world_chance(PLAN(leaves))) {
		want->leave_after = world_chance(2) ? 1 + world_draw(3000) : 0;
		want->leave_at = want->leave_after == 0 ? 1 + world_draw(2 * WORLD_SEC) : 0;
	} else if (PLAN(slow) > 0 && world_chance(PLAN(slow))) {
		want->pause = world_draw(300 * WORLD_MS);
	}
}

static void request_end(struct request *r, const struct http_got *got)
{
	request_judge(r, got, r->began);
	if (r->tenant != NULL) {
		r->tenant->sent++;
		r->tenant->unsure += !r->sure;
	}
}

static void request_run(struct request *r)
{
	struct http_got got;
	struct http_want want = request_want(r, &cluster.router, 8080);
	draw_manners(&want);
	r->began = world_now();
	http_ask(&want, &got);
	request_end(r, &got);
	http_got_fini(&got);
}

/* The router may close a connection that has rested for 75 s, that of a client whose request it did not take, and any when it
 * ends. */
static bool may_close(const struct http_conn *c, uint64_t rested)
{
	return !c->open || c->answers == 0 || rested > 74 * WORLD_SEC || router_harmed(c->rests);
}

/* Send requests over one connection before their answers are read. Those that the router closed the connection on are sent
 * again, as clients do. */
static void requests_run(struct http_conn *c, struct request *r, size_t n)
{
	struct http_want want[TOGETHER_MOST];
	uint64_t rests = c->rests;
	size_t unread = n;
	for (size_t i = 0; i < n; i++) {
		want[i] = request_want(&r[i], &cluster.router, 8080);
		if (i + 1 == n)
			draw_manners(&want[i]);
		r[i].began = world_now();
		want[i].expects &= i == 0;
		if (i > 0 && (!c->open || c->half))
			break;
		(void)http_send(c, &want[i]);
	}
	for (size_t i = 0; i < n; i++) {
		struct http_got got;
		bool fresh = c->answers == 0, open = c->open;
		http_read(c, &want[i], &got);
		bool again = !open || (got.end == HTTP_NOTHING && !fresh);
		if (again && open && unread == n && !may_close(c, r[0].began - rests))
			world_fail("the gateway closes a connection that it keeps: request %u, after %.1f s",
				r[i].id, (double)(r[0].began - rests) / 1e9);
		if (!again)
			request_end(&r[i], &got);
		http_got_fini(&got);
		if (again)
			request_run(&r[i]);
		unread--;
	}
}

static void client_run(void *arg)
{
	uint64_t mine = (uint64_t)(uintptr_t)arg, step = PLAN(clients);
	struct http_conn c = {0};
	for (uint64_t id = mine; id < PLAN(requests);) {
		struct request r[TOGETHER_MOST];
		size_t n = 0, most = PLAN(kept) == 2 ? 1 + world_draw(TOGETHER_MOST) : 1;
		world_sleep(world_draw(2 * PLAN(window_ms) * WORLD_MS * step / PLAN(requests) + 1));
		for (; n < most && id < PLAN(requests); id += step, n++)
			request_draw(&r[n], (unsigned)id);
		cluster.sent += n;
		if (PLAN(kept) > 0)
			requests_run(&c, r, n);
		else
			request_run(&r[0]);
		while (n > 0)
			request_fini(&r[--n]);
	}
	http_close(&c);
	running--;
}

void load_one(void)
{
	static unsigned id = 10000;
	struct request r;
	request_draw(&r, id++);
	cluster.sent++;
	request_run(&r);
	request_fini(&r);
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
