/* SPDX-License-Identifier: Apache-2.0 */
/* redfish: rounds through a BMC: sessions, basic authentication, redirects, documents that are missing, too long or no
 * documents, and too many of them. */
#include <fcntl.h>
#include <math.h>

#include "http_world.h"
#include "io/os/disk/disk.h"
#include "joint/power/redfish/redfish.h"

#define PASSWORD_FILE "/tmp/cgn-redfish-password"
#define INTERVAL      (20 * CGN_MSEC)

/* ---- a BMC ---- */

struct page {
	const char *path;
	int status;
	const char *body, *location;
};
struct bmc {
	struct cgn_loop *l;
	struct http_server *server;
	const struct page *pages;
	struct cgn_timer tick;
	char url[64], password[32], asked[64];
	bool wants_login, has_no_sessions, is_shut, expire;
	unsigned posts, logins, refusals, logouts, gets, tokens;
	struct cgn_buf posted;
	struct redfish_bmc *r;
	bool closed;
};

static void reply_with(struct http_exchange *x, int status, const char *body, const char *token,
	const char *location)
{
	struct http_field f[3] = {{CGN_STR("content-type"), CGN_STR("application/json")}};
	size_t n = 1;
	if (token != NULL)
		f[n++] = (struct http_field){CGN_STR("x-auth-token"), cgn_str_of(token)};
	if (location != NULL)
		f[n++] = (struct http_field){CGN_STR("location"), cgn_str_of(location)};
	http_exchange_reply(x, status, f, n, cgn_str_of(body));
}

static bool is_allowed(struct bmc *b, const struct http_head *h)
{
	char want[32];
	(void)snprintf(want, sizeof want, "token-%u", b->tokens);
	if (b->expire) {
		b->expire = false;
		b->tokens++;
		return false;
	}
	if (b->has_no_sessions) /* "cgn:right" */
		return cgn_str_is(http_head_get(h, "authorization"), "Basic Y2duOnJpZ2h0");
	return !b->wants_login || cgn_str_is(http_head_get(h, "x-auth-token"), want);
}

static void page_give(struct bmc *b, struct http_exchange *x, const struct http_head *h)
{
	char path[128];
	b->gets++;
	(void)cgn_str_copyz(path, sizeof path, h->path);
	if ((b->is_shut || strcmp(path, REDFISH_ROOT) != 0) && !is_allowed(b, h)) {
		reply_with(x, 401, "{}", NULL, NULL);
		return;
	}
	for (const struct page *p = b->pages; p->path != NULL; p++)
		if (strcmp(p->path, path) == 0) {
			reply_with(x, p->status, p->body, NULL, p->location);
			return;
		}
	reply_with(x, 404, "{}", NULL, NULL);
}

static void on_request(struct http_exchange *x, const struct http_head *h, void *user)
{
	struct bmc *b = user;
	http_exchange_user(x, b);
	b->posted.n = 0;
	if (cgn_str_is(h->method, "GET")) {
		page_give(b, x, h);
	} else if (cgn_str_is(h->method, "DELETE")) {
		b->logouts++;
		(void)cgn_str_copyz(b->asked, sizeof b->asked, h->path);
		reply_with(x, 204, "", NULL, NULL);
	}
}

static void on_body(struct http_exchange *x, void *user, const uint8_t *p, size_t n)
{
	(void)x;
	cgn_buf_add(&((struct bmc *)user)->posted, p, n);
}

static void on_body_end(struct http_exchange *x, void *user)
{
	struct bmc *b = user;
	char want[128], token[32], location[64];
	if (b->posted.n == 0)
		return;
	b->posts++;
	(void)snprintf(want, sizeof want, "{\"UserName\":\"cgn\",\"Password\":\"%s\"}", b->password);
	if (b->has_no_sessions) {
		reply_with(x, 404, "{}", NULL, NULL);
	} else if (!cgn_str_is(cgn_buf_view(&b->posted), want)) {
		b->refusals++;
		reply_with(x, 401, "{}", NULL, NULL);
	} else {
		b->logins++;
		(void)snprintf(token, sizeof token, "token-%u", ++b->tokens);
		(void)snprintf(location, sizeof location, "/redfish/v1/SessionService/Sessions/%u",
			b->tokens);
		reply_with(x, 201, "{}", token, location);
	}
}

static void on_close(struct http_exchange *x, void *user, const struct cgn_err *why)
{
	(void)x;
	(void)user;
	(void)why;
}

static void bmc_tick(struct cgn_timer *t)
{
	cgn_timer_set(t, CGN_MSEC);
}

static void bmc_turn(struct bmc *b)
{
	(void)uv_run(cgn_loop_uv(b->l), UV_RUN_ONCE);
}
#define bmc_until(b, cond)           \
	do {                         \
		alarm(60);           \
		while (!(cond))      \
			bmc_turn(b); \
		alarm(0);            \
	} while (0)

static void password_write(const char *text)
{
	assert_true(cgn_ok(disk_write_file_atomic(PASSWORD_FILE, cgn_str_of(text), 0600, NULL)));
}

static void bmc_open(struct bmc *b, const struct page *pages, bool login)
{
	static const struct http_server_ops ops = {.on_request = on_request,
		.on_body = on_body,
		.on_body_end = on_body_end,
		.on_close = on_close};
	const struct http_server_cfg cfg = {.listen.addr = "127.0.0.1:0"};
	struct cgn_err err = {0};
	*b = (struct bmc){.pages = pages, .wants_login = login, .password = "right"};
	assert_true(cgn_ok(cgn_loop_new(&b->l, &err)));
	assert_true(cgn_ok(http_server_new(b->l, &cfg, &ops, b, &b->server, &err)));
	(void)snprintf(b->url, sizeof b->url, "http://127.0.0.1:%u", http_server_port(b->server));
	cgn_timer_init(&b->tick, b->l, bmc_tick);
	bmc_tick(&b->tick);
	if (login)
		password_write("right\n");
}

static void bmc_read(struct bmc *b)
{
	struct cgn_err err = {0};
	const struct redfish_bmc_cfg cfg = {.url = b->url,
		.node = "n1",
		.user = b->wants_login ? "cgn" : NULL,
		.password_file = b->wants_login ? PASSWORD_FILE : NULL,
		.timeout = 10 * CGN_SEC,
		.interval = INTERVAL};
	if (!cgn_ok(redfish_bmc_open(b->l, &cfg, &b->r, &err)))
		fail_msg("%s", err.msg);
}

static void note_closed(void *arg)
{
	((struct bmc *)arg)->closed = true;
}

static void bmc_close(struct bmc *b)
{
	redfish_bmc_close(&b->r, note_closed, b);
	assert_null(b->r);
	assert_false(b->closed);
	bmc_until(b, b->closed);
	cgn_timer_cancel(&b->tick);
	http_server_free(&b->server);
	cgn_loop_free(&b->l);
	cgn_buf_fini(&b->posted);
	(void)unlink(PASSWORD_FILE);
}

/* Wait for the end of the next round. */
static struct redfish_bmc_view round_wait(struct bmc *b)
{
	struct redfish_bmc_view v = redfish_bmc_view(b->r);
	cgn_nsec last = v.last;
	uint64_t failures = v.failures;
	bmc_until(b, (v = redfish_bmc_view(b->r), v.last != last || v.failures != failures));
	return v;
}

static const struct power_reading *reading_find(const struct redfish_bmc_view *v, enum power_component c,
	enum power_quantity q)
{
	for (size_t i = 0; i < v->n; i++)
		if (v->reading[i].component == c && v->reading[i].quantity == q)
			return &v->reading[i];
	return NULL;
}

static void expect_watts(const struct bmc *b, double watts)
{
	struct redfish_bmc_view v = redfish_bmc_view(b->r);
	const struct power_reading *r = reading_find(&v, POWER_CHASSIS, POWER_WATTS);
	assert_non_null(r);
	assert_true(fabs(r->value - watts) < 1e-9);
	assert_string_equal(r->node, "n1");
	assert_true(r->time > 0 && r->max_age >= 3 * INTERVAL);
	assert_int_equal(r->state, POWER_FRESH);
}

#define LINK(path) "{\"@odata.id\":\"" path "\"}"
#define ROOT                                                                                  \
	{REDFISH_ROOT, 200,                                                                   \
		"{\"Chassis\":" LINK("/redfish/v1/Chassis") ",\"Links\":{\"Sessions\":" LINK( \
			"/sessions") "}}",                                                    \
		NULL}
#define LIST    {"/redfish/v1/Chassis", 200, "{\"Members\":[" LINK("/c/1") "]}", NULL}
#define CHASSIS {"/c/1", 200, "{\"Power\":" LINK("/c/1/Power") ",\"Thermal\":" LINK("/c/1/Thermal") "}", NULL}
#define POWER   {"/c/1/Power", 200, "{\"PowerControl\":[{\"PowerConsumedWatts\":344}]}", NULL}
#define END     {NULL, 0, NULL, NULL}

/* ---- tests ---- */

static void test_a_round(void **state)
{
	static const struct page pages[] = {ROOT, LIST, CHASSIS, POWER,
		{"/c/1/Thermal", 200, "{\"Temperatures\":[{\"Name\":\"Inlet\",\"ReadingCelsius\":21}]}",
			NULL},
		END};
	struct bmc b;
	(void)state;
	bmc_open(&b, pages, false);
	bmc_read(&b);
	struct redfish_bmc_view v = round_wait(&b);
	assert_true(v.is_up);
	assert_string_equal(v.why, "");
	assert_string_equal(v.auth, "none");
	assert_int_equal(v.n, 2);
	assert_int_equal(v.requests, 5);
	expect_watts(&b, 344);
	v = round_wait(&b);
	assert_int_equal(v.requests, 10);
	bmc_close(&b);
}

static void test_one_session_for_all_rounds(void **state)
{
	static const struct page pages[] = {ROOT, LIST, CHASSIS, POWER, END};
	struct bmc b;
	(void)state;
	bmc_open(&b, pages, true);
	bmc_read(&b);
	(void)round_wait(&b);
	(void)round_wait(&b);
	struct redfish_bmc_view v = round_wait(&b);
	assert_true(v.is_up);
	assert_string_equal(v.auth, "session");
	assert_int_equal(b.logins, 1);
	b.expire = true; /* The BMC forgets the session: one login, and the round goes on */
	v = round_wait(&b);
	assert_true(v.is_up);
	assert_int_equal(b.logins, 2);
	expect_watts(&b, 344);
	bmc_close(&b);
	assert_int_equal(b.logouts, 1);
	assert_string_equal(b.asked, "/redfish/v1/SessionService/Sessions/3");
}

static void test_basic_authentication_where_there_are_no_sessions(void **state)
{
	static const struct page pages[] = {ROOT, LIST, CHASSIS, POWER, END};
	struct bmc b;
	(void)state;
	bmc_open(&b, pages, true);
	b.has_no_sessions = true;
	bmc_read(&b);
	struct redfish_bmc_view v = round_wait(&b);
	assert_true(v.is_up);
	assert_string_equal(v.auth, "basic");
	expect_watts(&b, 344);
	bmc_close(&b);
	assert_int_equal(b.logouts, 0);
	static const struct page bare[] = {{REDFISH_ROOT, 200,
						   "{\"Chassis\":" LINK("/redfish/v1/Chassis") "}", NULL},
		LIST, CHASSIS, POWER, END};
	bmc_open(&b, bare, true);
	b.has_no_sessions = true;
	b.is_shut = true; /* The service root too wants credentials */
	bmc_read(&b);
	v = round_wait(&b);
	assert_string_equal(v.auth, "basic");
	expect_watts(&b, 344);
	bmc_close(&b);
	assert_int_equal(b.posts, 0); /* Nothing is posted to a BMC that links no sessions */
}

static void test_a_wrong_password_and_its_correction(void **state)
{
	static const struct page pages[] = {ROOT, LIST, CHASSIS, POWER, END};
	struct bmc b;
	(void)state;
	bmc_open(&b, pages, true);
	password_write("wrong\n");
	bmc_read(&b);
	struct redfish_bmc_view v = round_wait(&b);
	assert_false(v.is_up);
	assert_int_equal(v.n, 0);
	assert_non_null(strstr(v.why, "refuses the user cgn"));
	assert_non_null(strstr(v.why, PASSWORD_FILE));
	password_write("right\r\nnote\n");
	while (!v.is_up)
		v = round_wait(&b);
	expect_watts(&b, 344);
	bmc_close(&b);
}

static void test_a_password_that_cannot_be_read(void **state)
{
	static const struct page pages[] = {ROOT, END};
	struct bmc b;
	(void)state;
	bmc_open(&b, pages, true);
	password_write("");
	bmc_read(&b);
	bmc_until(&b, redfish_bmc_view(b.r).why[0] != '\0');
	assert_non_null(strstr(redfish_bmc_view(b.r).why, "empty"));
	(void)unlink(PASSWORD_FILE);
	bmc_until(&b, strstr(redfish_bmc_view(b.r).why, "empty") == NULL);
	assert_non_null(strstr(redfish_bmc_view(b.r).why, PASSWORD_FILE));
	assert_int_equal(b.gets, 0); /* Nothing is tried with half a credential */
	bmc_close(&b);
}

static void test_redirects(void **state)
{
	static const struct page fine[] = {{REDFISH_ROOT, 308, "", "/redfish/v1"},
		{"/redfish/v1", 200, "{\"Chassis\":" LINK("/redfish/v1/Chassis") "}", NULL}, LIST, CHASSIS,
		POWER, END};
	static const struct page away[] = {{REDFISH_ROOT, 302, "", "http://other.example/redfish/v1/"}, END};
	static const struct page round[] = {{REDFISH_ROOT, 301, "", REDFISH_ROOT}, END};
	static const struct {
		const struct page *pages;
		const char *why;
	} rows[] = {{fine, ""}, {away, "another host"}, {round, "again and again"}};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct bmc b;
		bmc_open(&b, rows[i].pages, false);
		bmc_read(&b);
		struct redfish_bmc_view v = round_wait(&b);
		assert_int_equal(v.is_up, rows[i].why[0] == '\0');
		assert_non_null(strstr(v.why, rows[i].why));
		bmc_close(&b);
	}
}

static void test_documents_that_are_none(void **state)
{
	static const struct page pages[] = {ROOT, LIST, CHASSIS, POWER, {"/c/1/Thermal", 200, "<html>", NULL},
		END};
	static const struct page html[] = {{REDFISH_ROOT, 200, "<html>", NULL}, END};
	static const struct page error[] = {ROOT, {"/redfish/v1/Chassis", 503, "{}", NULL}, END};
	struct bmc b;
	(void)state;
	bmc_open(&b, pages, false); /* Reading goes on after a document that is garbage */
	bmc_read(&b);
	struct redfish_bmc_view v = round_wait(&b);
	assert_true(v.is_up);
	assert_string_equal(v.why, "/c/1/Thermal: the answer is not a JSON document");
	expect_watts(&b, 344);
	bmc_close(&b);
	bmc_open(&b, html, false);
	bmc_read(&b);
	v = round_wait(&b);
	assert_false(v.is_up);
	assert_string_equal(v.why, REDFISH_ROOT ": the answer is not a JSON document");
	b.pages = error;
	v = round_wait(&b);
	assert_string_equal(v.why, "/redfish/v1/Chassis: HTTP status 503");
	bmc_close(&b);
}

static void test_readings_outlive_a_failed_round(void **state)
{
	static const struct page pages[] = {ROOT, LIST, CHASSIS, POWER, END};
	static const struct page nothing[] = {END};
	struct bmc b;
	(void)state;
	bmc_open(&b, pages, false);
	bmc_read(&b);
	(void)round_wait(&b);
	b.pages = nothing;
	struct redfish_bmc_view v = round_wait(&b);
	assert_false(v.is_up);
	expect_watts(&b, 344);
	const struct power_reading *r = reading_find(&v, POWER_CHASSIS, POWER_WATTS);
	assert_false(power_usable(r, r->time + r->max_age)); /* Age makes it stale */
	bmc_close(&b);
}

static void test_documents_without_end(void **state)
{
	static char huge[REDFISH_MAX_DOCUMENT + 100], many[64 * 1024];
	static const struct page endless[] = {{REDFISH_ROOT, 200, "{\"Chassis\":" LINK("/l") "}", NULL},
		{"/l", 200, "{\"@odata.nextLink\":\"/l\"}", NULL}, END};
	const struct page long_page[] = {ROOT, {"/redfish/v1/Chassis", 200, huge, NULL}, END};
	const struct page many_pages[] = {ROOT, {"/redfish/v1/Chassis", 200, many, NULL}, CHASSIS, POWER,
		END};
	struct bmc b;
	(void)state;
	memset(huge, ' ', sizeof huge - 1);
	size_t n = (size_t)snprintf(many, sizeof many, "{\"Members\":[" LINK("/c/1"));
	for (unsigned i = 0; i < 1000; i++)
		n += (size_t)snprintf(many + n, sizeof many - n, ",{\"@odata.id\":\"/c/x%u\"}", i);
	(void)snprintf(many + n, sizeof many - n, "]}");
	bmc_open(&b, endless, false);
	bmc_read(&b);
	struct redfish_bmc_view v = round_wait(&b);
	assert_false(v.is_up);
	assert_non_null(strstr(v.why, "more documents"));
	assert_int_equal(v.requests, REDFISH_MAX_REQUESTS);
	b.pages = long_page;
	v = round_wait(&b);
	assert_non_null(strstr(v.why, "longer than 262144 bytes"));
	b.pages = many_pages;
	v = round_wait(&b);
	assert_true(v.is_up);
	assert_non_null(strstr(v.why, "lists more than is read"));
	expect_watts(&b, 344);
	bmc_close(&b);
}

static void test_sensors_without_power_are_asked_once(void **state)
{
	static const struct page pages[] = {ROOT, LIST, {"/c/1", 200, "{\"Sensors\":" LINK("/s") "}", NULL},
		{"/s", 200, "{\"Members\":[" LINK("/s/fan") "," LINK("/s/cpu") "]}", NULL},
		{"/s/fan", 200, "{\"ReadingType\":\"Rotational\",\"Reading\":9}", NULL},
		{"/s/cpu", 200,
			"{\"Id\":\"CPU1\",\"ReadingType\":\"Power\",\"PhysicalContext\":\"CPU\",\"Reading\":90}",
			NULL},
		END};
	struct bmc b;
	(void)state;
	bmc_open(&b, pages, false);
	bmc_read(&b);
	struct redfish_bmc_view v = round_wait(&b);
	assert_int_equal(v.requests, 6);
	v = round_wait(&b);
	assert_int_equal(v.requests, 11);
	assert_non_null(reading_find(&v, POWER_CPU, POWER_WATTS));
	bmc_close(&b);
}

static void test_a_bmc_that_is_not_there(void **state)
{
	static const struct page pages[] = {END};
	struct bmc b;
	(void)state;
	bmc_open(&b, pages, false);
	(void)snprintf(b.url, sizeof b.url, "http://127.0.0.1:1/redfish/v1/");
	bmc_read(&b);
	struct redfish_bmc_view v = round_wait(&b);
	assert_false(v.is_up);
	assert_non_null(strstr(v.why, "127.0.0.1:1"));
	bmc_close(&b);
}

static void test_settings_that_cannot_work(void **state)
{
	static const struct {
		struct redfish_bmc_cfg cfg;
		const char *why;
	} rows[] = {{{.url = "bmc.example"}, "a BMC is at https://HOST"},
		{{.url = "https://bmc.example/api"}, "/redfish/v1"},
		{{.url = "https://bmc.example", .user = "cgn"}, "password"},
		{{.url = "https://bmc.example", .fingerprint = "xyz"}, "fingerprint"},
		{{.url = "http://bmc.example", .ca_file = "/ca"}, "https://"}};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_err err = {0};
		assert_false(cgn_ok(redfish_bmc_check(&rows[i].cfg, &err)));
		assert_non_null(strstr(err.msg, rows[i].why));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_round),
		cmocka_unit_test(test_one_session_for_all_rounds),
		cmocka_unit_test(test_basic_authentication_where_there_are_no_sessions),
		cmocka_unit_test(test_a_wrong_password_and_its_correction),
		cmocka_unit_test(test_a_password_that_cannot_be_read),
		cmocka_unit_test(test_redirects),
		cmocka_unit_test(test_documents_that_are_none),
		cmocka_unit_test(test_readings_outlive_a_failed_round),
		cmocka_unit_test(test_documents_without_end),
		cmocka_unit_test(test_sensors_without_power_are_asked_once),
		cmocka_unit_test(test_a_bmc_that_is_not_there),
		cmocka_unit_test(test_settings_that_cannot_work),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
