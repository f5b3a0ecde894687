/* SPDX-License-Identifier: Apache-2.0 */
/* enginefeed: a feed and a publisher with a replay buffer on one loop: frames with and without topic, gaps,
 * restarts, ranks, invalid messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/msgpack/msgpack.h"
#include "io/wire/zmtp/zmtp.h"
#include "joint/node/enginefeed/enginefeed.h"
#include "loop_until.h"
#include "telemetry_world.h"

#define LOG 64

struct publisher {
	struct zmtp *pub, *router;
	struct cgn_buf log[LOG];
	uint64_t next, first_kept;
	bool topic_in_replay, mute;
	unsigned asked;
};

struct world {
	struct cgn_loop *l;
	struct holdings *h;
	struct publisher p[2];
	char events[64], replay[64];
	struct enginefeed *feed;
	unsigned changes, moments;
};

static struct cgn_str number_of(uint64_t v, uint8_t out[8])
{
	for (unsigned i = 0; i < 8; i++)
		out[i] = (uint8_t)(v >> (56 - 8 * i));
	return (struct cgn_str){(const char *)out, 8};
}

static void answer_replay(struct zmtp *z, void *user, uint64_t peer, const struct cgn_str *parts, size_t n)
{
	struct publisher *p = user;
	uint8_t number[8];
	uint64_t from = 0;
	assert_int_equal(n, 2);
	assert_int_equal(parts[0].n, 0);
	assert_int_equal(parts[1].n, 8);
	p->asked++;
	if (p->mute)
		return;
	for (unsigned i = 0; i < 8; i++)
		from = from << 8 | (uint8_t)parts[1].p[i];
	for (uint64_t i = from > p->first_kept ? from : p->first_kept; i <= p->next; i++) {
		struct cgn_str batch = i < p->next ? cgn_buf_view(&p->log[i]) : CGN_STR("");
		struct cgn_str frames[4] = {CGN_STR("")};
		size_t k = 1;
		if (p->topic_in_replay)
			frames[k++] = i < p->next ? CGN_STR("kv@x") : CGN_STR("");
		frames[k++] = number_of(i < p->next ? i : UINT64_MAX, number);
		frames[k++] = batch;
		assert_true(cgn_ok(zmtp_send_to(z, peer, frames, k)));
	}
}

static const struct zmtp_ops pub_ops, router_ops = {.on_message = answer_replay};

/* Make a batch with a block of one token, whose hash is the token. */
static void make_batch(struct cgn_buf *b, uint32_t token)
{
	b->n = 0;
	msgpack_put_array(b, 2);
	msgpack_put_f64(b, (double)token);
	msgpack_put_array(b, 1);
	msgpack_put_array(b, 5);
	msgpack_put_z(b, "BlockStored");
	msgpack_put_array(b, 1);
	msgpack_put_u64(b, token);
	msgpack_put_nil(b);
	msgpack_put_array(b, 1);
	msgpack_put_u64(b, token);
	msgpack_put_u64(b, 1);
}

static void send_batch(struct publisher *p, uint64_t number)
{
	uint8_t raw[8];
	const struct cgn_str frames[] = {CGN_STR("kv@x"), number_of(number, raw),
		cgn_buf_view(&p->log[number])};
	assert_true(cgn_ok(zmtp_send(p->pub, frames, 3)));
}

static void publish_batch(struct publisher *p, uint32_t token, bool lose)
{
	make_batch(&p->log[p->next], token);
	if (!lose)
		send_batch(p, p->next);
	p->next++;
}

static void publisher_open(struct world *w, struct publisher *p, unsigned port, unsigned replay_port)
{
	char endpoint[64];
	struct cgn_err err = {0};
	(void)snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", port);
	if (!cgn_ok(zmtp_open(w->l, &(struct zmtp_cfg){.kind = ZMTP_PUB, .endpoint = endpoint, .bind = true},
		    &pub_ops, p, &p->pub, &err)))
		fail_msg("%s", err.msg);
	(void)snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", replay_port);
	if (!cgn_ok(zmtp_open(w->l,
		    &(struct zmtp_cfg){.kind = ZMTP_ROUTER, .endpoint = endpoint, .bind = true}, &router_ops,
		    p, &p->router, &err)))
		fail_msg("%s", err.msg);
}

static void publisher_close(struct publisher *p)
{
	zmtp_close(&p->pub);
	zmtp_close(&p->router);
	for (unsigned i = 0; i < LOG; i++)
		cgn_buf_fini(&p->log[i]);
	p->next = p->first_kept = 0;
}

static void on_change(void *user)
{
	((struct world *)user)->changes++;
}

static void feed_open(struct world *w, bool replay, uint32_t ranks)
{
	struct cgn_err err = {0};
	const struct enginefeed_cfg cfg = {.telemetry = test_telemetry(),
		.name = "e",
		.events = w->events,
		.replay = replay ? w->replay : NULL,
		.topic = CGN_STR("kv@"),
		.ranks = ranks,
		.source = {.model = "m", .lora_is_model = true, .block_tokens = 1}};
	if (!cgn_ok(enginefeed_open(w->l, &cfg, w->h, on_change, w, &w->feed, &err)))
		fail_msg("%s", err.msg);
}

static void world_open(struct world *w)
{
	*w = (struct world){0};
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	w->h = holdings_new(1000, NULL, NULL);
	publisher_open(w, &w->p[0], 0, 0);
	(void)snprintf(w->events, sizeof w->events, "tcp://127.0.0.1:%u", zmtp_port(w->p[0].pub));
	(void)snprintf(w->replay, sizeof w->replay, "tcp://127.0.0.1:%u", zmtp_port(w->p[0].router));
}

static void world_close(struct world *w)
{
	enginefeed_close(&w->feed);
	assert_int_equal(holdings_count(w->h), 0);
	publisher_close(&w->p[0]);
	publisher_close(&w->p[1]);
	holdings_free(&w->h);
	cgn_loop_free(&w->l);
}

static void run_until(struct world *w, bool (*done)(struct world *w))
{
	loop_until(w->l, done, w);
}

static struct enginefeed_rank first_rank(const struct world *w)
{
	return enginefeed_rank(w->feed, 0);
}
static bool is_good(struct world *w)
{
	return first_rank(w).state == KVSOURCE_GOOD;
}
static bool caught_up(struct world *w)
{
	return is_good(w) && first_rank(w).stats.next_seq == w->p[0].next;
}
static bool is_partial(struct world *w)
{
	return first_rank(w).state == KVSOURCE_PARTIAL;
}
static bool waiting_for_it(struct world *w)
{
	return first_rank(w).state == KVSOURCE_SYNCING && zmtp_stats(w->p[0].pub).peers == 1;
}
static bool is_lost(struct world *w)
{
	return first_rank(w).state == KVSOURCE_WAITING;
}
static bool is_demoted(struct world *w)
{
	return first_rank(w).state == KVSOURCE_DEMOTED;
}
static bool is_restarted(struct world *w)
{
	return is_good(w) && first_rank(w).stats.restarts == 1 &&
		first_rank(w).stats.next_seq == w->p[0].next;
}
static bool both_good(struct world *w)
{
	return is_good(w) && enginefeed_rank(w->feed, 1).state == KVSOURCE_GOOD;
}
static bool a_moment_went_by(struct world *w)
{
	return w->moments++ % 2 == 1;
}

static bool six_held(struct world *w)
{
	return holdings_count(w->h) == 6;
}

/* Return the state that the metrics show; they show one at a time, or none after the feed was closed. */
static const char *shown_state(void)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf page = {.n = 0};
	static char shown[40];
	char line[120];
	unsigned n = 0;
	telemetry_text(test_telemetry(), &page);
	shown[0] = '\0';
	for (unsigned i = 0; i < KVSOURCE_STATES; i++) {
		const char *name = kvsource_state_name((enum kvsource_state)i);
		(void)snprintf(line, sizeof line,
			"\ncgn_kv_source_state{engine=\"e\",rank=\"0\",state=\"%s\"} 1\n", name);
		if (strstr(cgn_buf_z(&page), line) != NULL) {
			(void)cgn_str_copyz(shown, sizeof shown, cgn_str_of(name));
			n++;
		}
	}
	assert_in_range(n, 0, 1);
	return shown;
}

static void the_metrics_tell_state_and_events(void **state)
{
	struct world w;
	(void)state;
	struct metric_cell *stored = METRIC_OF(test_telemetry(), KV_EVENTS, "e", "stored"),
			   *gaps = METRIC_OF(test_telemetry(), KV_EVENT_GAPS, "e");
	uint64_t stored_before = metric_count(stored), gaps_before = metric_count(gaps);
	world_open(&w);
	for (uint32_t t = 1; t <= 5; t++)
		publish_batch(&w.p[0], t, true);
	feed_open(&w, true, 1);
	assert_string_equal(shown_state(), kvsource_state_name(KVSOURCE_WAITING));
	run_until(&w, caught_up);
	assert_string_equal(shown_state(), kvsource_state_name(KVSOURCE_GOOD));
	publish_batch(&w.p[0], 6, false);
	publish_batch(&w.p[0], 7, true);
	publish_batch(&w.p[0], 8, false);
	run_until(&w, caught_up);
	assert_int_equal(metric_count(stored) - stored_before, 8);
	assert_int_equal(metric_count(gaps) - gaps_before, 1);
	publisher_close(&w.p[0]);
	run_until(&w, is_lost);
	assert_string_equal(shown_state(), kvsource_state_name(KVSOURCE_WAITING));
	enginefeed_close(&w.feed);
	assert_string_equal(shown_state(), "");
	world_close(&w);
}

static void learns_what_was_before_and_what_was_lost(void **state)
{
	(void)state;
	for (unsigned topic = 0; topic < 2; topic++) {
		struct world w;
		world_open(&w);
		w.p[0].topic_in_replay = topic == 1;
		for (uint32_t t = 1; t <= 5; t++)
			publish_batch(&w.p[0], t, true);
		feed_open(&w, true, 1);
		run_until(&w, caught_up);
		assert_int_equal(holdings_count(w.h), 5);
		assert_true(w.changes > 0);
		publish_batch(&w.p[0], 6, false);
		publish_batch(&w.p[0], 7, true);
		publish_batch(&w.p[0], 8, false);
		run_until(&w, caught_up);
		assert_int_equal(holdings_count(w.h), 8);
		assert_int_equal(first_rank(&w).stats.gaps, 1);
		assert_int_equal(w.p[0].asked, 2);
		assert_int_equal(first_rank(&w).stats.orphans, 0);
		world_close(&w);
	}
}

static bool no_replay_is_open(struct world *w)
{
	return zmtp_stats(w->p[0].router).peers == 0;
}

/* The last batch before a lull was lost, and no later one shows it. */
static void a_lull_is_looked_into(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	publish_batch(&w.p[0], 1, true);
	feed_open(&w, true, 1);
	run_until(&w, caught_up);
	run_until(&w, no_replay_is_open); /* A replay that has ended keeps no connection. */
	publish_batch(&w.p[0], 2, false);
	publish_batch(&w.p[0], 3, true);
	run_until(&w, caught_up);
	assert_int_equal(holdings_count(w.h), 3);
	assert_int_equal(w.p[0].asked, 2);
	run_until(&w, no_replay_is_open);
	world_close(&w);
}

static bool was_asked(struct world *w)
{
	return w->p[0].asked == 1;
}

static void a_feed_that_is_closed_ends_its_replay(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	w.p[0].mute = true;
	publish_batch(&w.p[0], 1, true);
	feed_open(&w, true, 1);
	run_until(&w, was_asked);
	assert_false(no_replay_is_open(&w));
	enginefeed_close(&w.feed);
	run_until(&w, no_replay_is_open);
	world_close(&w);
}

static void a_buffer_that_is_too_short_makes_it_partial(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	for (uint32_t t = 1; t <= 5; t++)
		publish_batch(&w.p[0], t, true);
	w.p[0].first_kept = 2;
	feed_open(&w, true, 1);
	run_until(&w, is_partial);
	assert_int_equal(holdings_count(w.h), 3);
	world_close(&w);
}

static void a_restarted_publisher_is_noticed(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	unsigned port = zmtp_port(w.p[0].pub), replay_port = zmtp_port(w.p[0].router);
	for (uint32_t t = 1; t <= 3; t++)
		publish_batch(&w.p[0], t, true);
	feed_open(&w, true, 1);
	run_until(&w, caught_up);
	publisher_close(&w.p[0]);
	run_until(&w, is_lost);
	assert_int_equal(holdings_count(w.h), 3); /* The engine may return soon */
	publisher_open(&w, &w.p[0], port, replay_port);
	for (uint32_t t = 11; t <= 16; t++) /* More batches than before */
		publish_batch(&w.p[0], t, true);
	run_until(&w, is_restarted);
	assert_int_equal(holdings_count(w.h), 6);
	world_close(&w);
}

static void without_replay_the_first_event_tells(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	feed_open(&w, false, 1);
	run_until(&w, waiting_for_it);
	assert_string_equal(first_rank(&w).why, "it waits for the first event");
	while (!is_good(&w)) { /* Wait for the subscription */
		w.p[0].next = 0;
		publish_batch(&w.p[0], 1, false);
		run_until(&w, a_moment_went_by);
	}
	assert_int_equal(holdings_count(w.h), 1);
	world_close(&w);
}

static void an_unparsable_event_demotes(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	feed_open(&w, true, 1);
	run_until(&w, is_good);
	uint64_t errors = metric_count(METRIC_OF(test_telemetry(), KV_EVENT_ERRORS, "e"));
	const struct cgn_str odd[] = {CGN_STR("kv@x"), CGN_STR("1234567"), CGN_STR("x")};
	FILE *log = tmpfile();
	int terminal = dup(STDERR_FILENO);
	assert_true(log != NULL && terminal >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
	do { /* A message other than an event is ignored */
		assert_true(cgn_ok(zmtp_send(w.p[0].pub, odd, 3)));
	} while (zmtp_stats(w.p[0].pub).sent < 3);
	publish_batch(&w.p[0], 1, false);
	run_until(&w, caught_up);
	assert_true(dup2(terminal, STDERR_FILENO) >= 0);
	(void)close(terminal);
	char text[4096];
	rewind(log);
	text[fread(text, 1, sizeof text - 1, log)] = '\0';
	(void)fclose(log);
	const char *told = strstr(text, "kv_events.no_event"); /* Once for a connection. */
	assert_non_null(told);
	assert_null(strstr(told + 1, "kv_events.no_event"));
	cgn_buf_putz(&w.p[0].log[1], "\x92\x01no events");
	send_batch(&w.p[0], 1);
	run_until(&w, is_demoted);
	assert_non_null(strstr(first_rank(&w).why, "unparsable event, batch 1"));
	assert_int_equal(holdings_count(w.h), 0);
	assert_int_equal(metric_count(METRIC_OF(test_telemetry(), KV_EVENT_ERRORS, "e")), errors + 1);
	world_close(&w);
}

static void each_rank_has_a_port_of_its_own(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	publisher_close(&w.p[0]);
	unsigned port = 0;
	for (unsigned try = 20000; port == 0 && try < 60000; try += 7) { /* Find four free ports in a row */
		struct zmtp *z[4] = {0};
		unsigned n = 0;
		char endpoint[64];
		for (; n < 4; n++) {
			(void)snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", try + n);
			if (!cgn_ok(zmtp_open(w.l,
				    &(struct zmtp_cfg){.kind = ZMTP_PUB, .endpoint = endpoint, .bind = true},
				    &pub_ops, NULL, &z[n], NULL)))
				break;
		}
		port = n == 4 ?
		try:
			0;
		for (unsigned i = 0; i < n; i++)
			zmtp_close(&z[i]);
	}
	(void)snprintf(w.events, sizeof w.events, "tcp://127.0.0.1:%u", port);
	(void)snprintf(w.replay, sizeof w.replay, "tcp://127.0.0.1:%u", port + 2);
	for (unsigned r = 0; r < 2; r++) {
		publisher_open(&w, &w.p[r], port + r, port + 2 + r);
		for (uint32_t t = 1; t <= 3; t++)
			publish_batch(&w.p[r], 10 * r + t, true);
	}
	feed_open(&w, true, 2);
	assert_int_equal(enginefeed_ranks(w.feed), 2);
	run_until(&w, both_good);
	run_until(&w, six_held);
	world_close(&w);
}

static void what_can_not_be_is_refused(void **state)
{
	static const struct {
		const char *events, *replay;
		uint32_t ranks;
	} rows[] = {{"tcp://h:1", NULL, 0}, {"tcp://h:1", NULL, 65}, {"h:1", NULL, 1},
		{"tcp://*:5557", NULL, 1}, {"tcp://h:1", "x", 1}, {"tcp://h:65535", NULL, 2},
		{"tcp://h:0", NULL, 1}, {"ipc://relative", NULL, 1}};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_err err = {0};
		const struct enginefeed_cfg cfg = {.name = "e",
			.events = rows[i].events,
			.replay = rows[i].replay,
			.ranks = rows[i].ranks};
		assert_int_equal(enginefeed_check(&cfg, &err).code, CGN_INVALID);
		assert_true(err.msg[0] != '\0');
	}
	const struct enginefeed_cfg fine = {.name = "e",
		.events = "tcp://h:65534",
		.replay = "ipc:///run/x",
		.ranks = 2};
	assert_true(cgn_ok(enginefeed_check(&fine, NULL)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_metrics_tell_state_and_events),
		cmocka_unit_test(learns_what_was_before_and_what_was_lost),
		cmocka_unit_test(a_lull_is_looked_into),
		cmocka_unit_test(a_feed_that_is_closed_ends_its_replay),
		cmocka_unit_test(a_buffer_that_is_too_short_makes_it_partial),
		cmocka_unit_test(a_restarted_publisher_is_noticed),
		cmocka_unit_test(without_replay_the_first_event_tells),
		cmocka_unit_test(an_unparsable_event_demotes),
		cmocka_unit_test(each_rank_has_a_port_of_its_own),
		cmocka_unit_test(what_can_not_be_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
