/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>

#include <sys/wait.h>

#include "base/pb/pb.h"
#include "cognitora/v1/metrics.pb-c.h"
#include "joint/report/telemetry/scrape.h"
#include "joint/report/telemetry/telemetry.h"

enum {
	BEFORE_PROGRAMS = METRIC_JOINT_COUNT - 1,
#define METRIC METRIC_ID
#include "agent/metrics.def"
#include "kvcached/daemon/metrics.def"
#include "router/metrics.def"
#undef METRIC
};
static const struct metric_row rows[] = {
#define METRIC METRIC_ROW
#include "agent/metrics.def"
#include "kvcached/daemon/metrics.def"
#include "router/metrics.def"
#undef METRIC
};

static struct telemetry *t;
static struct cgn_buf page;

static const char *scrape_page(void)
{
	cgn_buf_fini(&page);
	telemetry_text(t, &page);
	return cgn_buf_z(&page);
}

static bool page_shows(const char *line)
{
	const char *at = strstr(scrape_page(), line);
	return at != NULL && (at == page.p || at[-1] == '\n') && at[strlen(line)] == '\n';
}

static void same_labels_same_cell(void **state)
{
	(void)state;
	struct metric_cell *a = METRIC_OF(t, REQUESTS, "m", "200");
	assert_ptr_equal(a, METRIC_OF(t, REQUESTS, "m", "200"));
	assert_ptr_not_equal(a, METRIC_OF(t, REQUESTS, "m", "500"));
	assert_ptr_not_equal(METRIC_OF(t, REQUESTS, "mx", "y"), METRIC_OF(t, REQUESTS, "m", "xy"));
	metric_add(a, 2);
	metric_add(a, 3);
	assert_true(metric_count(a) == 5);
	assert_true(page_shows("cgn_requests_total{model=\"m\",code=\"200\"} 5"));
	assert_true(page_shows("# TYPE cgn_requests_total counter"));
}

static void gauges_move_and_print_short(void **state)
{
	(void)state;
	struct metric_cell *g = METRIC_OF(t, INFLIGHT, "n1");
	metric_shift(g, 3);
	metric_shift(g, -1);
	assert_true(page_shows("cgn_inflight{node=\"n1\"} 2"));
	metric_set(METRIC_ONE(t, INDEX_BYTES), 0.1);
	assert_true(page_shows("cgn_index_bytes 0.1"));
	metric_set(METRIC_ONE(t, INDEX_BYTES), 1.0 / 3);
	assert_true(page_shows("cgn_index_bytes 0.33333333333333331"));
	metric_set(METRIC_ONE(t, INDEX_BYTES), (double)NAN);
	assert_true(page_shows("cgn_index_bytes NaN"));
	metric_set(METRIC_ONE(t, INDEX_BYTES), -(double)INFINITY);
	assert_true(page_shows("cgn_index_bytes -Inf"));
	metric_set(METRIC_ONE(t, INDEX_BYTES), 4294967296.0);
	assert_true(page_shows("cgn_index_bytes 4294967296"));
}

static void buckets_are_cumulative_and_edges_inclusive(void **state)
{
	(void)state;
	struct metric_cell *h = METRIC_OF(t, RELAY_SECONDS, "e");
	metric_observe(h, 0);
	metric_observe(h, 10 * CGN_USEC);
	metric_observe(h, 10 * CGN_USEC + 1);
	metric_observe(h, 120 * CGN_SEC);
	metric_observe(h, 120 * CGN_SEC + 1);
	assert_true(metric_count(h) == 5);
	assert_true(page_shows("cgn_relay_seconds_bucket{engine=\"e\",le=\"1e-05\"} 2"));
	assert_true(page_shows("cgn_relay_seconds_bucket{engine=\"e\",le=\"5e-05\"} 3"));
	assert_true(page_shows("cgn_relay_seconds_bucket{engine=\"e\",le=\"60\"} 3"));
	assert_true(page_shows("cgn_relay_seconds_bucket{engine=\"e\",le=\"120\"} 4"));
	assert_true(page_shows("cgn_relay_seconds_bucket{engine=\"e\",le=\"+Inf\"} 5"));
	assert_true(page_shows("cgn_relay_seconds_count{engine=\"e\"} 5"));
	assert_non_null(strstr(scrape_page(), "cgn_relay_seconds_sum{engine=\"e\"} 240.00002"));
}

static void hostile_labels_cannot_break_the_page(void **state)
{
	(void)state;
	metric_add(METRIC_OF(t, REJECTED, "a\"b\\c\nd"), 1);
	assert_true(page_shows("cgn_rejected_total{reason=\"a\\\"b\\\\c\\\\x0ad\"} 1"));
	metric_add(METRIC_OF(t, REJECTED, "\xff\xfe"), 1);
	assert_true(page_shows("cgn_rejected_total{reason=\"\\\\xff\\\\xfe\"} 1"));
	metric_add(METRIC_OF(t, REJECTED, NULL), 7);
	assert_true(page_shows("cgn_rejected_total{reason=\"\"} 7"));
	char longer[400];
	memset(longer, 'x', sizeof longer);
	memcpy(longer + 127, "\xc3\xa9", 2); /* A letter across the cut is removed as a whole. */
	longer[399] = '\0';
	metric_add(METRIC_OF(t, REJECTED, longer), 1);
	longer[127] = '\0';
	char line[500];
	snprintf(line, sizeof line, "cgn_rejected_total{reason=\"%s\"} 1", longer);
	assert_true(page_shows(line));
	/* The longest value is not cut, and the next label is its own. */
	memset(longer, 'm', 128);
	longer[128] = '\0';
	metric_add(METRIC_OF(t, REQUESTS, longer, "207"), 1);
	snprintf(line, sizeof line, "cgn_requests_total{model=\"%s\",code=\"207\"} 1", longer);
	assert_true(page_shows(line));
}

static void totals_are_of_what_came_in_between(void **state)
{
	(void)state;
	struct metric_totals before, now;
	metric_observe(METRIC_OF(t, RELAY_SECONDS, "totals"), 100 * CGN_SEC);
	metric_total(t, METRIC_RELAY_SECONDS, "totals", &before);
	assert_int_equal(before.count, 1);
	for (int i = 0; i < 100; i++)
		metric_observe(METRIC_OF(t, RELAY_SECONDS, "totals"), 800 * CGN_USEC);
	metric_total(t, METRIC_RELAY_SECONDS, "totals", &now);
	assert_int_equal(metric_totals_since(&now, &before), 100);
	assert_int_equal(metric_totals_since(&before, &now), 0);
	metric_add(METRIC_OF(t, REJECTED, "totals"), 3);
	metric_total(t, METRIC_REJECTED, "totals", &now);
	assert_int_equal(now.count, 3);
	metric_total(t, METRIC_REJECTED, NULL, &before);
	metric_add(METRIC_OF(t, REJECTED, ""), 5);
	metric_total(t, METRIC_REJECTED, NULL, &now);
	assert_int_equal(metric_totals_since(&now, &before), 0);
}

static bool is_near(cgn_nsec got, cgn_nsec want)
{
	return (double)got >= (1 - QUANTILE_ERROR) * (double)want &&
		(double)got <= (1 + QUANTILE_ERROR) * (double)want;
}

/* In buckets from 10 to 30 s, 99 waits of up to 18.6 s once had a 95th percentile of 28.1 s. */
static void quantiles_are_of_what_came_in_between(void **state)
{
	(void)state;
	struct metric_times before, now, other;
	metric_observe(METRIC_OF(t, TTFT_SECONDS, "totals"), 100 * CGN_SEC);
	metric_times_total(t, METRIC_TTFT_SECONDS, "totals", &before);
	assert_int_equal(metric_times_quantile(&before, &before, 0.5), 0);
	assert_int_equal(metric_times_since(&before, &before), 0);
	for (unsigned i = 1; i <= 93; i++)
		metric_observe(METRIC_OF(t, TTFT_SECONDS, "totals"), i * 200 * CGN_MSEC);
	metric_times_total(t, METRIC_TTFT_SECONDS, "totals", &now);
	assert_int_equal(metric_times_since(&now, &before), 93);
	assert_true(is_near(metric_times_quantile(&now, &before, 0.5), 47 * 200 * CGN_MSEC));
	assert_true(is_near(metric_times_quantile(&now, &before, 0.95), 89 * 200 * CGN_MSEC));
	assert_true(is_near(metric_times_quantile(&now, &before, 1), 18600 * CGN_MSEC));
	assert_int_equal(metric_times_quantile(&now, &now, 0.95), 0);
	metric_times_total(t, METRIC_TTFT_SECONDS, NULL, &other);
	assert_int_equal(metric_times_since(&other, &now), 0);
	assert_true(page_shows("# TYPE cgn_ttft_seconds histogram"));
	assert_true(page_shows("cgn_ttft_seconds_bucket{model=\"totals\",le=\"30\"} 93"));
}

static void a_forgotten_series_is_not_shown_and_can_return(void **state)
{
	(void)state;
	struct metric_cell *c = METRIC_OF(t, NODE_STATE, "gone", "ready");
	metric_set(c, 1);
	metric_set(METRIC_OF(t, NODE_STATE, "stays", "ready"), 1);
	metric_forget(t, METRIC_NODE_STATE, "node", "gone");
	metric_forget(t, METRIC_NODE_STATE, "node", "never was");
	assert_null(strstr(scrape_page(), "node=\"gone\""));
	assert_true(page_shows("cgn_node_state{node=\"stays\",state=\"ready\"} 1"));
	metric_set(c, 5);
	assert_ptr_equal(c, METRIC_OF(t, NODE_STATE, "gone", "ready"));
	assert_true(page_shows("cgn_node_state{node=\"gone\",state=\"ready\"} 5"));
}

static void a_node_is_forgotten_in_every_metric(void **state)
{
	(void)state;
	struct metric_cell *state_of = METRIC_OF(t, NODE_STATE, "left", "ready");
	metric_set(state_of, 1);
	metric_set(METRIC_OF(t, INFLIGHT, "left"), 2);
	metric_add(METRIC_OF(t, CACHED_TOKENS, "left", "actual"), 3);
	metric_set(METRIC_OF(t, INFLIGHT, "stays too"), 4);
	metric_add(METRIC_OF(t, REJECTED, "left"), 5);
	telemetry_forget(t, "node", "left");
	assert_null(strstr(scrape_page(), "node=\"left\""));
	assert_true(page_shows("cgn_inflight{node=\"stays too\"} 4"));
	assert_true(page_shows("cgn_rejected_total{reason=\"left\"} 5"));
	assert_ptr_equal(state_of, METRIC_OF(t, NODE_STATE, "left", "ready"));
	/* Any label selects, also one that is not the first. */
	metric_add(METRIC_OF(t, REQUESTS, "stays", "418"), 1);
	metric_add(METRIC_OF(t, REQUESTS, "stays", "419"), 1);
	telemetry_forget(t, "code", "418");
	assert_null(strstr(scrape_page(), "code=\"418\""));
	assert_true(page_shows("cgn_requests_total{model=\"stays\",code=\"419\"} 1"));
}

static void registries_do_not_share_series(void **state)
{
	(void)state;
	struct telemetry *other = telemetry_new(NULL, 0);
	metric_set(METRIC_OF(other, STATE_CONNECTED, "other"), 1);
	assert_null(strstr(scrape_page(), "what=\"other\""));
	telemetry_free(&other);
	assert_null(other);
}

static void names_without_end_cost_bounded_memory(void **state)
{
	(void)state;
	static struct metric_cell *cells[4096];
	char name[32];
	for (unsigned i = 0; i < 4096; i++) {
		snprintf(name, sizeof name, "node-%u", i);
		cells[i] = METRIC_OF(t, ENGINE_READY, name);
		metric_set(cells[i], i);
	}
	struct metric_cell *other = METRIC_OF(t, ENGINE_READY, "one too many");
	assert_ptr_equal(other, METRIC_OF(t, ENGINE_READY, "and another"));
	metric_set(other, 7);
	assert_true(page_shows("cgn_engine_ready{engine=\"other\"} 7"));
	/* Nodes that left make room, the longest absent first. */
	struct metric_cell *first = METRIC_OF(t, ENGINE_READY, "node-17");
	metric_forget(t, METRIC_ENGINE_READY, "engine", "node-17");
	metric_forget(t, METRIC_ENGINE_READY, "engine", "node-3");
	struct metric_cell *fresh = METRIC_OF(t, ENGINE_READY, "fresh");
	assert_ptr_equal(fresh, first);
	assert_true(page_shows("cgn_engine_ready{engine=\"fresh\"} 0"));
	assert_null(strstr(scrape_page(), "node-17\""));
	assert_ptr_not_equal(METRIC_OF(t, ENGINE_READY, "fresher"), other);
	assert_ptr_equal(METRIC_OF(t, ENGINE_READY, "node-17"), other);
	for (unsigned i = 0; i < 4096; i++) { /* The nodes that stayed keep their series. */
		snprintf(name, sizeof name, "node-%u", i);
		if (i != 17 && i != 3)
			assert_ptr_equal(METRIC_OF(t, ENGINE_READY, name), cells[i]);
	}
}

static void *counter_hammer(void *arg)
{
	struct metric_cell **c = arg;
	for (unsigned i = 0; i < 20000; i++) {
		metric_add(c[0], 1);
		metric_shift(c[1], i % 2 == 0 ? 1 : -1);
		metric_observe(c[2], CGN_MSEC);
	}
	return NULL;
}

static void no_update_is_lost_between_threads(void **state)
{
	(void)state;
	struct metric_cell *c[] = {METRIC_OF(t, RELAYS, "e", "ok"), METRIC_OF(t, ENGINE_RUNNING, "t"),
		METRIC_OF(t, TTFT_SECONDS, "t")};
	pthread_t threads[3];
	for (size_t i = 0; i < CGN_COUNT(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, counter_hammer, c), 0);
	scrape_page();
	for (size_t i = 0; i < CGN_COUNT(threads); i++)
		pthread_join(threads[i], NULL);
	assert_true(metric_count(c[0]) == 60000);
	assert_true(metric_count(c[2]) == 60000);
	assert_true(page_shows("cgn_engine_requests_running{engine=\"t\"} 0"));
	assert_true(page_shows("cgn_ttft_seconds_sum{model=\"t\"} 60"));
}

static void the_process_is_described(void **state)
{
	(void)state;
	scrape_page();
	static const char *const names[] = {"process_cpu_seconds_total ", "process_resident_memory_bytes ",
		"process_virtual_memory_bytes ", "process_start_time_seconds ", "process_open_fds ",
		"process_max_fds "};
	for (size_t i = 0; i < CGN_COUNT(names); i++) {
		char line[80];
		snprintf(line, sizeof line, "\n%s", names[i]);
		const char *at = strstr(page.p, line);
		assert_non_null(at);
		assert_true(strtod(strchr(at, ' '), NULL) >= 0);
	}
	assert_true(strtod(strstr(page.p, "\nprocess_resident_memory_bytes ") + 31, NULL) > 100000);
	assert_true(strtod(strstr(page.p, "\nprocess_start_time_seconds ") + 28, NULL) > 1.6e9);
	/* The page shows as many descriptors as there are, however often it was read. */
	unsigned open = 0;
	for (int fd = 0; fd < 1024; fd++)
		open += fcntl(fd, F_GETFD) >= 0;
	for (int i = 0; i < 3; i++)
		scrape_page();
	assert_int_equal(strtod(strstr(page.p, "\nprocess_open_fds ") + 18, NULL), open);
}

static struct cgn_loop *scrape_loop;

static void scrape_call(struct grpc_call *c, void *user)
{
	(void)user;
	scrape_answer(c, t);
}

static void scrape_done(void *user, const struct grpc_unary_result *r)
{
	Cognitora__V1__ScrapeResponse *m = NULL;
	assert_int_equal(r->err->code, CGN_FINE);
	assert_true(cgn_ok(pb_unpack(&cognitora__v1__scrape_response__descriptor,
		(struct cgn_str){(const char *)r->p, r->n}, &m, NULL)));
	assert_non_null(strstr(m->text, "\ncgn_rejected_total{reason=\"scraped\"} 4\n"));
	assert_non_null(strstr(m->text, "\nprocess_open_fds "));
	assert_true(m->taken_unix_ms > 0);
	pb_free(&m);
	*(bool *)user = true;
	cgn_loop_stop(scrape_loop);
}

static void another_program_reads_the_page(void **state)
{
	(void)state;
	static const struct grpc_method methods[] = {{"/x/Scrape", scrape_call}};
	const struct grpc_server_cfg cfg = {.listen = {.addr = "127.0.0.1:0"},
		.methods = methods,
		.n_methods = CGN_COUNT(methods)};
	struct grpc_server *server = NULL;
	struct grpc_channel *ch = NULL;
	char addr[64];
	bool done = false;
	metric_add(METRIC_OF(t, REJECTED, "scraped"), 4);
	assert_true(cgn_ok(cgn_loop_new(&scrape_loop, NULL)));
	assert_true(cgn_ok(grpc_server_new(scrape_loop, &cfg, NULL, &server, NULL)));
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%u", grpc_server_port(server));
	assert_true(
		cgn_ok(grpc_channel_new(scrape_loop, &(struct grpc_channel_cfg){.addr = addr}, &ch, NULL)));
	assert_true(cgn_ok(grpc_unary(ch, "/x/Scrape", CGN_STR(""), 30 * CGN_SEC, scrape_done, &done, NULL)));
	cgn_loop_run(scrape_loop);
	assert_true(done);
	grpc_channel_free(&ch);
	grpc_server_free(&server);
	cgn_loop_free(&scrape_loop);
}

/* Prometheus' own linter reads a page with every metric, hostile labels included. */
static size_t labels_in(const char *labels)
{
	size_t n = labels[0] != '\0';
	for (; *labels != '\0'; labels++)
		n += *labels == ',';
	return n;
}

static void promtool_finds_no_fault(void **state)
{
	(void)state;
	if (system("promtool --version >/dev/null 2>&1") != 0)
		skip();
#define METRIC(id, name, type, labels, help) \
	metric_get(t, METRIC_##id, (const char *const[]){"x", "y", "z", "w"}, labels_in(labels));
#include "agent/metrics.def"
#include "joint/report/telemetry/metrics.def"
#include "kvcached/daemon/metrics.def"
#include "router/metrics.def"
#undef METRIC
	scrape_page();
	FILE *f = popen("promtool check metrics 2>&1", "w");
	assert_non_null(f);
	assert_int_equal(fwrite(page.p, 1, page.n, f), page.n);
	int status = pclose(f);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void the_reference_has_a_row_for_each(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	telemetry_reference(rows, CGN_COUNT(rows), &b);
	telemetry_reference_joint(&b);
	assert_non_null(strstr(cgn_buf_z(&b),
		"\n| `cgn_retries_total` | counter | reason | Requests sent to another node"));
	size_t shown = 0;
	for (const char *p = b.p; (p = strstr(p, "\n| `")) != NULL; p++)
		shown++;
	assert_int_equal(shown, METRIC_JOINT_COUNT + CGN_COUNT(rows));
	cgn_buf_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_labels_same_cell),
		cmocka_unit_test(gauges_move_and_print_short),
		cmocka_unit_test(buckets_are_cumulative_and_edges_inclusive),
		cmocka_unit_test(hostile_labels_cannot_break_the_page),
		cmocka_unit_test(totals_are_of_what_came_in_between),
		cmocka_unit_test(quantiles_are_of_what_came_in_between),
		cmocka_unit_test(a_forgotten_series_is_not_shown_and_can_return),
		cmocka_unit_test(a_node_is_forgotten_in_every_metric),
		cmocka_unit_test(registries_do_not_share_series),
		cmocka_unit_test(names_without_end_cost_bounded_memory),
		cmocka_unit_test(no_update_is_lost_between_threads),
		cmocka_unit_test(the_process_is_described),
		cmocka_unit_test(another_program_reads_the_page),
		cmocka_unit_test(promtool_finds_no_fault),
		cmocka_unit_test(the_reference_has_a_row_for_each),
	};
	t = telemetry_new(rows, CGN_COUNT(rows));
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	telemetry_free(&t);
	cgn_buf_fini(&page);
	return failed;
}
