/* SPDX-License-Identifier: Apache-2.0 */
/* The whole life of a program: its start, its admin port, a reload, the drain and its exit status. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/un.h>

#include "joint/daemon/svc/svc_priv.h"
#include "quic_certs.h"

struct question {
	const char *method, *path;
	size_t body_bytes;
	int status;
	const char *text, *allow; /* |text| is in the body; NULL: any */
};

enum ending { DRAINED, TIMED_OUT, INTERRUPTED };

static struct {
	struct svc *svc;
	struct cgn_timer timer;
	struct http_client *cl;
	struct http_call *call;
	const struct question *q; /* The last one has no method. */
	enum ending ending;
	bool fails; /* The start fails. */
	int status;
	struct cgn_buf body;
	char allow[40];
	struct svc_admin_call *later;
	struct http_call *left;                         /* The call whose client leaves. */
	unsigned reloads, drains, stops, gone, further; /* further: signals during the drain. */
} life;

static char addr[100], manager[100];

/* ---- the program ---- */

static void route_show(void *state, const struct http_head *h, struct cgn_str body, struct svc_admin_reply *r)
{
	assert_ptr_equal(state, &life);
	cgn_buf_fmt(&r->body, "%.*s %.*s %.*s %zu", CGN_STR_ARG(h->method), CGN_STR_ARG(h->path),
		CGN_STR_ARG(http_head_get(h, "x-probe")), body.n);
}

static void later_gone(void *user)
{
	(void)user;
	life.gone++;
}

static void route_later(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r)
{
	(void)state;
	(void)h;
	(void)body;
	cgn_buf_putz(&r->body, "not this");
	life.later = svc_admin_later(r, later_gone, NULL);
}

static void call_over(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	(void)c;
	(void)user;
	(void)trailers;
	(void)n;
	life.call = NULL;
	assert_int_equal(life.status, life.q->status);
	if (life.q->text != NULL && strstr(cgn_buf_z(&life.body), life.q->text) == NULL)
		fail_msg("%s %s: %s", life.q->method, life.q->path, cgn_buf_z(&life.body));
	assert_string_equal(life.allow, life.q->allow != NULL ? life.q->allow : "");
	life.q++;
}

static void call_failed(struct http_call *c, void *user, enum http_fail_stage stage,
	const struct cgn_err *why)
{
	(void)c;
	(void)user;
	(void)stage;
	fail_msg("%s %s: %s", life.q->method, life.q->path, why->msg);
}

static void call_head(struct http_call *c, void *user, const struct http_head *h)
{
	(void)c;
	(void)user;
	life.status = h->status;
	(void)cgn_str_copyz(life.allow, sizeof life.allow, http_head_get(h, "allow"));
}

static void call_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	(void)user;
	cgn_buf_add(&life.body, p, n);
}

static const struct http_call_ops call_ops = {.on_head = call_head,
	.on_body = call_body,
	.on_end = call_over,
	.on_fail = call_failed};

static void question_ask(void)
{
	static uint8_t zeros[SVC_MAX_BODY + 1];
	static const struct http_field probe = {{"x-probe", 7}, {"seen", 4}};
	const struct iovec body = {zeros, life.q->body_bytes};
	const struct http_request rq = {.method = life.q->method,
		.path = life.q->path,
		.fields = &probe,
		.n_fields = 1,
		.body_len = (int64_t)body.iov_len,
		.body = &body,
		.n_body = 1};
	life.body.n = 0;
	assert_true(cgn_ok(http_call_start(life.cl, &rq, &call_ops, NULL, &life.call, NULL)));
}

/* Ask one question after the other; answer one that waits; then a reload, then the end. */
static void life_goes_on(struct cgn_timer *t)
{
	cgn_timer_set(t, CGN_MSEC);
	if (life.later != NULL && strcmp(life.q->path, "/leave") != 0) {
		struct svc_admin_reply r = svc_admin_reply_new();
		cgn_buf_putz(&r.body, "it comes later");
		svc_admin_done(life.later, &r);
		life.later = NULL;
	} else if (life.later != NULL) { /* The client leaves before the answer. */
		http_call_cancel(&life.call);
		life.later = NULL;
		life.q++;
	} else if (life.q->method != NULL && life.call == NULL) {
		question_ask();
	} else if (life.q->method == NULL && life.reloads == 0) {
		(void)raise(SIGHUP);
	} else if (life.q->method == NULL && life.drains == 0) {
		(void)raise(SIGTERM);
	} else if (life.drains > 0 && life.ending == INTERRUPTED) {
		if (life.further < 4) /* The last one may take a while to end it. */
			(void)raise(++life.further <= 3 ? SIGTERM : SIGINT);
	} else if (life.q->method == NULL && life.drains > 0 && life.ending == DRAINED) {
		svc_drained(life.svc);
	}
}

static CGN_RC life_start(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err)
{
	(void)cfg;
	if (life.fails)
		return CGN_FAIL(err, CONFLICT, "the port is taken");
	life.svc = s;
	*state = &life;
	cgn_timer_init(&life.timer, svc_loop(s), life_goes_on);
	cgn_timer_set(&life.timer, CGN_MSEC);
	svc_watch_certificate(s, "security.cert_file", node_tls);
	svc_watch_certificate(s, "router.cert_file", NULL);
	svc_memory_tune(s);
	return http_client_new(svc_loop(s), &(struct http_client_cfg){.addr = addr}, &life.cl, err);
}

static const struct question last_questions[] = {{"GET", "/readyz", 0, 503, "draining", NULL}, {.path = ""}};

static void life_reload(void *state, const struct config *cfg)
{
	(void)cfg;
	assert_ptr_equal(state, &life);
	life.reloads++;
}

static void life_drain(void *state)
{
	assert_ptr_equal(state, &life);
	life.drains++;
	if (life.ending == DRAINED)
		life.q = last_questions;
}

static void life_stop(void **take)
{
	assert_ptr_equal(*take, &life);
	*take = NULL;
	life.stops++;
	cgn_timer_cancel(&life.timer);
	http_client_free(&life.cl);
}

static const char *life_admin(const struct config *cfg)
{
	(void)cfg;
	return addr;
}

static cgn_nsec life_limit(const struct config *cfg)
{
	(void)cfg;
	return life.ending == TIMED_OUT ? 20 * CGN_MSEC : 600 * CGN_SEC;
}

static const struct svc_admin_route routes[] = {{"GET", "/show", route_show}, {"POST", "/post/*", route_show},
	{"GET", "/later", route_later}, {"GET", "/leave", route_later}};

static const struct svc_program program = {.name = "cgn-life",
	.summary = "lives and ends",
	.examples = "  cgn-life",
	.admin = {"router.listen_admin", life_admin},
	.drain_timeout = life_limit,
	.routes = routes,
	.n_routes = CGN_COUNT(routes),
	.start = life_start,
	.reload = life_reload,
	.drain = life_drain,
	.stop = life_stop};

/* ---- the service manager ---- */

static int manager_listens(void)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	(void)snprintf(sa.sun_path, sizeof sa.sun_path, "%s", manager);
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	assert_true(fd >= 0);
	(void)unlink(manager);
	assert_int_equal(bind(fd, (const struct sockaddr *)&sa, sizeof sa), 0);
	assert_int_equal(setenv("NOTIFY_SOCKET", manager, 1), 0);
	return fd;
}

static void manager_heard(int fd, struct cgn_buf *heard)
{
	char text[200];
	ssize_t n;
	while ((n = recv(fd, text, sizeof text, 0)) > 0) {
		for (ssize_t i = 0; i < n; i++)
			if (text[i] == '\n')
				n = i; /* The time that follows is not compared. */
		cgn_buf_fmt(heard, "%.*s ", (int)n, text);
	}
	(void)close(fd);
	(void)unlink(manager);
}

static int life_run(const struct question *q, enum ending ending)
{
	char *argv[] = {(char[]){"cgn-life"}, NULL};
	memset(&life, 0, sizeof life);
	life.q = q;
	life.ending = ending;
	int status = svc_main(&program, 1, argv);
	cgn_buf_fini(&life.body);
	return status;
}

static const struct question no_questions[] = {{.path = ""}};

static void a_life_without_trouble(void **state)
{
	(void)state;
	static const struct question questions[] = {
		{"GET", "/readyz", 0, 200, "true", NULL},
		{"GET", "/show?x=1", 0, 200, "GET /show?x=1 seen 0", NULL},
		{"POST", "/post/it", 70000, 200, "POST /post/it seen 70000", NULL},
		{"POST", "/post/it", SVC_MAX_BODY, 200, " 1048576", NULL},
		{"POST", "/post/it", SVC_MAX_BODY + 1, 413, "body_too_large", NULL},
		{"POST", "/show", 0, 405, "method_not_allowed", "GET, HEAD"},
		{"GET", "/post/it", 0, 405, "method_not_allowed", "POST"},
		{"GET", "/", 0, 200, "\"paths\":{\"/\":\"GET\",\"/metrics\":\"GET\",", NULL},
		{"GET", "/", 0, 200, "\"/post/*\":\"POST\"", NULL},
		{"GET", "/later", 0, 200, "it comes later", NULL},
		{"GET", "/leave", 0, 0, NULL, NULL},
		{"GET", "/metrics", 0, 200,
			"cgn_tls_certificate_expiry_seconds{key=\"security.cert_file\"} 1", NULL},
		{"GET", "/metrics", 0, 200, "\ncgn_descriptors_exhausted_total 0", NULL},
		{"GET", "/config.json", 0, 200, "{\"key\":\"cluster.name\"", NULL},
		{.path = ""},
	};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf heard = {.n = 0};
	int fd = manager_listens();
	assert_int_equal(life_run(questions, DRAINED), 0);
	assert_int_equal(life.gone, 1);
	assert_int_equal(life.reloads, 1);
	assert_int_equal(life.drains, 1);
	assert_int_equal(life.stops, 1);
	manager_heard(fd, &heard);
	assert_string_equal(cgn_buf_z(&heard), "READY=1 RELOADING=1 READY=1 STOPPING=1 ");
}

static void a_drain_has_a_limit(void **state)
{
	(void)state;
	assert_int_equal(life_run(no_questions, TIMED_OUT), 0);
	assert_int_equal(life.drains, 1);
	assert_int_equal(life.stops, 1);
}

static void sigint_ends_a_drain_and_sigterm_does_not(void **state)
{
	(void)state;
	assert_int_equal(life_run(no_questions, INTERRUPTED), 128 + SIGINT);
	assert_int_equal(life.further, 4);
	assert_int_equal(life.drains, 1);
	assert_int_equal(life.stops, 1);
}

/* Run the program with its standard output or error in a file, and read that. */
static int run_captured(int argc, char **argv, int which, struct cgn_buf *text)
{
	char path[] = "/tmp/cgn-life-XXXXXX", bytes[4096];
	int fd = mkstemp(path), before = dup(which);
	ssize_t n;
	assert_true(fd >= 0 && before >= 0);
	(void)unlink(path);
	(void)fflush(NULL);
	assert_true(dup2(fd, which) >= 0);
	int status = svc_main(&program, argc, argv);
	(void)fflush(NULL);
	assert_true(dup2(before, which) >= 0);
	(void)close(before);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	while ((n = read(fd, bytes, sizeof bytes)) > 0)
		cgn_buf_add(text, bytes, (size_t)n);
	(void)close(fd);
	return status;
}

static void it_prints_and_ends(void **state)
{
	(void)state;
	static const struct {
		const char *flag;
		int status, which;
		const char *want;
	} rows[] = {
		{"--version", 0, STDOUT_FILENO, "cgn-life " CGN_VERSION "\n"},
		{"--help", 0, STDOUT_FILENO, "cgn-life: lives and ends"},
		{"--check", 0, STDOUT_FILENO, "[router]"},
		{"--nonsense", 2, STDERR_FILENO, "unknown flag --nonsense"},
		{"--set=router.listen=5;", 3, STDERR_FILENO, "router.listen"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
		char *argv[] = {(char[]){"cgn-life"}, (char *)(uintptr_t)rows[i].flag, NULL};
		memset(&life, 0, sizeof life);
		life.fails = true;
		assert_int_equal(run_captured(2, argv, rows[i].which, &text), rows[i].status);
		assert_non_null(strstr(cgn_buf_z(&text), rows[i].want));
	}
}

static void a_failed_start_says_why(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	char *argv[] = {(char[]){"cgn-life"}, NULL};
	memset(&life, 0, sizeof life);
	life.fails = true;
	assert_int_equal(run_captured(1, argv, STDERR_FILENO, &text), cgn_code_exit(CGN_CONFLICT));
	assert_string_equal(cgn_buf_z(&text),
		"cgn-life: the port is taken\n"); /* The reason is one line without a log. */
	assert_int_equal(life.stops, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_life_without_trouble),
		cmocka_unit_test(a_drain_has_a_limit),
		cmocka_unit_test(sigint_ends_a_drain_and_sigterm_does_not),
		cmocka_unit_test(it_prints_and_ends),
		cmocka_unit_test(a_failed_start_says_why),
	};
	(void)snprintf(addr, sizeof addr, "unix:/tmp/cgn-life-%d", (int)getpid());
	(void)snprintf(manager, sizeof manager, "/tmp/cgn-life-%d-manager", (int)getpid());
	int failed = cmocka_run_group_tests(tests, make_tls, drop_tls);
	(void)unlink(addr + strlen("unix:"));
	return failed;
}
