/* SPDX-License-Identifier: Apache-2.0 */
/* The client of Kubernetes' API against a small server that answers from a script. tests/kube has the real server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "io/wire/http/server.h"
#include "io/wire/k8s/k8s.h"

struct answer {
	const char *path; /* The request must have this path; */
	int status;
	const char *body;
	bool open; /* the stream stays open. */
};

struct world {
	struct cgn_loop *l;
	struct http_server *server;
	struct k8s *k;
	const struct answer *script; /* Ends with a path of NULL. */
	struct http_exchange *stream;
	struct cgn_buf told;
	const char *until; /* The loop stops when |told| ends with this text. */
	struct cgn_timer limit;
	char file[64];
};

static void told_check(struct world *w)
{
	size_t n = strlen(w->until);
	if (w->told.n >= n && memcmp(w->told.p + w->told.n - n, w->until, n) == 0)
		cgn_loop_stop(w->l);
}

/* ---- the server ---- */

static void on_request(struct http_exchange *x, const struct http_head *h, void *user)
{
	struct world *w = user;
	const struct answer *a = w->script;
	http_exchange_user(x, w);
	if (a->path == NULL)
		fail_msg("a request too many: %.*s", CGN_STR_ARG(h->path));
	w->script++;
	if (!cgn_str_is(h->path, a->path))
		fail_msg("asked for %.*s, not for %s", CGN_STR_ARG(h->path), a->path);
	http_exchange_head(x, a->status, NULL, 0, -1);
	http_exchange_body(x, &(struct iovec){(void *)(uintptr_t)a->body, strlen(a->body)},
		a->body[0] != '\0');
	if (a->open)
		w->stream = x;
	else
		http_exchange_end(x, NULL, 0);
}

static void on_request_body(struct http_exchange *x, void *user, const uint8_t *p, size_t n)
{
	(void)x;
	(void)user;
	(void)p;
	(void)n;
}

static void on_body_end(struct http_exchange *x, void *user)
{
	(void)x;
	(void)user;
}

static void on_exchange_close(struct http_exchange *x, void *user, const struct cgn_err *why)
{
	struct world *w = user;
	(void)why;
	if (w->stream == x)
		w->stream = NULL;
}

static const struct http_server_ops server_ops = {.on_request = on_request,
	.on_body = on_request_body,
	.on_body_end = on_body_end,
	.on_close = on_exchange_close};

/* ---- the world ---- */

static void too_late(struct cgn_timer *t)
{
	struct world *w = CGN_CONTAINER(t, struct world, limit);
	fail_msg("waited for \"%s\", heard \"%s\"", w->until, cgn_buf_z(&w->told));
}

static void file_write(struct world *w, const char *text)
{
	FILE *f = fopen(w->file, "w");
	assert_non_null(f);
	(void)fputs(text, f);
	(void)fclose(f);
}

static int world_setup(void **state)
{
	struct world *w = calloc(1, sizeof *w);
	assert_non_null(w);
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	cgn_timer_init(&w->limit, w->l, too_late);
	(void)snprintf(w->file, sizeof w->file, "/tmp/cgn-k8s-XXXXXX");
	int fd = mkstemp(w->file);
	assert_true(fd >= 0);
	(void)close(fd);
	*state = w;
	return 0;
}

static int world_teardown(void **state)
{
	struct world *w = *state;
	k8s_free(&w->k);
	http_server_free(&w->server);
	cgn_timer_cancel(&w->limit);
	cgn_loop_free(&w->l);
	cgn_buf_fini(&w->told);
	(void)remove(w->file);
	free(w);
	return 0;
}

static void server_start(struct world *w, const struct answer *script)
{
	struct cgn_err err;
	char text[600];
	const struct http_server_cfg cfg = {.listen = {.addr = "127.0.0.1:0"}};
	w->script = script;
	if (!cgn_ok(http_server_new(w->l, &cfg, &server_ops, w, &w->server, &err)))
		fail_msg("%s", err.msg);
	(void)snprintf(text, sizeof text,
		"{\"current-context\":\"c\",\"contexts\":[{\"name\":\"c\",\"context\":{\"cluster\":\"k\",\"namespace\":\"n\"}}],"
		"\"clusters\":[{\"name\":\"k\",\"cluster\":{\"server\":\"http://127.0.0.1:%u/\"}}]}",
		http_server_port(w->server));
	file_write(w, text);
	if (!cgn_ok(k8s_new(w->l, w->file, &w->k, &err)))
		fail_msg("%s", err.msg);
	assert_string_equal(k8s_namespace(w->k), "n");
}

static void run_until(struct world *w, const char *until)
{
	w->until = until;
	cgn_timer_set(&w->limit, 20 * CGN_SEC);
	cgn_loop_run(w->l);
	cgn_timer_cancel(&w->limit);
}

/* ---- watches ---- */

static void on_begin(void *user)
{
	struct world *w = user;
	cgn_buf_putz(&w->told, "begin ");
}

static void on_end(void *user)
{
	struct world *w = user;
	cgn_buf_putz(&w->told, "end ");
	told_check(w);
}

static void on_object(void *user, struct json_val object)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "+%.*s ", CGN_STR_ARG(k8s_meta(object, "name")));
	told_check(w);
}

static void on_gone(void *user, struct json_val object)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "-%.*s ", CGN_STR_ARG(k8s_meta(object, "name")));
	told_check(w);
}

static void on_connected(void *user, bool connected, const char *why)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, connected ? "up%s " : "down(%s) ", why);
	told_check(w);
}

static const struct k8s_watch_ops watch_ops = {{on_begin, on_end, on_connected}, on_object, on_gone};

#define OBJECT(name, version) "{\"metadata\":{\"name\":\"" name "\",\"resourceVersion\":\"" version "\"}}"
#define EVENT(type, object)   "{\"type\":\"" type "\",\"object\":" object "}\n"
#define LIST(version, more, items) \
	"{\"metadata\":{\"resourceVersion\":\"" version "\",\"continue\":\"" more "\"},\"items\":[" items "]}"
#define WATCH(version) \
	"/l?s=x&watch=1&allowWatchBookmarks=true&resourceVersion=" version "&timeoutSeconds=290"

static void a_list_comes_in_pages_and_is_followed(void **state)
{
	struct world *w = *state;
	static const struct answer script[] = {{"/l?s=x&limit=200", 200, LIST("7", "a/b", OBJECT("one", "3")),
						       false},
		{"/l?s=x&limit=200&continue=a%2Fb", 200, LIST("7", "", OBJECT("two", "4")), false},
		{WATCH("7"), 200,
			EVENT("ADDED", OBJECT("three", "8")) EVENT("BOOKMARK", OBJECT("", "9"))
				EVENT("DELETED", OBJECT("one", "10")),
			true},
		{NULL, 0, NULL, false}};
	struct k8s_watch *watch = NULL;
	server_start(w, script);
	assert_true(cgn_ok(k8s_watch_open(w->k, "/l", "s=x", &watch_ops, w, &watch, NULL)));
	run_until(w, "-one ");
	assert_string_equal(cgn_buf_z(&w->told), "begin +one +two end up +three -one ");
	k8s_watch_close(&watch);
}

static void a_version_that_is_too_old_leads_to_another_list(void **state)
{
	struct world *w = *state;
	static const struct answer script[] = {{"/l?s=x&limit=200", 200, LIST("7", "", ""), false},
		{WATCH("7"), 200,
			EVENT("MODIFIED", OBJECT("one", "8"))
				EVENT("ERROR", "{\"kind\":\"Status\",\"code\":410,\"message\":\"too old\"}"),
			true},
		{"/l?s=x&limit=200", 200, LIST("20", "", OBJECT("two", "19")), false},
		{WATCH("20"), 200, "", true}, {NULL, 0, NULL, false}};
	struct k8s_watch *watch = NULL;
	server_start(w, script);
	assert_true(cgn_ok(k8s_watch_open(w->k, "/l", "s=x", &watch_ops, w, &watch, NULL)));
	run_until(w, "+two end ");
	assert_non_null(strstr(cgn_buf_z(&w->told), "begin end up +one "));
	k8s_watch_close(&watch);
}

static void a_refusal_is_told_with_the_servers_sentence(void **state)
{
	struct world *w = *state;
	static const struct answer script[] = {
		{"/l?limit=200", 403, "{\"kind\":\"Status\",\"message\":\"leases is forbidden\"}", false},
		{"/l?limit=200", 200, LIST("7", "", ""), false},
		{"/l?watch=1&allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=290", 200, "", true},
		{NULL, 0, NULL, false}};
	struct k8s_watch *watch = NULL;
	server_start(w, script);
	assert_true(cgn_ok(k8s_watch_open(w->k, "/l", NULL, &watch_ops, w, &watch, NULL)));
	run_until(w, "begin end up ");
	assert_string_equal(cgn_buf_z(&w->told), "down(leases is forbidden (status 403)) begin end up ");
	k8s_watch_close(&watch);
}

/* ---- calls ---- */

static void on_done(void *user, const struct k8s_answer *a)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "%s %d ", cgn_code_name(a->err->code), a->status);
	told_check(w);
}

static void statuses_are_codes(void **state)
{
	struct world *w = *state;
	static const struct answer script[] = {{"/c", 200, "{}", false}, {"/c", 404, "", false},
		{"/c", 409, "", false},
		{"/c", 422, "{\"message\":\"Secret \\\"x\\\" is invalid: no\"}", false},
		{"/c", 422, "{\"message\":\"the server rejected our request\"}", false},
		{"/c", 503, "", false}, {"/c", 200, "nonsense", false}, {NULL, 0, NULL, false}};
	struct k8s_call *call = NULL;
	server_start(w, script);
	const struct k8s_request rq = {.method = "PATCH", .path = "/c", .body = CGN_STR("{}")};
	static const char *const expected[] = {"FINE 200 ", "NOT_FOUND 404 ", "CONFLICT 409 ", "INVALID 422 ",
		"CONFLICT 422 ", "UNAVAILABLE 503 ", "INVALID 200 "};
	for (size_t i = 0; i < CGN_COUNT(expected); i++) {
		assert_true(cgn_ok(k8s_call_start(w->k, &rq, on_done, w, &call, NULL)));
		run_until(w, expected[i]);
	}
}

/* ---- credentials ---- */

#define CONTEXT \
	"\"current-context\":\"c\",\"contexts\":[{\"name\":\"c\",\"context\":{\"cluster\":\"k\",\"user\":\"u\"}}]"
#define CLUSTER(members) "\"clusters\":[{\"name\":\"k\",\"cluster\":{" members "}}]"
#define USER(members)    "\"users\":[{\"name\":\"u\",\"user\":{" members "}}]"

static void a_kubeconfig_that_is_not_understood_is_refused_in_words(void **state)
{
	struct world *w = *state;
	static const struct {
		const char *text, *said;
	} files[] = {
		{"apiVersion: v1\nkind: Config\n", "kubectl config view"},
		{"{}", "no context"},
		{"{" CONTEXT "}", "no cluster \"k\""},
		{"{" CONTEXT "," CLUSTER("") "}", "has no server"},
		{"{" CONTEXT "," CLUSTER("\"server\":7") "}", "must be a text"},
		{"{" CONTEXT "," CLUSTER("\"server\":\"ftp://h\"") "}", "must begin with https://"},
		{"{" CONTEXT "," CLUSTER("\"server\":\"https://h:x\"") "}", "no valid host and port"},
		{"{" CONTEXT "," CLUSTER("\"server\":\"https://h/k8s/c\"") "}", "has a path"},
		{"{" CONTEXT "," CLUSTER("\"server\":\"https://h\",\"insecure-skip-tls-verify\":true") "}",
			"insecure-skip-tls-verify"},
		{"{" CONTEXT "," CLUSTER("\"server\":\"https://h\"") "," USER("\"exec\":{}") "}", "\"exec\""},
		{"{" CONTEXT "," CLUSTER("\"server\":\"http://h\"") "," USER("\"token\":\"t\"") "}",
			"without TLS"},
		{"{" CONTEXT
		 "," CLUSTER("\"server\":\"https://h\"") "," USER("\"client-key-data\":\"%%\"") "}",
			"is not base64"},
		{"{" CONTEXT "," CLUSTER("\"server\":\"https://h\",\"certificate-authority\":\"/no/ca\"") "}",
			"/no/ca"},
	};
	for (size_t i = 0; i < CGN_COUNT(files); i++) {
		struct cgn_err err = {.msg = ""};
		file_write(w, files[i].text);
		assert_false(cgn_ok(k8s_new(w->l, w->file, &w->k, &err)));
		if (strstr(err.msg, files[i].said) == NULL)
			fail_msg("%s: \"%s\"", files[i].text, err.msg);
	}
}

static void times_are_written_as_the_server_reads_them(void **state)
{
	char text[K8S_TIME_BYTES];
	(void)state;
	k8s_time(1769860800123, text);
	assert_string_equal(text, "2026-01-31T12:00:00.123000Z");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_list_comes_in_pages_and_is_followed, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_version_that_is_too_old_leads_to_another_list, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_refusal_is_told_with_the_servers_sentence, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(statuses_are_codes, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(a_kubeconfig_that_is_not_understood_is_refused_in_words,
			world_setup, world_teardown),
		cmocka_unit_test(times_are_written_as_the_server_reads_them),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
