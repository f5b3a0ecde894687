/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "io/wire/listwatch/listwatch.h"

/* A source that writes down each call and answers nothing by itself. */
struct world {
	struct cgn_loop *loop;
	struct listwatch w;
	struct cgn_buf calls; /* "list 0, watch 7, " */
	size_t awaited;       /* Calls until the loop stops. */
	bool deaf;            /* Each list and watch fails inline. */
};

static const struct cgn_err broken = {.code = CGN_UNAVAILABLE, .msg = "broken"};

static void call_count(struct world *x)
{
	if (x->awaited > 0 && --x->awaited == 0)
		cgn_loop_stop(x->loop);
}

static void fake_list(void *source, int64_t revision)
{
	struct world *x = source;
	cgn_buf_fmt(&x->calls, "list %lld, ", (long long)revision);
	call_count(x);
	if (x->deaf)
		listwatch_failed(&x->w, &broken);
}

static void fake_watch(void *source, int64_t revision)
{
	struct world *x = source;
	cgn_buf_fmt(&x->calls, "watch %lld, ", (long long)revision);
	call_count(x);
	if (x->deaf)
		listwatch_failed(&x->w, &broken);
}

static void fake_probe(void *source)
{
	struct world *x = source;
	cgn_buf_putz(&x->calls, "probe, ");
	call_count(x);
}

static void fake_stop(void *source)
{
	struct world *x = source;
	cgn_buf_putz(&x->calls, "stop, ");
}

static void fake_begin(void *source)
{
	struct world *x = source;
	cgn_buf_putz(&x->calls, "begin, ");
}

static void fake_end(void *source)
{
	struct world *x = source;
	cgn_buf_putz(&x->calls, "end, ");
}

static void fake_connected(void *source, bool connected, const char *why)
{
	struct world *x = source;
	cgn_buf_fmt(&x->calls, connected ? "up%s, " : "down: %s, ", why);
}

static const struct listwatch_ops fake_ops = {
	.list = fake_list,
	.watch = fake_watch,
	.probe = fake_probe,
	.stop = fake_stop,
};
static const struct listwatch_news fake_news = {fake_begin, fake_end, fake_connected};

static void follow_start(struct world *x, struct cgn_backoff backoff, cgn_nsec probe_interval)
{
	listwatch_init(&x->w, x->loop,
		&(struct listwatch_cfg){&fake_ops, x, &fake_news, x, backoff, probe_interval});
}

/* Run the loop until |n| more calls were made. */
static void run_calls(struct world *x, size_t n)
{
	x->awaited = n;
	cgn_loop_run(x->loop);
}

static void assert_calls(struct world *x, const char *expected)
{
	assert_string_equal(cgn_buf_z(&x->calls), expected);
	x->calls.n = 0;
}

static int world_open(void **state)
{
	struct cgn_err err;
	struct world *x = calloc(1, sizeof *x);
	*state = x;
	return x != NULL && cgn_ok(cgn_loop_new(&x->loop, &err)) ? 0 : 1;
}

static int world_close(void **state)
{
	struct world *x = *state;
	listwatch_fini(&x->w);
	cgn_loop_free(&x->loop);
	cgn_buf_fini(&x->calls);
	free(x);
	return 0;
}

static void source_start(struct world *x, cgn_nsec probe_interval)
{
	follow_start(x, (struct cgn_backoff){.first = CGN_MSEC, .last = 4 * CGN_MSEC}, probe_interval);
	run_calls(x, 1);
	assert_calls(x, "list 0, ");
}

/* Bring the listwatch to an open stream after |revision|. */
static void start_watching(struct world *x, int64_t revision, cgn_nsec probe_interval)
{
	source_start(x, probe_interval);
	listwatch_page(&x->w, revision);
	listwatch_page_end(&x->w, false);
	listwatch_opened(&x->w);
	x->calls.n = 0;
}

/* ---- listing ---- */
static void pages_are_read_at_one_revision(void **state)
{
	struct world *x = *state;
	source_start(x, CGN_SEC);
	listwatch_page(&x->w, 7);
	listwatch_page_end(&x->w, true);
	assert_calls(x, "begin, list 7, ");
	listwatch_page(&x->w, 9); /* The second page is newer; the list keeps its revision. */
	listwatch_page_end(&x->w, true);
	assert_calls(x, "list 7, ");
	listwatch_page(&x->w, 9);
	listwatch_page_end(&x->w, false);
	assert_calls(x, "end, watch 7, ");
	listwatch_opened(&x->w);
	assert_calls(x, "up, ");
}

static void a_list_that_fails_starts_over(void **state)
{
	struct world *x = *state;
	source_start(x, CGN_SEC);
	listwatch_page(&x->w, 7);
	listwatch_page_end(&x->w, true);
	listwatch_failed(&x->w, &broken);
	run_calls(x, 1);
	assert_calls(x, "begin, list 7, stop, down: broken, list 0, ");
	listwatch_page(&x->w, 8);
	assert_calls(x, "begin, ");
}

/* ---- watching ---- */
static void a_stream_resumes_at_the_last_change(void **state)
{
	struct world *x = *state;
	start_watching(x, 7, CGN_SEC);
	listwatch_seen(&x->w, 12);
	listwatch_seen(&x->w, 11); /* Revisions never go back. */
	listwatch_failed(&x->w, &broken);
	run_calls(x, 1);
	assert_calls(x, "stop, down: broken, watch 12, ");
	listwatch_opened(&x->w);
	listwatch_opened(&x->w); /* Told once. */
	assert_calls(x, "up, ");
}

static void a_stream_that_never_opens_fails(void **state)
{
	struct world *x = *state;
	source_start(x, CGN_MSEC);
	listwatch_page(&x->w, 7);
	listwatch_page_end(&x->w, false);
	run_calls(x, 1);
	listwatch_failed(&x->w, &broken);
	run_calls(x, 1);
	assert_calls(x, "begin, end, watch 7, probe, stop, down: broken, watch 7, ");
}

static void probes_go_on_while_they_succeed(void **state)
{
	struct world *x = *state;
	start_watching(x, 7, CGN_MSEC);
	run_calls(x, 1);
	listwatch_probed(&x->w);
	run_calls(x, 1);
	assert_calls(x, "probe, probe, ");
	listwatch_failed(&x->w, &broken);
	assert_calls(x, "stop, down: broken, ");
}

static void a_compaction_lists_again_at_once(void **state)
{
	struct world *x = *state;
	start_watching(x, 7, CGN_MSEC);
	listwatch_compacted(&x->w);
	assert_calls(x, "stop, list 0, ");
	assert_int_equal(x->w.timer.at, 0); /* No probe runs beside the list. */
	listwatch_page(&x->w, 20);
	listwatch_page_end(&x->w, false);
	assert_calls(x, "begin, end, watch 20, ");
}

static void a_stream_that_ended_in_order_is_opened_again_at_once(void **state)
{
	struct world *x = *state;
	start_watching(x, 7, CGN_SEC);
	listwatch_seen(&x->w, 12);
	listwatch_ended(&x->w);
	assert_calls(x, "stop, watch 12, "); /* on_connected is not called. */
	listwatch_opened(&x->w);
	assert_calls(x, "");
}

static void another_history_is_listed_after_the_backoff(void **state)
{
	struct world *x = *state;
	start_watching(x, 7, CGN_SEC);
	listwatch_failed(&x->w, &broken);
	run_calls(x, 1);
	listwatch_foreign(&x->w, &broken);
	assert_calls(x, "stop, down: broken, watch 7, stop, ");
	run_calls(x, 1);
	assert_calls(x, "list 0, ");
}

/* ---- backoff ---- */
static void failures_wait_longer_until_a_stream_opens(void **state)
{
	struct world *x = *state;
	x->deaf = true;
	follow_start(x, (struct cgn_backoff){.first = CGN_MSEC, .last = 4 * CGN_MSEC}, CGN_SEC);
	run_calls(x, 3);
	assert_calls(x, "list 0, stop, down: broken, list 0, stop, list 0, stop, ");
	assert_int_equal(x->w.cfg.backoff.failures, 3);
	x->deaf = false;
	run_calls(x, 1);
	listwatch_page(&x->w, 7);
	listwatch_page_end(&x->w, false);
	assert_int_equal(x->w.cfg.backoff.failures, 3); /* A list alone proves nothing about the stream. */
	listwatch_opened(&x->w);
	assert_int_equal(x->w.cfg.backoff.failures, 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, world_open, world_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(pages_are_read_at_one_revision),
		T(a_list_that_fails_starts_over),
		T(a_stream_resumes_at_the_last_change),
		T(a_stream_that_never_opens_fails),
		T(probes_go_on_while_they_succeed),
		T(a_compaction_lists_again_at_once),
		T(a_stream_that_ended_in_order_is_opened_again_at_once),
		T(another_history_is_listed_after_the_backoff),
		T(failures_wait_longer_until_a_stream_opens),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
