/* SPDX-License-Identifier: Apache-2.0 */
#include "io_net_world.h"
#include "name_world.h"

#include <dirent.h>
#include <malloc.h>
#include <signal.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

static unsigned count_descriptors(void)
{
	unsigned n = 0;
	DIR *d = opendir("/proc/self/fd");
	assert_non_null(d);
	while (readdir(d) != NULL)
		n++;
	closedir(d);
	return n;
}

/* ---- addresses ---- */

static void addresses_have_one_shape(void **state)
{
	(void)state;
	static const char *const good[] = {"127.0.0.1:80", "host.example:65535", ":8080", "[::1]:443",
		"[::]:0", "unix:/run/x.sock", "a_b-c:1"};
	static const char *const bad[] = {"", "host", "host:", "host:x", "host:65536", "host:-1", "::1:80",
		"[::1]", "[::1]80", "[nope]:80", "[::1:80", "unix:", "unix:relative", "ho st:80",
		"host/path:80", "http://host:80", "host:80 ", "host:0x50"};
	struct cgn_err err;
	for (size_t i = 0; i < CGN_COUNT(good); i++)
		assert_true(cgn_ok(net_addr_check(good[i], NULL)));
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		assert_int_equal(net_addr_check(bad[i], &err).code, CGN_INVALID);
		assert_non_null(strstr(err.msg, bad[i])); /* The message names the given address. */
	}
	char longest[600];
	memset(longest, 'a', sizeof longest);
	memcpy(longest + 590, ":80", 4);
	assert_int_equal(net_addr_check(longest, &err).code, CGN_INVALID);
	memcpy(longest, "unix:/", 6);
	assert_int_equal(net_addr_check(longest, &err).code, CGN_INVALID);
}

static void the_way_to_an_address_has_a_source(void **state)
{
	(void)state;
	char me[64];
	struct cgn_err err;
	assert_true(cgn_ok(net_route_source("127.0.0.1:80", me, sizeof me, NULL)));
	assert_string_equal(me, "127.0.0.1");
	assert_int_equal(net_route_source("unix:/x", me, sizeof me, &err).code, CGN_INVALID);
	assert_int_equal(net_route_source("nonsense", me, sizeof me, &err).code, CGN_INVALID);
}

/* ---- bytes ---- */

static void bytes_go_there_and_back(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	w.server.echo = w.server.close_on_eof = true;
	world_dial(&w, &(struct net_dial){.addr = w.addr});
	run_until(&w, both_open);
	write_pattern(w.client.c, 0, 5000);
	run_until(&w, echo_came);
	net_close(w.client.c);
	run_until(&w, both_closed);
	assert_int_equal(w.client.why.code, CGN_FINE);
	assert_int_equal(w.server.why.code, CGN_FINE);
	assert_int_equal(w.server.bytes, 5000);
	assert_true(w.server.sum == pattern_sum(5000));
	assert_int_equal(w.server.eofs, 1);
	assert_int_equal(w.client.closes, 1);
	world_close(&w);
}

static void a_half_closed_peer_still_gets_the_answer(void **state)
{
	(void)state;
	struct world w;
	struct raw_reader r;
	world_open(&w);
	w.server.bounce_on_eof = w.server.close_on_eof = true;
	int fd = raw_connect(net_listener_port(w.ln));
	assert_int_equal(write(fd, "abc", 3), 3);
	shutdown(fd, SHUT_WR);
	raw_read_start(&r, fd);
	run_until(&w, server_closed);
	raw_read_join(&r);
	assert_int_equal(w.server.bytes, 3);
	assert_int_equal(w.server.eofs, 1);
	assert_int_equal(r.error, 0);
	assert_int_equal(r.got.bytes, 100000);
	assert_true(r.got.sum == pattern_sum(100000));
	world_close(&w);
}

static void an_early_answer_survives_unread_bytes(void **state)
{
	(void)state;
	struct world w;
	struct raw_reader r;
	uint8_t junk[4096] = {0};
	world_open(&w);
	world_dial(&w, &(struct net_dial){.addr = w.addr}); /* Keeps the loop's other work going. */
	run_until(&w, both_open);
	w.server = (struct side){.pause_first = true};
	int fd = raw_connect(net_listener_port(w.ln));
	for (int i = 0; i < 16; i++)
		assert_int_equal(write(fd, junk, sizeof junk), sizeof junk);
	run_until(&w, server_opened);
	write_pattern(w.server.c, 0, 1000); /* An early "413" while 64 KiB of body are unread. */
	net_close(w.server.c);
	run_until(&w, server_closed);
	raw_read_start(&r, fd);
	raw_read_join(&r);
	assert_int_equal(r.error, 0); /* No reset. */
	assert_int_equal(r.got.bytes, 1000);
	world_close(&w); /* Ends the lingering connections. */
}

/* ---- back-pressure ---- */

#define BIG ((size_t)1024 * 1024)

static bool server_drained(struct world *w)
{
	return w->server.drains > 0;
}

static void a_slow_reader_hits_the_mark_and_drains(void **state)
{
	(void)state;
	struct world w;
	struct raw_reader r;
	size_t sent = 0;
	world_open(&w);
	int fd = raw_connect(net_listener_port(w.ln));
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){65536}, sizeof(int));
	run_until(&w, server_opened);
	while (!net_over_mark(w.server.c)) {
		write_pattern(w.server.c, sent, 10000);
		sent += 10000;
	}
	assert_true(net_queued(w.server.c) > NET_QUEUE_MARK);
	assert_true(net_queued(w.server.c) < 2 * NET_QUEUE_MARK);
	assert_int_equal(w.server.drains, 0);
	raw_read_start(&r, fd);
	run_until(&w, server_drained);
	assert_int_equal(w.server.drains, 1);
	assert_true(net_queued(w.server.c) <= NET_QUEUE_MARK / 2);
	write_pattern(w.server.c, sent,
		BIG); /* Above the mark, below the limit, and closed at once: all bytes still arrive. */
	net_close(w.server.c);
	net_close(w.server.c);
	assert_false(net_is_open(w.server.c));
	run_until(&w, server_closed);
	raw_read_join(&r);
	assert_int_equal(w.server.why.code, CGN_FINE);
	assert_int_equal(r.got.bytes, sent + BIG);
	assert_true(r.got.sum == pattern_sum(sent + BIG));
	assert_int_equal(w.server.drains, 1); /* No drain while closing. */
	world_close(&w);
}

static void a_peer_that_never_reads_is_cut(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	int fd = raw_connect(net_listener_port(w.ln));
	run_until(&w, server_opened);
	for (unsigned i = 0; i < 64 && net_is_open(w.server.c); i++) {
		write_pattern(w.server.c, 0, BIG);
		assert_int_equal(w.server.closes, 0); /* Never inside the call. */
	}
	assert_false(net_is_open(w.server.c));
	assert_int_equal(net_queued(w.server.c), 0);
	write_pattern(w.server.c, 0, 10); /* A second close does nothing. */
	run_until(&w, server_closed);
	assert_int_equal(w.server.why.code, CGN_OVERLOADED);
	assert_non_null(strstr(w.server.why.msg, "does not read"));
	close(fd);
	world_close(&w);
}

static bool server_got_three(struct world *w)
{
	return w->server.bytes >= 3;
}

static bool server_got_six(struct world *w)
{
	return w->server.bytes == 6;
}

static unsigned spins;
static bool after_a_while(struct world *w)
{
	(void)w;
	return ++spins > 30;
}

static void a_pause_holds_bytes_back(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	w.server.pause_first = true;
	int fd = raw_connect(net_listener_port(w.ln));
	assert_int_equal(write(fd, "abc", 3), 3);
	spins = 0;
	run_until(&w, after_a_while);
	assert_int_equal(w.server.opens, 1);
	assert_int_equal(w.server.bytes, 0);
	net_resume(w.server.c);
	net_resume(w.server.c);
	assert_int_equal(w.server.bytes, 0); /* Never inside the call. */
	run_until(&w, server_got_three);
	net_pause(w.server.c);
	net_resume(w.server.c);
	assert_int_equal(write(fd, "def", 3), 3);
	run_until(&w, server_got_six);
	close(fd);
	world_close(&w);
}

/* ---- a peer that leaves while reading is paused ---- */

static bool server_eof(struct world *w)
{
	return w->server.eofs > 0;
}
static bool server_hung_up(struct world *w)
{
	return w->server.hangups > 0;
}

/* A peer that left may be at another address of its name. */
static void a_name_is_looked_up_again_when_its_peer_left(void **state)
{
	(void)state;
	struct world w;
	struct net_addr a;
	struct net_addresses all;
	unsigned port;
	world_open(&w);
	w.server.close_on_data = w.client.close_on_eof = true;
	assert_int_equal(sscanf(strrchr(w.addr, ':'), ":%u", &port), 1);
	cgn_nsec when = name_stands_for("leaves.test:1", port);
	assert_true(cgn_ok(net_addr_parse("leaves.test:1", &a, NULL)));
	struct net_name *n = net_name_get(&a);
	world_dial(&w, &(struct net_dial){.addr = "leaves.test:1"});
	run_until(&w, both_open);
	assert_false(net_is_moved(w.client.c));
	assert_true(net_name_addresses(n, when + 2 * CGN_SEC, &all));
	write_pattern(w.client.c, 0, 10);
	run_until(&w, both_closed);
	assert_false(net_name_addresses(n, when + 2 * CGN_SEC, &all));
	assert_true(net_name_addresses(n, when + CGN_SEC / 2, &all));
	net_name_free(&n);
	world_close(&w);
}

static void a_reset_is_seen_while_paused(void **state)
{
	(void)state;
	for (int unread = 0; unread < 2; unread++) {
		struct world w;
		world_open(&w);
		w.server.pause_first = true;
		int fd = raw_connect(net_listener_port(w.ln));
		if (unread)
			assert_int_equal(write(fd, "abc", 3), 3);
		run_until(&w, server_opened);
		raw_reset(fd);
		run_until(&w, server_closed);
		assert_int_equal(w.server.why.code, CGN_UNAVAILABLE);
		assert_int_equal(w.server.why.sys_errno, ECONNRESET);
		assert_int_equal(w.server.bytes, 0);
		world_close(&w);
	}
}

static void a_fin_is_seen_while_paused(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	w.server.pause_first = true;
	int fd = raw_connect(net_listener_port(w.ln));
	run_until(&w, server_opened);
	shutdown(fd, SHUT_WR);
	run_until(&w, server_eof); /* Nothing is unread: the end itself is seen. */
	assert_int_equal(w.server.hangups, 0);
	/* The reset that follows is seen too, although there is nothing left to read. */
	raw_reset(fd);
	run_until(&w, server_closed);
	assert_int_equal(w.server.why.sys_errno, EPIPE); /* Linux reports a reset after a FIN as EPIPE. */
	assert_int_equal(w.server.eofs, 1);
	world_close(&w);
}

static void a_fin_behind_unread_bytes_is_announced(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	w.server.pause_first = w.server.close_on_eof = true;
	int fd = raw_connect(net_listener_port(w.ln));
	assert_int_equal(write(fd, "abc", 3), 3);
	shutdown(fd, SHUT_WR);
	run_until(&w, server_hung_up);
	assert_int_equal(w.server.eofs + w.server.bytes, 0);
	spins = 0;
	run_until(&w, after_a_while);
	assert_int_equal(w.server.hangups, 1);
	net_resume(w.server.c);
	run_until(&w, server_closed);
	assert_int_equal(w.server.bytes, 3);
	assert_int_equal(w.server.eofs, 1);
	assert_int_equal(w.server.why.code, CGN_FINE);
	close(fd);
	world_close(&w);
}

static void urgent_bytes_do_not_confuse(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	w.server.pause_first = true;
	int fd = raw_connect(net_listener_port(w.ln));
	run_until(&w, server_opened);
	assert_int_equal(send(fd, "!", 1, MSG_OOB), 1);
	shutdown(fd, SHUT_WR);
	spins = 0;
	run_until(&w, after_a_while);
	assert_int_equal(w.server.closes, 0);
	net_resume(w.server.c);
	run_until(&w, server_eof);
	close(fd);
	world_close(&w);
}

/* ---- ends ---- */

static void an_abort_resets(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	w.server.abort_on_data = true;
	world_dial(&w, &(struct net_dial){.addr = w.addr});
	run_until(&w, both_open);
	write_pattern(w.client.c, 0, 10);
	run_until(&w, both_closed);
	assert_int_equal(w.server.why.code, CGN_CANCELLED);
	assert_int_equal(w.client.why.sys_errno, ECONNRESET);
	assert_int_equal(w.server.closes, 1);
	world_close(&w);
}

static void an_orphan_ends_in_silence(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	world_dial(&w, &(struct net_dial){.addr = w.addr});
	run_until(&w, both_open);
	net_conn_take(w.client.c, NULL, NULL);
	net_close(w.client.c);
	w.client.c = NULL;
	w.server.close_on_eof = true;
	run_until(&w, server_closed);
	assert_int_equal(w.client.closes, 0);
	world_close(&w);
}

static void conn_refuse(void *user, struct net_conn *c)
{
	(void)c;
	((struct world *)user)->server.accepts++;
}

static void a_connection_not_taken_is_closed(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	net_listener_close(&w.ln);
	assert_true(cgn_ok(
		net_listen(w.l, &(struct net_listen_cfg){.addr = w.addr}, conn_refuse, &w, &w.ln, NULL)));
	world_dial(&w, &(struct net_dial){.addr = w.addr});
	w.client.close_on_eof = true;
	run_until(&w, client_closed);
	assert_int_equal(w.server.accepts, 1);
	assert_int_equal(w.client.eofs, 1);
	assert_int_equal(net_listener_stats(w.ln).open, 0);
	world_close(&w);
}

/* ---- dialling ---- */

static void dial_fails(const struct net_dial *d, enum cgn_code code, const char *expect)
{
	struct world w;
	world_open(&w);
	world_dial(&w, d);
	run_until(&w, client_closed);
	assert_int_equal(w.client.closes, 1);
	assert_int_equal(w.client.opens, 0);
	assert_int_equal(w.client.why.code, code);
	if (strstr(w.client.why.msg, expect) == NULL)
		fail_msg("\"%s\" lacks \"%s\"", w.client.why.msg, expect);
	world_close(&w);
}

static void a_failed_dial_says_where_and_why(void **state)
{
	(void)state;
	struct world w;
	char gone[64];
	world_open(&w); /* A port that was free a moment ago. */
	(void)snprintf(gone, sizeof gone, "%s", w.addr);
	world_close(&w);
	dial_fails(&(struct net_dial){.addr = gone}, CGN_UNAVAILABLE, "Connection refused");
	dial_fails(&(struct net_dial){.addr = gone}, CGN_UNAVAILABLE, gone);
	dial_fails(&(struct net_dial){.addr = "unix:/tmp/cgn-nobody-here.sock"}, CGN_UNAVAILABLE,
		"/tmp/cgn-nobody-here.sock");
	dial_fails(&(struct net_dial){.addr = "no-such-host.invalid:80"}, CGN_UNAVAILABLE,
		"cannot resolve no-such-host.invalid");
}

static void nonsense_is_refused_at_once(void **state)
{
	(void)state;
	static const char *const bad[] = {":80", "127.0.0.1:0", "nonsense", "unix:relative"};
	struct world w;
	struct cgn_err err;
	struct net_conn *c = NULL;
	world_open(&w);
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		assert_int_equal(net_connect(w.l, &(struct net_dial){.addr = bad[i]}, &side_ops, &w.client,
					 &c, &err)
					 .code,
			CGN_INVALID);
		assert_null(c);
	}
	world_close(&w);
	assert_int_equal(w.client.closes, 0);
}

static void every_address_of_a_name_is_tried(void **state)
{
	(void)state;
	struct world w;
	char addr[64];
	world_open(&w); /* The listener is on 127.0.0.1 only; localhost may resolve to ::1 first. */
	(void)snprintf(addr, sizeof addr, "localhost:%u", net_listener_port(w.ln));
	world_dial(&w, &(struct net_dial){.addr = addr});
	run_until(&w, both_open);
	assert_true(cgn_str_is(net_peer(w.client.c), w.addr));
	assert_true(cgn_str_starts(net_peer(w.server.c), "127.0.0.1:"));
	world_close(&w);
}

static void a_dial_may_take_no_longer_than_allowed(void **state)
{
	(void)state;
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof sa;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char addr[64];
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
	assert_int_equal(listen(fd, 0), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	int held = raw_connect(ntohs(sa.sin_port)); /* Fills the backlog: the next SYN is dropped. */
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%u", ntohs(sa.sin_port));
	dial_fails(&(struct net_dial){.addr = addr, .connect_timeout = 50 * CGN_MSEC}, CGN_DEADLINE, addr);
	close(held);
	close(fd);
}

static void a_dial_can_be_given_up_at_any_stage(void **state)
{
	(void)state;
	static const char *const addrs[] = {"no-such-host.invalid:80", "192.0.2.1:80"};
	for (size_t i = 0; i < CGN_COUNT(addrs); i++) {
		struct world w;
		world_open(&w);
		world_dial(&w, &(struct net_dial){.addr = addrs[i]});
		if (i == 0)
			net_close(w.client.c);
		net_abort(w.client.c);
		assert_int_equal(w.client.closes, 0);
		run_until(&w, client_closed);
		assert_int_equal(w.client.closes, 1);
		world_close(&w); /* Waits for the pool. */
	}
}

/* ---- listening ---- */

static void listen_fails(struct cgn_loop *l, const struct net_listen_cfg *cfg, enum cgn_code code,
	const char *expect)
{
	struct cgn_err err = {0};
	struct net_listener *ln = NULL;
	assert_int_equal(net_listen(l, cfg, conn_refuse, NULL, &ln, &err).code, code);
	assert_null(ln);
	if (strstr(err.msg, expect) == NULL)
		fail_msg("\"%s\" lacks \"%s\"", err.msg, expect);
}

static void a_taken_port_names_its_owner(void **state)
{
	(void)state;
	struct world w;
	int ready[2], status = 0;
	char addr[64] = "", expect[64];
	assert_int_equal(pipe(ready), 0);
	pid_t child = fork();
	if (child == 0) {
		world_open(&w);
		(void)!write(ready[1], w.addr, strlen(w.addr) + 1);
		for (;;)
			(void)pause();
	}
	assert_true(read(ready[0], addr, sizeof addr) > 0);
	world_open(&w);
	(void)snprintf(expect, sizeof expect, "pid %d (unit_io_net)", (int)child);
	listen_fails(w.l, &(struct net_listen_cfg){.addr = addr}, CGN_ADDRESS_IN_USE, expect);
	listen_fails(w.l, &(struct net_listen_cfg){.addr = addr}, CGN_ADDRESS_IN_USE, addr);
	listen_fails(w.l, &(struct net_listen_cfg){.addr = w.addr}, CGN_ADDRESS_IN_USE, "this process");
	listen_fails(w.l, &(struct net_listen_cfg){.addr = "192.0.2.1:8080"}, CGN_UNAVAILABLE,
		"192.0.2.1:8080");
	listen_fails(w.l, &(struct net_listen_cfg){.addr = "nonsense"}, CGN_INVALID, "nonsense");
	listen_fails(w.l, &(struct net_listen_cfg){.addr = "unix:/no/such/folder/s"}, CGN_NOT_FOUND,
		"/no/such/folder/s");
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	close(ready[0]);
	close(ready[1]);
	world_close(&w);
}

static void workers_share_a_port_and_strangers_do_not(void **state)
{
	(void)state;
	struct world w;
	int ready[2], status = 0;
	struct net_listener *second = NULL;
	world_open(&w);
	net_listener_close(&w.ln);
	world_listen(&w, &(struct net_listen_cfg){.addr = "127.0.0.1:0", .reuse_port = true});
	assert_true(cgn_ok(net_listen(w.l, &(struct net_listen_cfg){.addr = w.addr, .reuse_port = true},
		world_accept, &w, &second, NULL)));
	assert_int_equal(net_listener_port(second), net_listener_port(w.ln));
	assert_int_equal(pipe(ready), 0);
	pid_t child = fork();
	if (child == 0) { /* Like a second start of the program: other descriptors, same user. */
		struct cgn_loop *l = NULL;
		struct net_listener *ln = NULL;
		for (int fd = 3; fd < 64; fd++)
			if (fd != ready[1])
				close(fd);
		char answer = 'x';
		if (cgn_ok(cgn_loop_new(&l, NULL)))
			answer = (char)('A' +
				(int)net_listen(l,
					&(struct net_listen_cfg){.addr = w.addr, .reuse_port = true},
					conn_refuse, NULL, &ln, NULL)
					.code);
		(void)!write(ready[1], &answer, 1);
		_exit(0);
	}
	char answer = 0;
	assert_int_equal(read(ready[0], &answer, 1), 1);
	assert_int_equal(answer, 'A' + (int)CGN_ADDRESS_IN_USE);
	waitpid(child, &status, 0);
	close(ready[0]);
	close(ready[1]);
	net_listener_close(&second);
	world_close(&w);
}

static void no_host_means_every_address(void **state)
{
	(void)state;
	struct world w;
	char v6[32];
	world_open(&w);
	net_listener_close(&w.ln);
	world_listen(&w, &(struct net_listen_cfg){.addr = ":0"});
	world_dial(&w, &(struct net_dial){.addr = w.addr});
	run_until(&w, both_open);
	assert_true(cgn_str_starts(net_peer(w.server.c), "127.0.0.1:")); /* not ::ffff:127.0.0.1 */
	world_close(&w);
	world_open(&w);
	net_listener_close(&w.ln);
	struct cgn_err err;
	if (cgn_ok(net_listen(w.l, &(struct net_listen_cfg){.addr = "[::1]:0"}, world_accept, &w, &w.ln,
		    &err))) {
		(void)snprintf(v6, sizeof v6, "[::1]:%u", net_listener_port(w.ln));
		world_dial(&w, &(struct net_dial){.addr = v6});
		run_until(&w, both_open);
		assert_true(cgn_str_is(net_peer(w.client.c), v6));
	}
	world_close(&w);
}

static void unix_sockets_work_and_clean_up(void **state)
{
	(void)state;
	char folder[] = "/tmp/cgn-net-XXXXXX", addr[64], *path = addr + 5;
	struct world w;
	struct stat st;
	assert_non_null(mkdtemp(folder));
	(void)snprintf(addr, sizeof addr, "unix:%s/s", folder);
	/* A socket file left by a crash. */
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	(void)cgn_str_copyz(sa.sun_path, sizeof sa.sun_path, cgn_str_of(path));
	int stale = socket(AF_UNIX, SOCK_STREAM, 0);
	assert_int_equal(bind(stale, (struct sockaddr *)&sa, sizeof sa), 0);
	close(stale);
	world_open(&w);
	net_listener_close(&w.ln);
	world_listen(&w, &(struct net_listen_cfg){.addr = addr, .unix_mode = 0600});
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	w.server.echo = w.server.close_on_eof = true;
	world_dial(&w, &(struct net_dial){.addr = addr});
	run_until(&w, both_open);
	assert_true(cgn_str_is(net_peer(w.server.c), "unix"));
	write_pattern(w.client.c, 0, 700);
	net_close(w.client.c);
	run_until(&w, both_closed);
	assert_int_equal(w.server.bytes, 700);
	listen_fails(w.l, &(struct net_listen_cfg){.addr = addr}, CGN_ADDRESS_IN_USE,
		addr); /* The listener is alive, so its path is not taken. */
	world_close(&w);
	assert_int_not_equal(stat(path, &st), 0);
	assert_int_equal(rmdir(folder), 0);
}

static void a_unix_peer_that_goes_while_paused_is_announced(void **state)
{
	(void)state;
	char addr[64];
	struct world w;
	(void)snprintf(addr, sizeof addr, "unix:/tmp/cgn-net-%d.sock", (int)getpid());
	world_open(&w);
	net_listener_close(&w.ln);
	world_listen(&w, &(struct net_listen_cfg){.addr = addr});
	w.server.pause_first = true;
	world_dial(&w, &(struct net_dial){.addr = addr});
	run_until(&w, both_open);
	write_pattern(w.client.c, 0, 10);
	net_close(w.client.c);
	run_until(&w, server_hung_up);
	spins = 0;
	/* The loop must not spin: a profiler shows the cost of the turn, and the checks below show that the
	 * loop works. */
	run_until(&w, after_a_while);
	net_resume(w.server.c);
	run_until(&w, server_eof);
	assert_int_equal(w.server.bytes, 10);
	world_close(&w);
}

static bool one_refused(struct world *w)
{
	return net_listener_stats(w->ln).refused == 1 && w->client.eofs + w->client.closes > 0;
}

static void beyond_max_conns_is_refused(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	net_listener_close(&w.ln);
	world_listen(&w, &(struct net_listen_cfg){.addr = "127.0.0.1:0", .max_conns = 1});
	int fd = raw_connect(net_listener_port(w.ln));
	run_until(&w, server_opened);
	world_dial(&w, &(struct net_dial){.addr = w.addr});
	run_until(&w, one_refused);
	assert_int_equal(w.server.accepts, 1);
	assert_int_equal(net_listener_stats(w.ln).open, 1);
	close(fd);
	world_close(&w);
}

static bool exhausted_twice(struct world *w)
{
	return net_listener_stats(w->ln).exhausted >= 2;
}

static void without_descriptors_it_rests_and_recovers(void **state)
{
	(void)state;
	struct world w;
	struct rlimit was, tight;
	world_open(&w);
	int fd = raw_connect(net_listener_port(w.ln)); /* Waits in the backlog. */
	getrlimit(RLIMIT_NOFILE, &was);
	tight = was;
	tight.rlim_cur = (rlim_t)fd + 1; /* Descriptors are allocated from the lowest: none is left below. */
	int fill[64];
	unsigned n = 0;
	setrlimit(RLIMIT_NOFILE, &tight);
	while (n < CGN_COUNT(fill) && (fill[n] = dup(0)) >= 0)
		n++;
	run_until(&w, exhausted_twice);
	assert_int_equal(w.server.accepts, 0);
	assert_true(net_listener_stats(w.ln).exhausted < 50); /* The listener rested and did not spin. */
	while (n > 0)
		close(fill[--n]);
	setrlimit(RLIMIT_NOFILE, &was);
	run_until(&w, server_opened);
	close(fd);
	world_close(&w);
}

static void a_closed_listener_leaves_its_connections_alone(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	w.server.echo = w.server.close_on_eof = true;
	world_dial(&w, &(struct net_dial){.addr = w.addr});
	run_until(&w, both_open);
	net_listener_close(&w.ln);
	write_pattern(w.client.c, 0, 100);
	net_close(w.client.c);
	run_until(&w, both_closed);
	assert_int_equal(w.server.bytes, 100);
	dial_fails(&(struct net_dial){.addr = w.addr}, CGN_UNAVAILABLE, "refused");
	world_close(&w);
}

/* ---- many connections ---- */

struct crowd {
	struct world w;
	unsigned started, ended, wanted, open;
	struct net_conn *conns[2000];
};
static struct crowd *crowd;

static void crowd_next(void);
static void crowd_open(struct net_conn *c, void *user)
{
	(void)user;
	switch (crowd->started % 3) { /* Every way to end a connection. */
	case 0:
		net_close(c);
		break;
	case 1:
		write_pattern(c, 0, 100);
		net_close(c);
		break;
	default:
		net_abort(c);
	}
}
static void crowd_close(struct net_conn *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	assert_true(why->code == CGN_FINE || why->code == CGN_CANCELLED);
	crowd->ended++;
	crowd_next();
}
static const struct net_conn_ops crowd_ops = {.on_open = crowd_open, .on_close = crowd_close};
static const struct net_conn_ops quiet_ops = {0};
static void crowd_accept(void *user, struct net_conn *c)
{
	(void)user;
	net_conn_take(c, &quiet_ops, NULL); /* Without on_eof, the peer's end closes the connection. */
}
static void crowd_next(void)
{
	struct net_conn *c = NULL;
	if (crowd->started == crowd->wanted)
		return;
	crowd->started++;
	assert_true(cgn_ok(net_connect(crowd->w.l, &(struct net_dial){.addr = crowd->w.addr}, &crowd_ops,
		NULL, &c, NULL)));
}
static bool crowd_gone(struct world *w)
{
	return crowd->ended == crowd->wanted && net_listener_stats(w->ln).open == 0;
}

static void crowd_start(void)
{
	crowd = calloc(1, sizeof(*crowd));
	assert_non_null(crowd);
	world_open(&crowd->w);
	net_listener_close(&crowd->w.ln);
	assert_true(cgn_ok(net_listen(crowd->w.l, &(struct net_listen_cfg){.addr = crowd->w.addr},
		crowd_accept, NULL, &crowd->w.ln, NULL)));
}

static void ten_thousand_connections_leave_nothing(void **state)
{
	(void)state;
	unsigned before = count_descriptors();
	crowd_start();
	crowd->wanted = 10000;
	for (int i = 0; i < 32; i++)
		crowd_next();
	run_until(&crowd->w, crowd_gone);
	assert_true(
		net_listener_stats(crowd->w.ln).accepted >= 6666); /* An abort may come before the accept. */
	world_close(&crowd->w);
	free(crowd);
	assert_int_equal(count_descriptors(), before);
}

static void idle_open(struct net_conn *c, void *user)
{
	(void)user;
	crowd->conns[crowd->open++] = c;
}
static const struct net_conn_ops idle_ops = {.on_open = idle_open};
static void idle_accept(void *user, struct net_conn *c)
{
	(void)user;
	net_conn_take(c, &idle_ops, NULL);
}
static bool all_idle(struct world *w)
{
	(void)w;
	return crowd->open == 2000;
}

static void an_idle_connection_is_cheap(void **state)
{
	(void)state;
	struct net_conn *c = NULL;
	struct rlimit lim;
	getrlimit(RLIMIT_NOFILE, &lim);
	lim.rlim_cur = lim.rlim_max < 4096 ? lim.rlim_max : 4096;
	if (setrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur < 2100)
		skip();
	crowd_start();
	net_listener_close(&crowd->w.ln);
	assert_true(cgn_ok(net_listen(crowd->w.l, &(struct net_listen_cfg){.addr = crowd->w.addr},
		idle_accept, NULL, &crowd->w.ln, NULL)));
	size_t before = mallinfo2().uordblks;
	for (int i = 0; i < 1000; i++)
		assert_true(cgn_ok(net_connect(crowd->w.l, &(struct net_dial){.addr = crowd->w.addr},
			&idle_ops, NULL, &c, NULL)));
	run_until(&crowd->w, all_idle);
	size_t each = (mallinfo2().uordblks - before) / 2000;
	print_message("             an idle connection in clear takes %zu bytes of heap\n", each);
	assert_true(each < 2048); /* 0 under a sanitizer, whose allocator has no mallinfo. */
	for (int i = 0; i < 2000; i++)
		net_abort(crowd->conns[i]);
	world_close(&crowd->w);
	free(crowd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addresses_have_one_shape),
		cmocka_unit_test(the_way_to_an_address_has_a_source),
		cmocka_unit_test(bytes_go_there_and_back),
		cmocka_unit_test(a_half_closed_peer_still_gets_the_answer),
		cmocka_unit_test(an_early_answer_survives_unread_bytes),
		cmocka_unit_test(a_slow_reader_hits_the_mark_and_drains),
		cmocka_unit_test(a_peer_that_never_reads_is_cut),
		cmocka_unit_test(a_pause_holds_bytes_back),
		cmocka_unit_test(a_name_is_looked_up_again_when_its_peer_left),
		cmocka_unit_test(a_reset_is_seen_while_paused),
		cmocka_unit_test(a_fin_is_seen_while_paused),
		cmocka_unit_test(a_fin_behind_unread_bytes_is_announced),
		cmocka_unit_test(urgent_bytes_do_not_confuse),
		cmocka_unit_test(an_abort_resets),
		cmocka_unit_test(an_orphan_ends_in_silence),
		cmocka_unit_test(a_connection_not_taken_is_closed),
		cmocka_unit_test(a_failed_dial_says_where_and_why),
		cmocka_unit_test(nonsense_is_refused_at_once),
		cmocka_unit_test(every_address_of_a_name_is_tried),
		cmocka_unit_test(a_dial_may_take_no_longer_than_allowed),
		cmocka_unit_test(a_dial_can_be_given_up_at_any_stage),
		cmocka_unit_test(a_taken_port_names_its_owner),
		cmocka_unit_test(workers_share_a_port_and_strangers_do_not),
		cmocka_unit_test(no_host_means_every_address),
		cmocka_unit_test(unix_sockets_work_and_clean_up),
		cmocka_unit_test(a_unix_peer_that_goes_while_paused_is_announced),
		cmocka_unit_test(beyond_max_conns_is_refused),
		cmocka_unit_test(without_descriptors_it_rests_and_recovers),
		cmocka_unit_test(a_closed_listener_leaves_its_connections_alone),
		cmocka_unit_test(ten_thousand_connections_leave_nothing),
		cmocka_unit_test(an_idle_connection_is_cheap),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
