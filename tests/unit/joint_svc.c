/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/un.h>

#include "joint/daemon/svc/svc_priv.h"
#include "policy/fleet/settings/settings.h"
#include "telemetry_world.h"

static const struct svc_flag flags[] = {
	{"listen", "router.listen", "ADDR", "HTTP gateway"},
	{"managed", "engine.managed", NULL, "start the engine"},
};

static void route_echo(void *state, const struct http_head *h, struct cgn_str body, struct svc_admin_reply *r)
{
	cgn_buf_fmt(&r->body, "%s %.*s ", (const char *)state, CGN_STR_ARG(h->path));
	cgn_buf_str(&r->body, body);
}

static const struct svc_admin_route routes[] = {
	{"GET", "/nodes", route_echo},
	{"POST", "/nodes/*", route_echo},
};
static const struct svc_program program = {.name = "cgn-test",
	.summary = "tries the frame",
	.examples = "  cgn-test --listen 127.0.0.1:0",
	.flags = flags,
	.n_flags = CGN_COUNT(flags),
	.routes = routes,
	.n_routes = CGN_COUNT(routes)};

/* ---- command line ---- */

static struct svc_args args;
static struct cgn_err last;

static bool args_parse(int argc, const char *const *argv)
{
	svc_args_fini(&args);
	last = (struct cgn_err){0};
	return cgn_ok(svc_args_parse(&program, argc, (char **)(uintptr_t)argv, &args, &last));
}
#define PARSE(...)                                                            \
	args_parse((int)CGN_COUNT(((const char *const[]){"x", __VA_ARGS__})), \
		(const char *const[]){"x", __VA_ARGS__})

static void options_in_both_spellings(void **state)
{
	(void)state;
	assert_true(PARSE("--config", "f.toml", "--set=a.b=c=d", "--set", "e.f=g", "--listen", "h:1",
		"--listen=i:2", "--managed"));
	assert_int_equal(args.mode, SVC_RUN);
	assert_string_equal(args.config_file, "f.toml");
	assert_int_equal(args.n_flags, 5);
	assert_string_equal(args.flags[0], "a.b=c=d");
	assert_string_equal(args.flags[1], "e.f=g");
	assert_string_equal(args.flags[2], "router.listen=h:1");
	assert_string_equal(args.flags[3], "router.listen=i:2");
	assert_string_equal(args.flags[4], "engine.managed=true");
	assert_true(PARSE("--check"));
	assert_int_equal(args.mode, SVC_CHECK);
	assert_true(PARSE("--version"));
	assert_int_equal(args.mode, SVC_VERSION);
	assert_true(PARSE("--check", "-h", "--version"));
	assert_int_equal(args.mode, SVC_HELP);
	svc_args_fini(&args);
}

static void mistakes_name_the_nearest_option(void **state)
{
	(void)state;
	assert_false(PARSE("--lisen", "x"));
	assert_string_equal(last.msg, "unknown flag --lisen; did you mean --listen?");
	assert_false(PARSE("--chekc"));
	assert_string_equal(last.msg, "unknown flag --chekc; did you mean --check?");
	assert_false(PARSE("--something-else"));
	assert_string_equal(last.msg, "unknown flag --something-else; cgn-test --help lists the flags");
	assert_false(PARSE("--config"));
	assert_string_equal(last.msg, "--config needs a value: --config FILE");
	assert_false(PARSE("--check=now"));
	assert_string_equal(last.msg, "--check takes no value");
	assert_false(PARSE("serve"));
	assert_non_null(strstr(last.msg, "unexpected argument \"serve\""));
	assert_false(PARSE("--"));
	assert_false(PARSE(""));
	assert_false(PARSE("-x"));
	svc_args_fini(&args);
}

static void help_shows_every_option(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	svc_help(&program, &b);
	const char *text = cgn_buf_z(&b);
	static const char *const want[] = {"cgn-test: tries the frame", "\n  --listen ADDR  ",
		"\n  --managed  ", "--config FILE", "--set KEY=VALUE", "--check", "--version", "--help",
		"examples:\n  cgn-test --listen"};
	for (size_t i = 0; i < CGN_COUNT(want); i++)
		assert_non_null(strstr(text, want[i]));
	/* The last line ends once, whether the examples end their line or not. */
	struct svc_program ended = program;
	struct cgn_buf same = {0};
	ended.examples = "  cgn-test --listen 127.0.0.1:0\n";
	svc_help(&ended, &same);
	assert_string_equal(cgn_buf_z(&same), text);
	assert_int_equal(text[b.n - 1], '\n');
	assert_int_not_equal(text[b.n - 2], '\n');
	cgn_buf_fini(&same);
	cgn_buf_fini(&b);
}

/* ---- configuration file ---- */

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void the_file_is_found_and_flags_win(void **state)
{
	(void)state;
	char path[] = "/tmp/cgn-svc-XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	write_file(path, "[router]\nlisten = 'h:1'\nlisten_admin = 'h:2'\n");
	struct config *c = NULL;
	assert_true(PARSE("--config", path, "--listen", "h:3"));
	assert_true(cgn_ok(svc_config_load(&args, &c, &last)));
	assert_string_equal(c->router.listen, "h:3");
	assert_string_equal(c->router.listen_admin, "h:2");
	config_free(&c);
	setenv("CGN_CONFIG", path, 1);
	setenv("COGNITORA__ROUTER__LISTEN_ADMIN", "h:9", 1);
	assert_true(PARSE("--check"));
	assert_true(cgn_ok(svc_config_load(&args, &c, &last)));
	assert_string_equal(c->router.listen, "h:1");
	assert_string_equal(c->router.listen_admin, "h:9");
	config_free(&c);
	unsetenv("COGNITORA__ROUTER__LISTEN_ADMIN");
	write_file(path, "[router]\nlisten = 5\n");
	assert_false(cgn_ok(svc_config_load(&args, &c, &last)));
	assert_true(strncmp(last.msg, path, strlen(path)) == 0);
	assert_int_equal(cgn_code_exit(last.code), 3);
	unlink(path);
	assert_false(cgn_ok(svc_config_load(&args, &c, &last)));
	assert_non_null(strstr(last.msg, "configuration: cannot read"));
	assert_int_equal(cgn_code_exit(last.code), 3);
	setenv("CGN_CONFIG", "/dev/zero", 1);
	assert_false(cgn_ok(svc_config_load(&args, &c, &last)));
	assert_non_null(strstr(last.msg, "is longer than 1048576 bytes"));
	setenv("CGN_CONFIG", "/", 1);
	assert_false(cgn_ok(svc_config_load(&args, &c, &last)));
	unsetenv("CGN_CONFIG");
	assert_null(c);
	svc_args_fini(&args);
}

/* ---- sd_notify ---- */

static int manager_listens(const char *name, size_t n)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	memcpy(sa.sun_path, name, n);
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&sa,
				 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)),
		0);
	return fd;
}

static const char *socket_read(int fd)
{
	static char text[200];
	ssize_t n = recv(fd, text, sizeof text - 1, 0);
	text[n > 0 ? n : 0] = '\0';
	return text;
}

static void the_manager_is_told(void **state)
{
	(void)state;
	char name[100], env[100];
	struct svc_notify n;
	for (int abstract = 0; abstract < 2; abstract++) {
		snprintf(name, sizeof name, "/tmp/cgn-svc-notify-%d", (int)getpid());
		snprintf(env, sizeof env, "%s", name);
		unlink(name);
		if (abstract) {
			name[0] = '\0';
			env[0] = '@';
		}
		int fd = manager_listens(name, strlen(env));
		setenv("NOTIFY_SOCKET", env, 1);
		svc_notify_open(&n);
		assert_true(n.watchdog == 0);
		svc_notify_send(&n, "READY=1");
		assert_string_equal(socket_read(fd), "READY=1");
		svc_notify_reloading(&n, 5 * CGN_SEC + 1);
		assert_string_equal(socket_read(fd), "RELOADING=1\nMONOTONIC_USEC=5000000");
		close(fd);
		svc_notify_send(&n, "STOPPING=1"); /* No listener: no signal, no failure. */
		int ours = n.fd;
		svc_notify_close(&n);
		assert_int_equal(fcntl(ours, F_GETFD), -1); /* The socket is closed. */
		assert_null(getenv("NOTIFY_SOCKET"));
		if (!abstract)
			unlink(name);
	}
}

static cgn_nsec watchdog_with(const char *usec, const char *pid)
{
	char name[100];
	struct svc_notify n;
	snprintf(name, sizeof name, "@cgn-svc-dog-%d", (int)getpid());
	setenv("NOTIFY_SOCKET", name, 1);
	name[0] = '\0';
	int fd = manager_listens(name, strlen(name + 1) + 1);
	if (usec != NULL)
		setenv("WATCHDOG_USEC", usec, 1);
	if (pid != NULL)
		setenv("WATCHDOG_PID", pid, 1);
	svc_notify_open(&n);
	svc_notify_close(&n);
	close(fd);
	assert_null(getenv("WATCHDOG_USEC"));
	assert_null(getenv("WATCHDOG_PID"));
	return n.watchdog;
}

static void the_watchdog_is_for_us_only(void **state)
{
	(void)state;
	char pid[20];
	snprintf(pid, sizeof pid, "%d", (int)getpid());
	assert_true(watchdog_with("30000000", NULL) == 15 * CGN_SEC);
	assert_true(watchdog_with("30000000", pid) == 15 * CGN_SEC);
	assert_true(watchdog_with("30000000", "1") == 0);
	assert_true(watchdog_with("30000000", "me") == 0);
	assert_true(watchdog_with("-5", NULL) == 0);
	assert_true(watchdog_with("18446744073709551615", NULL) == 0);
	assert_true(watchdog_with(NULL, NULL) == 0);
}

static void without_a_manager_nothing_happens(void **state)
{
	(void)state;
	static const char *const nowhere[] = {NULL, "", "relative", "/no/such/socket", "@"};
	char longer[200] = "/";
	memset(longer + 1, 'x', sizeof longer - 2);
	for (size_t i = 0; i <= CGN_COUNT(nowhere); i++) {
		const char *path = i < CGN_COUNT(nowhere) ? nowhere[i] : longer;
		struct svc_notify n;
		if (path != NULL)
			setenv("NOTIFY_SOCKET", path, 1);
		svc_notify_open(&n);
		assert_int_equal(n.fd, -1);
		svc_notify_send(&n, "READY=1");
		svc_notify_close(&n);
	}
}

/* ---- admin port ---- */

static bool ready_answer;
static struct config *shown_config;

static bool fake_ready(void *svc, struct cgn_buf *why)
{
	(void)svc;
	if (!ready_answer)
		cgn_buf_putz(why, "no \"engine\"");
	return ready_answer;
}

static void fake_config(void *svc, const struct config **boot, const struct config **loaded)
{
	(void)svc;
	*boot = *loaded = shown_config;
}

static struct svc_admin_reply answer;

static const char *admin_ask(const char *method, const char *path, const char *body)
{
	static char state_text[] = "state";
	static void *state = state_text;
	const struct svc_admin_cfg cfg = {&program, test_telemetry(), NULL, fake_ready, fake_config, &state};
	const struct http_head h = {.method = cgn_str_of(method), .path = cgn_str_of(path)};
	cgn_buf_fini(&answer.body);
	answer = (struct svc_admin_reply){.status = 200, .content_type = "application/json"};
	svc_admin_answer(&cfg, &h, cgn_str_of(body), &answer);
	return cgn_buf_z(&answer.body);
}

static void the_frame_answers(void **state)
{
	(void)state;
	assert_string_equal(admin_ask("GET", "/healthz", ""), "{\"status\":\"ok\"}");
	assert_int_equal(answer.status, 200);
	assert_string_equal(admin_ask("GET", "/version?x=1", ""),
		"{\"program\":\"cgn-test\",\"version\":\"" CGN_VERSION "\"}");
	assert_non_null(strstr(admin_ask("HEAD", "/metrics", ""), "process_open_fds"));
	assert_string_equal(answer.content_type, "text/plain; version=0.0.4; charset=utf-8");
	ready_answer = false;
	assert_string_equal(admin_ask("GET", "/readyz", ""),
		"{\"ready\":false,\"why\":\"no \\\"engine\\\"\"}");
	assert_int_equal(answer.status, 503);
	ready_answer = true;
	assert_string_equal(admin_ask("GET", "/readyz", ""), "{\"ready\":true}");
	assert_int_equal(answer.status, 200);
	struct cgn_err err;
	assert_true(cgn_ok(
		settings_load("x", CGN_STR("[router]\nlisten='h:1'"), NULL, NULL, 0, &shown_config, &err)));
	assert_non_null(strstr(admin_ask("GET", "/config", ""), "listen = \"h:1\""));
	assert_string_equal(answer.content_type, "application/toml");
	config_free(&shown_config);
	cgn_buf_fini(&answer.body);
}

static void routes_of_the_program(void **state)
{
	(void)state;
	assert_string_equal(admin_ask("GET", "/nodes?all", ""), "state /nodes?all ");
	assert_string_equal(admin_ask("POST", "/nodes/n1/drain", "{}"), "state /nodes/n1/drain {}");
	assert_int_equal(answer.status, 200);
	assert_non_null(strstr(admin_ask("GET", "/nodes/n1", ""), "method_not_allowed"));
	assert_int_equal(answer.status, 405);
	assert_non_null(strstr(admin_ask("POST", "/metrics", ""), "method_not_allowed"));
	assert_non_null(strstr(admin_ask("DELETE", "/nodes", ""), "method_not_allowed"));
	assert_non_null(strstr(admin_ask("GET", "/node", ""), "\"code\":\"not_found\""));
	assert_int_equal(answer.status, 404);
	assert_non_null(strstr(admin_ask("GET", "", ""), "not_found"));
	assert_non_null(strstr(admin_ask("GET", "*", ""), "not_found"));
	cgn_buf_fini(&answer.body);
}

static void certificates_end_soon(void **state)
{
	(void)state;
	const uint64_t day = 24 * 3600;
	const struct tls_validity year = {.from = 1000 * day, .to = 1365 * day},
				  week = {.from = 1000 * day, .to = 1007 * day - 1};
	assert_false(svc_cert_ends_soon(&year, year.from));
	assert_false(svc_cert_ends_soon(&year, year.to - 14 * day - 1));
	assert_true(svc_cert_ends_soon(&year, year.to - 14 * day));
	assert_true(svc_cert_ends_soon(&year, year.to + 1));
	/* A certificate with a lifetime of one week never has two weeks left. */
	assert_false(svc_cert_ends_soon(&week, week.from));
	assert_false(svc_cert_ends_soon(&week, week.to - 7 * day / 3 - 1));
	assert_true(svc_cert_ends_soon(&week, week.to - 7 * day / 3 + 1));
}

/* ---- the checks of files ---- */

/* Each file that cannot be read is named with its setting. */
static void missing_files_are_named(void **state)
{
	(void)state;
	struct svc_problems p = {.n = 0};
	const struct tls_cfg none = {.ca_file = NULL},
			     two = {.ca_file = "/no/ca.pem", .key_file = "/no/key.pem"};
	svc_check_tls(&p, "security.", &none);
	assert_int_equal(p.n, 0);
	svc_check_tls(&p, "security.", &two);
	assert_int_equal(p.n, 2);
	assert_int_equal(p.first, CGN_TLS);
	const char *text = cgn_buf_z(&p.text), *second = strchr(text, '\n') + 1;
	assert_int_equal(strncmp(text, "security.ca_file: ", 18), 0);
	assert_non_null(strstr(text, "/no/ca.pem"));
	assert_int_equal(strncmp(second, "security.key_file: ", 19), 0);
	assert_non_null(strstr(second, "/no/key.pem"));
	cgn_buf_fini(&p.text);
	/* etcd's files count where etcd is used. */
	struct config *c = NULL;
	for (int etcd = 0; etcd < 2; etcd++) {
		const char *const set[] = {"cluster.etcd_ca_file=/no/etcd.pem",
			"cluster.etcd_endpoints=https://127.0.0.1:2379",
			etcd ? "cluster.state_backend=etcd" : "cluster.state_backend=embedded"};
		p = (struct svc_problems){.n = 0};
		if (!cgn_ok(settings_load("x", CGN_STR(""), NULL, set, CGN_COUNT(set), &c, &last)))
			fail_msg("%s", last.msg);
		svc_check_cluster(&p, c);
		assert_int_equal(p.n, etcd);
		if (etcd)
			assert_int_equal(strncmp(cgn_buf_z(&p.text), "cluster.etcd_ca_file: ", 22), 0);
		cgn_buf_fini(&p.text);
		config_free(&c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_in_both_spellings),
		cmocka_unit_test(mistakes_name_the_nearest_option),
		cmocka_unit_test(help_shows_every_option),
		cmocka_unit_test(the_file_is_found_and_flags_win),
		cmocka_unit_test(the_manager_is_told),
		cmocka_unit_test(the_watchdog_is_for_us_only),
		cmocka_unit_test(without_a_manager_nothing_happens),
		cmocka_unit_test(the_frame_answers),
		cmocka_unit_test(routes_of_the_program),
		cmocka_unit_test(certificates_end_soon),
		cmocka_unit_test(missing_files_are_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
