/* SPDX-License-Identifier: Apache-2.0 */
/* quic_peer: one side of QUIC for tests in real networks and with foreign clients.
 *   quic_peer certs DIR                           writes ca.crt, ca.key, node.crt, node.key
 *   quic_peer serve ADDR DIR ALPN [retry]         prints "listening PORT", a line for each peer, and at the
 *                                                 end of its input its counters
 *   quic_peer fetch ADDR DIR ALPN BYTES STREAMS ROUNDS CC
 *                                                 fetches BYTES on each of STREAMS at once, ROUNDS times,
 *                                                 and prints JSON
 * Fetched data is checked byte by byte. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <uv.h>

#include "io/net/pki/pki.h"
#include "io/net/quic/quic.h"
#include "io/os/disk/disk.h"

#define DAY        ((int64_t)86400)
#define BLOCK_MOST ((size_t)64 << 20)

static struct cgn_loop *loop;
static struct quic_endpoint *ep;
static uint8_t *block;

static void must_succeed(cgn_rc rc, const struct cgn_err *err)
{
	if (cgn_ok(rc))
		return;
	(void)fprintf(stderr, "quic_peer: %s\n", err->msg);
	exit(1);
}

static void fill_block(void)
{
	block = malloc(BLOCK_MOST);
	CGN_MUST(block != NULL);
	uint64_t x = 88172645463325252U;
	for (size_t i = 0; i < BLOCK_MOST; i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(block + i, &x, 8);
	}
}

/* ---- certificates ---- */

static void file_put(const char *dir, const char *name, struct cgn_buf *b)
{
	char path[256];
	struct cgn_err err = {0};
	(void)snprintf(path, sizeof path, "%s/%s", dir, name);
	must_succeed(disk_write_file_atomic(path, cgn_buf_view(b), 0600, &err), &err);
}

static int certs_make(const char *dir)
{
	static const char *const names[] = {"node.example", "127.0.0.1", "10.77.0.1", "10.77.0.2", NULL};
	struct pki_pair ca = {0}, leaf = {0};
	struct pki_validity when = {time(NULL) - DAY, time(NULL) + DAY};
	struct cgn_err err = {0};
	must_succeed(pki_make_ca("ca", when, &ca, &err), &err);
	must_succeed(pki_make_leaf(&ca, "node-1", names, when, &leaf, &err), &err);
	file_put(dir, "ca.crt", &ca.cert);
	file_put(dir, "ca.key", &ca.key);
	file_put(dir, "node.crt", &leaf.cert);
	file_put(dir, "node.key", &leaf.key);
	pki_pair_fini(&ca);
	pki_pair_fini(&leaf);
	return 0;
}

static struct tls_ctx *tls_of(const char *dir)
{
	char ca[256], crt[256], key[256];
	struct tls_ctx *c = NULL;
	struct cgn_err err = {0};
	(void)snprintf(ca, sizeof ca, "%s/ca.crt", dir);
	(void)snprintf(crt, sizeof crt, "%s/node.crt", dir);
	(void)snprintf(key, sizeof key, "%s/node.key", dir);
	struct tls_cfg cfg = {.server = true,
		.ca_file = ca,
		.cert_file = crt,
		.key_file = key,
		.require_peer_cert = true};
	must_succeed(tls_ctx_new(&cfg, &c, &err), &err);
	return c;
}

/* ---- serving ---- */

struct ask {
	uint8_t p[8];
	size_t n;
};

static void buffer_released(void *arg)
{
	(void)arg;
}

static void ask_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	struct ask *a = user;
	uint64_t want;
	if (a->n == 0 && n > 0) {
		(void)printf("stream of peer\n");
		(void)fflush(stdout);
	}
	for (size_t i = 0; i < n && a->n < sizeof a->p; i++)
		a->p[a->n++] = p[i];
	memcpy(&want, a->p, sizeof want);
	if (fin && a->n == sizeof a->p && want <= BLOCK_MOST)
		quic_send(s, &(struct iovec){block, (size_t)want}, 1, true, buffer_released, NULL);
	else if (fin)
		quic_send(s, NULL, 0, true, NULL, NULL);
}

static void ask_close(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	(void)s;
	(void)why;
	(void)code;
	free(user);
}

static void on_stream(struct quic_conn *c, void *user, struct quic_stream *s)
{
	static const struct quic_stream_ops ops = {.on_data = ask_data, .on_close = ask_close};
	(void)c;
	(void)user;
	quic_stream_take(s, &ops, calloc(1, sizeof(struct ask)));
}

static void on_close(struct quic_conn *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	(void)printf("closed %s %s\n", cgn_code_name(why->code), why->msg);
	(void)fflush(stdout);
}

static void on_accept(void *user, struct quic_conn *c)
{
	static const struct quic_conn_ops ops = {.on_stream = on_stream, .on_close = on_close};
	(void)printf("peer %.*s\n", CGN_STR_ARG(quic_conn_peer_name(c)));
	(void)fflush(stdout);
	quic_conn_take(c, &ops, user);
}

static uv_poll_t input;

static void on_input(uv_poll_t *h, int status, int events)
{
	char c;
	(void)status;
	(void)events;
	if (read(0, &c, 1) > 0)
		return;
	struct quic_stats st = quic_endpoint_stats(ep);
	struct cgn_err why;
	cgn_nsec at;
	quic_endpoint_refusal(ep, &why, &at);
	(void)printf("counters accepted=%llu failed=%llu retries=%llu versions=%llu lost=%llu refusal=%s\n",
		(unsigned long long)st.accepted, (unsigned long long)st.handshakes_failed,
		(unsigned long long)st.retries_sent, (unsigned long long)st.versions_sent,
		(unsigned long long)st.lost, why.msg);
	uv_close((uv_handle_t *)h, NULL);
	quic_endpoint_close(&ep);
	cgn_loop_stop(loop);
}

static int peer_serve(const char *addr, const char *dir, const char *alpn, bool retry, enum quic_cc cc)
{
	struct cgn_err err = {0};
	struct tls_ctx *tls = tls_of(dir);
	struct quic_endpoint_cfg cfg =
		{.addr = addr, .tls = tls, .alpn = alpn, .retry_always = retry, .cc = cc, .max_one_way = 3};
	must_succeed(quic_endpoint_new(loop, &cfg, on_accept, NULL, &ep, &err), &err);
	CGN_MUST(uv_poll_init(cgn_loop_uv(loop), &input, 0) == 0 &&
		uv_poll_start(&input, UV_READABLE, on_input) == 0);
	(void)printf("listening %u\n", quic_endpoint_port(ep));
	(void)fflush(stdout);
	cgn_loop_run(loop);
	cgn_loop_free(&loop);
	tls_ctx_free(&tls);
	return 0;
}

/* ---- fetching ---- */

struct fetch {
	struct quic_conn *c;
	uint64_t bytes;
	unsigned streams, rounds, open, round;
	cgn_nsec from, began, *times;
	bool failed;
};

struct part {
	struct fetch *f;
	size_t got;
};

static void next_round(struct fetch *f);

static void part_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	struct part *part = user;
	(void)s;
	if (part->got + n > part->f->bytes || memcmp(block + part->got, p, n) != 0)
		part->f->failed = true;
	part->got += n;
	if (fin && part->got != part->f->bytes)
		part->f->failed = true;
}

static void part_close(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	struct part *part = user;
	struct fetch *f = part->f;
	(void)s;
	(void)code;
	if (why->code != CGN_FINE) {
		(void)fprintf(stderr, "quic_peer: %s\n", why->msg);
		f->failed = true;
	}
	free(part);
	if (--f->open > 0 || f->failed)
		return;
	f->times[f->round++] = cgn_clock_now() - f->began;
	next_round(f);
}

static void next_round(struct fetch *f)
{
	static const struct quic_stream_ops ops = {.on_data = part_data, .on_close = part_close};
	struct cgn_err err = {0};
	if (f->round == f->rounds) {
		quic_conn_close(f->c, 0, NULL);
		return;
	}
	f->began = cgn_clock_now();
	f->open = f->streams;
	for (unsigned i = 0; i < f->streams; i++) {
		struct part *p = calloc(1, sizeof *p);
		struct quic_stream *s = NULL;
		p->f = f;
		must_succeed(quic_stream_open(f->c, &ops, p, &s, &err), &err);
		quic_send(s, &(struct iovec){&f->bytes, sizeof f->bytes}, 1, true, NULL, NULL);
	}
}

static void fetch_open(struct quic_conn *c, void *user)
{
	(void)c;
	next_round(user);
}

static void fetch_close(struct quic_conn *c, void *user, const struct cgn_err *why)
{
	struct fetch *f = user;
	(void)c;
	if (why->code != CGN_FINE) {
		(void)fprintf(stderr, "quic_peer: %s\n", why->msg);
		f->failed = true;
	}
	cgn_loop_stop(loop);
}

static int by_value(const void *a, const void *b)
{
	const cgn_nsec *x = a, *y = b;
	return *x < *y ? -1 : *x > *y;
}

static void fetch_report(const struct fetch *f)
{
	cgn_nsec all = cgn_clock_now() - f->from;
	qsort(f->times, f->rounds, sizeof(cgn_nsec), by_value);
	(void)printf(
		"{\"bytes\":%llu,\"streams\":%u,\"rounds\":%u,\"p50_us\":%llu,\"worst_us\":%llu,\"all_us\":%llu,\"mbit_per_s\":%.1f}\n",
		(unsigned long long)f->bytes, f->streams, f->rounds,
		(unsigned long long)(f->times[f->rounds / 2] / 1000),
		(unsigned long long)(f->times[f->rounds - 1] / 1000), (unsigned long long)(all / 1000),
		(double)(f->bytes * f->streams * f->rounds) * 8e3 / (double)all);
}

static int fetch_run(char **argv, enum quic_cc cc)
{
	static const struct quic_conn_ops ops = {.on_open = fetch_open, .on_close = fetch_close};
	struct cgn_err err = {0};
	struct tls_ctx *tls = tls_of(argv[3]);
	struct quic_endpoint_cfg cfg = {.addr = "0.0.0.0:0", .tls = tls, .alpn = argv[4], .cc = cc};
	struct fetch f = {.bytes = strtoull(argv[5], NULL, 10),
		.streams = (unsigned)strtoul(argv[6], NULL, 10),
		.rounds = (unsigned)strtoul(argv[7], NULL, 10)};
	f.times = calloc(f.rounds + 1, sizeof(cgn_nsec));
	must_succeed(quic_endpoint_new(loop, &cfg, NULL, NULL, &ep, &err), &err);
	f.from = cgn_clock_now();
	must_succeed(quic_connect(ep, argv[2], NULL, &ops, &f, &f.c, &err), &err);
	cgn_loop_run(loop);
	if (!f.failed)
		fetch_report(&f);
	quic_endpoint_close(&ep);
	cgn_loop_free(&loop);
	tls_ctx_free(&tls);
	free(f.times);
	return f.failed ? 1 : 0;
}

static enum quic_cc cc_by_name(const char *name)
{
	if (name != NULL && strcmp(name, "bbr") == 0)
		return QUIC_CC_BBR;
	return name != NULL && strcmp(name, "reno") == 0 ? QUIC_CC_RENO : QUIC_CC_CUBIC;
}

int main(int argc, char **argv)
{
	struct cgn_err err = {0};
	if (argc == 3 && strcmp(argv[1], "certs") == 0)
		return certs_make(argv[2]);
	must_succeed(cgn_loop_new(&loop, &err), &err);
	fill_block();
	if (argc >= 5 && argc <= 7 && strcmp(argv[1], "serve") == 0)
		return peer_serve(argv[2], argv[3], argv[4], argc > 5 && strcmp(argv[5], "retry") == 0,
			cc_by_name(argc > 6 ? argv[6] : NULL));
	if (argc == 9 && strcmp(argv[1], "fetch") == 0)
		return fetch_run(argv, cc_by_name(argv[8]));
	(void)fprintf(stderr,
		"usage: quic_peer certs DIR | serve ADDR DIR ALPN [retry|plain [CC]] | fetch ADDR DIR ALPN BYTES STREAMS ROUNDS CC\n");
	return 2;
}
