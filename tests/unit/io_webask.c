/* SPDX-License-Identifier: Apache-2.0 */
/* webask: one request and its answer, whole, too long, late, cut, refused or given up. */
#include "base/weburl/weburl.h"
#include "http_world.h"
#include "io/wire/webask/webask.h"

struct engine {
	struct world w;
	struct weburl url;
	struct webask_endpoint endpoint;
};

struct got {
	struct engine *e;
	unsigned calls;
	enum cgn_code code;
	int status;
	bool refused, ok;
	char text[64], why[160];
	size_t bytes;
	const char *then; /* Path of another fetch that the callback starts. */
	struct webask *next;
};

static void engine_open(struct engine *e, const char *base, const char *authorization)
{
	char url[128];
	world_open(&e->w, NULL);
	world_client(&e->w, NULL);
	(void)snprintf(url, sizeof url, "http://%s%s", e->w.addr, base);
	assert_true(cgn_ok(weburl_parse(url, &e->url, NULL)));
	e->endpoint = (struct webask_endpoint){e->w.cl, &e->url, authorization};
}

static void on_answer(void *user, const struct webask_answer *r);

static struct webask *fetch_begin(struct got *g, const char *path, struct cgn_str json, size_t max,
	cgn_nsec timeout)
{
	const struct webask_question ask = {path, json, max, timeout};
	struct webask *f = NULL;
	struct cgn_err err = {0};
	if (!cgn_ok(webask_start(g->e->w.l, &g->e->endpoint, &ask, on_answer, g, &f, &err)))
		fail_msg("%s", err.msg);
	return f;
}

static void on_answer(void *user, const struct webask_answer *r)
{
	struct got *g = user;
	g->calls++;
	g->code = r->err->code;
	g->status = r->status;
	g->refused = r->refused;
	g->ok = webask_is_ok(r);
	g->bytes = r->body.n;
	(void)cgn_str_copyz(g->text, sizeof g->text, r->body);
	(void)cgn_str_copyz(g->why, sizeof g->why, cgn_str_of(r->err->msg));
	if (g->then != NULL) {
		const char *path = g->then;
		g->then = NULL;
		g->next = fetch_begin(g, path, (struct cgn_str){NULL, 0}, 100, 60 * CGN_SEC);
	}
}

static void fetch_whole(struct got *g, const char *path, const char *json, size_t max, cgn_nsec timeout)
{
	struct engine *e = g->e;
	*g = (struct got){.e = e};
	struct cgn_str body = json != NULL ? cgn_str_of(json) : (struct cgn_str){NULL, 0};
	(void)fetch_begin(g, path, body, max, timeout);
	assert_int_equal(g->calls, 0); /* Never inline. */
	world_until(&e->w, g->calls > 0);
}

static void an_engine_is_asked_where_its_url_says(void **state)
{
	(void)state;
	struct engine e;
	struct got g = {.e = &e};
	engine_open(&e, "/api/v1", "Bearer secret");
	fetch_whole(&g, "/v1/models", NULL, 100, 60 * CGN_SEC);
	assert_true(g.ok);
	assert_string_equal(g.text, "hello\n");
	assert_string_equal(e.w.d.method, "GET");
	assert_string_equal(e.w.d.path, "/api/v1/models");
	assert_string_equal(e.w.d.authorization, "Bearer secret");
	world_close(&e.w);
	engine_open(&e, "", NULL);
	fetch_whole(&g, "/v1/models", NULL, 100, 60 * CGN_SEC);
	assert_string_equal(e.w.d.path, "/v1/models");
	assert_string_equal(e.w.d.authorization, "");
	world_close(&e.w);
}

static void a_body_is_posted(void **state)
{
	(void)state;
	static const char *const bodies[] = {"{\"filename\":\"x\"}", "1"};
	struct engine e;
	struct got g = {.e = &e};
	engine_open(&e, "", NULL);
	for (size_t i = 0; i < CGN_COUNT(bodies); i++) {
		fetch_whole(&g, "/echo", bodies[i], 100, 60 * CGN_SEC);
		assert_true(g.ok);
		assert_string_equal(g.text, bodies[i]);
		assert_string_equal(e.w.d.method, "POST");
		assert_int_equal(e.w.d.content_length, strlen(bodies[i]));
	}
	world_close(&e.w);
}

static void what_is_no_good_answer_is_told(void **state)
{
	(void)state;
	struct engine e;
	struct got g = {.e = &e};
	engine_open(&e, "", NULL);
	fetch_whole(&g, "/early", "{}", 100, 60 * CGN_SEC);
	assert_int_equal(g.code, CGN_FINE);
	assert_int_equal(g.status, 413);
	assert_false(g.ok);
	assert_string_equal(g.text, "too much\n");
	fetch_whole(&g, "/nothing", NULL, 100, 60 * CGN_SEC);
	assert_int_equal(g.status, 204);
	assert_false(g.ok);
	fetch_whole(&g, "/cut", NULL, 100, 60 * CGN_SEC);
	assert_int_not_equal(g.code, CGN_FINE);
	assert_false(g.ok || g.refused);
	world_close(&e.w);
}

static void an_answer_too_long_is_given_up(void **state)
{
	(void)state;
	struct engine e;
	struct got g = {.e = &e};
	engine_open(&e, "", NULL);
	fetch_whole(&g, "/big", NULL, 100, 60 * CGN_SEC);
	assert_int_equal(g.code, CGN_TOO_LARGE);
	assert_string_equal(g.why, "the engine's answer is too long");
	assert_false(g.refused);
	fetch_whole(&g, "/big", NULL, DEMO_BIG, 60 * CGN_SEC); /* Exactly as long as allowed. */
	assert_true(g.ok);
	assert_int_equal(g.bytes, DEMO_BIG);
	assert_int_equal(g.calls, 1);
	world_close(&e.w);
}

static void an_engine_that_is_silent_is_given_up(void **state)
{
	(void)state;
	struct engine e;
	struct got g = {.e = &e};
	engine_open(&e, "", NULL);
	fetch_whole(&g, "/hang", NULL, 100, 20 * CGN_MSEC);
	assert_int_equal(g.code, CGN_DEADLINE);
	assert_string_equal(g.why, "the engine did not answer in time");
	assert_false(g.refused);
	world_until(&e.w, e.w.d.cancelled == 1);
	assert_int_equal(g.calls, 1);
	world_close(&e.w);
}

static void an_engine_that_is_away_is_told_as_such(void **state)
{
	(void)state;
	struct engine e;
	struct got g = {.e = &e};
	engine_open(&e, "", NULL);
	http_server_free(&e.w.d.server);
	fetch_whole(&g, "/x", NULL, 100, 60 * CGN_SEC);
	assert_int_not_equal(g.code, CGN_FINE);
	assert_true(g.refused);
	assert_int_equal(g.status, 0);
	world_close(&e.w);
}

static void a_fetch_that_is_cancelled_tells_nothing(void **state)
{
	(void)state;
	struct engine e;
	struct got g = {.e = &e};
	engine_open(&e, "", NULL);
	struct webask *f = fetch_begin(&g, "/hang", (struct cgn_str){NULL, 0}, 100, 50 * CGN_MSEC);
	world_until(&e.w, e.w.d.requests == 1);
	webask_cancel(&f);
	assert_null(f);
	webask_cancel(&f);
	world_until(&e.w, e.w.d.cancelled == 1);
	cgn_nsec end = cgn_loop_now(e.w.l) + 100 * CGN_MSEC;
	world_until(&e.w, cgn_loop_now(e.w.l) > end); /* The timeout is over too. */
	assert_int_equal(g.calls, 0);
	world_close(&e.w);
}

static void the_callback_may_ask_again(void **state)
{
	(void)state;
	struct engine e;
	struct got g = {.e = &e, .then = "/second"};
	engine_open(&e, "", NULL);
	(void)fetch_begin(&g, "/first", (struct cgn_str){NULL, 0}, 100, 60 * CGN_SEC);
	world_until(&e.w, g.calls == 2);
	assert_true(g.ok);
	assert_string_equal(e.w.d.path, "/second");
	world_close(&e.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_engine_is_asked_where_its_url_says),
		cmocka_unit_test(a_body_is_posted),
		cmocka_unit_test(what_is_no_good_answer_is_told),
		cmocka_unit_test(an_answer_too_long_is_given_up),
		cmocka_unit_test(an_engine_that_is_silent_is_given_up),
		cmocka_unit_test(an_engine_that_is_away_is_told_as_such),
		cmocka_unit_test(a_fetch_that_is_cancelled_tells_nothing),
		cmocka_unit_test(the_callback_may_ask_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
