/* SPDX-License-Identifier: Apache-2.0 */
/* bench quic [ROUNDS]: the time to fetch a block from a peer over QUIC and over TLS on TCP: the same GnuTLS,
 * the same certificates, two threads, one machine, in one run and in turns. A fetch is 8 bytes to the peer
 * (the size) and that many bytes back; "first" fetches begin by dialling, including the handshake with
 * certificates on both sides. "memcpy" is the time to copy as much. Prints one JSON object. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/json/json.h"
#include "io/net/net/net.h"
#include "io/net/pki/pki.h"
#include "io/net/quic/quic.h"
#include "io/os/disk/disk.h"

#define BLOCK_MOST ((size_t)1 << 20)
#define ALPN       "bench/1"
#define DAY        ((int64_t)86400)

static const size_t sizes[] = {8, 65536, 1 << 20};
/* All zeros: encryption makes the bytes on the wire independent of the content. */
static uint8_t block[BLOCK_MOST];

static void must_succeed(cgn_rc rc, const struct cgn_err *err)
{
	if (cgn_ok(rc))
		return;
	(void)fprintf(stderr, "bench quic: %s\n", err->msg);
	exit(1);
}

/* ---- certificates ---- */

static char folder[] = "/tmp/cgn-bench-quic-XXXXXX";

static void file_put(const char *name, struct cgn_buf *b, char path[static 128])
{
	struct cgn_err err = {0};
	(void)snprintf(path, 128, "%s/%s", folder, name);
	must_succeed(disk_write_file_atomic(path, cgn_buf_view(b), 0600, &err), &err);
}

static struct tls_ctx *make_tls(bool server)
{
	static const char *const names[] = {"127.0.0.1", NULL}, *const alpn[] = {ALPN, NULL};
	static char ca_path[128], crt_path[128], key_path[128];
	struct tls_ctx *c = NULL;
	struct cgn_err err = {0};
	if (ca_path[0] == '\0') {
		struct pki_pair ca = {0}, leaf = {0};
		struct pki_validity when = {time(NULL) - DAY, time(NULL) + DAY};
		if (mkdtemp(folder) == NULL)
			exit(1);
		must_succeed(pki_make_ca("ca", when, &ca, &err), &err);
		must_succeed(pki_make_leaf(&ca, "node", names, when, &leaf, &err), &err);
		file_put("ca", &ca.cert, ca_path);
		file_put("crt", &leaf.cert, crt_path);
		file_put("key", &leaf.key, key_path);
		pki_pair_fini(&ca);
		pki_pair_fini(&leaf);
	}
	struct tls_cfg cfg = {.server = server,
		.ca_file = ca_path,
		.cert_file = crt_path,
		.key_file = key_path,
		.require_peer_cert = server,
		.alpn = alpn};
	must_succeed(tls_ctx_new(&cfg, &c, &err), &err);
	return c;
}

/* ---- the side that has blocks: a thread of its own ---- */

struct server {
	struct cgn_loop *loop;
	struct tls_ctx *tls;
	struct quic_endpoint *quic;
	struct net_listener *tcp;
	struct quic_stats last;
	struct cgn_post stop;
};

/* Bytes that a stream or connection has requested so far. */
struct ask {
	uint8_t p[8];
	size_t n;
};

static bool ask_take(struct ask *a, const uint8_t *p, size_t n, size_t *want)
{
	for (size_t i = 0; i < n && a->n < sizeof a->p; i++)
		a->p[a->n++] = p[i];
	uint64_t v;
	memcpy(&v, a->p, sizeof v);
	*want = (size_t)v;
	return a->n == sizeof a->p;
}

static void buffer_released(void *arg)
{
	(void)arg;
}

static void served_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	size_t want;
	if (!fin || !ask_take(user, p, n, &want))
		return;
	quic_send(s, &(struct iovec){block, want}, 1, true, buffer_released, NULL);
}

static void served_close(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	(void)s;
	(void)why;
	(void)code;
	free(user);
}

static void served_stream(struct quic_conn *c, void *user, struct quic_stream *s)
{
	static const struct quic_stream_ops ops = {.on_data = served_data, .on_close = served_close};
	(void)c;
	(void)user;
	quic_stream_take(s, &ops, calloc(1, sizeof(struct ask)));
}

static void accept_quic(void *user, struct quic_conn *c)
{
	static const struct quic_conn_ops ops = {.on_stream = served_stream};
	quic_conn_take(c, &ops, user);
}

static void tcp_data(struct net_conn *c, void *user, const uint8_t *p, size_t n)
{
	struct ask *a = user;
	size_t want;
	if (!ask_take(a, p, n, &want))
		return;
	a->n = 0;
	net_write(c, &(struct iovec){block, want}, 1);
}

static void tcp_close(struct net_conn *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)why;
	free(user);
}

static void accept_tcp(void *user, struct net_conn *c)
{
	static const struct net_conn_ops ops = {.on_data = tcp_data, .on_close = tcp_close};
	(void)user;
	net_conn_take(c, &ops, calloc(1, sizeof(struct ask)));
}

static void server_run(struct server *s)
{
	struct cgn_err err = {0};
	must_succeed(cgn_loop_new(&s->loop, &err), &err);
	s->tls = make_tls(true);
	struct quic_endpoint_cfg q = {.addr = "127.0.0.1:0", .tls = s->tls, .alpn = ALPN};
	must_succeed(quic_endpoint_new(s->loop, &q, accept_quic, s, &s->quic, &err), &err);
	struct net_listen_cfg n = {.addr = "127.0.0.1:0", .tls = s->tls};
	must_succeed(net_listen(s->loop, &n, accept_tcp, s, &s->tcp, &err), &err);
	must_succeed(cgn_loop_start_thread(s->loop, "server", &err), &err);
}

static void on_stop(struct cgn_loop *l, struct cgn_post *p)
{
	struct server *s = CGN_CONTAINER(p, struct server, stop);
	s->last = quic_endpoint_stats(s->quic);
	quic_endpoint_close(&s->quic);
	net_listener_close(&s->tcp);
	cgn_loop_stop(l);
}

/* ---- the side that fetches ---- */

struct fetch {
	struct cgn_loop *loop;
	struct tls_ctx *tls;
	struct quic_endpoint *ep;
	char quic_addr[32], tcp_addr[32];
	struct quic_conn *quic;
	struct net_conn *tcp;
	uint64_t want;
	size_t got;
	bool by_quic;
};

static void fetch_got(struct fetch *f, size_t n)
{
	f->got += n;
	if (f->got == f->want)
		cgn_loop_stop(f->loop);
}

static void fetch_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	(void)s;
	(void)p;
	(void)fin;
	fetch_got(user, n);
}

static const struct quic_stream_ops fetch_ops = {.on_data = fetch_data};

static void ask_quic(struct fetch *f)
{
	struct cgn_err err = {0};
	struct quic_stream *s;
	must_succeed(quic_stream_open(f->quic, &fetch_ops, f, &s, &err), &err);
	quic_send(s, &(struct iovec){&f->want, sizeof f->want}, 1, true, NULL, NULL);
}

static void quic_opened(struct quic_conn *c, void *user)
{
	(void)c;
	ask_quic(user);
}

static void quic_closed(struct quic_conn *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	if (why->code != CGN_FINE)
		must_succeed(CGN_RC_OF(why->code), why);
}

static void ask_tcp(struct fetch *f)
{
	net_write(f->tcp, &(struct iovec){&f->want, sizeof f->want}, 1);
}

static void tcp_opened(struct net_conn *c, void *user)
{
	(void)c;
	ask_tcp(user);
}

static void tcp_got(struct net_conn *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	(void)p;
	fetch_got(user, n);
}

static void tcp_ended(struct net_conn *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	if (why->code != CGN_FINE)
		must_succeed(CGN_RC_OF(why->code), why);
}

static void fetch_dial(struct fetch *f)
{
	static const struct quic_conn_ops quic_ops = {.on_open = quic_opened, .on_close = quic_closed};
	static const struct net_conn_ops tcp_ops = {.on_open = tcp_opened,
		.on_data = tcp_got,
		.on_close = tcp_ended};
	struct cgn_err err = {0};
	struct net_dial d = {.addr = f->tcp_addr, .tls = f->tls};
	if (f->by_quic)
		must_succeed(quic_connect(f->ep, f->quic_addr, NULL, &quic_ops, f, &f->quic, &err), &err);
	else
		must_succeed(net_connect(f->loop, &d, &tcp_ops, f, &f->tcp, &err), &err);
}

static void hang_up(struct fetch *f)
{
	if (f->quic != NULL)
		quic_conn_close(f->quic, 0, NULL);
	if (f->tcp != NULL)
		net_close(f->tcp);
	f->quic = NULL;
	f->tcp = NULL;
}

/* Time one fetch; the first on a connection dials. */
static cgn_nsec fetch_timed(struct fetch *f, size_t size)
{
	cgn_nsec from = cgn_clock_now();
	f->want = size;
	f->got = 0;
	if (f->by_quic ? f->quic == NULL : f->tcp == NULL)
		fetch_dial(f);
	else if (f->by_quic)
		ask_quic(f);
	else
		ask_tcp(f);
	cgn_loop_run(f->loop);
	return cgn_clock_now() - from;
}

/* ---- the report ---- */

static int by_value(const void *a, const void *b)
{
	const cgn_nsec *x = a, *y = b;
	return *x < *y ? -1 : *x > *y;
}

static void put_times(struct json_out *o, const char *name, cgn_nsec *t, size_t n)
{
	qsort(t, n, sizeof *t, by_value);
	json_key(o, name);
	json_open(o, '{');
	json_key_f64(o, "p50_us", (double)(t[n / 2] / 100) / 10);
	json_key_f64(o, "p99_us", (double)(t[n * 99 / 100] / 100) / 10);
	json_key_f64(o, "worst_us", (double)(t[n - 1] / 100) / 10);
	json_close(o, '}');
}

/* In turns, so that disturbances of the machine affect both. */
static void measure_size(struct json_out *o, struct fetch *f, size_t size, size_t rounds, bool first)
{
	cgn_nsec *t[2] = {calloc(rounds, sizeof(cgn_nsec)), calloc(rounds, sizeof(cgn_nsec))};
	for (size_t i = 0; i < rounds; i++)
		for (unsigned q = 0; q < 2; q++) {
			f->by_quic = q == 1;
			if (first)
				hang_up(f);
			t[q][i] = fetch_timed(f, size);
		}
	put_times(o, "tls_tcp", t[0], rounds);
	put_times(o, "quic", t[1], rounds);
	free(t[0]);
	free(t[1]);
}

static void measure_copy(struct json_out *o, size_t size, size_t rounds)
{
	static uint8_t to[BLOCK_MOST];
	cgn_nsec *t = calloc(rounds, sizeof *t);
	for (size_t i = 0; i < rounds; i++) {
		cgn_nsec from = cgn_clock_now();
		memcpy(to, block, size);
		__asm__ volatile("" ::"r"(to) : "memory");
		t[i] = cgn_clock_now() - from;
	}
	put_times(o, "memcpy", t, rounds);
	free(t);
}

static void report_all(struct json_out *o, struct fetch *f, size_t rounds)
{
	for (unsigned first = 0; first < 2; first++) {
		size_t n = first ? (rounds + 9) / 10 : rounds;
		json_key(o, first ? "first" : "warm");
		json_open(o, '{');
		json_key_u64(o, "rounds", n);
		for (size_t i = 0; i < CGN_COUNT(sizes); i++) {
			char name[24];
			(void)snprintf(name, sizeof name, "%zu", sizes[i]);
			json_key(o, name);
			json_open(o, '{');
			measure_size(o, f, sizes[i], n, first);
			measure_copy(o, sizes[i], n);
			json_close(o, '}');
		}
		json_close(o, '}');
	}
	struct quic_stats st = quic_endpoint_stats(f->ep);
	json_key_f64(o, "datagrams_per_receive", (double)(st.packets_in * 10 / (st.receives + 1)) / 10);
	json_key_f64(o, "bytes_per_datagram", (double)(st.bytes_in * 10 / (st.packets_in + 1)) / 10);
	json_key(o, "gso");
	json_put_bool(o, st.gso && st.gro);
}

int main(int argc, char **argv)
{
	struct server s = {0};
	struct fetch f = {0};
	struct cgn_err err = {0};
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	size_t rounds = argc > 1 ? (size_t)strtoul(argv[1], NULL, 10) : 2000;
	server_run(&s);
	must_succeed(cgn_loop_new(&f.loop, &err), &err);
	f.tls = make_tls(false);
	struct quic_endpoint_cfg q = {.addr = "127.0.0.1:0", .tls = f.tls, .alpn = ALPN, .max_conns = 4096};
	must_succeed(quic_endpoint_new(f.loop, &q, NULL, NULL, &f.ep, &err), &err);
	(void)snprintf(f.quic_addr, sizeof f.quic_addr, "127.0.0.1:%u", quic_endpoint_port(s.quic));
	(void)snprintf(f.tcp_addr, sizeof f.tcp_addr, "127.0.0.1:%u", net_listener_port(s.tcp));
	json_open(&o, '{');
	report_all(&o, &f, rounds > 0 ? rounds : 1);
	hang_up(&f);
	quic_endpoint_close(&f.ep);
	cgn_loop_free(&f.loop);
	cgn_loop_post(s.loop, &s.stop, on_stop);
	cgn_loop_join(s.loop);
	json_key_f64(&o, "datagrams_per_send", (double)(s.last.packets_out * 10 / (s.last.sends + 1)) / 10);
	json_key_u64(&o, "sent_again", s.last.lost);
	json_close(&o, '}');
	(void)puts(cgn_buf_z(&b));
	cgn_loop_free(&s.loop);
	tls_ctx_free(&s.tls);
	tls_ctx_free(&f.tls);
	cgn_buf_fini(&b);
	char cmd[96];
	(void)snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
	return system(cmd);
}
