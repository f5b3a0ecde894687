/* SPDX-License-Identifier: Apache-2.0 */
/* quic on a network without faults: streams, limits, ends, and authentication. */
#include "io_quic_world.h"
#include "name_world.h"

#include <pthread.h>
#include <unistd.h>

#include <netinet/in.h>
#include <netinet/udp.h>

#define MiB ((size_t)1 << 20)

static void bytes_go_both_ways(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, NULL);
	world_dial(&w, NULL);
	run_until(&w, both_open);
	assert_true(cgn_str_is(quic_conn_peer_name(w.client.c), "node-1"));
	assert_true(cgn_str_is(quic_conn_peer_name(w.server.c), "node-1"));
	flow_ask(flow_open(&w, 1), 100000, 3000);
	flow_ask(flow_open(&w, 2), 0, 0);
	flow_ask(flow_open(&w, 3), 1, 16 * MiB); /* Four times a stream's window. */
	flow_ask(flow_open(&w, 4), 20 * MiB, 7);
	assert_true(quic_over_mark(w.flows->s));
	run_until(&w, flows_done);
	assert_true(w.flows->drains + w.flows->next->drains > 0);
	assert_int_equal(w.lent, 0);
	assert_true(quic_conn_rtt(w.client.c) > 0);
	struct quic_stats st = quic_endpoint_stats(w.server.ep);
	assert_int_equal(st.conns, 1);
	assert_int_equal(st.handshakes, 0);
	assert_int_equal(st.accepted, 1);
	assert_int_equal(st.packets_junk, 0);
	assert_true(st.bytes_in > 20 * MiB && st.bytes_out > 16 * MiB);
	world_close(&w);
}

static void datagrams_can_be_small_or_huge(void **state)
{
	(void)state;
	static const size_t sizes[] = {1200, 1452, 65000};
	for (size_t i = 0; i < CGN_COUNT(sizes); i++) {
		struct world w;
		struct quic_endpoint_cfg cfg = {.max_datagram = sizes[i]};
		world_open(&w, &cfg);
		world_dial(&w, &cfg);
		run_until(&w, both_open);
		for (unsigned k = 0; k < 4; k++)
			flow_ask(flow_open(&w, k), 300000, 2 * MiB);
		run_until(&w, flows_done);
		struct quic_stats st = quic_endpoint_stats(w.server.ep);
		assert_true(st.bytes_out / st.packets_out <= sizes[i]);
		world_close(&w);
	}
}

static void ipv6_and_names_are_addresses(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, &(struct quic_endpoint_cfg){.addr = "[::]:0"});
	(void)snprintf(w.addr, sizeof w.addr, "localhost:%u", quic_endpoint_port(w.server.ep));
	/* The name is resolved on the pool. */
	dial_as(&w, &(struct quic_endpoint_cfg){.addr = "[::]:0"}, "node.example");
	run_until(&w, both_open);
	flow_ask(flow_open(&w, 9), 5000, 500000);
	run_until(&w, flows_done);
	world_close(&w);
	world_open(&w, &(struct quic_endpoint_cfg){.addr = "0.0.0.0:0"});
	(void)snprintf(w.addr, sizeof w.addr, "127.0.0.1:%u", quic_endpoint_port(w.server.ep));
	dial_as(&w, &(struct quic_endpoint_cfg){.addr = "[::]:0"}, NULL); /* IPv4 through an IPv6 socket. */
	run_until(&w, both_open);
	flow_ask(flow_open(&w, 9), 5000, 500000);
	run_until(&w, flows_done);
	world_close(&w);
}

/* An endpoint on all addresses answers from the address that the peer dialled; a peer takes nothing from another
 * one. */
static void answers_come_from_the_dialled_address(void **state)
{
	(void)state;
	static const char *const all[] = {"0.0.0.0:0", "[::]:0"};
	for (size_t i = 0; i < CGN_COUNT(all); i++) {
		struct world w;
		world_open(&w, &(struct quic_endpoint_cfg){.addr = all[i]});
		(void)snprintf(w.addr, sizeof w.addr, "127.0.0.2:%u", quic_endpoint_port(w.server.ep));
		dial_as(&w, NULL, "node.example");
		run_until(&w, both_open);
		flow_ask(flow_open(&w, 1), 1000, MiB);
		run_until(&w, flows_done);
		world_close(&w);
	}
}

/* The kernel splits sent datagrams and joins received ones, where it can: one call moves many datagrams. */
static void the_kernel_splits_and_joins(void **state)
{
	(void)state;
	struct world w;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), part = 1200, on = 1;
	bool gso = setsockopt(fd, SOL_UDP, UDP_SEGMENT, &part, sizeof part) == 0;
	bool gro = setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof on) == 0;
	close(fd);
	world_open(&w, NULL);
	world_dial(&w, &(struct quic_endpoint_cfg){.max_datagram = 1200});
	run_until(&w, both_open);
	flow_ask(flow_open(&w, 1), 4 * MiB, 0);
	run_until(&w, flows_done);
	struct quic_stats to = quic_endpoint_stats(w.client.ep), from = quic_endpoint_stats(w.server.ep);
	assert_int_equal(to.gso, gso);
	assert_int_equal(from.gro, gro);
	assert_true(to.bytes_out > 4 * MiB && from.bytes_in > 4 * MiB && to.bytes_out >= from.bytes_in);
	assert_true(!gso || to.sends < to.packets_out / 4);
	assert_true(from.receives < from.packets_in / 4);
	world_close(&w);
}

static void what_cannot_be_is_said(void **state)
{
	(void)state;
	struct world w;
	struct quic_conn *c = NULL;
	struct quic_endpoint *ep = NULL;
	struct cgn_err err = {0};
	char taken[32];
	world_open(&w, NULL);
	assert_int_equal(quic_connect(w.server.ep, "127.0.0.1", NULL, &side_ops, &w, &c, &err).code,
		CGN_INVALID);
	assert_int_equal(quic_connect(w.server.ep, "127.0.0.1:0", NULL, &side_ops, &w, &c, &err).code,
		CGN_INVALID);
	assert_int_equal(quic_connect(w.server.ep, "unix:/x", NULL, &side_ops, &w, &c, &err).code,
		CGN_INVALID);
	(void)snprintf(taken, sizeof taken, "127.0.0.1:%u", quic_endpoint_port(w.server.ep));
	struct quic_endpoint_cfg bad[] = {
		{.addr = taken, .tls = node_tls, .alpn = ALPN},
		{.addr = "nowhere.example:1", .tls = node_tls, .alpn = ALPN},
		{.addr = "127.0.0.1:0", .tls = node_tls},
		{.addr = "127.0.0.1:0", .tls = node_tls, .alpn = ALPN, .max_datagram = 1000},
		{.addr = "127.0.0.1:0", .tls = node_tls, .alpn = ALPN, .conn_window = 1000},
		{.addr = "127.0.0.1:0", .tls = node_tls, .alpn = ALPN, .keepalive = 60 * CGN_SEC},
	};
	assert_int_equal(quic_endpoint_new(w.l, &bad[0], NULL, NULL, &ep, &err).code, CGN_ADDRESS_IN_USE);
	for (size_t i = 1; i < CGN_COUNT(bad); i++) {
		assert_int_equal(quic_endpoint_new(w.l, &bad[i], NULL, NULL, &ep, &err).code, CGN_INVALID);
		assert_true(err.msg[0] != '\0');
	}
	struct tls_ctx *bare = NULL;
	assert_true(cgn_ok(tls_ctx_new(&(struct tls_cfg){.ca_file = in_folder("ca")}, &bare, &err)));
	bad[0] = (struct quic_endpoint_cfg){.addr = "127.0.0.1:0", .tls = bare, .alpn = ALPN};
	assert_int_equal(quic_endpoint_new(w.l, &bad[0], NULL, NULL, &ep, &err).code, CGN_TLS);
	assert_non_null(strstr(err.msg, "certificate"));
	tls_ctx_free(&bare);
	assert_null(ep);
	assert_null(c);
	world_close(&w);
}

/* ---- many streams ---- */

static unsigned to_open;
static void conn_pump(struct quic_conn *c, void *user)
{
	struct world *w = CGN_CONTAINER((struct side *)user, struct world, client);
	while (to_open > 0 && ngtcp2_conn_get_streams_bidi_left(c->ngtcp2) > 0) {
		to_open--;
		flow_ask(flow_open(w, to_open), to_open % 700, to_open % 3000);
	}
	struct quic_stream *s = NULL;
	struct cgn_err err;
	if (to_open > 0)
		assert_int_equal(quic_stream_open(c, &flow_ops, w, &s, &err).code, CGN_OVERLOADED);
	assert_null(s);
}
static const struct quic_conn_ops pump_ops = {.on_open = conn_pump,
	.on_room = conn_pump,
	.on_close = side_close};

static bool all_pumped(struct world *w)
{
	return to_open == 0 && flows_done(w);
}

static void thousands_of_streams_take_turns(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, &(struct quic_endpoint_cfg){.max_streams = 100});
	world_dial(&w, NULL);
	to_open = 5000;
	quic_conn_take(w.client.c, &pump_ops, &w.client);
	run_until(&w, all_pumped);
	assert_int_equal(w.server.streams, 5000);
	world_close(&w);
}

static bool first_is_done(struct world *w)
{
	return w->closed >= 2;
}

static void urgent_streams_go_first(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, NULL);
	world_dial(&w, NULL);
	run_until(&w, both_open);
	struct flow *lazy = flow_open(&w, 1), *urgent = flow_open(&w, 2);
	quic_priority(lazy->s, 7);
	quic_priority(urgent->s, 0);
	flow_ask(lazy, 3 * MiB, 1);
	flow_ask(urgent, 3 * MiB, 1);
	run_until(&w, flows_done);
	assert_true(urgent->place < lazy->place);
	world_close(&w);
}

static bool one_mib_came(struct world *w)
{
	return w->bytes >= MiB;
}

/* A long transfer must not starve another one of its level: both get their share from the beginning. */
static void equal_streams_share_the_connection(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, NULL);
	world_dial(&w, NULL);
	run_until(&w, both_open);
	struct flow *a = flow_open(&w, 1), *b = flow_open(&w, 2);
	flow_ask(a, 3 * MiB, 1);
	flow_ask(b, 3 * MiB, 1);
	run_until(&w, one_mib_came);
	for (struct flow *f = w.flows; f != NULL; f = f->next)
		assert_true(!f->server || f->got > MiB / 8);
	run_until(&w, flows_done);
	world_close(&w);
}

static void one_byte_pieces_arrive_with_the_end(void **state)
{
	(void)state;
	struct world w;
	uint8_t bytes[5 * QUIC_VECTORS];
	world_open(&w, NULL);
	world_dial(&w, NULL);
	run_until(&w, both_open);
	struct flow *f = flow_open(&w, 9);
	uint64_t head[3] = {f->seed, sizeof bytes, 0};
	quic_send(f->s, &(struct iovec){head, sizeof head}, 1, false, NULL, NULL);
	f->up = sizeof bytes;
	for (size_t i = 0; i < sizeof bytes; i++) {
		bytes[i] = pattern(f->seed, i);
		quic_send(f->s, &(struct iovec){bytes + i, 1}, 1, i + 1 == sizeof bytes, NULL, NULL);
	}
	run_until(&w, flows_done);
	assert_int_equal(f->why.code, CGN_FINE);
	assert_int_equal(w.bytes, sizeof bytes);
	world_close(&w);
}

/* ---- bounds ---- */

static void copies_are_bounded(void **state)
{
	(void)state;
	static uint8_t some[MiB];
	struct world w;
	struct iovec iov = {some, sizeof some};
	world_open(&w, NULL);
	world_dial(&w, NULL);
	run_until(&w, both_open);
	struct flow *f = flow_open(&w, 0);
	unsigned n = 0;
	for (; n < 9 && f->s != NULL; n++)
		quic_send(f->s, &iov, 1, false, NULL, NULL);
	assert_non_null(f->s); /* Not from inside the call. */
	run_until(&w, first_is_done);
	assert_int_equal(f->why.code, CGN_OVERLOADED);
	assert_true(quic_conn_is_open(w.client.c));
	world_close(&w);
}

/* ---- cancelling ---- */

static bool both_ended(struct world *w)
{
	return w->closed == w->n_flows + w->served && w->lent == 0;
}

static bool bytes_came(struct world *w)
{
	return w->bytes > 0;
}

static void cancel_flow(struct flow *f, uint64_t code)
{
	quic_stream_cancel(&f->s, code);
	f->closed = true; /* No callback of the stream comes any more. */
	f->w->closed++;
}

static void a_cancelled_stream_ends_on_both_sides(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, NULL);
	world_dial(&w, NULL);
	run_until(&w, both_open);
	struct flow *f = flow_open(&w, 1);
	flow_ask(f, 8 * MiB, 1);
	run_until(&w, bytes_came);
	struct flow *other = w.flows->server ? w.flows : w.flows->next;
	cancel_flow(f, 77);
	assert_int_equal(f->releases, 0);
	run_until(&w, both_ended);
	assert_int_equal(f->releases, 1);
	assert_int_equal(other->why.code, CGN_CANCELLED);
	assert_int_equal(other->code, 77);
	flow_ask(flow_open(&w, 2), 17 * MiB, 1); /* The connection's window was given back. */
	run_until(&w, both_ended);
	assert_int_equal(w.flows->why.code, CGN_FINE);
	world_close(&w);
}

static uint32_t dice_state;
static uint32_t roll_dice(void)
{
	dice_state = dice_state * 1664525 + 1013904223;
	return dice_state >> 8;
}

static struct cgn_timer axe;
static unsigned axed;
static struct world *axe_world;
static void timer_swing(struct cgn_timer *t)
{
	for (struct flow *f = axe_world->flows; f != NULL; f = f->next)
		if (f->s != NULL && roll_dice() % 8 == 0) {
			cancel_flow(f, roll_dice() % 1000);
			axed++;
		}
	cgn_timer_set(t, roll_dice() % (3 * CGN_MSEC));
}

static void cancelling_at_any_moment_loses_nothing(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, NULL);
	world_dial(&w, NULL);
	run_until(&w, both_open);
	axe_world = &w;
	axed = 0;
	dice_state = 4711;
	cgn_timer_init(&axe, w.l, timer_swing);
	cgn_timer_set(&axe, 0);
	for (unsigned round = 0; round < 20; round++) {
		for (unsigned i = 0; i < 30; i++)
			flow_ask(flow_open(&w, i), roll_dice() % 400000, roll_dice() % 400000);
		run_until(&w, both_ended);
	}
	cgn_timer_cancel(&axe);
	assert_true(axed > 100);
	flow_ask(flow_open(&w, 1), 20 * MiB, 1);
	run_until(&w, both_ended);
	assert_int_equal(w.flows->why.code, CGN_FINE); /* All credit came back. */
	world_close(&w);
}

/* ---- ends ---- */

static void a_close_has_a_code_and_a_sentence(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, NULL);
	world_dial(&w, NULL);
	run_until(&w, both_open);
	struct flow *f = flow_open(&w, 1);
	flow_ask(f, 8 * MiB, 1);
	quic_conn_close(w.client.c, 42, "enough");
	assert_int_equal(w.client.closes, 0); /* Never inside the call. */
	quic_conn_close(w.client.c, 43, "twice is once");
	struct quic_stream *s = NULL;
	assert_int_equal(quic_stream_open(w.client.c, &flow_ops, NULL, &s, NULL).code, CGN_UNAVAILABLE);
	run_until(&w, both_closed);
	assert_int_equal(w.client.why.code, CGN_FINE);
	assert_int_equal(w.server.why.code, CGN_CANCELLED);
	assert_non_null(strstr(w.server.why.msg, "with code 42: enough"));
	assert_true(f->closed && f->releases == 1);
	assert_int_equal(f->why.code, CGN_UNAVAILABLE);
	assert_int_equal(quic_endpoint_stats(w.server.ep).conns, 0);
	run_until(&w, records_gone); /* Ended connections free their places. */
	world_close(&w);
}

static void an_absent_server_is_a_timeout(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, NULL);
	quic_endpoint_close(&w.server.ep);
	world_dial(&w, &(struct quic_endpoint_cfg){.handshake_timeout = 50 * CGN_MSEC});
	run_until(&w, client_closed);
	assert_int_equal(w.client.why.code, CGN_DEADLINE);
	assert_int_equal(quic_endpoint_stats(w.client.ep).handshakes_failed, 1);
	world_close(&w);
	world_open(&w, NULL);
	(void)snprintf(w.addr, sizeof w.addr, "no-such-host.invalid:1");
	world_dial(&w, NULL);
	run_until(&w, client_closed);
	assert_int_equal(w.client.why.code, CGN_UNAVAILABLE);
	assert_non_null(strstr(w.client.why.msg, "no-such-host.invalid"));
	(void)snprintf(w.addr, sizeof w.addr, "255.255.255.255:9");
	world_dial_again(&w, NULL); /* The system has no route for one peer. */
	run_until(&w, client_closed);
	assert_int_equal(w.client.why.code, CGN_UNAVAILABLE);
	assert_non_null(strstr(w.client.why.msg, "QUIC with 255.255.255.255:9: "));
	assert_int_equal(quic_endpoint_stats(w.client.ep).handshakes_failed, 2);
	(void)snprintf(w.addr, sizeof w.addr, "no-such-host.invalid:1");
	world_dial_again(&w, NULL);
	quic_conn_close(w.client.c, 0, NULL); /* While the name is being resolved. */
	world_close(&w);
	assert_int_equal(w.client.why.code, CGN_FINE);
}

static void an_endpoint_closes_with_all_it_has(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, NULL);
	world_dial(&w, NULL);
	run_until(&w, both_open);
	flow_ask(flow_open(&w, 1), 8 * MiB, 1);
	quic_endpoint_close(&w.server.ep);
	assert_null(w.server.ep);
	assert_int_equal(w.server.closes, 0);
	run_until(&w, both_closed);
	assert_int_equal(w.server.why.code, CGN_UNAVAILABLE);
	assert_int_equal(w.client.why.code, CGN_FINE); /* A regular close. */
	world_close(&w);
}

static void closing_from_callbacks(void **state)
{
	(void)state;
	for (unsigned at = 0; at < 4; at++) {
		struct world w;
		world_open(&w, NULL);
		w.close_at = at + 1;
		world_dial(&w, NULL);
		run_until(&w, at == 0 ? client_closed : both_open);
		if (at > 0)
			flow_ask(flow_open(&w, 1), 100000, 100000);
		run_until(&w, client_closed);
		world_close(&w);
	}
}

static bool went_idle(struct world *w)
{
	return client_closed(w) && server_closed(w);
}
static bool second_passed(struct world *w)
{
	return cgn_loop_now(w->l) > w->until;
}

static void silence_ends_unless_kept_alive(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, &(struct quic_endpoint_cfg){.idle_timeout = 100 * CGN_MSEC});
	world_dial(&w, NULL);
	run_until(&w, went_idle); /* The shorter of both timeouts counts for both sides. */
	assert_int_equal(w.client.why.code, CGN_DEADLINE);
	assert_int_equal(w.server.why.code, CGN_DEADLINE);
	world_close(&w);
	world_open(&w, &(struct quic_endpoint_cfg){.idle_timeout = 300 * CGN_MSEC});
	world_dial(&w, &(struct quic_endpoint_cfg){.keepalive = 20 * CGN_MSEC});
	run_until(&w, both_open);
	w.until = cgn_loop_now(w.l) + CGN_SEC;
	run_until(&w, second_passed);
	assert_int_equal(w.client.closes + w.server.closes, 0);
	world_close(&w);
}

/* ---- authentication ---- */

static void refused_dial(struct world *w, struct tls_ctx *server, struct tls_ctx *client, const char *alpn,
	const char *name)
{
	world_open(w, &(struct quic_endpoint_cfg){.tls = server});
	dial_as(w, &(struct quic_endpoint_cfg){.tls = client, .alpn = alpn}, name);
	run_until(w, client_closed);
	assert_int_equal(w->server.opens, 0);
	assert_int_equal(w->client.why.code, CGN_TLS);
}

static void strangers_are_refused(void **state)
{
	(void)state;
	struct world w;
	struct cgn_err why;
	cgn_nsec at = 0;
	refused_dial(&w, node_tls, stranger_tls, NULL, NULL); /* The peer's CA is not ours. */
	quic_endpoint_refusal(w.server.ep, &why, &at);
	assert_int_equal(why.code, CGN_TLS);
	assert_non_null(strstr(why.msg, "issuer is unknown"));
	assert_non_null(strstr(w.client.why.msg, "the alert \"CA is unknown\""));
	assert_int_equal(quic_endpoint_stats(w.server.ep).handshakes_failed, 1);
	assert_int_equal(quic_endpoint_stats(w.server.ep).accepted, 0);
	world_close(&w);

	refused_dial(&w, stranger_tls, node_tls, NULL, NULL);
	assert_int_equal(w.client.opens, 0);
	assert_non_null(strstr(w.client.why.msg, "issuer is unknown"));
	world_close(&w);

	refused_dial(&w, node_tls, node_tls, NULL, "other.example");
	assert_int_equal(w.client.opens, 0);
	assert_non_null(strstr(w.client.why.msg, "another name"));
	world_close(&w);

	refused_dial(&w, node_tls, node_tls, "other/1", NULL);
	assert_int_equal(w.client.opens, 0);
	quic_endpoint_refusal(w.server.ep, &why, &at);
	assert_non_null(strstr(why.msg, "does not speak " ALPN));
	world_close(&w);
}

static void expired_certificates_are_refused(void **state)
{
	(void)state;
	struct world w;
	struct cgn_err why;
	cgn_nsec at = 0;
	int64_t now = time(NULL);
	put_leaf(&our_ca, "short", "short", (struct pki_validity){now - DAY, now + 2});
	struct tls_ctx *brief = ctx_of("ca", "short");
	while (time(NULL) <= now + 2)
		(void)usleep(100000);
	refused_dial(&w, node_tls, brief, NULL, NULL);
	quic_endpoint_refusal(w.server.ep, &why, &at);
	assert_non_null(strstr(why.msg, "expired"));
	world_close(&w);
	refused_dial(&w, brief, node_tls, NULL, NULL);
	assert_non_null(strstr(w.client.why.msg, "expired"));
	world_close(&w);
	tls_ctx_free(&brief);
}

static void certificates_change_while_streams_go_on(void **state)
{
	(void)state;
	struct world w;
	struct cgn_err err = {0};
	int64_t now = time(NULL);
	put_leaf(&our_ca, "before", "turning", (struct pki_validity){now - DAY / 2, now + DAY / 2});
	struct tls_ctx *turning = ctx_of("ca", "turning");
	world_open(&w, &(struct quic_endpoint_cfg){.tls = turning});
	world_dial(&w, NULL);
	run_until(&w, both_open);
	assert_true(cgn_str_is(quic_conn_peer_name(w.client.c), "before"));
	flow_ask(flow_open(&w, 1), 8 * MiB, 8 * MiB);
	put_leaf(&our_ca, "after", "turning", (struct pki_validity){now - DAY / 2, now + DAY / 2});
	assert_true(cgn_ok(tls_ctx_reload(turning, &err)));
	struct side late = {0};
	assert_true(cgn_ok(quic_connect(w.client.ep, w.addr, NULL, &side_ops, &late, &late.c, &err)));
	w.server.opens = 0; /* The next connection takes the free place. */
	run_until(&w, flows_done);
	while (late.opens == 0)
		run_until(&w, flows_done);
	assert_true(cgn_str_is(quic_conn_peer_name(late.c), "after"));
	assert_true(cgn_str_is(quic_conn_peer_name(w.client.c), "before"));
	quic_endpoint_close(&w.client.ep);
	w.server.c = NULL;
	world_close(&w);
	tls_ctx_free(&turning);
}

/* ---- names ---- */

static void a_connection_knows_that_its_name_moved(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, NULL);
	(void)name_stands_for("moves.test:1", quic_endpoint_port(w.server.ep));
	(void)snprintf(w.addr, sizeof w.addr, "moves.test:1");
	world_dial_again(&w, "127.0.0.1");
	run_until(&w, both_open);
	assert_false(quic_conn_is_moved(w.client.c));
	(void)name_stands_for("moves.test:1", 9);
	assert_true(quic_conn_is_moved(w.client.c));
	(void)name_stands_for("moves.test:1", quic_endpoint_port(w.server.ep));
	assert_false(quic_conn_is_moved(w.client.c));
	world_close(&w);
}

/* ---- limits ---- */

static bool n_opened(struct world *w)
{
	return w->server.opens == 2;
}

static void endpoints_are_bounded(void **state)
{
	(void)state;
	struct world w;
	struct cgn_err err = {0};
	struct side more[3] = {0};
	world_open(&w, &(struct quic_endpoint_cfg){.max_conns = 2});
	w.many = true;
	w.client.ep = endpoint_on(w.l,
		&(struct quic_endpoint_cfg){.max_conns = 3, .handshake_timeout = 300 * CGN_MSEC}, NULL, NULL);
	for (unsigned i = 0; i < 3; i++)
		assert_true(cgn_ok(
			quic_connect(w.client.ep, w.addr, NULL, &side_ops, &more[i], &more[i].c, &err)));
	struct quic_conn *c = NULL;
	assert_int_equal(quic_connect(w.client.ep, w.addr, NULL, &side_ops, &more[2], &c, &err).code,
		CGN_OVERLOADED);
	run_until(&w, n_opened);
	while (more[2].closes == 0)
		run_until(&w, n_opened);
	assert_int_equal(more[2].why.code, CGN_DEADLINE);
	assert_true(quic_endpoint_stats(w.server.ep).refused > 0);
	assert_int_equal(quic_endpoint_stats(w.server.ep).accepted, 2);
	quic_endpoint_close(&w.client.ep);
	quic_endpoint_close(&w.server.ep);
	cgn_loop_free(&w.l);
	assert_true(more[0].closes == 1 && more[1].closes == 1);
}

static void retry_makes_peers_prove_their_address(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, &(struct quic_endpoint_cfg){.retry_always = true});
	world_dial(&w, NULL);
	run_until(&w, both_open);
	flow_ask(flow_open(&w, 1), 100000, 100000);
	run_until(&w, flows_done);
	struct quic_stats st = quic_endpoint_stats(w.server.ep);
	/* A client that gets no answer for some milliseconds sends its first packet again, and the server has
	 * no memory of the first copy. */
	assert_true(st.retries_sent >= 1);
	assert_int_equal(st.accepted, 1);
	assert_int_equal(st.tokens_refused, 0);
	world_close(&w);
}

/* ---- two threads ---- */

struct far {
	struct cgn_loop *l;
	struct world w;
	struct cgn_post post;
};

static void far_stop(struct cgn_loop *l, struct cgn_post *p)
{
	struct far *far = CGN_CONTAINER(p, struct far, post);
	quic_endpoint_close(&far->w.server.ep);
	cgn_loop_stop(l);
}

static bool far_done(struct world *w)
{
	return w->closed == w->n_flows;
}

static void the_other_side_on_its_own_thread(void **state)
{
	(void)state;
	struct far far = {0};
	struct world w = {0};
	struct cgn_err err = {0};
	world_open(&far.w, NULL);
	far.l = far.w.l;
	assert_true(cgn_ok(cgn_loop_start_thread(far.l, "far", &err)));
	assert_true(cgn_ok(cgn_loop_new(&w.l, NULL)));
	memcpy(w.addr, far.w.addr, sizeof w.addr);
	world_dial(&w, NULL);
	while (w.client.opens == 0)
		run_until(&w, far_done);
	for (unsigned i = 0; i < 50; i++)
		flow_ask(flow_open(&w, i), i * 10000, i * 20000);
	run_until(&w, far_done);
	quic_conn_close(w.client.c, 0, NULL);
	quic_endpoint_close(&w.client.ep);
	cgn_loop_free(&w.l);
	cgn_loop_post(far.l, &far.post, far_stop);
	cgn_loop_join(far.l);
	assert_int_equal(far.w.server.streams, 50);
	flows_free(&w);
	world_close(&far.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_go_both_ways),
		cmocka_unit_test(datagrams_can_be_small_or_huge),
		cmocka_unit_test(ipv6_and_names_are_addresses),
		cmocka_unit_test(answers_come_from_the_dialled_address),
		cmocka_unit_test(the_kernel_splits_and_joins),
		cmocka_unit_test(what_cannot_be_is_said),
		cmocka_unit_test(thousands_of_streams_take_turns),
		cmocka_unit_test(urgent_streams_go_first),
		cmocka_unit_test(equal_streams_share_the_connection),
		cmocka_unit_test(one_byte_pieces_arrive_with_the_end),
		cmocka_unit_test(copies_are_bounded),
		cmocka_unit_test(a_cancelled_stream_ends_on_both_sides),
		cmocka_unit_test(cancelling_at_any_moment_loses_nothing),
		cmocka_unit_test(a_close_has_a_code_and_a_sentence),
		cmocka_unit_test(an_absent_server_is_a_timeout),
		cmocka_unit_test(an_endpoint_closes_with_all_it_has),
		cmocka_unit_test(closing_from_callbacks),
		cmocka_unit_test(silence_ends_unless_kept_alive),
		cmocka_unit_test(strangers_are_refused),
		cmocka_unit_test(expired_certificates_are_refused),
		cmocka_unit_test(certificates_change_while_streams_go_on),
		cmocka_unit_test(a_connection_knows_that_its_name_moved),
		cmocka_unit_test(endpoints_are_bounded),
		cmocka_unit_test(retry_makes_peers_prove_their_address),
		cmocka_unit_test(the_other_side_on_its_own_thread),
	};
	return cmocka_run_group_tests(tests, make_tls, drop_tls);
}
