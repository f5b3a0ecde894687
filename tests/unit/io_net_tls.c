/* SPDX-License-Identifier: Apache-2.0 */
/* net over TLS: the socket side around the sessions that io_tls tests. */
#include "io_net_world.h"

#include <time.h>

#include "io/net/pki/pki.h"
#include "io/os/disk/disk.h"

static char folder[64];
static struct tls_ctx *server_tls, *client_tls;
#define DAY ((int64_t)86400)

static const char *in_folder(const char *name)
{
	static char paths[4][128];
	static unsigned turn;
	char *out = paths[turn++ % 4];
	(void)snprintf(out, sizeof paths[0], "%s/%s", folder, name);
	return out;
}

static int make_tls(void **state)
{
	(void)state;
	static const char *const names[] = {"srv.example", "127.0.0.1", NULL},
				 *const alpn[] = {"h2", "http/1.1", NULL};
	struct pki_pair ca = {0}, leaf = {0};
	int64_t now = time(NULL);
	struct pki_validity when = {now - DAY, now + DAY};
	(void)snprintf(folder, sizeof folder, "/tmp/cgn-nettls-XXXXXX");
	assert_non_null(mkdtemp(folder));
	assert_true(cgn_ok(pki_make_ca("ca", when, &ca, NULL)));
	assert_true(cgn_ok(pki_make_leaf(&ca, "node-1", names, when, &leaf, NULL)));
	assert_true(cgn_ok(disk_write_file_atomic(in_folder("ca"), cgn_buf_view(&ca.cert), 0600, NULL)));
	assert_true(cgn_ok(disk_write_file_atomic(in_folder("crt"), cgn_buf_view(&leaf.cert), 0600, NULL)));
	assert_true(cgn_ok(disk_write_file_atomic(in_folder("key"), cgn_buf_view(&leaf.key), 0600, NULL)));
	pki_pair_fini(&ca);
	pki_pair_fini(&leaf);
	struct tls_cfg cfg = {.server = true,
		.ca_file = in_folder("ca"),
		.cert_file = in_folder("crt"),
		.key_file = in_folder("key"),
		.require_peer_cert = true,
		.alpn = alpn};
	assert_true(cgn_ok(tls_ctx_new(&cfg, &server_tls, NULL)));
	cfg.server = cfg.require_peer_cert = false;
	assert_true(cgn_ok(tls_ctx_new(&cfg, &client_tls, NULL)));
	return 0;
}

static int drop_tls(void **state)
{
	(void)state;
	char cmd[96];
	tls_ctx_free(&server_tls);
	tls_ctx_free(&client_tls);
	(void)snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
	return system(cmd);
}

static void tls_world(struct world *w)
{
	world_open(w);
	net_listener_close(&w->ln);
	world_listen(w, &(struct net_listen_cfg){.addr = "127.0.0.1:0", .tls = server_tls});
}

static void dial_tls(struct world *w)
{
	world_dial(w, &(struct net_dial){.addr = w->addr, .tls = client_tls});
}

static void both_sides_know_each_other(void **state)
{
	(void)state;
	struct world w;
	tls_world(&w);
	w.server.echo = w.server.close_on_eof = true;
	dial_tls(&w); /* The address is the name to verify. */
	run_until(&w, both_open);
	assert_true(cgn_str_is(net_alpn(w.client.c), "h2"));
	assert_true(cgn_str_is(net_alpn(w.server.c), "h2"));
	assert_true(cgn_str_is(net_peer_name(w.client.c), "node-1"));
	assert_true(cgn_str_is(net_peer_name(w.server.c), "node-1"));
	write_pattern(w.client.c, 0, 3000);
	run_until(&w, echo_came);
	net_close(w.client.c);
	run_until(&w, both_closed);
	assert_int_equal(w.server.bytes, 3000);
	assert_true(w.server.sum == pattern_sum(3000));
	assert_int_equal(w.server.why.code, CGN_FINE); /* close_notify was sent. */
	world_close(&w);
}

#define BIG ((size_t)1500000)
static bool client_has_all(struct world *w)
{
	return w->client.bytes == BIG;
}
static bool some_queued(struct world *w)
{
	return w->server.drains == 1;
}

static void much_goes_through_and_pauses_hold(void **state)
{
	(void)state;
	struct world w;
	tls_world(&w);
	w.client.pause_first = true;
	dial_tls(&w);
	run_until(&w, both_open);
	write_pattern(w.server.c, 0, BIG);
	assert_true(net_over_mark(w.server.c) || net_queued(w.server.c) == 0);
	assert_int_equal(w.client.bytes, 0);
	net_resume(w.client.c);
	run_until(&w, client_has_all);
	assert_true(w.client.sum == pattern_sum(BIG));
	if (net_over_mark(w.server.c))
		run_until(&w, some_queued);
	world_close(&w);
}

/* Pauses in each on_data and resumes later: no data may come in between, and none may be lost or
 * reordered. */
static struct cgn_timer later;
static struct world *hesitant;
static bool may_come;
static void go_on(struct cgn_timer *t)
{
	(void)t;
	may_come = true;
	net_resume(hesitant->client.c);
}
static void hesitant_data(struct net_conn *c, void *user, const uint8_t *p, size_t n)
{
	assert_true(may_come);
	may_come = false;
	note_bytes(user, p, n);
	net_pause(c);
	cgn_timer_set(&later, 0);
}
static void hesitant_open(struct net_conn *c, void *user)
{
	side_open(c, user);
	may_come = true;
}
static const struct net_conn_ops hesitant_ops = {.on_open = hesitant_open,
	.on_data = hesitant_data,
	.on_eof = side_eof,
	.on_close = side_close};

static bool hesitant_done(struct world *w)
{
	return w->client.eofs == 1;
}

static void a_pause_within_a_read_is_honoured(void **state)
{
	(void)state;
	struct world w;
	tls_world(&w);
	hesitant = &w;
	cgn_timer_init(&later, w.l, go_on);
	dial_tls(&w);
	net_conn_take(w.client.c, &hesitant_ops, &w.client);
	run_until(&w, both_open);
	for (size_t i = 0; i < 300; i++)
		write_pattern(w.server.c, i * 500, 500); /* Many small records: dozens in one read. */
	net_close(w.server.c);
	run_until(&w, hesitant_done); /* The end comes after the last byte. */
	assert_int_equal(w.client.bytes, 150000);
	assert_true(w.client.sum == pattern_sum(150000));
	cgn_timer_cancel(&later);
	world_close(&w);
}

static void a_pause_does_not_stop_the_handshake(void **state)
{
	(void)state;
	struct world w;
	tls_world(&w);
	dial_tls(&w);
	net_pause(w.client.c);
	run_until(&w, both_open);
	world_close(&w);
	tls_world(&w);
	dial_tls(&w);
	net_close(w.client.c); /* A connection that is not open yet has nothing to flush. */
	run_until(&w, client_closed);
	assert_int_equal(w.client.why.code, CGN_CANCELLED);
	world_close(&w);
}

static void a_wrong_name_is_no_connection(void **state)
{
	(void)state;
	struct world w;
	tls_world(&w);
	world_dial(&w, &(struct net_dial){.addr = w.addr, .tls = client_tls, .server_name = "other.example"});
	run_until(&w, client_closed);
	assert_int_equal(w.client.opens, 0);
	assert_int_equal(w.client.why.code, CGN_TLS);
	assert_non_null(strstr(w.client.why.msg, "another name"));
	assert_non_null(strstr(w.client.why.msg, w.addr));
	world_close(&w);
}

static bool one_failed(struct world *w)
{
	return net_listener_stats(w->ln).tls_failed == 1;
}

static void garbage_is_no_handshake(void **state)
{
	(void)state;
	struct world w;
	tls_world(&w);
	int fd = raw_connect(net_listener_port(w.ln));
	assert_int_equal(write(fd, "GET / HTTP/1.1\r\n\r\n", 18), 18);
	run_until(&w, one_failed);
	assert_int_equal(w.server.accepts, 0);
	assert_int_equal(net_listener_stats(w.ln).open, 0);
	close(fd);
	world_close(&w);
}

static void a_silent_client_is_sent_away(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	net_listener_close(&w.ln);
	world_listen(&w,
		&(struct net_listen_cfg){.addr = "127.0.0.1:0",
			.tls = server_tls,
			.tls_timeout = 30 * CGN_MSEC});
	int fd = raw_connect(net_listener_port(w.ln));
	run_until(&w, one_failed);
	close(fd);
	world_close(&w);
}

static bool one_is_accepted(struct world *w)
{
	return net_listener_stats(w->ln).accepted == 1;
}

static void a_handshake_that_is_under_way_does_not_outlive_the_loop(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	net_listener_close(&w.ln);
	world_listen(&w, &(struct net_listen_cfg){.addr = "127.0.0.1:0", .tls = server_tls});
	int fd = raw_connect(net_listener_port(w.ln));
	run_until(&w, one_is_accepted);
	world_close(&w); /* The connection has no owner yet, and its listener is closed. */
	close(fd);
}

static void a_server_in_clear_is_told_apart(void **state)
{
	(void)state;
	struct world w;
	world_open(&w); /* Plain text; the server echoes the hello. */
	w.server.echo = true;
	dial_tls(&w);
	run_until(&w, client_closed);
	assert_int_equal(w.client.why.code, CGN_TLS);
	assert_int_equal(w.client.opens, 0);
	world_close(&w);
}

/* A middleman that forwards a handshake and then cuts the connection: a FIN without close_notify is not a
 * clean end. */
struct middle {
	int in, out;
	unsigned after;
};
static void *middle_forward(void *arg)
{
	struct middle *m = arg;
	uint8_t buf[65536];
	for (;;) {
		fd_set set;
		FD_ZERO(&set);
		FD_SET(m->in, &set);
		FD_SET(m->out, &set);
		int most = m->in > m->out ? m->in : m->out;
		if (select(most + 1, &set, NULL, NULL, NULL) < 0)
			break;
		int from = FD_ISSET(m->in, &set) ? m->in : m->out, to = from == m->in ? m->out : m->in;
		ssize_t n = read(from, buf, sizeof buf);
		if (n <= 0 || write(to, buf, (size_t)n) != n)
			break;
		if (from == m->out && (m->after += (unsigned)n) > 8000)
			break; /* The server's handshake is about 1.5 kB; its answer is much longer. */
	}
	close(m->in);
	close(m->out);
	return NULL;
}

static void a_cut_is_no_end(void **state)
{
	(void)state;
	struct world w;
	pthread_t thread;
	tls_world(&w);
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof sa;
	int ln = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(ln, (struct sockaddr *)&sa, sizeof sa), 0);
	assert_int_equal(listen(ln, 4), 0);
	assert_int_equal(getsockname(ln, (struct sockaddr *)&sa, &len), 0);
	char addr[64];
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%u", ntohs(sa.sin_port));
	world_dial(&w, &(struct net_dial){.addr = addr, .tls = client_tls});
	struct middle m = {.in = accept(ln, NULL, NULL), .out = raw_connect(net_listener_port(w.ln))};
	assert_int_equal(pthread_create(&thread, NULL, middle_forward, &m), 0);
	run_until(&w, both_open);
	write_pattern(w.server.c, 0, 20000);
	run_until(&w, client_closed);
	assert_int_equal(w.client.eofs, 0);
	assert_true(w.client.why.code == CGN_TLS || w.client.why.sys_errno == ECONNRESET);
	pthread_join(thread, NULL);
	close(ln);
	world_close(&w);
}

static void a_tls_connection_can_be_given_up_in_its_callbacks(void **state)
{
	(void)state;
	for (int how = 0; how < 2; how++) {
		struct world w;
		tls_world(&w);
		w.server.abort_on_data = how == 0;
		w.server.close_on_data = how == 1;
		w.client.close_on_eof = true;
		dial_tls(&w);
		run_until(&w, both_open);
		write_pattern(w.client.c, 0, 60000); /* Four records: three come after the end. */
		run_until(&w, both_closed);
		assert_true(w.server.bytes > 0 && w.server.bytes <= 60000);
		assert_int_equal(w.server.closes, 1);
		world_close(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_sides_know_each_other),
		cmocka_unit_test(much_goes_through_and_pauses_hold),
		cmocka_unit_test(a_pause_within_a_read_is_honoured),
		cmocka_unit_test(a_pause_does_not_stop_the_handshake),
		cmocka_unit_test(a_wrong_name_is_no_connection),
		cmocka_unit_test(garbage_is_no_handshake),
		cmocka_unit_test(a_silent_client_is_sent_away),
		cmocka_unit_test(a_handshake_that_is_under_way_does_not_outlive_the_loop),
		cmocka_unit_test(a_server_in_clear_is_told_apart),
		cmocka_unit_test(a_cut_is_no_end),
		cmocka_unit_test(a_tls_connection_can_be_given_up_in_its_callbacks),
	};
	return cmocka_run_group_tests(tests, make_tls, drop_tls);
}
