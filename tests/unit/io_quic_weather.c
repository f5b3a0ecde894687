/* SPDX-License-Identifier: Apache-2.0 */
/* quic on a network with faults: a shuttle between the two sides loses, repeats, swaps, cuts and forges
 * datagrams. */
#include "io_quic_world.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include <arpa/inet.h>

#define MiB  ((size_t)1 << 20)
#define KEPT 64

/* ---- the shuttle: a thread between the dialler and the other side ---- */

struct datagram {
	size_t n;
	uint8_t p[9000];
};

struct shuttle {
	pthread_t thread;
	int near, far; /* The dialler talks to |near|; |far| talks to the other side. */
	unsigned port;
	struct sockaddr_in dialler, other;
	atomic_uint target;                         /* Port of the other side. */
	atomic_uint lose, repeat, swap, cut, forge; /* Rates of the faults, in a thousand. */
	atomic_bool dark, deaf /* |deaf|: nothing goes to the dialler. */, stop, rebind;
	atomic_uint carried, calm /* |calm|: rounds in which nothing waited. */;
	bool runs;
	uint32_t dice;
	struct datagram held[2];    /* By direction: waits to be swapped with the next one. */
	struct datagram kept[KEPT]; /* Old datagrams, to be repeated. */
	unsigned n_kept;
};

static unsigned shuttle_roll(struct shuttle *s)
{
	s->dice = s->dice * 1664525 + 1013904223;
	return (s->dice >> 8) % 1000;
}

static int udp_socket(unsigned *port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof sa;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), big = 4 << 20;
	CGN_MUST(fd >= 0 && bind(fd, (struct sockaddr *)&sa, sizeof sa) == 0);
	CGN_MUST(getsockname(fd, (struct sockaddr *)&sa, &len) == 0);
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
	if (port != NULL)
		*port = ntohs(sa.sin_port);
	return fd;
}

static void datagram_pass(struct shuttle *s, unsigned way, const uint8_t *p, size_t n)
{
	const struct sockaddr_in *to = way == 0 ? &s->other : &s->dialler;
	(void)sendto(way == 0 ? s->far : s->near, p, n, 0, (const struct sockaddr *)to, sizeof *to);
}

static void datagram_disturb(struct shuttle *s, unsigned way, struct datagram *d)
{
	struct datagram *held = &s->held[way];
	if (shuttle_roll(s) < s->cut) {
		struct datagram part = *d;
		part.n = d->n * shuttle_roll(s) / 1000;
		datagram_pass(s, way, part.p, part.n);
	}
	if (shuttle_roll(s) < s->forge) {
		struct datagram wrong = *d;
		wrong.p[shuttle_roll(s) * wrong.n / 1000] ^= (uint8_t)(1 + shuttle_roll(s) % 255);
		datagram_pass(s, way, wrong.p, wrong.n);
	}
	if (shuttle_roll(s) < s->repeat)
		datagram_pass(s, way, d->p, d->n);
	/* An old datagram, possibly of the other direction. */
	if (shuttle_roll(s) < s->repeat && s->n_kept == KEPT) {
		const struct datagram *old = &s->kept[shuttle_roll(s) % KEPT];
		datagram_pass(s, way, old->p, old->n);
	}
	s->kept[s->n_kept < KEPT ? s->n_kept++ : shuttle_roll(s) % KEPT] = *d;
	if (held->n == 0 && shuttle_roll(s) < s->swap) {
		*held = *d;
		return;
	}
	datagram_pass(s, way, d->p, d->n);
	if (held->n > 0)
		datagram_pass(s, way, held->p, held->n);
	held->n = 0;
}

static void shuttle_carry(struct shuttle *s, unsigned way)
{
	static struct datagram d;
	struct sockaddr_in from;
	socklen_t len = sizeof from;
	ssize_t n = recvfrom(way == 0 ? s->near : s->far, d.p, sizeof d.p, MSG_DONTWAIT,
		(struct sockaddr *)&from, &len);
	if (n <= 0)
		return;
	if (way == 0)
		s->dialler = from;
	d.n = (size_t)n;
	if (s->dark || (s->deaf && way == 1) || shuttle_roll(s) < s->lose)
		return;
	s->carried++;
	datagram_disturb(s, way, &d);
}

static void *shuttle_run(void *arg)
{
	struct shuttle *s = arg;
	while (!s->stop) {
		struct pollfd p[2] = {{s->near, POLLIN, 0}, {s->far, POLLIN, 0}};
		(void)poll(p, 2, 5);
		if (atomic_exchange(&s->rebind, false)) { /* Like a NAT that forgot the mapping. */
			close(s->far);
			s->far = udp_socket(NULL);
		}
		s->other.sin_port = htons((uint16_t)s->target);
		for (unsigned way = 0; way < 2; way++)
			if ((p[way].revents & POLLIN) != 0)
				shuttle_carry(s, way);
		for (unsigned way = 0; way < 2 && p[0].revents == 0 && p[1].revents == 0; way++)
			if (s->held[way].n > 0) {
				datagram_pass(s, way, s->held[way].p, s->held[way].n);
				s->held[way].n = 0;
			}
		s->calm += p[0].revents == 0 && p[1].revents == 0;
	}
	return NULL;
}

/* Carry or lose everything that was sent before this call: the first calm round may have begun before the
 * sending. */
static void shuttle_drain(struct shuttle *s)
{
	for (unsigned calm = s->calm; s->calm - calm < 2;)
		(void)poll(NULL, 0, 1);
}

static void shuttle_start(struct shuttle *s, struct world *w)
{
	memset(s, 0, sizeof *s);
	s->dice = 815;
	s->near = udp_socket(&s->port);
	s->far = udp_socket(NULL);
	s->other = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	s->target = quic_endpoint_port(w->server.ep);
	(void)snprintf(w->addr, sizeof w->addr, "127.0.0.1:%u", s->port);
	assert_int_equal(pthread_create(&s->thread, NULL, shuttle_run, s), 0);
	s->runs = true;
}

static void shuttle_stop(struct shuttle *s)
{
	s->stop = true;
	pthread_join(s->thread, NULL);
	close(s->near);
	close(s->far);
	s->runs = false;
}

static struct shuttle sh;

/* A failed test leaves by a long jump, so the teardown ends the shuttle. */
static int shuttle_end(void **state)
{
	(void)state;
	if (sh.runs)
		shuttle_stop(&sh);
	return 0;
}
/* The shuttle takes datagrams of this size. The timeouts are long, except in tests of silence. */
static const struct quic_endpoint_cfg fair = {.max_datagram = 8952, .handshake_timeout = 20 * CGN_SEC};

static void weather_open(struct world *w, const struct quic_endpoint_cfg *cfg)
{
	world_open(w, cfg != NULL ? cfg : &fair);
	shuttle_start(&sh, w);
}

static void weather_close(struct world *w)
{
	world_close(w);
	shuttle_stop(&sh);
}

static void world_traffic(struct world *w, size_t most)
{
	for (unsigned i = 0; i < 12; i++)
		flow_ask(flow_open(w, i), most / (i + 1), most / (12 - i));
	run_until(w, flows_done);
	for (struct flow *f = w->flows; f != NULL; f = f->next)
		assert_int_equal(f->why.code, CGN_FINE);
}

/* ---- faults of the network ---- */

static void loss_and_disorder_change_no_byte(void **state)
{
	(void)state;
	static const unsigned rates[][5] = {
		/* lose, repeat, swap, cut, forge */
		{50, 0, 0, 0, 0},
		{0, 200, 200, 0, 0},
		{0, 50, 0, 200, 200},
		{30, 30, 50, 30, 30},
	};
	for (size_t i = 0; i < CGN_COUNT(rates); i++) {
		struct world w;
		weather_open(&w, NULL);
		sh.lose = rates[i][0];
		sh.repeat = rates[i][1];
		sh.swap = rates[i][2];
		sh.cut = rates[i][3];
		sh.forge = rates[i][4];
		world_dial(&w, &fair);
		run_until(&w, both_open);
		world_traffic(&w, MiB);
		struct quic_stats st = quic_endpoint_stats(w.server.ep);
		assert_int_equal(st.accepted, 1); /* Repeated first packets made no second connection. */
		assert_true(i != 0 || st.lost + quic_endpoint_stats(w.client.ep).lost > 0);
		weather_close(&w);
	}
}

static void bbr_and_reno_work_too(void **state)
{
	(void)state;
	for (unsigned cc = 0; cc < 3; cc++) {
		struct world w;
		struct quic_endpoint_cfg cfg = fair;
		cfg.cc = (enum quic_cc)cc;
		weather_open(&w, &cfg);
		sh.lose = 20;
		world_dial(&w, &cfg);
		run_until(&w, both_open);
		world_traffic(&w, MiB / 2);
		weather_close(&w);
	}
}

static bool half_way(struct world *w)
{
	return w->bytes > 2 * MiB;
}

static void a_new_address_does_not_end_it(void **state)
{
	(void)state;
	struct world w;
	weather_open(&w, NULL);
	world_dial(&w, &fair);
	run_until(&w, both_open);
	flow_ask(flow_open(&w, 1), 6 * MiB, 6 * MiB);
	run_until(&w, half_way);
	sh.rebind = true;
	run_until(&w, flows_done);
	assert_int_equal(w.flows->why.code, CGN_FINE);
	assert_int_equal(w.server.closes + w.client.closes, 0);
	weather_close(&w);
}

static void keys_change_on_the_way(void **state)
{
	(void)state;
	struct world w;
	weather_open(&w, NULL);
	world_dial(&w, &fair);
	run_until(&w, both_open);
	flow_ask(flow_open(&w, 1), MiB, MiB);
	run_until(&w, flows_done); /* The handshake is confirmed by now. */
	for (unsigned i = 0; i < 3; i++) {
		/* Not before the last change is acknowledged and three round trips old. */
		struct side *side = i % 2 != 0 ? &w.client : &w.server;
		while (side->c != NULL &&
			ngtcp2_conn_initiate_key_update(side->c->ngtcp2, cgn_clock_now()) != 0) {
			/* A silent side might never get that acknowledgement. */
			flow_ask(flow_open(&w, i), 1000, 1000);
			run_until(&w, flows_done);
		}
		if (w.client.c == NULL || w.server.c == NULL)
			fail_msg("closed after %u changes: %s; %s", i, w.client.why.msg, w.server.why.msg);
		flow_ask(flow_open(&w, i), 2 * MiB, 2 * MiB);
		run_until(&w, flows_done);
		assert_int_equal(w.flows->why.code, CGN_FINE);
	}
	weather_close(&w);
}

static void a_peer_that_vanishes_is_noticed(void **state)
{
	(void)state;
	struct world w;
	struct quic_endpoint_cfg cfg = fair;
	cfg.idle_timeout = 2 * CGN_SEC; /* Filling a flow takes a while. */
	weather_open(&w, &cfg);
	world_dial(&w, &cfg);
	run_until(&w, both_open);
	struct flow *f = flow_open(&w, 1);
	flow_ask(f, 12 * MiB, 1);
	run_until(&w, half_way);
	sh.dark = true; /* A pulled plug during the transfer. */
	run_until(&w, both_closed);
	assert_int_equal(w.client.why.code, CGN_DEADLINE);
	assert_int_equal(f->why.code, CGN_DEADLINE);
	assert_int_equal(f->releases, 1);
	weather_close(&w);
}

static bool server_gone(struct world *w)
{
	return server_closed(w);
}

static void a_restarted_peer_says_so(void **state)
{
	(void)state;
	struct world w;
	char addr[32];
	struct quic_endpoint_cfg cfg = fair;
	weather_open(&w, NULL);
	world_dial(&w, &fair);
	run_until(&w, both_open);
	flow_ask(flow_open(&w, 1), 1000, 1000);
	run_until(&w, flows_done);
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%u", quic_endpoint_port(w.server.ep));
	sh.dark = true; /* No time for a close. */
	quic_endpoint_close(&w.server.ep);
	run_until(&w, server_gone);
	shuttle_drain(&sh);
	cfg.addr = addr;
	/* The same key and port, but none of the connections. */
	w.server.ep = endpoint_on(w.l, &cfg, world_accept, &w);
	sh.dark = false;
	flow_ask(flow_open(&w, 2), 1000, 1000);
	run_until(&w, client_closed);
	assert_int_equal(w.client.why.code, CGN_UNAVAILABLE);
	assert_non_null(strstr(w.client.why.msg, "restarted"));
	assert_int_equal(quic_endpoint_stats(w.client.ep).resets_got, 1);
	assert_true(quic_endpoint_stats(w.server.ep).resets_sent > 0);
	weather_close(&w);
}

static bool server_heard(struct world *w)
{
	return server_closed(w) && quic_endpoint_stats(w->server.ep).packets_in >= w->until;
}

static unsigned bits_of(uint64_t n)
{
	return n == 0 ? 0 : 1 + bits_of(n / 2);
}

/* The peer goes on sending because the closing packet was lost: it gets the packet again, but not for each
 * one that it sends, and not for ever. */
static void a_lost_close_is_repeated(void **state)
{
	(void)state;
	struct world w;
	weather_open(&w, NULL);
	world_dial(&w, &fair);
	run_until(&w, both_open);
	flow_ask(flow_open(&w, 1), 1000, 1000);
	run_until(&w, flows_done);
	struct quic_stats at = quic_endpoint_stats(w.server.ep);
	sh.deaf = true;
	quic_conn_close(w.server.c, 9, "lost at first");
	flow_ask(flow_open(&w, 2), MiB, 1);
	w.until = at.packets_in + 2;
	run_until(&w, server_heard);
	assert_int_equal(w.server.closes, 1);
	assert_int_equal(w.client.closes, 0);
	sh.deaf = false;
	run_until(&w, client_closed);
	struct quic_stats now = quic_endpoint_stats(w.server.ep);
	if (now.resets_sent == 0) {
		assert_int_equal(w.client.why.code, CGN_CANCELLED);
		assert_non_null(strstr(w.client.why.msg, "with code 9: lost at first"));
		assert_true(now.packets_out - at.packets_out <= 2 + bits_of(now.packets_in - at.packets_in));
	} else { /* On a busy machine the record of the connection was gone before the client's next packet. */
		assert_int_equal(w.client.why.code, CGN_UNAVAILABLE);
	}
	run_until(&w, records_gone);
	weather_close(&w);
}

static bool two_retries(struct world *w)
{
	return quic_endpoint_stats(w->server.ep).retries_sent >= 2;
}

static bool six_accepted(struct world *w)
{
	struct quic_stats st = quic_endpoint_stats(w->server.ep);
	return st.accepted == 6 && st.handshakes == 0;
}

/* First packets of peers that never answer. A copied first packet with other connection ids would not
 * decrypt, so each one comes from an endpoint of its own, through a shuttle that lets nothing back. */
static void half_open_handshakes_bring_retry(void **state)
{
	(void)state;
	struct world w;
	struct side ghosts[6] = {0};
	struct cgn_err err = {0};
	struct quic_endpoint_cfg cfg = fair;
	cfg.retry_above = 2;
	cfg.handshake_timeout = 3 * CGN_SEC;
	weather_open(&w, &cfg);
	w.many = true;
	sh.deaf = true;
	w.client.ep = endpoint_on(w.l, &fair, NULL, NULL);
	for (unsigned i = 0; i < CGN_COUNT(ghosts); i++)
		assert_true(cgn_ok(
			quic_connect(w.client.ep, w.addr, NULL, &side_ops, &ghosts[i], &ghosts[i].c, &err)));
	run_until(&w, two_retries);
	assert_int_equal(quic_endpoint_stats(w.server.ep).handshakes, 2);
	/* The other peers follow their Retry, or are late. A first packet that was repeated before the Retry
	 * came and is read when there is room again counts as one more connection; its timeout ends it. */
	sh.deaf = false;
	run_until(&w, six_accepted);
	assert_int_equal(quic_endpoint_stats(w.server.ep).tokens_refused, 0);
	weather_close(&w);
}

/* ---- junk ---- */

static bool junk_came(struct world *w)
{
	struct quic_stats st = quic_endpoint_stats(w->server.ep);
	return st.packets_in >= w->until;
}

static void junk_is_dropped(void **state)
{
	(void)state;
	struct world w;
	uint8_t p[1500];
	weather_open(&w, NULL);
	world_dial(&w, &fair);
	run_until(&w, both_open);
	struct sockaddr_in to = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)quic_endpoint_port(w.server.ep)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = udp_socket(NULL);
	for (unsigned i = 0; i < 3000; i++) {
		size_t n = i % sizeof p;
		cgn_random(p, n);
		if (n > 5 && i % 3 == 0) { /* Almost a valid first packet. */
			p[0] = 0xc3;
			memcpy(p + 1, "\0\0\0\1", 4);
			p[5] = 8;
		}
		(void)sendto(fd, p, n, 0, (struct sockaddr *)&to, sizeof to);
		if (i % 500 == 499) {
			w.until = i / 2;
			run_until(&w, junk_came);
		}
	}
	close(fd);
	struct quic_stats st = quic_endpoint_stats(w.server.ep);
	assert_true(st.packets_junk + st.resets_sent + st.versions_sent > 1000);
	world_traffic(&w, MiB);
	assert_int_equal(quic_endpoint_stats(w.server.ep).conns, 1);
	weather_close(&w);
}

/* Send |n| bytes to the server and return the length of its answer; 0: none came before the server had read
 * the datagram. */
static size_t datagram_ask(struct world *w, const uint8_t *p, size_t n, uint8_t *answer, size_t cap)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)quic_endpoint_port(w->server.ep)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = udp_socket(NULL);
	w->until = quic_endpoint_stats(w->server.ep).packets_in + 1;
	assert_int_equal(sendto(fd, p, n, 0, (struct sockaddr *)&to, sizeof to), (ssize_t)n);
	run_until(w, junk_came);
	ssize_t got = recv(fd, answer, cap, MSG_DONTWAIT);
	close(fd);
	return got > 0 ? (size_t)got : 0;
}

/* RFC 9000, 6.1 and 8.1: the answer names version 1, with the ids exchanged; a short packet gets none. */
static void a_foreign_version_is_told_ours(void **state)
{
	(void)state;
	struct world w;
	uint8_t p[1200] = {0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 4, 'a', 'b', 'c', 'd'};
	static const uint8_t rest[] = {0, 0, 0, 0, 4, 'a', 'b', 'c', 'd', 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0,
		1};
	uint8_t answer[1500];
	world_open(&w, NULL);
	assert_int_equal(datagram_ask(&w, p, sizeof p, answer, sizeof answer), 1 + sizeof rest);
	assert_true((answer[0] & 0x80) != 0);
	assert_memory_equal(answer + 1, rest, sizeof rest);
	assert_int_equal(datagram_ask(&w, p, sizeof p - 1, answer, sizeof answer), 0);
	struct quic_stats st = quic_endpoint_stats(w.server.ep);
	assert_int_equal(st.versions_sent, 1);
	assert_int_equal(st.packets_junk, 1);
	world_close(&w);
}

/* RFC 9000, 10.3.3: a reset is shorter than the packet that caused it, so that two endpoints do not reset each
 * other for ever. */
static void resets_grow_smaller(void **state)
{
	(void)state;
	struct world w;
	uint8_t p[100] = {0x40}, answer[1500];
	world_open(&w, NULL);
	for (size_t n = 1; n < sizeof p; n++) {
		size_t got = datagram_ask(&w, p, n, answer, sizeof answer);
		assert_int_equal(got, n <= 22 ? 0 : n <= 42 ? n - 1 : 42);
		assert_true(got == 0 || (answer[0] & 0xc0) == 0x40);
	}
	assert_int_equal(quic_endpoint_stats(w.server.ep).resets_sent, sizeof p - 23);
	assert_int_equal(quic_endpoint_stats(w.server.ep).packets_junk, 22);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(loss_and_disorder_change_no_byte, shuttle_end),
		cmocka_unit_test_teardown(bbr_and_reno_work_too, shuttle_end),
		cmocka_unit_test_teardown(a_new_address_does_not_end_it, shuttle_end),
		cmocka_unit_test_teardown(keys_change_on_the_way, shuttle_end),
		cmocka_unit_test_teardown(a_peer_that_vanishes_is_noticed, shuttle_end),
		cmocka_unit_test_teardown(a_restarted_peer_says_so, shuttle_end),
		cmocka_unit_test_teardown(a_lost_close_is_repeated, shuttle_end),
		cmocka_unit_test_teardown(half_open_handshakes_bring_retry, shuttle_end),
		cmocka_unit_test_teardown(junk_is_dropped, shuttle_end),
		cmocka_unit_test(a_foreign_version_is_told_ours),
		cmocka_unit_test(resets_grow_smaller),
	};
	return cmocka_run_group_tests(tests, make_tls, drop_tls);
}
